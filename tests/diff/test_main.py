"""`python -m detsweep.diff`: what it says of sweeps, cells and trials on disk, and with what it leaves."""

from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from detsweep.analysis import load
from detsweep.analysis.celltable import cell_table
from detsweep.diff.__main__ import main
from detsweep.paths import SweepPaths, read_json, write_json
from tests.comparing import write_environments, written, written_anew
from tests.support import (
    BLOCK_0_POST,
    LOSS,
    one_cell,
    plan_of,
    trial_of,
    write_cells,
    write_failure,
    write_recorded,
    write_trial,
)

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def diff(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> Any:
    """Run the command; its exit code, and the lines that it printed."""

    def run(*words: Path | str) -> tuple[int, list[str]]:
        monkeypatch.setattr(sys, "argv", ["diff", *map(str, words)])
        code = main()
        printed = capsys.readouterr()
        return code, [*printed.out.splitlines(), *printed.err.splitlines()]

    return run


def _cell(sweep: SweepPaths, place: int = 0) -> Path:
    order = read_json(sweep.sweep)["cells"]
    return sweep.cell_folders()[order[place]]


# --- nothing ---------------------------------------------------------------------------------------------------------


def test_a_trial_a_cell_and_a_sweep_with_themselves_are_one_line(tmp_path: Path, diff: Any) -> None:
    sweep, _ = written(tmp_path / "a", ["seed=1"], ["seed=2"], common=["trials=2"])
    cell = _cell(sweep)
    said = "configuration, environment and bits of"
    assert diff(cell / "trial0", cell / "trial0") == (
        0,
        [f"no difference: {said} 1 trial of 2 ranks in 1 cell, 40 records"],
    )
    assert diff(cell / "trial0", cell / "trial1") == (
        0,
        [f"no difference: {said} 1 trial of 2 ranks in 1 cell, 40 records"],
    )
    assert diff(cell, cell) == (0, [f"no difference: {said} 2 trials of 2 ranks in 1 cell, 80 records"])
    assert diff(sweep.folder, sweep.folder) == (
        0,
        [f"no difference: {said} 4 trials of 2 ranks in 2 cells, 160 records"],
    )


def test_the_same_sweep_in_another_folder_at_another_time_is_no_difference(tmp_path: Path, diff: Any) -> None:
    sweeps = [written(tmp_path / name, ["seed=1"], ["seed=2"])[0] for name in ("a", "deeper/b")]
    for sweep in sweeps:
        for cell in sweep.all_cells():
            write_json(cell.trial(0).job, {"job_id": str(sweep.folder), "started": time.time(), "environment_set": {}})
    code, lines = diff(*(sweep.folder for sweep in sweeps))
    assert (code, len(lines)) == (0, 1)
    assert lines[0].startswith("no difference: ")


def test_what_diverged_within_a_trial_is_no_difference_from_itself(tmp_path: Path, diff: Any) -> None:
    sweep, _ = written(tmp_path / "a", ["seed=1"], differs={0: {1: {(0, 2): BLOCK_0_POST}}})
    assert diff(sweep.folder, sweep.folder)[0] == 0


def test_cells_that_no_platform_runs_are_no_difference(tmp_path: Path, diff: Any) -> None:
    sweep, plan = written(tmp_path / "a", ["seed=1"], ["seed=2"])
    shutil.rmtree(_cell(sweep, 1) / "trial0")
    write_failure(trial_of(sweep, plan.cells[1]), plan.cells[1], verdict="unsupported", error="not here")
    assert diff(sweep.folder, sweep.folder)[0] == 0


# --- one variable ----------------------------------------------------------------------------------------------------


def test_two_sweeps_that_differ_in_one_variable_name_exactly_it(tmp_path: Path, diff: Any) -> None:
    points = [[f"dtype={dtype}", f"seed={seed}"] for dtype in ("bf16", "fp32") for seed in (1, 2)]
    one, _ = written(tmp_path / "a", *points)
    other, _ = written(tmp_path / "b", *points[::-1], common=["+env.MKL_CBWR=COMPATIBLE"])
    assert diff(one.folder, other.folder) == (
        1,
        [
            f"A: sweep {one.folder}, 4 cells, 4 trials",
            f"B: sweep {other.folder}, 4 cells, 4 trials",
            "in all 4 pairs of cells:",
            "  configuration: env.MKL_CBWR: unset -> COMPATIBLE",
            "  environment: variables: MKL_CBWR: not there -> COMPATIBLE",
        ],
    )


def test_what_is_each_pairs_own_is_told_below_what_all_have(tmp_path: Path, diff: Any) -> None:
    points = [[f"seed={seed}"] for seed in (1, 2, 3)]
    one, _ = written(tmp_path / "a", *points)
    other, _ = written(
        tmp_path / "b", *points, common=["+env.A=1"], differs={1: {0: {(0, 2): LOSS}, 1: {(0, 2): BLOCK_0_POST}}}
    )
    code, lines = diff(one.folder, other.folder)
    assert (code, lines[2:]) == (
        1,
        [
            "in all 3 pairs of cells:",
            "  configuration: env.A: unset -> 1",
            "  environment: variables: A: not there -> 1",
            "seed=2:",
            "  verdict: pass, 0 of 1 replays diverged -> diverged, 1 of 1 replays diverged",
            "  first difference of rank 0: loss, step 0 r2, cause compute",
            "  first difference of rank 1: block_post of block 0, step 0 r2, cause compute",
            "  records that differ on rank 0: 1 grad, 1 loss, 1 param",
            "  records that differ on rank 1: 2 block_post, 1 block_pre, 1 grad, 1 logits, 1 loss, 1 param",
            "  the loss differs in 1 of 2 runs",
            "  rates: 0/1 trials and 0/1 replays diverged -> 1/1 trials and 1/1 replays diverged",
            "nothing else in the other 2 pairs",
        ],
    )


def test_a_trajectory_counts_up_to_the_first_step_that_differs_as_in_the_matrix(tmp_path: Path, diff: Any) -> None:
    common = ["mode=train", "steps=8"]
    one, _ = written(tmp_path / "a", ["seed=1"], common=common)
    other, _ = written(tmp_path / "b", ["seed=1"], common=common, differs={0: {1: {(n, 2): LOSS for n in (5, 6, 7)}}})
    lines = diff(one.folder, other.folder)[1]
    assert "verdict: pass, 0 of 8 replays diverged -> diverged, 1 of 6 replays diverged" in lines
    assert "rates: 0/1 trials and 0/8 replays diverged -> 1/1 trials and 1/6 replays diverged" in lines
    assert list(cell_table(load(other.folder))["replays"]) == ["1/6"]


def test_of_very_many_pairs_only_the_first_have_lines_of_their_own(tmp_path: Path, diff: Any) -> None:
    points = [[f"seed={seed}"] for seed in range(25)]
    one, _ = written(tmp_path / "a", *points)
    other, _ = written(tmp_path / "b", *points, differs={place: {0: {(0, 2): LOSS}} for place in range(24)})
    lines = diff(one.folder, other.folder)[1]
    assert sum(line.startswith("seed=") for line in lines) == 20
    assert lines[-2:] == ["and 4 more pairs of cells that differ (--json has all of them)", "nothing in the other pair"]


def test_what_was_asked_for_otherwise_but_changes_no_bit_is_told_and_is_no_difference(
    tmp_path: Path, diff: Any
) -> None:
    one, _ = written(tmp_path / "a", ["seed=1"])
    other, _ = written(tmp_path / "b", ["seed=1"], common=["drill=true"])
    code, lines = diff(one.folder, other.folder)
    assert (code, lines[2]) == (0, "asked for otherwise: drill: false -> true")
    assert lines[3].startswith("no other difference: ")


# --- ranks -----------------------------------------------------------------------------------------------------------


def test_512_ranks_that_say_the_same_are_one_line(tmp_path: Path, diff: Any) -> None:
    ranks = ["world.nproc_per_node=512", "world.threads_per_rank=1"]
    differs = {rank: {(0, 2): BLOCK_0_POST} for rank in (*range(128), 130)}
    one, _ = written(tmp_path / "a", ["seed=1"], common=ranks)
    other, _ = written(tmp_path / "b", ["seed=1"], common=ranks, differs={0: differs})
    (cell,) = other.all_cells()
    for rank in (3, 4, 5, 9):
        path = cell.trial(0).environment(rank)
        write_json(path, {**read_json(path), "versions": {"mkl": "2025.0"}})
    code, lines = diff(one.folder, other.folder)
    assert (code, lines[2:]) == (
        1,
        [
            "environment: versions: mkl: 2024.2 -> 2025.0 (ranks 3-5, 9)",
            "environment: versions: onednn: 3.12.0 -> not there (ranks 3-5, 9)",
            "verdict: pass, 0 of 1 replays diverged -> diverged, 1 of 1 replays diverged",
            "first difference of ranks 0-127, 130: block_post of block 0, step 0 r2, cause compute",
            (
                "records that differ on each of ranks 0-127, 130: "
                "2 block_post, 1 block_pre, 1 grad, 1 logits, 1 loss, 1 param"
            ),
            "the loss differs in 1 of 2 runs",
            "rates: 0/1 trials and 0/1 replays diverged -> 1/1 trials and 1/1 replays diverged",
        ],
    )


def test_of_different_numbers_of_ranks_those_are_compared_that_both_have(tmp_path: Path, diff: Any) -> None:
    one, _ = written(tmp_path / "a", ["world.nproc_per_node=4"])
    other, _ = written(tmp_path / "b", ["world.nproc_per_node=2"])
    code, lines = diff(one.folder, other.folder)
    assert (code, lines[2:]) == (
        1, ["configuration: world.nproc_per_node: 4 -> 2", "4 and 2 ranks: ranks 0, 1 compared"],
    )  # fmt: skip


# --- what is not there -----------------------------------------------------------------------------------------------


def test_cells_trials_and_runs_that_only_one_has_are_named(tmp_path: Path, diff: Any) -> None:
    one, _ = written(tmp_path / "a", ["seed=1"], ["seed=2"], ["seed=3"], common=["trials=2"])
    other, _ = written(tmp_path / "b", ["seed=1"], ["seed=2"], common=["trials=2"])
    shutil.rmtree(_cell(one) / "trial1")
    cell = _cell(one) / "cell.json"
    write_json(cell, {**read_json(cell), "config": {**read_json(cell)["config"], "trials": 1}})
    code, lines = diff(one.folder, other.folder)
    assert (code, lines[2:]) == (
        1,
        ["only in A: 1 cell: seed=3", "seed=1:", "  asked for otherwise: trials: 1 -> 2", "  only in B: trial 1",
         "nothing in the other pair"],
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["missing", "torn"])
def test_records_that_cannot_be_read_are_named_and_all_else_is_compared(tmp_path: Path, diff: Any, kind: str) -> None:
    one, _ = written(tmp_path / "a", ["seed=1"], ["seed=2"])
    other, _ = written(tmp_path / "b", ["seed=1"], ["seed=2"])
    broken = _cell(other) / "trial0" / "rank001.jsonl"
    if kind == "torn":
        broken.write_text(broken.read_text()[:-9])
    else:
        broken.unlink()
    code, lines = diff(one.folder, other.folder)
    said = "is missing" if kind == "missing" else "is cut off in line 2"
    assert code == 3
    assert f"  not compared: {broken} {said} (rank 1)" in lines
    assert lines[-1].startswith("no difference in what could be compared: ")
    assert "120 records" not in lines[-1]
    assert lines[-1].endswith("60 records")


def test_what_differs_is_1_whatever_else_cannot_be_read(tmp_path: Path, diff: Any) -> None:
    one, _ = written(tmp_path / "a", ["seed=1"])
    other, _ = written(tmp_path / "b", ["seed=1"], differs={0: {0: {(0, 2): LOSS}}})
    (_cell(other) / "trial0" / "rank001.jsonl").unlink()
    assert diff(one.folder, other.folder)[0] == 1


def test_a_trial_that_failed_or_was_not_reached_is_told_and_3(tmp_path: Path, diff: Any) -> None:
    one, _ = written(tmp_path / "a", ["seed=1"], ["seed=2"])
    plan = plan_of(["seed=1"], ["seed=2"])
    other = write_cells(tmp_path / "b", plan)
    write_failure(trial_of(other, plan.cells[0]), plan.cells[0], error="rank 1 was killed by SIGKILL", seconds=1.0)
    code, lines = diff(one.folder, other.folder)
    assert code == 3
    assert "  not compared: B ended as error: rank 1 was killed by SIGKILL" in lines
    assert "  not compared: B has no result yet" in lines
    assert not [line for line in lines if line.endswith("is missing") or "missing (rank" in line]


def test_a_cell_whose_own_file_is_broken_is_named_and_the_others_are_compared(tmp_path: Path, diff: Any) -> None:
    one, _ = written(tmp_path / "a", ["seed=1"], ["seed=2"])
    other, _ = written(tmp_path / "b", ["seed=1"], ["seed=2"])
    broken = _cell(other, 1) / "cell.json"
    broken.write_text("{")
    code, lines = diff(one.folder, other.folder)
    assert code == 1
    assert lines[2] == "only in A: 1 cell: seed=2"
    assert lines[3].startswith(f"not read, of B: {broken} cannot be read: ")


def test_another_checksum_is_refused_with_the_reason_and_the_rest_told(tmp_path: Path, diff: Any) -> None:
    one, _ = written(tmp_path / "a", ["seed=1"])
    cell = one_cell("seed=1")
    other = write_cells(tmp_path / "b", plan_of(["seed=1"]))
    trial = trial_of(other, cell)
    write_trial(trial, cell)
    write_environments(trial, 2)
    for rank in range(2):
        path = trial.records(rank)
        path.write_text(path.read_text().replace('"checksum":"xxh3"', '"checksum":"xxh4"'))
    code, lines = diff(one.folder, other.folder)
    assert code == 3
    assert "not compared: records are not compared: checksum xxh3 cannot be compared with xxh4 (ranks 0, 1)" in lines


# --- parts -----------------------------------------------------------------------------------------------------------


def test_a_trial_is_compared_with_its_like_in_a_cell_and_a_sweep(tmp_path: Path, diff: Any) -> None:
    sweep, plan = written(tmp_path / "a", ["seed=1"], ["seed=2"], common=["trials=2"])
    trial = trial_of(sweep, plan.cells[1], 1)
    written_anew(trial, plan.cells[1], 1, differs={0: {(0, 2): LOSS}})
    cell = _cell(sweep, 1)
    assert diff(trial.folder, sweep.folder)[0] == 0
    assert diff(cell, sweep.folder)[0] == 0
    code, lines = diff(cell / "trial0", trial.folder)
    assert code == 1
    assert "first difference of rank 0: loss, step 0 r2, cause compute" in lines
    assert diff(_cell(sweep), trial.folder)[0] == 1


def test_a_trial_that_lies_by_itself_has_its_configuration_from_its_spec(tmp_path: Path, diff: Any) -> None:
    sweep, plan = written(tmp_path / "a", ["seed=1"])
    shutil.copytree(trial_of(sweep, plan.cells[0]).folder, tmp_path / f"x-{plan.cells[0].id}" / "trial0")
    assert diff(tmp_path / f"x-{plan.cells[0].id}" / "trial0", sweep.folder)[0] == 0


def test_a_closer_look_at_a_cell_is_no_cell_of_its_own(tmp_path: Path, diff: Any) -> None:
    one, _ = written(tmp_path / "a", ["seed=1"])
    other, plan = written(tmp_path / "b", ["seed=1"])
    closer = plan.cells[0].closer()
    assert closer is not None
    paths = other.cell(closer.slug, closer.id)
    write_json(paths.cell, closer.to_json())
    write_recorded(paths.trial(0), closer, records=lambda *_: [])
    assert diff(one.folder, other.folder)[0] == 0


def test_launches_that_differ_among_themselves_have_that_verdict(tmp_path: Path, diff: Any) -> None:
    points, common = [["seed=1"]], ["mode=relaunch", "trials=2"]
    one, _ = written(tmp_path / "a", *points, common=common)
    other, plan = written(tmp_path / "b", *points, common=common)
    written_anew(trial_of(other, plan.cells[0], 1), plan.cells[0], 1, differs={0: {(0, 1): LOSS, (0, 2): LOSS}})
    code, lines = diff(one.folder, other.folder)
    assert code == 1
    assert any(line.startswith("trial 1: verdict: pass") and "-> diverged" in line for line in lines)


# --- json, and what is wrong -----------------------------------------------------------------------------------------


def test_json_has_all_of_it(tmp_path: Path, diff: Any) -> None:
    one, _ = written(tmp_path / "a", ["seed=1"])
    other, _ = written(tmp_path / "b", ["seed=1"], common=["+env.A=1"], differs={0: {1: {(0, 2): BLOCK_0_POST}}})
    code, lines = diff(one.folder, other.folder, "--json")
    told = json.loads("\n".join(lines))
    assert (code, told["exit_code"], told["differs"], told["only_in_a"]) == (1, 1, True, [])
    (pair,) = told["pairs"]
    assert pair["configuration"] == [{"key": "env.A", "a": "unset", "b": "1"}]
    (trial,) = pair["trials"]
    assert trial["environment"] == [{"section": "variables", "name": "A", "a": None, "b": "1", "ranks": [0, 1]}]
    assert (trial["a"]["verdict"], trial["b"]["verdict"]) == ("pass", "diverged")
    (first,) = trial["streams"]["first"]
    assert (first["rank"], first["site"], first["block"], first["run"], first["kind"], first["cause"]) == (
        1, "block_post", 0, "r2", "value", "compute",
    )  # fmt: skip
    assert trial["streams"]["differing"]["1"]["block_post"] == 2


def test_what_is_nothing_to_compare_is_one_line_and_2(tmp_path: Path, diff: Any) -> None:
    sweep, _ = written(tmp_path / "a", ["seed=1"])
    nowhere, empty, file = tmp_path / "nowhere", tmp_path / "empty", tmp_path / "x.json"
    empty.mkdir()
    file.write_text("{}")
    assert diff(sweep.folder, nowhere) == (2, [f"detsweep: {nowhere}: no such folder or file"])
    assert diff(empty, sweep.folder) == (2, [f"detsweep: {empty}: holds no trial, no cell and no sweep"])
    assert diff(file, sweep.folder) == (2, [f"detsweep: {file} is no golden file"])


def test_wrong_arguments_are_one_line_and_2(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    monkeypatch.setattr(sys, "argv", ["diff", "a"])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 2
    said = "the following arguments are required: B (usage: python -m detsweep.diff [-h] [--json] A B)"
    assert capsys.readouterr().err == f"detsweep: {said}\n"
