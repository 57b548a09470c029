"""`python -m detsweep.golden`: what may become a golden file, what it holds for, and what is refused."""

from __future__ import annotations

import gzip
import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from detsweep.golden.__main__ import main
from detsweep.paths import SweepPaths, TrialPaths, read_json, write_json
from tests.comparing import environment, write_environments, written, written_anew
from tests.support import LOSS, as_written, plan_of, trial_of, write_cells, write_failure, write_trial

Captured = pytest.CaptureFixture[str]
RUN_2 = {0: {(0, 2): LOSS}}
"""On rank 0 the second run differs from the first."""
ALL_RUNS = {0: {(0, 1): LOSS, (0, 2): LOSS}}


@pytest.fixture
def golden(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> Any:
    """Run the command; its exit code, and the lines that it printed."""

    def run(*words: Path | str) -> tuple[int, list[str]]:
        monkeypatch.setattr(sys, "argv", ["golden", *map(str, words)])
        code = main()
        printed = capsys.readouterr()
        return code, [*printed.out.splitlines(), *printed.err.splitlines()]

    return run


def _trial(sweep: SweepPaths, place: int = 0) -> TrialPaths:
    order = read_json(sweep.sweep)["cells"]
    return TrialPaths(sweep.cell_folders()[order[place]] / "trial0")


# --- saving ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["g.json", "g.json.gz"])
def test_what_was_saved_is_equal_to_itself_and_to_the_same_elsewhere(tmp_path: Path, golden: Any, name: str) -> None:
    one, _ = written(tmp_path / "a", ["seed=1"], ["seed=2"], common=["trials=2"])
    other, _ = written(tmp_path / "b", ["seed=2"], ["seed=1"], common=["trials=3"], host="two")
    file = tmp_path / name
    code, lines = golden("save", one.folder, "-o", file)
    assert (code, lines) == (0, [f"{file}: 40 records of 2 cells, {file.stat().st_size} bytes"])
    assert golden("check", file, one.folder) == (
        0,
        ["golden: 160 records in 4 trials of 2 cells, 2 ranks: all bits equal"],
    )
    assert golden("check", file, other.folder) == (
        0, ["golden: 240 records in 6 trials of 2 cells, 2 ranks: all bits equal"],
    )  # fmt: skip
    assert golden("check", file, _trial(other).folder) == (
        0, ["golden: 40 records in 1 trial of 1 cell, 2 ranks: all bits equal"],
    )  # fmt: skip


def test_the_same_trial_always_gives_the_same_file_without_names_of_machines(tmp_path: Path, golden: Any) -> None:
    sweep, _ = written(tmp_path / "a", ["seed=1"], host="nameofhost", variables={"B": "/home/somebody"})
    files = [tmp_path / name for name in ("one.json.gz", "two.json.gz")]
    for file in files:
        golden("save", sweep.folder, "-o", file)
    assert files[0].read_bytes() == files[1].read_bytes()
    content = gzip.decompress(files[0].read_bytes()).decode()
    assert not any(word in content for word in ("nameofhost", "somebody", str(tmp_path)))


def _refused(golden: Any, folder: Path) -> list[str]:
    """The lines with which saving is refused; nothing is written."""
    file = folder.parent / "refused.json"
    code, lines = golden("save", folder, "-o", file)
    assert (code, file.exists()) == (2, False)
    return [line.removeprefix("detsweep: ") for line in lines]


def test_a_trial_that_did_not_pass_is_refused(tmp_path: Path, golden: Any) -> None:
    sweep, _ = written(tmp_path / "a", ["seed=1"], ["seed=2"], differs={1: RUN_2})
    assert _refused(golden, sweep.folder) == ["seed=2: trial 0 is diverged: a golden must have passed"]


def test_a_trial_with_an_error_or_without_a_result_is_refused_with_it(tmp_path: Path, golden: Any) -> None:
    plan = plan_of(["seed=1"], ["seed=2"])
    sweep = write_cells(tmp_path / "a", plan)
    write_failure(trial_of(sweep, plan.cells[0]), plan.cells[0], error="out of memory")
    assert _refused(golden, sweep.folder) == [
        "seed=1: trial 0 is error (out of memory): a golden must have passed",
        "seed=2: trial 0 is none: a golden must have passed",
    ]


def test_a_trial_that_compared_nothing_is_refused(tmp_path: Path, golden: Any) -> None:
    sweep, _ = written(tmp_path / "a", ["mode=record", "runs=1"])
    assert _refused(golden, sweep.folder) == ["mode=record runs=1: trial 0 is recorded: a golden must have passed"]
    other, plan = written(tmp_path / "b", ["seed=1"])
    result = trial_of(other, plan.cells[0]).result
    write_json(result, {**read_json(result), "replays": 0})
    (line,) = _refused(golden, other.folder)
    assert line == "seed=1: trial 0 compared no replay: a golden must have been seen to repeat"


def test_a_trial_with_a_fault_is_refused_even_where_it_passed(tmp_path: Path, golden: Any) -> None:
    sweep, _ = written(tmp_path / "a", ["fault=bit_flip"])
    assert _refused(golden, sweep.folder) == ["fault=bit_flip: fault=bit_flip was put in on purpose"]


def test_trials_that_do_not_agree_are_refused_with_the_place(tmp_path: Path, golden: Any) -> None:
    sweep, plan = written(tmp_path / "a", ["seed=1"], common=["trials=2"])
    trial = trial_of(sweep, plan.cells[0], 1)
    written_anew(trial, plan.cells[0], 1, differs={})
    for rank in range(2):
        path = trial.records(rank)
        # Every run alike, and other than in the first trial; and of the same length.
        path.write_text(path.read_text().replace(f"{(1 << 63) + 1000 * rank + LOSS}", f"{(1 << 63) + 9000 + rank}"))
    as_written(trial)
    assert _refused(golden, sweep.folder) == [
        "seed=1: trial 1 is not as trial 0, first rank 0, loss, step 0 r1, cause compute: a golden must repeat"
    ]


def test_without_environments_it_is_refused_as_nobody_could_say_what_it_holds_for(tmp_path: Path, golden: Any) -> None:
    sweep, _ = written(tmp_path / "a", ["seed=1"])
    gone = _trial(sweep).environment(1)
    gone.unlink()
    assert _refused(golden, sweep.folder) == [f"seed=1: {gone} is missing"]


def test_cells_that_are_unsupported_are_left_out_and_named(tmp_path: Path, golden: Any) -> None:
    sweep, plan = written(tmp_path / "a", ["seed=1"], ["seed=2"])
    shutil.rmtree(_trial(sweep).folder)
    write_failure(_trial(sweep), plan.cells[0], verdict="unsupported", error="not here")
    code, lines = golden("save", sweep.folder, "-o", tmp_path / "g.json")
    assert (code, lines[0]) == (0, "seed=1: unsupported, left out")
    # What is checked later has one more cell than the golden file.
    code, lines = golden("check", tmp_path / "g.json", sweep.folder)
    assert (code, lines[0]) == (0, "not in the golden file: 1 more cell")


def test_a_file_that_cannot_be_written_is_one_line_and_3(tmp_path: Path, golden: Any) -> None:
    sweep, _ = written(tmp_path / "a", ["seed=1"])
    (tmp_path / "file").write_text("")
    code, (line,) = golden("save", sweep.folder, "-o", tmp_path / "file" / "g.json")
    assert code == 3
    assert line.startswith(f"detsweep: {tmp_path / 'file' / 'g.json'} could not be written: ")


# --- checking --------------------------------------------------------------------------------------------------------


def _saved(tmp_path: Path, golden: Any, *points: list[str], **more: Any) -> Path:
    sweep, _ = written(tmp_path / "golden", *(points or (["seed=1"],)), **more)
    file = tmp_path / "g.json"
    assert golden("save", sweep.folder, "-o", file)[0] == 0
    return file


def test_bits_that_differ_are_1_with_ranks_place_and_cause(tmp_path: Path, golden: Any) -> None:
    file = _saved(tmp_path, golden)
    sweep, _ = written(tmp_path / "b", ["seed=1"], differs={0: RUN_2})
    code, lines = golden("check", file, sweep.folder)
    assert code == 1
    assert "first difference of rank 0: loss, step 0 r2, cause compute" in lines
    assert lines[-1] == "not golden: bits differ"


def test_all_runs_of_all_trials_are_held_against_it(tmp_path: Path, golden: Any) -> None:
    file = _saved(tmp_path, golden)
    sweep, plan = written(tmp_path / "b", ["seed=1"], common=["trials=3"])
    written_anew(trial_of(sweep, plan.cells[0], 2), plan.cells[0], 2, differs=ALL_RUNS)
    code, lines = golden("check", file, sweep.folder)
    assert code == 1
    assert "trial 0 against 2: first difference of rank 0: loss, step 0 r1, cause compute" in lines


def test_other_libraries_are_told_where_bits_are_equal_all_the_same(tmp_path: Path, golden: Any) -> None:
    file = _saved(tmp_path, golden)
    sweep, _ = written(tmp_path / "b", ["seed=1"], versions={"mkl": "2025.0", "onednn": "3.12.0"})
    assert golden("check", file, sweep.folder) == (
        0,
        [
            "environment: versions: mkl: 2024.2 -> 2025.0",
            "golden: 40 records in 1 trial of 1 cell, 2 ranks: all bits equal",
        ],
    )


GPU = {"type": "cuda", "name": "GPU", "cores": None}


@pytest.mark.parametrize(
    ("overrides", "more", "said"),
    [
        (["seed=2"], {}, "is of another configuration: seed: 1 -> 2"),
        (["seed=1", "dtype=fp32", "+env.A=1"], {},
         "is of another configuration: dtype: bf16 -> fp32, env.A: unset -> 1"),
        (["seed=1", "runs=3"], {}, "is of another configuration: runs: 2 -> 3"),
        (["seed=1"], {"torch": "2.14.0.dev20260131+cpu"},
         "holds for torch 2.13.0+cpu, this ran with 2.14.0.dev20260131+cpu"),
        (["seed=1"], {"torch_git": "abcdef"}, "holds for torch's commit cf30153c, this ran with abcdef"),
        (["seed=1"], {"torch_cuda": "12.8"}, "holds for CUDA none, this ran with 12.8"),
        (["seed=1"], {"device": GPU}, "holds for device type cpu, this ran with cuda"),
        (["seed=1"], {"device": {"type": "cpu", "name": "Another CPU"}},
         "holds for device A CPU, this ran with Another CPU"),
        (["seed=1"], {"settings": {"cpu_capability": "AVX2"}},
         "holds for CPU capability in force AVX512, this ran with AVX2"),
    ],
)  # fmt: skip
def test_another_configuration_torch_or_device_is_refused_with_the_reason(
    tmp_path: Path, golden: Any, overrides: list[str], more: Mapping[str, Any], said: str
) -> None:
    file = _saved(tmp_path, golden)
    # Bits that differ are not reported: there is no comparison.
    sweep, _ = written(tmp_path / "b", overrides, differs={0: ALL_RUNS}, **more)
    code, lines = golden("check", file, sweep.folder)
    assert code == 2
    assert f"detsweep: {' '.join(overrides).replace('+', '')}: the golden file {said}" in lines
    assert not any("differ" in line and "holds" not in line for line in lines)


def test_another_number_of_ranks_is_refused(tmp_path: Path, golden: Any) -> None:
    file = _saved(tmp_path, golden)
    sweep, _ = written(tmp_path / "b", ["seed=1", "world.nproc_per_node=4"])
    code, lines = golden("check", file, sweep.folder)
    label = "seed=1 world.nproc_per_node=4"
    assert (code, lines) == (
        2,
        [
            f"detsweep: {label}: the golden file is of 2 ranks, this is of 4",
            f"detsweep: {label}: the golden file is of another configuration: world.nproc_per_node: 2 -> 4",
        ],
    )


def test_a_device_that_only_some_ranks_have_is_refused_with_the_ranks(tmp_path: Path, golden: Any) -> None:
    file = _saved(tmp_path, golden, ["world.nproc_per_node=4"])
    sweep, _ = written(tmp_path / "b", ["world.nproc_per_node=4"])
    for rank in (1, 3):
        write_json(_trial(sweep).environment(rank), environment(rank, device={"type": "cpu", "name": "Odd"}))
    code, lines = golden("check", file, sweep.folder)
    said = "the golden file holds for device A CPU, this ran with Odd (ranks 1, 3)"
    assert (code, lines) == (2, [f"detsweep: world.nproc_per_node=4: {said}"])


def test_another_checksum_is_refused(tmp_path: Path, golden: Any) -> None:
    file = _saved(tmp_path, golden)
    sweep, _ = written(tmp_path / "b", ["seed=1"])
    for rank in range(2):
        path = _trial(sweep).records(rank)
        path.write_text(path.read_text().replace('"checksum":"xxh3"', '"checksum":"mixd"'))
    as_written(_trial(sweep))
    code, lines = golden("check", file, sweep.folder)
    assert (code, lines) == (2, ["detsweep: seed=1: the golden file has digests of xxh3, this has digests of mixd"])


def test_one_reason_of_many_cells_is_one_line(tmp_path: Path, golden: Any) -> None:
    points = [[f"seed={seed}"] for seed in (1, 2, 3)]
    file = _saved(tmp_path, golden, *points)
    sweep, _ = written(tmp_path / "b", *points, common=["+env.A=1"])
    code, lines = golden("check", file, sweep.folder)
    said = "the golden file is of another configuration: env.A: unset -> 1"
    assert (code, lines) == (2, [f"detsweep: seed=1 and 2 more: {said}"])


def test_trials_without_a_verdict_are_3_and_the_others_are_checked(tmp_path: Path, golden: Any) -> None:
    file = _saved(tmp_path, golden)
    plan = plan_of(["seed=1"], common=["trials=3"])
    sweep = write_cells(tmp_path / "b", plan)
    write_failure(trial_of(sweep, plan.cells[0]), plan.cells[0], error="rank 0 was killed by SIGKILL")
    trial = trial_of(sweep, plan.cells[0], 1)
    write_trial(trial, plan.cells[0], 1)
    write_environments(trial, 2)
    code, lines = golden("check", file, sweep.folder)
    assert (code, lines) == (
        3,
        [
            "not checked: seed=1 trial 0 is error: rank 0 was killed by SIGKILL",
            "not checked: seed=1 trial 2 is not reached",
            "golden: 40 records in 1 trial of 1 cell, 2 ranks: all bits equal",
        ],
    )


def test_a_cell_that_the_sweep_lacks_is_3_and_of_a_single_cell_nothing_else_is_asked(
    tmp_path: Path, golden: Any
) -> None:
    file = _saved(tmp_path, golden, ["seed=1"], ["seed=2"])
    sweep, _ = written(tmp_path / "b", ["seed=1"])
    code, lines = golden("check", file, sweep.folder)
    assert (code, lines[0]) == (3, f"not checked: seed=2 is in the golden file, and not in {sweep.folder}")
    assert golden("check", file, _trial(sweep).folder.parent)[0] == 0


def test_records_that_are_gone_are_named_and_3(tmp_path: Path, golden: Any) -> None:
    file = _saved(tmp_path, golden)
    sweep, _ = written(tmp_path / "b", ["seed=1"])
    gone = _trial(sweep).records(1)
    gone.unlink()
    code, lines = golden("check", file, sweep.folder)
    assert (code, lines[0]) == (3, f"not checked: seed=1 trial 0 is error: {gone} is missing")


def test_json_says_whether_it_is_equal_and_where_not(tmp_path: Path, golden: Any) -> None:
    file = _saved(tmp_path, golden)
    sweep, _ = written(tmp_path / "b", ["seed=1"], differs={0: RUN_2})
    code, lines = golden("check", file, sweep.folder, "--json")
    told = json.loads("\n".join(lines))
    assert (code, told["equal"], told["exit_code"]) == (1, False, 1)
    (first,) = told["pairs"][0]["trials"][0]["streams"]["first"]
    assert (first["rank"], first["site"], first["run"], first["cause"]) == (0, "loss", "r2", "compute")


# --- damage ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["g.json", "g.json.gz"])
def test_damage_anywhere_is_refused(tmp_path: Path, golden: Any, name: str) -> None:
    sweep, _ = written(tmp_path / "a", ["seed=1"])
    file = tmp_path / name
    golden("save", sweep.folder, "-o", file)
    whole = file.read_bytes()
    for place in range(0, len(whole), max(1, len(whole) // 40)):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        code, lines = golden("check", file, sweep.folder)
        # In gzip's own header a bit may say nothing about the content.
        assert code == 2 or (name.endswith("gz") and place < 10 and code == 0), place
        assert str(file) in lines[0] or code == 0
    file.write_bytes(whole[: len(whole) // 2])
    assert golden("check", file, sweep.folder)[0] == 2


def test_a_digest_that_was_changed_by_hand_is_found_by_the_checksum(tmp_path: Path, golden: Any) -> None:
    file = _saved(tmp_path, golden)
    content = json.loads(file.read_text())
    content["content"]["cells"][0]["ranks"][0][0]["records"][3][5] += 1
    file.write_text(json.dumps(content))
    sweep = tmp_path / "golden"
    assert golden("check", file, sweep) == (
        2, [f"detsweep: {file} is damaged: its content does not have the checksum that stands in it"],
    )  # fmt: skip


def test_another_schema_and_what_is_no_golden_file_are_named(tmp_path: Path, golden: Any) -> None:
    file = _saved(tmp_path, golden)
    content, sweep = json.loads(file.read_text()), tmp_path / "golden"
    file.write_text(json.dumps({**content, "schema": 9}))
    said = "is a golden file of schema 9, this version reads 1"
    assert golden("check", file, sweep) == (2, [f"detsweep: {file} {said}"])
    file.write_text("[]")
    assert golden("check", file, sweep) == (2, [f"detsweep: {file} is no golden file"])
    assert golden("check", tmp_path / "x", sweep) == (2, [f"detsweep: {tmp_path / 'x'}: no such golden file"])
    file.write_text(json.dumps(content))
    assert golden("check", file, file)[1] == [
        f"detsweep: {file} is a golden file too: compare the two with python -m detsweep.diff"
    ]
    assert golden("save", file, "-o", tmp_path / "y") == (2, [f"detsweep: {file} is a golden file already"])
