"""When a cell needs no further trial: after so many divergences, or when nothing diverged for long enough."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

import pytest

from detsweep.bounds import clean_needed, interval, upper_bound
from detsweep.chances import Chances
from detsweep.consistency import contradictions
from detsweep.plan import make_plan
from detsweep.stopping import Stopped, has_rule, reason, stopped, surely_needed
from detsweep.validate import problems
from tests.support import compose, one_cell


def _config(*overrides: str) -> dict[str, Any]:
    return dict(one_cell("trials=20", "steps=10", *overrides).config)


def _results(*diverged: int) -> dict[int, dict[str, Any]]:
    """Trials of 10 replays, of which so many diverged; -1: an error."""
    return {
        number: {"verdict": "error"}
        if count < 0
        else {"verdict": "diverged" if count else "pass", "replays": 10, "diverged_replays": count}
        for number, count in enumerate(diverged)
    }


K2, BELOW = "stop_after.divergences=2", "stop_after.bound=0.1"


@pytest.mark.parametrize(
    ("rule", "results", "words"),
    [
        ([K2], (0, 3, 0), None),
        ([K2], (0, 3, 0, 1), "after 4 of 20 trials: 2 diverged"),
        ([K2], (0, 3, -1, 1), "after 4 of 20 trials: 2 diverged"),
        # 29 clean replays say: below 10%.
        ([BELOW], (0, 0), None),
        ([BELOW], (0, 0, 0), "after 3 of 20 trials: 0 of 30 replays diverged"),
        ([BELOW], (0, -1, 0), None),
        ([BELOW], (1, *(0,) * 15), None),
        ([K2, BELOW], (1, *(0,) * 15), None),
        ([K2, BELOW], (1, 0, 1), "after 3 of 20 trials: 2 diverged"),
        ([K2, BELOW], (0, 0, 0), "after 3 of 20 trials: 0 of 30 replays diverged"),
        ([], (1,) * 10, None),
        # With the last of its trials nothing was spared.
        ([K2], (*(0,) * 18, 1, 1), None),
    ],
    ids=str,
)
def test_a_cell_stops_when_it_has_its_answer(rule: list[str], results: tuple[int, ...], words: str | None) -> None:
    found = stopped(_config(*rule), _results(*results))
    assert (None if found is None else found.words) == words


def test_a_sweep_from_before_there_was_a_rule_has_none() -> None:
    config = {key: value for key, value in _config().items() if key != "stop_after"}
    assert not has_rule(config)
    assert stopped(config, _results(1, 1)) is None
    assert Stopped(1, 2, "x").words == "after 1 of 2 trials: x"


@pytest.mark.parametrize(
    ("rule", "results", "in_flight", "needed"),
    [
        ([K2], (0, 0), (2,), True),
        ([K2], (0, 1), (2,), False),
        ([K2], (0, 0), (2, 3), False),
        ([BELOW], (0,), (1,), True),
        ([BELOW], (0,), (1, 2), False),
        # It diverged: no number of clean ones ends it.
        ([BELOW], (1, 0), (2, 3, 4), True),
        ([K2, BELOW], (1, 0), (2,), False),
        ([], (), (0, 1, 2), True),
    ],
    ids=str,
)
def test_what_is_needed_whatever_comes_of_those_in_flight(
    rule: list[str], results: tuple[int, ...], in_flight: tuple[int, ...], needed: bool
) -> None:
    diverged = sum(count > 0 for count in results)
    seen = Chances(sum(results), 10 * len(results), diverged, len(results))
    assert surely_needed(_config(*rule), seen, in_flight) is needed


@pytest.mark.parametrize(
    ("overrides", "lines"),
    [
        (["stop_after.divergences=0"], ["stop_after.divergences=0: must be at least 1"]),
        (["stop_after.bound=0"], ["stop_after.bound=0.0: must be at least 1e-06"]),
        (["stop_after.bound=1.5"], ["stop_after.bound=1.5: must be at most 0.999999"]),
        (
            ["trials=2", "stop_after.divergences=3"],
            ["stop_after.divergences=3: no cell can reach it with trials=2; raise trials"],
        ),
        (
            ["trials=2", "launch=slurm", "launch.detach=true", "stop_after.divergences=1"],
            ["stop_after.divergences=1: does not go with launch.detach=true: somebody must watch what trials come to"],
        ),
        (
            ["trials=2", "mode=record", "stop_after.bound=0.1"],
            ["stop_after.bound=0.1: runs=1 compares nothing, so that no trial can say anything; use runs=2"],
        ),
        (["trials=3", "stop_after.divergences=3", "stop_after.bound=0.5"], []),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_one_line(overrides: list[str], lines: list[str]) -> None:
    assert problems(compose(*overrides), gpus=0) == lines


def test_too_few_trials_for_a_bound_are_a_note_with_how_many_would_do() -> None:
    words = ["trials=3", "steps=10", "stop_after.bound=0.05"]
    (note,) = make_plan([(words, compose(*words))]).notes
    assert note == (
        "stop_after.bound=0.05: takes 59 replays, trials=3 make 30: no cell stops by it (trials=6 would do)"
    )
    words[0] = "trials=6"
    assert make_plan([(words, compose(*words))]).notes == ()
    assert list(contradictions(compose(*words), gpus=0)) == []


def test_the_rule_is_no_part_of_what_a_cell_is_and_no_axis() -> None:
    ruled = one_cell("seed=3", "trials=2", "stop_after.divergences=1")
    assert (ruled.id, ruled.slug) == (one_cell("seed=3").id, one_cell("seed=3").slug)
    points = [[f"stop_after.divergences={count}", "trials=5"] for count in (1, 2)]
    plan = make_plan([(words, compose(*words)) for words in points])
    assert plan.problems == ("stop_after.divergences=1,2: cannot be an axis of a sweep",)


# --- what a rule does to what is said afterwards ---------------------------------------------------------------------


def _outcomes(rate: float, replays: int, trials: int, *rule: str) -> dict[tuple[int, int], float]:
    """How probable each end of a cell is, as (diverged, compared replays), by all that its launches can come to."""
    config = dict(one_cell(f"trials={trials}", f"steps={replays}", *rule).config)
    deals = [math.comb(replays, k) * rate**k * (1 - rate) ** (replays - k) for k in range(replays + 1)]
    going, ends = {(0, 0): 1.0}, defaultdict(float)
    for launches in range(1, trials + 1):
        after: dict[tuple[int, int], float] = defaultdict(float)
        for (launched, seen), weight in going.items():
            for count, chance in enumerate(deals):
                after[launched + (count > 0), seen + count] += weight * chance
        going = {}
        for (launched, seen), weight in after.items():
            at = Chances(seen, launches * replays, launched, launches)
            if launches == trials or reason(config, at) is not None:
                ends[seen, at.compared] += weight
            elif weight > 1e-9:
                going[launched, seen] = weight
    assert sum(ends.values()) == pytest.approx(1, abs=1e-5)
    return ends


RATES = [0.01, 0.1, 0.4, 0.653]


@pytest.mark.parametrize(("replays", "divergences"), [(1, 1), (10, 1), (10, 2)])
@pytest.mark.parametrize("rate", RATES)
def test_after_divergences_an_interval_still_holds_the_rate_in_95_of_100_cases(
    replays: int, divergences: int, rate: float
) -> None:
    ends = _outcomes(rate, replays, 20, f"stop_after.divergences={divergences}")
    holds = sum(p for end, p in ends.items() if interval(*end)[0] <= rate <= interval(*end)[1])
    assert holds >= 0.95


@pytest.mark.parametrize("replays", [1, 7, 10])
def test_a_bound_that_is_reached_is_wrong_in_5_of_100_cases_at_most(replays: int) -> None:
    bound = 0.05
    ends = _outcomes(bound, replays, 70, f"stop_after.bound={bound}", "stop_after.divergences=5")
    wrong = sum(p for (seen, compared), p in ends.items() if seen == 0 and upper_bound(compared) <= bound)
    assert 0.03 < wrong <= 0.05
    assert clean_needed(bound) == 59


def test_asked_again_after_each_divergence_it_would_be_wrong_far_more_often() -> None:
    # Why a cell that has diverged is not stopped by a bound: chances of a rate of 5%, one by one, up to 200 of them.
    bound, going, wrong = 0.05, {0: 1.0}, 0.0
    for chances in range(1, 201):
        after: dict[int, float] = defaultdict(float)
        for seen, weight in going.items():
            after[seen] += weight * (1 - bound)
            after[seen + 1] += weight * bound
        said = {seen for seen in after if seen < chances and interval(seen, chances, 0.9)[1] <= bound}
        wrong += sum(after.pop(seen) for seen in said)
        going = after
    assert wrong > 0.11
