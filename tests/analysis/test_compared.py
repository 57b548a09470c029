"""Cells with a mitigation against the same without: Fisher's exact test, over replays or launches, adjusted by Holm."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pytest

from detsweep import Sweep, load
from detsweep.analysis.celltable import cell_table
from detsweep.analysis.compared import Against, against_none
from detsweep.analysis.rates import Rate, rates
from detsweep.analysis.report import summary
from detsweep.bounds import fisher
from detsweep.chances import Chances
from tests.support import INPUT, plan_of, trial_of, write_cells, write_failure, write_trial

UNINFORMATIVE = "without mitigations nothing diverged: this sweep says nothing about what they cure"
FEW = " if replays are independent; 1 launch each"
RESTS = "if replays of a launch stand or fall together, so few launches tell nothing: trials=4 or more would"
Cells = dict[tuple[int, str], tuple[int, ...]]
"""Of each seed and mitigation, in how many of 20 replays each trial differs; -1: it failed."""


def _sweep(folder: Path, cells: Cells, *common: str, inert: tuple[str, ...] = ()) -> Sweep:
    most = max(len(trials) for trials in cells.values())
    points = [[f"seed={seed}", f"mitigation=[{mitigation}]"] for seed, mitigation in cells]
    plan = plan_of(*points, common=["steps=20", f"trials={most}", *common])
    sweep = write_cells(folder, plan)
    for cell, ((_, mitigation), trials) in zip(plan.cells, cells.items(), strict=True):
        status = "inert" if mitigation in inert else "effective"
        effects = {} if mitigation == "none" else {mitigation: {"A": status}}
        for number, count in enumerate(trials):
            trial = trial_of(sweep, cell, number)
            if count < 0:
                write_failure(trial, cell, number)
                continue
            differs = {0: {(step, 2): INPUT for step in range(count)}}
            write_trial(trial, cell, number, differs=differs, effects=effects)
    return load(folder)


def _words(sweep: Sweep) -> list[str]:
    table = cell_table(sweep)
    return list(table["against_none"]) if "against_none" in table else []


@pytest.mark.parametrize(
    ("bare", "own", "words"),
    [
        ((11,), (0,), f"fewer (p=0.0001{FEW})"),
        ((11,), (2,), f"fewer (p=0.006{FEW})"),
        ((11,), (9,), "no difference seen (p=0.75)"),
        ((11,), (20,), f"more (p=0.001{FEW})"),
        ((20,), (0,), f"fewer (p<0.0001{FEW})"),
        ((0,), (0,), "baseline never diverged"),
        ((0,), (1,), "no difference seen (p=1.00), baseline never diverged"),
        ((0,), (9,), f"more (p=0.001{FEW}), baseline never diverged"),
        ((-1,), (9,), ""),
        ((9,), (-1,), ""),
        # Some launches diverged and others did not: a launch is the chance, and four of them are too few.
        ((20, 20, 0, 20), (0, 0, 0, 0), "no difference seen (p=0.14, launches)"),
        # All did: replays are, and as many launches would say the same if each of them were one observation.
        ((5, 6, 7, 5), (0, 0, 0, 0), "fewer (p<0.0001)"),
        ((20, 20, 20), (0, 0, 0, 0), "fewer (p<0.0001)"),
        ((20, 20, 20), (0, 0, 0), "fewer (p<0.0001 if replays are independent; 3 launches each)"),
        ((20,), (0, 0, 0), "fewer (p<0.0001 if replays are independent; 3 and 1 launches)"),
        # Failed launches are none, and where no difference is called nothing rests on anything.
        ((20, 20, 20, 20), (0, 0, 0, -1), "fewer (p<0.0001)"),
        ((20, -1, -1, -1), (0, 0, 0, 0), "fewer (p<0.0001 if replays are independent; 4 and 1 launches)"),
        ((11, 11), (9, 9), "no difference seen (p=0.50)"),
    ],
    ids=str,
)
def test_two_cells_are_compared_in_words(
    tmp_path: Path, bare: tuple[int, ...], own: tuple[int, ...], words: str
) -> None:
    sweep = _sweep(tmp_path, {(1, "none"): bare, (1, "recipe"): own})
    assert _words(sweep) == (["", words] if words else [])


def test_p_is_that_of_fishers_test(tmp_path: Path) -> None:
    table = cell_table(_sweep(tmp_path, {(1, "none"): (11,), (1, "recipe"): (2,)}))
    assert list(table["p_against_none"].fillna(-1)) == pytest.approx([-1, fisher((2, 20), (11, 20))])


def test_launches_are_what_is_compared_where_launches_are_held_against_each_other(tmp_path: Path) -> None:
    cells: Cells = {(1, "none"): (0, 3, 3), (1, "recipe"): (0, 0, 0)}
    sweep = _sweep(tmp_path, cells, "mode=relaunch", "runs=2")
    (pair,) = against_none(sweep, rates(sweep)).values()
    assert (pair.unit, pair.own, pair.other) == ("launches", (0, 2), (2, 2))


def test_several_comparisons_are_adjusted_and_that_is_said(tmp_path: Path) -> None:
    cells: Cells = {(1, "none"): (11,), (1, "recipe"): (4,), (1, "torch_det"): (4,), (1, "cpu_1thread"): (11,)}
    sweep = _sweep(tmp_path, cells)
    # Alone it would be 0.048 and said to be fewer.
    assert fisher((4, 20), (11, 20)) == pytest.approx(0.0484, abs=1e-4)
    assert _words(sweep) == ["", *["no difference seen (p=0.15)"] * 2, "no difference seen (p=1.00)"]
    assert "against no mitigation: Fisher's exact test, two-sided, p adjusted for 3 comparisons (Holm)" in summary(
        sweep
    )


def test_pairs_that_never_diverged_are_no_comparisons(tmp_path: Path) -> None:
    cells: Cells = {(1, "none"): (11,), (1, "recipe"): (4,), (2, "none"): (0,), (2, "recipe"): (0,)}
    sweep = _sweep(tmp_path, cells)
    assert _words(sweep) == ["", f"fewer (p=0.048{FEW})", "", "baseline never diverged"]
    assert "against no mitigation: Fisher's exact test, two-sided" in summary(sweep)


def test_what_nothing_reads_is_not_compared(tmp_path: Path) -> None:
    cells: Cells = {(1, "none"): (11,), (1, "recipe"): (0,), (1, "nccl_ring"): (0,)}
    sweep = _sweep(tmp_path, cells, "mitigation_force=true", inert=("nccl_ring",))
    assert _words(sweep) == ["", f"fewer (p=0.0001{FEW})", ""]


def test_without_the_cell_without_mitigations_there_is_no_column(tmp_path: Path) -> None:
    table = cell_table(_sweep(tmp_path, {(1, "recipe"): (3,), (1, "torch_det"): (0,)}))
    assert not {"against_none", "p_against_none"} & set(table.columns)


def test_it_is_said_of_which_cells_a_sweep_says_nothing(tmp_path: Path) -> None:
    cells: Cells = {(seed, name): ((3,) if seed == 1 else (0,)) for seed in (1, 2, 3) for name in ("none", "recipe")}
    lines = summary(_sweep(tmp_path, cells))
    assert UNINFORMATIVE not in lines
    said = "without mitigations 2 of 3 cells never diverged (seed=2, seed=3): this sweep says nothing about what cures"
    assert f"{said} those" in lines


def test_that_no_baseline_diverged_is_said_though_one_of_them_failed(tmp_path: Path) -> None:
    cells: Cells = {(1, "none"): (-1,), (1, "recipe"): (0,), (2, "none"): (0,), (2, "recipe"): (0,)}
    assert UNINFORMATIVE in summary(_sweep(tmp_path, cells))


@pytest.mark.parametrize(
    ("pair", "words"),
    [
        (Against("b", (0, 20), (5, 20), "replays", 0.049), "fewer (p=0.049)"),
        (Against("b", (0, 20), (5, 20), "replays", 0.051), "no difference seen (p=0.051)"),
        (Against("b", (3, 4), (1, 40), "launches", 0.0004), "more (p=0.0004, launches)"),
        (Against("b", (0, 20), (5, 20), "replays", 0.049, (1, 1)), f"fewer (p=0.049{FEW})"),
        (Against("b", (0, 20), (5, 20), "replays", 0.051, (1, 1)), "no difference seen (p=0.051)"),
    ],
)
def test_p_below_5_percent_is_a_difference(pair: Against, words: str) -> None:
    assert pair.words == words


@pytest.mark.parametrize("launches", range(1, 7))
def test_launches_that_are_all_or_nothing_are_not_said_to_differ_more_often_than_in_5_of_100_sweeps(
    tmp_path: Path, launches: int
) -> None:
    """Two cells of one rate, of whose launches each diverges in all of its 20 replays or in none."""
    sweep = _sweep(tmp_path, {(1, "none"): (0,), (1, "recipe"): (0,)})
    bare, own = sweep.configs
    called: dict[tuple[int, int], tuple[bool, bool]] = {}
    for seen in itertools.product(range(launches + 1), repeat=2):
        made = [Rate(Chances(20 * count, 20 * launches, count, launches)) for count in seen]
        (pair,) = against_none(sweep, dict(zip((bare, own), made, strict=True))).values()
        called[seen] = pair.sure, pair.sure and not pair.resting

    def chance(of: int, rate: float) -> float:
        """How often a sweep without any effect calls a difference; 0: at all, 1: without saying what that takes."""
        ways = (
            math.prod(math.comb(launches, count) * rate**count * (1 - rate) ** (launches - count) for count in seen)
            for seen, said in called.items()
            if said[of]
        )
        return sum(ways)

    assert max(chance(1, rate / 100) for rate in range(1, 100)) < 0.05
    if launches == 1:
        assert chance(0, 0.5) == 0.5


def test_what_would_tell_launches_from_replays_is_said_where_they_are_too_few(tmp_path: Path) -> None:
    assert RESTS in summary(_sweep(tmp_path / "a", {(1, "none"): (11,), (1, "recipe"): (0,)}))
    assert RESTS not in summary(_sweep(tmp_path / "b", {(1, "none"): (11,), (1, "recipe"): (9,)}))
    assert RESTS not in summary(_sweep(tmp_path / "c", {(1, "none"): (11,) * 4, (1, "recipe"): (0,) * 4}))
