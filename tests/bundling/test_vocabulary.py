"""Words of detsweep's own stay, whoever is called so."""

from __future__ import annotations

from pathlib import Path

import pytest

import detsweep
from detsweep.bundling import make, opened
from detsweep.capture import LEVELS, Stream, to_line
from detsweep.paths import SweepPaths, write_json
from tests.support import plan_of, trial_of, write_cells, write_trial

KEYS = (
    "grads",
    "params",
    "records",
    "nonfinite",
    "checksum",
    "loss_bits",
    "order_bits",
    "block_pre",
    "world_size",
    "run",
)
VALUES = ("r1", "r2", "xxh3", "float32", "loss", "forward", "blocks.1", "value", "pass", LEVELS[1])


def test_these_are_keys_of_records() -> None:
    assert [key for key in KEYS if f'"{key}":' not in to_line(Stream(0, 0, "r1", "xxh3", ()), world_size=1)] == []


@pytest.mark.parametrize("name", [*KEYS, *VALUES])
@pytest.mark.parametrize("variable", ["SUDO_USER", "AWS_SECRET_ACCESS_KEY"])
def test_records_are_the_same_bytes_where_somebody_is_called_like_a_word_in_them(
    name: str, variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(["fault=bit_flip"], common=["model.num_layers=2"])
    sweep = write_cells(tmp_path / "x", plan)
    trial = trial_of(sweep, plan.cells[0])
    write_trial(trial, plan.cells[0], differs={0: {(0, 2): 5}})
    before = trial.records(0).read_bytes(), trial.result.read_text()
    trial.logs.mkdir()
    trial.rank_log(0).write_text(f"{variable}={name}\n")
    monkeypatch.setenv(variable, name)
    made = make(sweep.folder, tmp_path / "out.tar.zst", environment={}, redacted=True)
    after = SweepPaths(opened(made.path)).all_cells()[0].trial(0)
    assert (after.records(0).read_bytes(), after.result.read_text()) == before
    assert name not in after.rank_log(0).read_text()
    assert list(detsweep.load(opened(made.path)).trials["verdict"]) == ["diverged"]


def test_keys_of_anybody_elses_files_are_names_as_all_others_are(tmp_path: Path) -> None:
    plan = plan_of(["seed=1"])
    sweep = write_cells(tmp_path / "x", plan)
    trial = trial_of(sweep, plan.cells[0])
    write_trial(trial, plan.cells[0])
    trial.logs.mkdir()
    write_json(trial.job, {"host": "gpu17"})
    trial.rank_log(0).write_text("on gpu17 now\n")
    (trial.logs / "notes.json").write_text('{"gpu17": 1}')
    (trial.logs / "notes.jsonl").write_text('{"gpu17": 1}\n')
    made = make(sweep.folder, tmp_path / "out.tar.zst", environment={}, redacted=True)
    files = [path for path in opened(made.path).rglob("*") if path.is_file()]
    assert [path.name for path in files if b"gpu17" in path.read_bytes()] == []
    assert '{"node-1": 1}' in next(path for path in files if path.name == "notes.json").read_text()
