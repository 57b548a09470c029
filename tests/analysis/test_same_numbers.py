"""The numbers of a cell are the same in table, page, wide matrix and tracker; of cells together it is their sum."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from scipy import stats

from detsweep import Sweep, load
from detsweep.analysis.celltable import cell_table
from detsweep.analysis.page import build
from detsweep.analysis.page.model import Detail, Page
from detsweep.analysis.page.plots import percent
from detsweep.analysis.rates import Rate, pooled, rates, with_rates_in_words
from detsweep.analysis.tracking.runs import tracked
from detsweep.bounds import interval, interval_until, rate_below
from detsweep.chances import Chances
from tests.support import LOSS, plan_of, trial_of, write_cells, write_failure, write_trial

ERROR = None
Trials = tuple[dict[int, range] | None, ...]
"""Of each trial the steps that differ, by their run; None: it failed."""
KINDS: dict[str, tuple[list[str], tuple[Trials, Trials]]] = {
    "train": (
        ["mode=train", "runs=3"],
        (({2: range(5, 8), 3: range(7, 8)}, {}, ERROR), ({3: range(8)}, {2: range(1, 2)}, {})),
    ),
    "resume": (["mode=resume"], (({2: range(6, 8)}, {}, {}), ({}, {}, ERROR))),
    "relaunch": (["mode=relaunch", "runs=1"], (({}, {}, {}), ({}, ERROR, {}))),
    "relaunch of two runs": (["mode=relaunch"], (({}, {2: range(3)}, {}), ({2: range(1)}, {}, ERROR))),
    "stopped": (["stop_after.divergences=2", "trials=9"], (({}, {2: range(3)}, {2: range(8)}), ({}, {}, {}))),
    "stopped training": (
        ["mode=train", "stop_after.divergences=1", "trials=9"],
        (({}, {}, {2: range(5, 8)}), ({2: range(2, 8)}, {}, ERROR)),
    ),
    "stopped by a bound": (["stop_after.bound=0.15", "trials=9"], (({}, {}, {}), ({}, ERROR, {}, {}))),
    "replay": (["runs=3"], (({2: range(8), 3: range(4)}, {}, ERROR), ({}, {}, {}))),
}
"""Overrides, and the trials of two cells: a third one, of the second seed and another dtype, is as the first."""


def _sweep(folder: Path, kind: str) -> Sweep:
    overrides, cells = KINDS[kind]
    own = [] if any(word.startswith("trials=") for word in overrides) else ["trials=3"]
    points = [["seed=1", "dtype=fp32"], ["seed=2", "dtype=fp32"], ["seed=2", "dtype=bf16"]]
    plan = plan_of(*points, common=["steps=8", *own, *overrides])
    paths = write_cells(folder, plan)
    for cell, trials in zip(plan.cells, (*cells, cells[0]), strict=True):
        for number, runs in enumerate(trials):
            trial = trial_of(paths, cell, number)
            if runs is ERROR:
                write_failure(trial, cell, number)
                continue
            places = {(step, run): LOSS for run, steps in runs.items() for step in steps}
            write_trial(trial, cell, number, differs={1: places})
    return load(folder)


def _statistics(detail: Detail) -> dict[str, str]:
    (part,) = [part for part in detail.parts if part.title == "Statistics"]
    return {row[0].text: row[1].text for row in part.grids[0].rows}


def _counts(text: str) -> tuple[int, int]:
    found = re.match(r"(\d+)/(\d+)", text)
    assert found is not None
    return int(found[1]), int(found[2])


def _rate(seen: int, of: int, ends: tuple[float, float]) -> str:
    return f"{seen}/{of}, {percent(seen / of)} (95% interval {percent(ends[0])} to {percent(ends[1])})"


@pytest.fixture(params=KINDS)
def sweep(tmp_path: Path, request: pytest.FixtureRequest) -> Sweep:
    return _sweep(tmp_path, request.param)


def _rows(sweep: Sweep) -> list[dict[str, Any]]:
    return [{str(name): value for name, value in row.items()} for row in cell_table(sweep).to_dict("records")]


def test_a_row_of_the_table_does_not_contradict_itself(sweep: Sweep) -> None:
    for row in _rows(sweep):
        seen, of = _counts(row["replays"])
        assert row["rate"] == pytest.approx(seen / of)
        assert (row["rate_low"], row["rate_high"]) == pytest.approx(interval(seen, of))
        assert (row["upper_bound"] == pytest.approx(rate_below(0, of))) if not seen else pd.isna(row["upper_bound"])


def test_the_page_has_the_numbers_of_the_table(sweep: Sweep) -> None:
    known = rates(sweep)
    for detail, row, one in zip(build(sweep).details, _rows(sweep), known.values(), strict=True):
        said = _statistics(detail)
        assert said["diverged replays"] == _rate(*_counts(row["replays"]), (row["rate_low"], row["rate_high"]))
        assert said["diverged trials"] == row["diverged"]
        if pd.isna(row["launch_rate"]):
            assert "diverged launches" not in said
        else:
            ends = row["launch_rate_low"], row["launch_rate_high"]
            assert said["diverged launches"] == _rate(one.seen.diverged_launches, one.seen.launches, ends)
        assert ("bound" in said) == (not pd.isna(row["upper_bound"]))
        assert "bound" not in said or f"below {row['upper_bound']:.1%} at 95%" in said["bound"]


def test_the_trials_of_the_page_add_up_to_its_rate(sweep: Sweep) -> None:
    for detail in build(sweep).details:
        (part,) = [part for part in detail.parts if part.title == "Statistics"]
        each = [_counts(row[3].text) for row in part.grids[1].rows if row[3].text]
        together = tuple(map(sum, zip(*each, strict=True)))
        assert together == _counts(_statistics(detail)["diverged replays"])


def test_the_wide_matrix_has_the_numbers_of_the_table(sweep: Sweep) -> None:
    wide = {value: sweep.matrix(value=value) for value in ("replays", "bound", "rate")}
    for row in _rows(sweep):
        own = {value: table.loc[row["seed"], row["dtype"]] for value, table in wide.items()}
        assert (own["replays"], own["rate"]) == (row["replays"], row["diverged"])
        assert own["bound"] == pytest.approx(rate_below(*_counts(row["replays"])))
        if not pd.isna(row["upper_bound"]):
            assert own["bound"] == pytest.approx(row["upper_bound"])


def test_a_tracker_is_told_the_numbers_of_the_table(sweep: Sweep) -> None:
    for run, row in zip(tracked(sweep).runs, _rows(sweep), strict=True):
        told = run.metrics
        assert f"{told['diverged']:.0f}/{told['replays']:.0f}" == row["replays"]
        assert f"{told['diverged_trials']:.0f}/{told['valid_trials']:.0f}" == row["diverged"]
        assert told["rate"] == pytest.approx(row["rate"])
        assert told["bound"] == pytest.approx(rate_below(*_counts(row["replays"])))


def _of_axis(page: Page, axis: str) -> dict[str, tuple[tuple[int, int], tuple[int, int]]]:
    (found,) = [one for one in page.rates if one.axis == axis]
    return {value: (_counts(launches.counted), _counts(replays.counted)) for value, launches, replays in found.rows}


def test_cells_together_have_the_sum_of_their_chances_on_the_page_and_in_the_matrix(sweep: Sweep) -> None:
    page, known = build(sweep), list(rates(sweep).values())
    seeds = {"1": known[:1], "2": known[1:]}
    launches = {seed: (sum(one.seen.diverged_launches for one in own), sum(one.seen.launches for one in own))
                for seed, own in seeds.items()}  # fmt: skip
    replays = {seed: (sum(one.seen.diverged for one in own), sum(one.seen.compared for one in own))
               for seed, own in seeds.items()}  # fmt: skip
    assert _of_axis(page, "seed") == {seed: (launches[seed], replays[seed]) for seed in seeds}
    down = {value: sweep.matrix(rows="seed", columns=[], value=value)[value] for value in ("replays", "bound")}
    assert {str(seed): _counts(text) for seed, text in down["replays"].items()} == replays
    assert list(down["bound"]) == pytest.approx([rate_below(*counts) for counts in replays.values()])


def test_trials_that_meet_in_a_field_add_up_to_their_cells(sweep: Sweep) -> None:
    each = sweep.matrix(rows=["seed", "dtype"], columns="trial", value="replays")
    for row in _rows(sweep):
        counts = [_counts(text) for text in each.loc[(row["seed"], row["dtype"])] if isinstance(text, str)]
        assert tuple(map(sum, zip(*counts, strict=True))) == _counts(row["replays"])


def test_a_trajectory_that_parts_had_chances_up_to_there_in_every_form(tmp_path: Path) -> None:
    """Two trajectories of 8 steps that part at step 5: six chances, of which one was taken."""
    plan = plan_of(["seed=1"], common=["mode=train", "steps=8"])
    write_trial(
        trial_of(write_cells(tmp_path, plan), plan.cells[0]),
        plan.cells[0],
        differs={0: {(step, 2): LOSS for step in (5, 6, 7)}},
    )
    sweep = load(tmp_path)
    shown = with_rates_in_words(cell_table(sweep)).iloc[0]
    assert (shown["replays"], shown["rate"]) == ("1/6", "17% (0.4-64%)")
    assert _statistics(build(sweep).details[0])["diverged replays"] == "1/6, 16.7% (95% interval 0.4% to 64.1%)"
    assert sweep.matrix(rows="seed", columns=[], value="replays").iloc[0, 0] == "1/6"
    bound = sweep.matrix(rows="seed", columns=[], value="bound").iloc[0, 0]
    # That one or none of six is seen has a probability of 5% at the bound.
    assert stats.binom.cdf(1, 6, bound) == pytest.approx(0.05)
    assert tracked(sweep).runs[0].metrics["bound"] == pytest.approx(bound)


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ([Rate(Chances(3, 40, 2, 5), until=True)], interval_until(2, 5)),
        # Two counts of launches until so many diverged are one until both numbers together have.
        ([Rate(Chances(3, 40, 2, 5), until=True), Rate(Chances(1, 9, 1, 4), until=True)], interval_until(3, 9)),
        ([Rate(Chances(3, 40, 2, 5), until=True), Rate(Chances(0, 20, 0, 2))], interval(2, 7)),
        # What came to no verdict changes nothing.
        ([Rate(Chances(3, 40, 2, 5), until=True), Rate(Chances(0, 0, 0, 0))], interval_until(2, 5)),
        ([], (0, 1)),
    ],
)
def test_of_cells_together_the_launches_have_the_interval_of_their_sum(
    cells: list[Rate], expected: tuple[float, float]
) -> None:
    assert pooled(cells).launch_interval == pytest.approx(expected)
