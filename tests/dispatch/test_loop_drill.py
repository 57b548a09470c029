"""`drill=true`: what diverged is run once more at a closer level, once, and nothing else is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from detsweep.capture import Record
from detsweep.dispatch import run_trials
from detsweep.paths import SweepPaths, read_json
from detsweep.plan import Cell, Plan
from tests.support import INPUT, plan_of, record, trial_of, write_cells, write_failure, write_recorded, write_trial

DIFFERS = {0: {(0, 2): INPUT}}
Captured = pytest.CaptureFixture[str]


def _closer(cell: Cell) -> Cell:
    closer = cell.closer()
    assert closer is not None
    return closer


def _sweep(folder: Path, plan: Plan, diverged: Sequence[int]) -> SweepPaths:
    """A sweep that has all its results; these of its cells diverged, and the closer looks at them are there too.

    So nothing is left to be launched: what would be has its own test in test_cli_causes.py.
    """
    sweep = write_cells(folder, plan)
    for number, cell in enumerate(plan.cells):
        write_trial(trial_of(sweep, cell), cell, differs=DIFFERS if number in diverged else {})
        if number in diverged and (closer := cell.closer()) is not None:
            write_trial(trial_of(sweep, closer), closer)
    return sweep


def _known(sweep: SweepPaths) -> dict[str, list[str]]:
    """Of every cell with a cell.json, by its id, whose closer look it is."""
    return {content["id"]: content["drill_of"] for paths in sweep.all_cells() if paths.cell.exists()
            for content in (read_json(paths.cell),)}  # fmt: skip


def test_only_what_diverged_is_looked_at_closer(tmp_path: Path, capsys: Captured) -> None:
    plan = plan_of(["seed=1"], ["seed=2"], ["seed=3"], common=["drill=true"])
    sweep = _sweep(tmp_path, plan, [1])
    assert run_trials(plan, sweep, [])
    closer = _closer(plan.cells[1])
    assert _known(sweep) == {**{cell.id: [] for cell in plan.cells}, closer.id: [plan.cells[1].id]}
    out = capsys.readouterr().out.splitlines()
    assert out == [
        "3 of 3 trials have a result already",
        "looking closer at 1 of 3 cells",
        "1 of 1 trials have a result already",
    ]


def test_a_closer_look_is_not_launched_again_by_another_command(tmp_path: Path) -> None:
    plan = plan_of(["seed=1"], common=["drill=true"])
    sweep = _sweep(tmp_path, plan, [0])
    closer = _closer(plan.cells[0])
    result = trial_of(sweep, closer).result
    written = result.read_bytes(), result.stat().st_mtime_ns
    for _ in range(2):
        assert run_trials(plan, sweep, [])
    assert (result.read_bytes(), result.stat().st_mtime_ns) == written
    assert not trial_of(sweep, closer).job.exists()
    assert not (trial_of(sweep, closer).folder.parent / "superseded").exists()
    # It is no cell of its own in what was asked for.
    assert read_json(sweep.sweep)["cells"] == [plan.cells[0].id]


@pytest.mark.parametrize("drill", ["false", "true"])
def test_without_a_divergence_or_without_drill_nothing_is_looked_at(
    tmp_path: Path, capsys: Captured, drill: str
) -> None:
    plan = plan_of(["seed=1"], ["seed=2"], common=[f"drill={drill}"])
    sweep = _sweep(tmp_path, plan, [] if drill == "true" else [0, 1])
    assert run_trials(plan, sweep, [])
    assert set(_known(sweep)) == {cell.id for cell in plan.cells}
    assert "closer" not in capsys.readouterr().out


def test_a_closer_look_that_the_sweep_has_planned_itself_stays_a_cell_of_its_own(
    tmp_path: Path, capsys: Captured
) -> None:
    plan = plan_of(["observe=block"], ["observe=op"], common=["drill=true"])
    assert _closer(plan.cells[0]).id == plan.cells[1].id
    sweep = write_cells(tmp_path, plan)
    for cell in plan.cells:
        write_trial(trial_of(sweep, cell), cell, differs=DIFFERS)
    assert run_trials(plan, sweep, [])
    assert _known(sweep) == {cell.id: [] for cell in plan.cells}
    assert capsys.readouterr().out.splitlines() == [
        "2 of 2 trials have a result already",
        "observe=op: drill=true has no closer look at it",
    ]


def test_what_cannot_be_looked_into_is_said(tmp_path: Path, capsys: Captured) -> None:
    plan = plan_of(["compile=false"], ["compile=true"], common=["drill=true"])
    sweep = _sweep(tmp_path, plan, [0, 1])
    assert run_trials(plan, sweep, [])
    assert "compile=true: drill=true has no closer look at it" in capsys.readouterr().out
    assert len(_known(sweep)) == 3


def test_a_trial_that_failed_has_not_diverged(tmp_path: Path) -> None:
    plan = plan_of(["seed=1"], common=["drill=true", "launch.rerun=none"])
    sweep = write_cells(tmp_path, plan)
    write_failure(trial_of(sweep, plan.cells[0]), plan.cells[0])
    assert run_trials(plan, sweep, [])
    assert set(_known(sweep)) == {plan.cells[0].id}


@pytest.mark.parametrize("apart", [False, True])
def test_launches_that_differ_from_each_other_are_looked_at_closer(tmp_path: Path, apart: bool) -> None:
    plan = plan_of(["mode=relaunch"], common=["trials=2", "drill=true"])
    (cell,) = plan.cells
    closer = _closer(cell)
    sweep = write_cells(tmp_path, plan)
    for number in range(2):

        def records(rank: int, step: int, run: int, number: int = number) -> list[Record]:
            return [replace(record("loss", "loss"), digest=number if apart else 1)]

        # Each repeats itself; only from the other one it may differ.
        assert write_recorded(trial_of(sweep, cell, number), cell, number, records=records)["verdict"] == "pass"
        write_trial(trial_of(sweep, closer, number), closer, number)
    assert run_trials(plan, sweep, [])
    assert (closer.id in _known(sweep)) is apart


def test_cells_that_differ_in_their_level_alone_have_one_closer_look_in_common(tmp_path: Path) -> None:
    plan = plan_of(["observe=block"], ["observe=module"], common=["drill=true"])
    closer = _closer(plan.cells[0])
    assert _closer(plan.cells[1]).id == closer.id
    sweep = write_cells(tmp_path, plan)
    for cell in plan.cells:
        write_trial(trial_of(sweep, cell), cell, differs=DIFFERS)
    write_trial(trial_of(sweep, closer), closer)
    assert run_trials(plan, sweep, [])
    assert _known(sweep)[closer.id] == [cell.id for cell in plan.cells]
