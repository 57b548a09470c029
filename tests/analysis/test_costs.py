"""What a mitigation costs: ratios of neighbouring launches, their spread, and when it says nothing."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from detsweep import Sweep, load
from detsweep.analysis.celltable import cell_table
from detsweep.analysis.costs import COST_COLUMNS, Cost, Launched, cost, cost_words, median_bounds
from detsweep.analysis.findings import mitigation_lines
from detsweep.paths import write_json
from tests.support import plan_of, trial_of, write_cells, write_trial

Launches = list[Launched]


def _launches(*steps: Sequence[float], started: float = 0.0, apart: float = 10.0) -> Launches:
    """Launches with steps of these milliseconds, each so many seconds after the one before."""
    return [Launched(started + apart * number, tuple(one)) for number, one in enumerate(steps)]


def _cost(own: Launches, baseline: Launches) -> Cost:
    found = cost(own, baseline)
    assert found is not None
    return found


# --- the ratio -------------------------------------------------------------------------------------------------------


def test_the_ratio_is_that_of_medians() -> None:
    assert _cost(_launches([3.0, 30.0, 3.0]), _launches([2.0, 2.0, 0.1])).ratio == 1.5


def test_launches_are_compared_with_those_that_ran_beside_them() -> None:
    # The machine became ten times slower on the way: neighbours did so together.
    own, baseline = _launches([1.2], [12.0], [13.0], started=2.0), _launches([1.0], [10.0], [10.0])
    found = _cost(own, baseline)
    assert (found.ratio, found.low, found.high, found.launches) == (1.2, 1.2, 1.3, 3)
    assert _cost(own[::-1], baseline) == found


def test_of_a_folder_with_more_launches_of_one_cell_the_nearest_are_taken() -> None:
    # The baseline was launched twice early and once more beside the mitigation.
    baseline = [*_launches([7.0], [7.0]), *_launches([2.0], started=1000.0)]
    found = _cost(_launches([3.0], started=1004.0), baseline)
    assert (found.ratio, found.launches) == (1.5, 1)


def test_no_launch_is_compared_twice() -> None:
    found = _cost(_launches([3.0], [8.0], apart=1.0), [*_launches([2.0]), *_launches([4.0], started=100.0)])
    assert (found.ratio, found.launches) == (1.75, 2)


def test_a_launch_without_a_partner_or_without_times_does_not_count() -> None:
    own = _launches([50.0], [3.0], [], started=1.0)
    baseline = [*_launches([], [2.0], []), *_launches([], started=500.0)]
    found = _cost(own, baseline)
    assert (found.ratio, found.launches) == (1.5, 1)


@pytest.mark.parametrize(
    ("own", "baseline"),
    [([], []), (_launches([1.0]), []), ([], _launches([1.0])), (_launches([]), _launches([1.0]))],
    ids=str,
)
def test_without_a_pair_there_is_no_cost(own: Launches, baseline: Launches) -> None:
    assert cost(own, baseline) is None


# --- the spread ------------------------------------------------------------------------------------------------------


def _coverage(count: int, left_out: int) -> float:
    """The exact confidence of the order statistics that leave so many values out at either end."""
    return 1 - 2 * sum(math.comb(count, k) for k in range(left_out + 1)) / 2**count


@pytest.mark.parametrize("count", range(6, 61))
def test_bounds_are_the_narrowest_of_at_least_95_percent(count: int) -> None:
    values = random.Random(count).sample(range(count), count)
    low, high = median_bounds(values)
    left_out = int(low)
    assert high == count - 1 - left_out
    assert _coverage(count, left_out) >= 0.95
    assert _coverage(count, left_out + 1) < 0.95


@pytest.mark.parametrize("count", range(1, 6))
def test_of_few_values_the_bounds_are_the_ends(count: int) -> None:
    assert _coverage(count, 0) < 0.95
    assert median_bounds(range(count)) == (0, count - 1)


@pytest.mark.parametrize(("count", "left_out"), [(5, 0), (9, 1), (20, 5), (50, 17)])
def test_of_many_samples_as_many_hold_the_median_as_is_said(count: int, left_out: int) -> None:
    chance, held, samples, exact = random.Random(7), 0, 4000, _coverage(count, left_out)
    for _ in range(samples):
        # Far from normal, as times are; the median is 1.
        low, high = median_bounds([chance.lognormvariate(0.0, 1.5) for _ in range(count)])
        held += low <= 1.0 <= high
    assert held / samples == pytest.approx(exact, abs=4 * math.sqrt(exact * (1 - exact) / samples))


@pytest.mark.parametrize("launches", [3, 4, 5])
def test_between_a_few_launches_the_spread_is_from_lowest_to_highest(launches: int) -> None:
    own = _launches(*([2.0 + number, 2.0 + number] for number in range(launches)))
    found = _cost(own, _launches(*[[2.0]] * launches))
    assert (found.low, found.high) == (1.0, (1.0 + launches) / 2)


def test_between_many_launches_an_outlier_is_left_out() -> None:
    times = [3.0 + number / 100 for number in range(9)] + [300.0]
    found = _cost(_launches(*([time] for time in times)), _launches(*[[2.0]] * 10))
    assert found.high < 2
    assert found.ratio == pytest.approx(statistics.median(times) / 2)


@pytest.mark.parametrize("launches", [1, 2])
def test_below_three_launches_the_spread_is_that_of_the_steps_in_them(launches: int) -> None:
    own, baseline = [3.0, 4.0, 5.0, 4.0, 4.0, 4.0], [1.0, 2.0, 2.0, 2.0, 2.0, 2.5]
    found = _cost(_launches(*[own] * launches), _launches(*[baseline] * launches))
    slow, fast = median_bounds(own * launches), median_bounds(baseline * launches)
    assert (found.low, found.high) == (slow[0] / fast[1], slow[1] / fast[0])
    assert (found.ratio, found.launches, found.steps) == (2.0, launches, 6 * launches)


@pytest.mark.parametrize("steps", [1, 5, 6])
def test_steps_are_those_of_the_side_with_fewer(steps: int) -> None:
    few, many = _launches([2.0] * steps), _launches([2.0] * 50)
    assert _cost(few, many).steps == _cost(many, few).steps == steps


# --- what is said of it ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "within_noise", "slower"),
    [
        (Cost(1.02, 0.98, 1.05, 3, 6), True, False),
        (Cost(1.05, 1.02, 1.08, 3, 6), False, False),
        (Cost(1.15, 1.10, 1.20, 3, 6), False, False),
        (Cost(1.16, 1.10, 1.20, 3, 6), False, True),
        (Cost(1.80, 0.90, 2.50, 3, 6), True, False),
        (Cost(0.50, 0.40, 0.60, 3, 6), False, False),
        (Cost(1.60, 1.50, 1.70, 3, 3), False, True),
        # Steps of one or two launches do not tell how launches differ: all of their spread has to be beyond.
        (Cost(44.0, 40.0, 48.0, 1, 6), None, True),
        (Cost(1.30, 1.16, 1.40, 2, 6), None, True),
        (Cost(1.30, 1.15, 1.40, 2, 6), None, False),
        (Cost(0.99, 0.90, 1.10, 1, 6), None, False),
        # Of fewer steps there is no spread to speak of.
        (Cost(1.73, 1.28, 2.22, 1, 2), None, False),
        (Cost(44.0, 44.0, 44.0, 1, 1), None, False),
    ],
    ids=str,
)
def test_what_is_noise_and_what_is_slower(found: Cost, within_noise: bool | None, slower: bool) -> None:
    assert (found.within_noise, found.slower) == (within_noise, slower)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (Cost(1.254, 1.2, 1.3, 3, 6), "1.25x (1.20-1.30) slower"),
        (Cost(1.06, 1.02, 1.1, 3, 6), "1.06x (1.02-1.10)"),
        (Cost(1.0, 0.9, 1.1, 5, 6), "1.00x (0.90-1.10) noise"),
        (Cost(1.8, 1.7, 1.9, 1, 6), "1.80x (1.70-1.90, 1 launch) slower"),
        (Cost(1.0, 0.9, 1.1, 2, 6), "1.00x (0.90-1.10, 2 launches)"),
    ],
    ids=str,
)
def test_a_cost_is_a_ratio_with_its_spread_and_a_word(found: Cost, words: str) -> None:
    row = {"ratio": found.ratio, "low": found.low, "high": found.high, "launches": found.launches}
    assert cost_words({**row, "slower": found.slower, "within_noise": found.within_noise}) == words


# --- cells -----------------------------------------------------------------------------------------------------------


def _sweep(folder: Path, times: Mapping[tuple[str, ...], Sequence[float]]) -> Sweep:
    """A sweep whose cells, by their overrides, had steps of these milliseconds, a launch each."""
    plan = plan_of(*times, common=["mitigation_force=true", f"trials={len(next(iter(times.values())))}"])
    sweep = write_cells(folder, plan)
    for cell, launches in zip(plan.cells, times.values(), strict=True):
        for number, milliseconds in enumerate(launches):
            write_trial(trial_of(sweep, cell, number), cell, number, plain_milliseconds=milliseconds)
    return load(folder)


NONE, DET, RING = ("mitigation=[none]",), ("mitigation=[torch_det]",), ("mitigation=[nccl_ring]",)


def test_each_cell_with_a_mitigation_is_held_against_the_one_without(tmp_path: Path) -> None:
    both = ("mitigation=[torch_det,nccl_ring]",)
    own = ("mitigation=[none]", "+env.MY_FLAG=1")
    sweep = _sweep(tmp_path, {NONE: [2.0] * 3, DET: [2.5] * 3, RING: [2.0] * 3, both: [3.0] * 3, own: [1.0] * 3})
    assert list(sweep.costs.columns) == list(COST_COLUMNS)
    assert list(sweep.costs["mitigation"]) == ["torch_det", "nccl_ring", "nccl_ring+torch_det", "none"]
    assert list(sweep.costs["ratio"]) == [1.25, 1.0, 1.5, 0.5]
    assert set(sweep.costs["baseline"]) == {sweep.trials["cell"].iloc[0]}
    assert list(sweep.costs["launches"]) == [3, 3, 3, 3]
    assert list(cell_table(sweep)["cost"]) == [
        "",
        "1.25x (1.25-1.25) slower",
        "1.00x (1.00-1.00) noise",
        "1.50x (1.50-1.50) slower",
        "0.50x (0.50-0.50)",
    ]


def test_only_a_cell_that_differs_in_nothing_else_is_a_baseline(tmp_path: Path) -> None:
    like = {(*NONE, "dtype=bf16"): [2.0], (*DET, "dtype=bf16"): [4.0], (*DET, "dtype=fp16"): [9.0]}
    sweep = _sweep(tmp_path, {**like, (*DET, "dtype=bf16", "observe=op"): [9.0], (*NONE, "dtype=fp32"): [1.0]})
    (row,) = sweep.costs.to_dict("records")
    assert (row["cell"], row["ratio"]) == (sweep.trials["cell"].iloc[1], 2.0)


def test_without_a_baseline_there_are_no_costs_and_no_column(tmp_path: Path) -> None:
    sweep = _sweep(tmp_path, {DET: [2.0], RING: [2.0]})
    assert sweep.costs.empty
    assert list(sweep.costs.columns) == list(COST_COLUMNS)
    assert "cost" not in cell_table(sweep)


def test_the_times_of_a_launch_that_came_to_no_verdict_do_not_count(tmp_path: Path) -> None:
    plan = plan_of(list(NONE), list(DET), common=["trials=2"])
    sweep = write_cells(tmp_path, plan)
    for cell, milliseconds in zip(plan.cells, (2.0, 3.0), strict=True):
        write_trial(trial_of(sweep, cell), cell, plain_milliseconds=milliseconds)
    lost = {1: ["deterministic_algorithms should be strict, is off"]}
    write_trial(trial_of(sweep, plan.cells[0], 1), plan.cells[0], 1, plain_milliseconds=2.0)
    write_trial(trial_of(sweep, plan.cells[1], 1), plan.cells[1], 1, plain_milliseconds=90.0, lost=lost)
    (row,) = load(tmp_path).costs.to_dict("records")
    assert (row["ratio"], row["launches"]) == (1.5, 1)


def test_of_one_launch_the_times_of_its_steps_are_the_spread(tmp_path: Path) -> None:
    plan = plan_of(list(NONE), list(DET))
    sweep = write_cells(tmp_path, plan)
    for cell, times in zip(plan.cells, ([2.0] * 6, [5.0, 3.0, 4.0, 3.0, 4.0, 9.0]), strict=True):
        write_trial(trial_of(sweep, cell), cell, plain_milliseconds=times)
    (row,) = load(tmp_path).costs.to_dict("records")
    assert (row["ratio"], row["low"], row["high"], row["slower"]) == (2.0, 1.5, 4.5, True)


def test_launches_of_a_folder_are_paired_by_when_they_started(tmp_path: Path) -> None:
    plan = plan_of(list(NONE), list(DET), common=["trials=2"])
    sweep = write_cells(tmp_path, plan)
    # The baseline's second launch is the one beside the mitigation's first.
    started = {0: {0: (0.0, 20.0), 1: (100.0, 2.0)}, 1: {0: (101.0, 3.0), 1: (900.0, 30.0)}}
    for place, launches in started.items():
        for number, (when, milliseconds) in launches.items():
            trial = trial_of(sweep, plan.cells[place], number)
            result = write_trial(trial, plan.cells[place], number, plain_milliseconds=milliseconds)
            write_json(trial.result, {**result, "started": when})
    (row,) = load(tmp_path).costs.to_dict("records")
    assert (row["ratio"], row["launches"]) == (1.5, 2)


def test_what_is_slower_is_named_once_below_the_table(tmp_path: Path) -> None:
    times = {NONE: [2.0] * 3, DET: [2.5] * 3, RING: [2.1] * 3, ("mitigation=[no_compile]",): [3.0] * 3}
    line = "slower than without by more than 15%, which by itself can hide a race: no_compile, torch_det"
    assert list(mitigation_lines(_sweep(tmp_path, times))) == [line]


def test_where_nothing_is_slower_nothing_is_said(tmp_path: Path) -> None:
    assert list(mitigation_lines(_sweep(tmp_path, {NONE: [2.0] * 3, DET: [2.2] * 3}))) == []
