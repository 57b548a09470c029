"""How often launches could have diverged: trajectories up to the first step that differs, launches but the first."""

from __future__ import annotations

from pathlib import Path

import pytest

from detsweep.chances import Chances, chances, planned
from detsweep.crosstrial import settled
from detsweep.paths import CellPaths
from detsweep.plan import Cell
from tests.support import BLOCK_0_POST, LOSS, one_cell, write_failure, write_trial

Differs = dict[int, dict[tuple[int, int], int]]


def _counted(folder: Path, cell: Cell, *trials: Differs | None) -> Chances:
    """What trials of a cell come to that differ so; None: one that failed."""
    paths = CellPaths(folder / f"{cell.slug}-{cell.id}")
    written = {}
    for number, differs in enumerate(trials):
        if differs is None:
            write_failure(paths.trial(number), cell, number)
            written[number] = (paths.trial(number), {"verdict": "error"})
        else:
            written[number] = (paths.trial(number), write_trial(paths.trial(number), cell, number, differs=differs))
    return chances(settled(written, cell.config), cell.config)


def test_replays_and_launches_of_trials_with_a_verdict_add_up(tmp_path: Path) -> None:
    cell = one_cell("steps=10", "runs=3", "trials=4")
    both = {0: {(3, 2): BLOCK_0_POST, (4, 2): LOSS}, 1: {(3, 2): BLOCK_0_POST}}
    assert _counted(tmp_path, cell, {}, both, None, {1: {(0, 3): LOSS}}) == Chances(3, 60, 2, 3)


def test_nothing_counts_nothing() -> None:
    assert chances({}, one_cell().config) == Chances(0, 0, 0, 0)


@pytest.mark.parametrize(
    ("differs", "diverged", "compared"),
    [
        ({}, 0, 30),
        # Of the first trajectory steps 4 to 9 count for nothing, of the second steps 1 to 9.
        ({0: {(step, 2): LOSS for step in range(3, 10)}}, 1, 24),
        ({0: {(3, 2): LOSS, (4, 2): LOSS}, 1: {(5, 2): LOSS, (0, 4): LOSS}}, 2, 15),
        ({0: {(9, 3): LOSS}}, 1, 30),
    ],
    ids=["none", "from step 3 on", "two of them", "in the last step"],
)
def test_after_the_first_step_that_differs_a_trajectory_has_no_chance_left(
    tmp_path: Path, differs: Differs, diverged: int, compared: int
) -> None:
    found = _counted(tmp_path, one_cell("mode=train", "steps=10", "runs=4"), differs)
    assert found == Chances(diverged, compared, int(diverged > 0), 1)


@pytest.mark.parametrize(
    ("first", "launches"), [({}, (0, 2)), ({0: {(0, 2): LOSS}}, (3, 3))], ids=["clean", "differs from itself"]
)
def test_the_launch_with_which_others_are_compared_counts_only_if_it_differs_itself(
    tmp_path: Path, first: Differs, launches: tuple[int, int]
) -> None:
    cell = one_cell("mode=relaunch", "runs=2", "trials=3")
    others: Differs = first and {0: {(0, 1): LOSS}}
    found = _counted(tmp_path, cell, first, others, others)
    assert (found.diverged_launches, found.launches) == launches
    # One replay in each launch, and the two runs of each later one against the first's.
    assert found.compared == 3 + 2 * 2


@pytest.mark.parametrize(
    ("overrides", "first", "later"),
    [
        (["steps=10", "runs=3"], 20, 20),
        (["mode=lockstep", "steps=10", "runs=3"], 30, 30),
        (["mode=relaunch", "trials=2", "steps=10", "runs=1"], 0, 10),
        (["mode=relaunch", "trials=2", "steps=10", "runs=2"], 10, 30),
        (["mode=record"], 0, 0),
    ],
    ids=str,
)
def test_what_a_trial_will_compare_is_known_beforehand(overrides: list[str], first: int, later: int) -> None:
    config = one_cell(*overrides).config
    assert (planned(config, 0), planned(config, 1)) == (first, later)


@pytest.mark.parametrize(
    "mode", [["mode=replay"], ["mode=relaunch", "trials=2"], ["mode=train"], ["mode=lockstep"]], ids=str
)
def test_trials_compare_what_was_planned(tmp_path: Path, mode: list[str]) -> None:
    cell = one_cell(*mode, "steps=3", "runs=2")
    found = _counted(tmp_path, cell, {}, {})
    assert found.compared == planned(cell.config, 0) + planned(cell.config, 1)
