"""A sweep in the trackers themselves, offline, read back with what each of them reads with."""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from detsweep.analysis import load, write_report
from detsweep.analysis.tracking import TrackerError, send
from detsweep.analysis.tracking.runs import tracked
from detsweep.paths import SweepPaths
from tests.comparing import written_anew
from tests.support import BLOCK_0_POST, plan_of, trial_of, write_cells, write_failure, write_trial


@pytest.fixture(autouse=True)
def _own_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a shell says to the trackers is not what is tested, and what they are told here does not stay."""
    for name in [name for name in os.environ if name.startswith(("WANDB_", "MLFLOW_"))]:
        monkeypatch.delenv(name)
    for name in ("WANDB_MODE", "WANDB_SILENT", "WANDB_ERROR_REPORTING", "MLFLOW_ALLOW_FILE_STORE",
                 "MLFLOW_DISABLE_TELEMETRY", "MLFLOW_LOGGING_LEVEL"):  # fmt: skip
        # So that what is set inside is taken back.
        monkeypatch.setenv(name, "x")
        monkeypatch.delenv(name)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A sweep of a cell that diverged in 1 of 4 replays, and one that failed."""
    plan = plan_of(["dtype=bf16", "+env.NCCL_ALGO=Tree", "steps=4"], ["dtype=fp32", "+env.NCCL_ALGO=Tree", "steps=4"])
    sweep = write_cells(tmp_path / "runs", plan)
    write_trial(trial_of(sweep, plan.cells[0]), plan.cells[0], differs={1: {(2, 2): BLOCK_0_POST}})
    write_failure(trial_of(sweep, plan.cells[1]), plan.cells[1], error="out of memory")
    write_report(load(sweep.folder))
    return sweep.folder


def _repaired(folder: Path) -> None:
    """The same sweep once the cell that diverged was launched anew, and passed."""
    plan = plan_of(["dtype=bf16", "+env.NCCL_ALGO=Tree", "steps=4"])
    sweep = SweepPaths(folder)
    written_anew(trial_of(sweep, plan.cells[0]), plan.cells[0], differs={})


def _expected(folder: Path) -> dict[str, Mapping[str, float]]:
    return {run.name: run.metrics for run in tracked(load(folder)).runs}


# --- mlflow ----------------------------------------------------------------------------------------------------------


def _mlflow_runs(folder: Path) -> dict[str, Any]:
    from mlflow.tracking import MlflowClient

    database = folder / "mlruns" / "mlflow.db"
    client = MlflowClient(tracking_uri=f"sqlite:///{database}" if database.exists() else (folder / "mlruns").as_uri())
    experiment = client.get_experiment_by_name("detsweep")
    runs = client.search_runs([experiment.experiment_id])
    assert len({run.info.run_name for run in runs}) == len(runs)
    found = {run.info.run_name: run for run in runs}
    for run in runs:
        assert [item.path for item in client.list_artifacts(run.info.run_id)] == ["matrix.md"]
    return found


def test_mlflow_has_a_run_for_each_cell_with_params_metrics_tags_and_the_matrix(folder: Path) -> None:
    told = send("mlflow", load(folder))
    assert told.startswith("2 runs in experiment detsweep of ")
    runs = _mlflow_runs(folder)
    assert {name: run.data.metrics for name, run in runs.items()} == _expected(folder)
    diverged, failed = (run for _, run in sorted(runs.items()))
    assert diverged.data.params == {"dtype": "bf16", "env.NCCL_ALGO": "Tree", "steps": "4"}
    assert (diverged.data.tags["verdict"], diverged.data.tags["first_site"], diverged.data.tags["cause"]) == (
        "diverged", "block_post", "compute",
    )  # fmt: skip
    assert (diverged.info.status, failed.info.status) == ("FINISHED", "FAILED")
    assert (failed.data.tags["verdict"], failed.data.tags["error"]) == ("error", "out of memory")


def test_mlflow_again_updates_the_runs_that_there_are(folder: Path) -> None:
    send("mlflow", load(folder))
    before = {name: run.info.run_id for name, run in _mlflow_runs(folder).items()}
    _repaired(folder)
    send("mlflow", load(folder))
    runs = _mlflow_runs(folder)
    assert {name: run.info.run_id for name, run in runs.items()} == before
    assert {name: run.data.metrics for name, run in runs.items()} == _expected(folder)
    repaired = min(runs.items())[1]
    assert repaired.data.tags["verdict"] == "pass"
    # What was true while it diverged is no more.
    assert not {"first", "first_site", "cause"} & repaired.data.tags.keys()


def test_mlflow_has_an_experiment_and_a_store_of_the_users_where_the_shell_says_so(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow.tracking import MlflowClient

    uri = (tmp_path / "elsewhere").as_uri()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "ours")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    assert f"experiment ours of {uri}" in send("mlflow", load(folder))
    client = MlflowClient(tracking_uri=uri)
    assert len(client.search_runs([client.get_experiment_by_name("ours").experiment_id])) == 2
    assert not (folder / "mlruns").exists()


def test_mlflow_says_where_the_matrix_is_missing_because_the_folder_was_moved(folder: Path) -> None:
    send("mlflow", load(folder))
    moved = folder.parent / "moved"
    shutil.move(folder, moved)
    assert "without matrix.md, as the folder was moved" in send("mlflow", load(moved))
    assert not folder.exists()


# --- wandb -----------------------------------------------------------------------------------------------------------


HEADER, BLOCK, FULL, LAST = 7, 32_768, 1, 4


