"""A real sweep with secrets of every kind planted in it: none is in the bundle, and it still reads as before."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pandas as pd
import pytest
import zstandard

import detsweep
from detsweep.bundling import LeakError, make, opened
from detsweep.bundling.names import Names
from detsweep.capture import read_streams
from detsweep.paths import SweepPaths, read_json, write_json
from tests.bundling import planting
from tests.conftest import run_detsweep
from tests.support import plan_of, trial_of, write_cells, write_trial

SHELL = {"HF_TOKEN": "hf_ofTheShell1234567890abcd", "PLANTED_TOKEN": "of-the-shell"}
OVERRIDES = (
    "-m", "fault=none,bit_flip", "+env.WEAK_PASSWORD=tiny", "+env.OWN_TOKEN=first-value-a1",
    f"+env.LONG_SECRET={'verylong' * 12}",
)  # fmt: skip


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a sweep that ran here, with secrets on its command line, and all others planted in it."""
    folder = tmp_path_factory.mktemp("sweep") / "runs-of-mallory"
    ran = run_detsweep(folder, *OVERRIDES, **SHELL)
    assert ran.code == 1, ran.err
    planting.plant(folder)
    return folder


@pytest.fixture(scope="module")
def bundle(planted: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The redacted bundle that the command line made of it."""
    path = tmp_path_factory.mktemp("bundle") / "out.tar.zst"
    done = subprocess.run(
        [sys.executable, "-m", "detsweep.bundle", str(planted), "--redact", "-o", str(path)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert "every byte of the archive was searched" in done.stdout
    return path


def _members(path: Path) -> dict[str, bytes]:
    data = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(path.read_bytes())).read()
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        return {member.name: archive.extractfile(member).read() for member in archive}  # type: ignore[union-attr]


@pytest.fixture(scope="module")
def members(bundle: Path) -> Mapping[str, bytes]:
    return _members(bundle)


def test_what_is_planted_is_found_by_this_test_in_a_bundle_that_is_not_redacted(planted: Path, tmp_path: Path) -> None:
    plain = make(planted, tmp_path / "plain.tar.zst", environment={}).path
    whole = b"\n".join(name.encode() + b"\n" + data for name, data in _members(plain).items())
    assert [name for name, value in planting.every().items() if value.encode() not in whole] == []
    assert json.dumps(planting.PASSWORD, ensure_ascii=False)[1:-1].encode() in whole


@pytest.mark.parametrize("name", planting.every())
def test_nothing_that_was_planted_is_in_any_file_or_name(name: str, members: Mapping[str, bytes]) -> None:
    for form in planting.forms(planting.every()[name]):
        for member, data in members.items():
            assert form not in data, (member, form)
            assert form not in member.encode()


def test_nothing_of_the_command_line_is_there_either(members: Mapping[str, bytes]) -> None:
    whole = b"\n".join(name.encode() + b"\n" + data for name, data in members.items())
    for value in ("first-value-a1", "verylong", "mallory", *SHELL.values()):
        assert value.encode() not in whole


def test_an_ordinary_word_is_replaced_where_its_name_stands_and_nowhere_else(bundle: Path) -> None:
    cells = [read_json(paths.cell) for paths in SweepPaths(opened(bundle)).all_cells()]
    assert {cell["config"]["model"]["name"] for cell in cells} == {"tiny"}
    for cell in cells:
        assert cell["overrides"]["env.WEAK_PASSWORD"].startswith("REDACTED-")
        assert cell["config"]["env"]["WEAK_PASSWORD"] == cell["overrides"]["env.WEAK_PASSWORD"]
        assert "WEAK_PASSWORD-tiny" not in cell["slug"]


def test_what_is_one_thing_before_is_one_thing_after(members: Mapping[str, bytes]) -> None:
    logs = [data.decode() for name, data in members.items() if "/nccl-" in name]
    assert logs
    node = logs[0].partition(":")[0]
    assert node.startswith("node-")
    assert {name.rpartition("/")[2] for name in members if "/nccl-" in name} == {f"nccl-{node}-4711.log"}
    hosts = {json.loads(data)["host"] for name, data in members.items() if name.endswith("job.json")}
    assert hosts == {node}
    session = next(json.loads(data) for name, data in members.items() if name.endswith("sweep.json"))["sessions"][-1]
    assert session["host"].startswith(node)
    assert session["cwd"] == "<cwd>"


def _table(folder: Path) -> pd.DataFrame:
    frame = detsweep.load(folder).trials
    kept = ["fault", "trial", "verdict", "effect", "first_site", "first_block", "cause", "replays", "diverged_replays"]
    return frame[[*kept, "step_ms", "error"]].reset_index(drop=True)


def test_it_loads_with_the_same_verdicts(planted: Path, bundle: Path) -> None:
    before, after = detsweep.load(planted), detsweep.load(opened(bundle))
    assert list(after.trials["verdict"]) == ["pass", "diverged"]
    pd.testing.assert_frame_equal(_table(planted), _table(opened(bundle)))
    assert list(after.axes) == list(before.axes) == ["fault"]
    assert len(after.divergences) == len(before.divergences) > 0


def test_fingerprints_are_the_same_bit_for_bit(planted: Path, bundle: Path) -> None:
    pairs = zip(SweepPaths(planted).all_cells(), SweepPaths(opened(bundle)).all_cells(), strict=True)
    digests = []
    for paths in pairs:
        streams = [[read_streams(cell.trial(0).records(rank)) for rank in range(2)] for cell in paths]
        digests.append([sorted(r.digest for s in one for stream in s for r in stream.records) for one in streams])
    before, after = sorted(one[0] for one in digests), sorted(one[1] for one in digests)
    assert before == after


def test_it_loads_as_the_file_that_it_is_and_its_files_are_whole(planted: Path, bundle: Path) -> None:
    before, after = detsweep.load(planted), detsweep.load(bundle)
    assert list(after.trials["verdict"]) == list(before.trials["verdict"])
    # Redacted records have another length and another hash, and the results know.
    said = list(after.problems["problem"])
    assert [line for line in said if "is not what was written" in line or " bytes, " in line] == []
    assert len(said) <= len(before.problems)
    assert list(detsweep.load(bundle, recount=True).trials["notes"]) == list(after.trials["notes"])


def test_it_reports_and_diffs_without_any_of_it(bundle: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    command = [sys.executable, "-m", "detsweep.analysis", "report", str(bundle), "-o", str(page)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    text = page.read_bytes()
    assert b"diverged" in text
    assert [name for name, value in planting.every().items() if value.encode() in text] == []
    command = [sys.executable, "-m", "detsweep.diff", str(bundle), str(bundle)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_analysis_command_reads_it(bundle: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "detsweep.analysis", str(bundle)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "2 trials of 2 cells: 1 pass, 1 diverged" in done.stdout


def test_binary_files_with_a_secret_are_left_out_by_name_and_others_are_there(
    bundle: Path, members: Mapping[str, bytes]
) -> None:
    manifest = next(json.loads(data) for name, data in members.items() if name.endswith("/manifest.json"))
    left_out = {one["name"].rpartition("/")[2]: one["why"] for one in manifest["left_out"]}
    assert left_out["core.bin"] == left_out["wide.bin"] == "binary, and holds a name or a secret"
    assert not any(name.endswith(("core.bin", "wide.bin")) for name in members)
    assert any(name.endswith("clean.bin") for name in members)
    assert manifest["redacted"]
    kinds = {one["kind"] for one in manifest["redaction"]["replaced"]}
    assert {"secret", "user", "node", "domain", "ip", "mac", "mail", "uuid", "serial", "account", "partition"} <= kinds


def test_an_id_from_which_a_secret_could_be_guessed_is_another(planted: Path, bundle: Path) -> None:
    before = {read_json(paths.cell)["id"] for paths in SweepPaths(planted).all_cells()}
    after = {read_json(paths.cell)["id"] for paths in SweepPaths(opened(bundle)).all_cells()}
    assert not before & after
    assert set(read_json(SweepPaths(opened(bundle)).sweep)["cells"]) == after


def test_a_file_that_was_torn_before_is_torn_after_and_as_an_error(planted: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(planted, copy)
    first, second, *_ = SweepPaths(copy).all_cells()
    records = first.trial(0).records(1)
    records.write_bytes(records.read_bytes()[:-100])
    second.trial(0).result.write_text('{"schema": 2, "verdict": "pass", "PLANTED_TOKEN": "torn-secret-1')
    made = make(copy, tmp_path / "torn.tar.gz", environment={}, redacted=True)
    verdicts = detsweep.load(opened(made.path)).trials["verdict"].value_counts()
    assert verdicts["error"] == 2
    assert b"torn-secret-1" not in b"".join(path.read_bytes() for path in opened(made.path).rglob("*.json"))


def test_an_archive_that_still_holds_something_is_not_left(
    planted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Names, "replaced", lambda _, text: text)
    with pytest.raises(LeakError, match="stands for"):
        make(planted, tmp_path / "out.tar.zst", environment={}, redacted=True)
    assert list(tmp_path.iterdir()) == []


def test_a_secret_that_only_escapes_hide_is_found_before_the_archive_is_left(planted: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(planted, copy)
    cell = SweepPaths(copy).all_cells()[0]
    hidden = "".join(f"\\u{ord(c):04x}" for c in planting.BY_NAME["PLANTED_TOKEN"])
    (cell.folder / "note.txt").write_text(f'"{hidden}"\n')
    with pytest.raises(LeakError, match="in escapes"):
        make(copy, tmp_path / "out.tar.zst", environment={}, redacted=True)
    (cell.folder / "note.txt").rename(cell.folder / "note.json")
    made = make(copy, tmp_path / "out.tar.zst", environment={}, redacted=True)
    assert "REDACTED-" in next(opened(made.path).glob("cells/*/note.json")).read_text()


def test_what_only_this_machine_knows_is_removed_from_its_environment(planted: Path, tmp_path: Path) -> None:
    environment = {
        "host": "front.corp.example.com",
        "network": {"eth0": {"firmware": "1.2"}},
        "gpus": {
            "0": {"uuid": "GPU-01234567-89ab-cdef-0123-456789abcdef", "serial": "SN12345678", "vbios": "96.0.7.4"}
        },
        "packages": {"nvidia-cublas-cu12": "12.4.5.8"},
        "variables": {"NCCL_IB_HCA": "mlx5_0"},
    }
    made = make(planted, tmp_path / "out.tar.zst", environment=environment, redacted=True)
    told = read_json(opened(made.path).parent / "environment.json")
    assert told["host"].startswith("node-")
    assert told["packages"] == environment["packages"]
    assert told["gpus"]["0"]["vbios"] == "96.0.7.4"
    assert told["gpus"]["0"]["uuid"].startswith("GPU-uuid-") or told["gpus"]["0"]["uuid"].startswith("uuid-")
    assert told["gpus"]["0"]["serial"].startswith("serial-")


def test_an_axis_of_secrets_stays_an_axis(tmp_path: Path) -> None:
    plan = plan_of(["+env.AXIS_TOKEN=first-a1"], ["+env.AXIS_TOKEN=second-b2"], common=["world.nproc_per_node=1"])
    sweep = write_cells(tmp_path / "runs", plan)
    session = read_json(sweep.sweep)
    session["sessions"][0]["arguments"] = ["-m", "+env.AXIS_TOKEN=first-a1,second-b2"]
    write_json(sweep.sweep, session)
    for cell in plan.cells:
        write_trial(trial_of(sweep, cell), cell)
    made = make(sweep.folder, tmp_path / "out.tar.zst", environment={}, redacted=True)
    after = detsweep.load(opened(made.path))
    values = list(after.trials["env.AXIS_TOKEN"])
    assert after.axes == ("env.AXIS_TOKEN",)
    assert len(set(values)) == 2
    told = read_json(SweepPaths(after.folder).sweep)["sessions"][0]["arguments"]
    assert told == ["-m", f"+env.AXIS_TOKEN={','.join(values)}"]


def test_a_node_that_is_called_like_a_label_gets_another(tmp_path: Path, planted: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(planted, copy)
    trial = SweepPaths(copy).all_cells()[0].trial(0)
    write_json(trial.job, {**read_json(trial.job), "host": "node-1", "nodes": [{"node": 0, "name": "node-2"}]})
    made = make(copy, tmp_path / "out.tar.zst", environment={}, redacted=True)
    whole = b"".join(path.read_bytes() for path in opened(made.path).rglob("*") if path.is_file())
    assert b'"node-1"' not in whole
    assert b'"node-2"' not in whole
    assert b'"node-3"' in whole


def test_what_a_cluster_leaves_behind_names_no_node_of_it(tmp_path: Path) -> None:
    plan = plan_of(["seed=5"])
    sweep = write_cells(tmp_path / "runs", plan)
    trial = trial_of(sweep, plan.cells[0])
    result = write_trial(trial, plan.cells[0])
    hosts = ["pluto7", "pluto12"]
    error = "rank 1: lost (rank 1 on pluto12)"
    write_json(trial.result, {**result, "nodes": hosts, "verdict": "error", "error": error, "error_ranks": [1]})
    job = {"launcher": "slurm", "job_id": "4711_0", "host": "pluto7.cluster.example.org", "command": []}
    job["nodes"] = [{"node": number, "name": name, "ranks": [number]} for number, name in enumerate(hosts)]
    job["meeting"] = {"address": "pluto7", "ports": [15000]}
    write_json(trial.job, job)
    write_json(trial.meeting, {"address": "10.9.8.7", "ports": [15000], "hosts": hosts})
    for number, name in enumerate(hosts):
        write_json(trial.node(number), {"node": number, "name": name, "host": name, "address": f"10.9.8.{number + 7}"})
    trial.logs.mkdir()
    trial.launcher_log_of(1).write_text("[pluto12]: lost PLUTO7; srun: error: pluto[7,12]: task 1: Killed\n")
    made = make(sweep.folder, tmp_path / "out.tar.zst", environment={}, redacted=True)
    folder = opened(made.path)
    for path in folder.rglob("*"):
        data = path.read_bytes().lower() if path.is_file() else b""
        assert not [word for word in (b"pluto", b"example.org", b"10.9.8.") if word in data], path
    after = SweepPaths(folder).all_cells()[0].trial(0)
    assert read_json(after.result)["nodes"] == ["node-1", "node-2"]
    assert detsweep.load(folder).trials["error"][0] == "rank 1: lost (rank 1 on node-2)"
    assert read_json(after.meeting)["hosts"] == ["node-1", "node-2"]
    assert after.launcher_log_of(1).read_text() == "[node-2]: lost node-1; srun: error: nodes: task 1: Killed\n"