def _log_records(data: bytes) -> Iterator[bytes]:
    """The records of wandb's log, which has LevelDB's format behind a header of its own."""
    assert data.startswith(b":W&B")
    place, parts = HEADER, b""
    while place + HEADER <= len(data):
        if BLOCK - place % BLOCK < HEADER:
            # Too little is left of the block for another record.
            place += BLOCK - place % BLOCK
            continue
        _, length, kind = struct.unpack("<IHB", data[place : place + HEADER])
        parts += data[place + HEADER : place + HEADER + length]
        place += HEADER + length
        if kind in (FULL, LAST):
            yield parts
            parts = b""


def _wandb_records(folder: Path) -> dict[str, list[Any]]:
    """The records of each offline run by the run's name."""
    from wandb.proto import wandb_internal_pb2

    found: dict[str, list[Any]] = {}
    for file in sorted(folder.glob("wandb/offline-run-*/run-*.wandb")):
        records = []
        for data in _log_records(file.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            records.append(record)
        (name,) = {record.run.display_name for record in records if record.WhichOneof("record_type") == "run"}
        assert name not in found
        found[name] = records
    return found


def _items(records: list[Any], kind: str) -> dict[str, Any]:
    """The last value of every key of the history or the summary."""
    found = {}
    for record in records:
        if record.WhichOneof("record_type") == kind:
            own = getattr(record, kind)
            for item in own.item if kind == "history" else own.update:
                found[item.key or ".".join(item.nested_key)] = json.loads(item.value_json)
    return found


def test_wandb_has_an_offline_run_for_each_cell(folder: Path) -> None:
    told = send("wandb", load(folder))
    assert f"WANDB_MODE=offline, in {folder / 'wandb'}" in told
    runs = _wandb_records(folder)
    expected = _expected(folder)
    assert runs.keys() == expected.keys()
    for name, records in runs.items():
        history = _items(records, "history")
        assert {key: history[key] for key in expected[name]} == expected[name]
    name = min(runs)
    summary = _items(runs[name], "summary")
    assert (summary["verdict"], summary["first_site"], summary["cause"]) == ("diverged", "block_post", "compute")
    (run,) = (record.run for record in runs[name] if record.WhichOneof("record_type") == "run")
    assert {item.key: json.loads(item.value_json) for item in run.config.update}.items() >= {
        ("dtype", "bf16"), ("env.NCCL_ALGO", "Tree"), ("steps", "4"),
    }  # fmt: skip
    assert set(run.tags) == {"diverged", "block_post", "compute"}
    assert (run.project, run.run_group) == ("detsweep", "runs")


def test_wandb_again_replaces_the_runs_that_there_are(folder: Path) -> None:
    send("wandb", load(folder))
    _repaired(folder)
    send("wandb", load(folder))
    runs = _wandb_records(folder)
    assert len(runs) == 2
    assert _items(runs[min(runs)], "summary")["verdict"] == "pass"


# --- tensorboard -----------------------------------------------------------------------------------------------------


def _tensorboard_runs(folder: Path) -> dict[str, Any]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = {}
    for own in sorted((folder / "tensorboard").iterdir()):
        assert len(list(own.iterdir())) == 1
        run = EventAccumulator(str(own))
        run.Reload()
        found[own.name] = run
    return found


def _text(run: Any, tag: str) -> str:
    (event,) = run.Tensors(f"{tag}/text_summary")
    text: bytes = event.tensor_proto.string_val[0]
    return text.decode()


def test_tensorboard_has_an_event_file_for_each_cell(folder: Path) -> None:
    told = send("tensorboard", load(folder))
    assert told == f"2 runs in {folder}/tensorboard; to look at them: tensorboard --logdir {folder}/tensorboard"
    runs = _tensorboard_runs(folder)
    expected = _expected(folder)
    assert len(runs) == len(expected)
    for (name, run), metrics in zip(sorted(runs.items()), (expected[key] for key in sorted(expected)), strict=True):
        assert name.startswith("dtype=")
        scalars = {tag: run.Scalars(tag)[0].value for tag in run.Tags()["scalars"]}
        assert scalars == pytest.approx(dict(metrics), rel=1e-6)
    diverged = min(runs.items())[1]
    assert (_text(diverged, "verdict"), _text(diverged, "cause")) == ("diverged", "compute")
    assert _text(diverged, "matrix") == (folder / "matrix.md").read_text()
    from tensorboard.plugins.hparams import plugin_data_pb2

    data = diverged.PluginTagToContent("hparams")["_hparams_/session_start_info"]
    told_params = plugin_data_pb2.HParamsPluginData.FromString(data).session_start_info.hparams
    assert {name: value.string_value for name, value in told_params.items()} == {
        "dtype": "bf16", "env.NCCL_ALGO": "Tree", "steps": "4",
    }  # fmt: skip


def test_tensorboard_again_replaces_the_files_that_there_are_and_no_other(folder: Path) -> None:
    send("tensorboard", load(folder))
    own = min((folder / "tensorboard").iterdir())
    other = folder / "tensorboard" / "mine" / "events.out.tfevents.1"
    other.parent.mkdir()
    other.write_text("x")
    _repaired(folder)
    send("tensorboard", load(folder))
    assert other.read_text() == "x"
    other.unlink()
    other.parent.rmdir()
    assert _text(_tensorboard_runs(folder)[own.name], "verdict") == "pass"


# --- what is wrong ---------------------------------------------------------------------------------------------------


def test_another_tracker_is_refused_with_those_that_there_are(folder: Path) -> None:
    with pytest.raises(TrackerError, match="log neptune: no such tracker; valid: mlflow, wandb, tensorboard"):
        send("neptune", load(folder))
