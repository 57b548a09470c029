"""Exact bounds of a rate: closed forms, values that tables have, and how many clean comparisons a statement takes."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from detsweep.bounds import CONFIDENCE, clean_needed, interval, lower_bound, upper_bound

COUNTS = [(1, 1), (1, 20), (3, 10), (5, 10), (17, 50), (50, 50), (60, 200), (199, 200), (1, 5000), (2500, 5000)]


def _at_least(seen: int, chances: int, rate: float) -> float:
    """P(X >= seen) of a binomial, with whole numbers for its coefficients."""
    return math.fsum(math.comb(chances, k) * rate**k * (1 - rate) ** (chances - k) for k in range(seen, chances + 1))


# --- nothing was seen ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("clean", "rate"), [(1, 0.95), (4, 0.5271), (20, 0.1391), (50, 0.0582), (59, 0.0495), (300, 0.0099)]
)
def test_clean_chances_bound_the_rate_from_above(clean: int, rate: float) -> None:
    assert upper_bound(clean) == pytest.approx(rate, abs=5e-5)
    # At that rate as many clean chances in a row are as improbable as the confidence leaves them to be.
    assert (1 - upper_bound(clean)) ** clean == pytest.approx(1 - CONFIDENCE)


def test_without_a_chance_nothing_is_known() -> None:
    assert upper_bound(0) == 1
    assert lower_bound(0, 0) == lower_bound(0, 100) == 0


def test_more_clean_chances_and_less_confidence_say_that_the_rate_is_lower() -> None:
    assert all(more < fewer for fewer, more in pairwise(upper_bound(clean) for clean in range(100)))
    assert upper_bound(10, 0.5) < upper_bound(10, 0.9) < upper_bound(10) < upper_bound(10, 0.99)


# --- something was seen ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seen", "chances", "rate"),
    [
        (1, 1, 0.05),
        (1, 10, 0.0051),
        (5, 10, 0.2224),
        (8, 10, 0.4931),
        (9, 10, 0.6058),
        (17, 50, 0.2295),
    ],
)
def test_the_lower_bound_is_that_of_clopper_and_pearson(seen: int, chances: int, rate: float) -> None:
    assert lower_bound(seen, chances) == pytest.approx(rate, abs=5e-5)


@pytest.mark.parametrize("chances", [1, 2, 3, 10, 100, 10_000])
def test_of_one_and_of_all_it_has_a_closed_form(chances: int) -> None:
    assert lower_bound(1, chances) == pytest.approx(1 - 0.95 ** (1 / chances))
    assert lower_bound(chances, chances) == pytest.approx(0.05 ** (1 / chances))


@pytest.mark.parametrize(("seen", "chances"), [pair for pair in COUNTS if pair[1] <= 200])
@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.999])
def test_at_the_bound_what_was_seen_is_as_improbable_as_the_confidence_leaves(
    seen: int, chances: int, confidence: float
) -> None:
    assert _at_least(seen, chances, lower_bound(seen, chances, confidence)) == pytest.approx(1 - confidence)


@pytest.mark.parametrize(("seen", "chances"), COUNTS)
def test_the_bound_lies_below_what_was_seen(seen: int, chances: int) -> None:
    assert 0 < lower_bound(seen, chances) < seen / chances


def test_more_of_as_many_or_as_many_of_fewer_say_that_the_rate_is_higher() -> None:
    assert all(fewer < more for fewer, more in pairwise(lower_bound(seen, 40) for seen in range(41)))
    assert all(fewer < more for fewer, more in pairwise(lower_bound(7, chances) for chances in range(40, 6, -1)))
    assert all(less > sure for less, sure in pairwise(lower_bound(7, 20, c) for c in (0.5, 0.9, 0.95, 0.999)))


# --- how many clean chances it takes ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rate", "confidence", "chances"),
    [(0.05, 0.95, 59), (0.5, 0.95, 5), (0.2295, 0.95, 12), (0.01, 0.95, 299), (0.05, 0.99, 90), (0.3, 0.5, 2)],
)
def test_a_rate_takes_so_many_clean_chances(rate: float, confidence: float, chances: int) -> None:
    assert clean_needed(rate, confidence) == chances


@pytest.mark.parametrize(("seen", "chances"), COUNTS)
@pytest.mark.parametrize("confidence", [0.6, 0.95, 0.99])
def test_they_are_enough_and_one_less_is_not(seen: int, chances: int, confidence: float) -> None:
    rate = lower_bound(seen, chances, confidence)
    needed = clean_needed(rate, confidence)
    assert upper_bound(needed, confidence) <= rate < upper_bound(needed - 1, confidence)


def test_what_always_happens_takes_one_clean_chance() -> None:
    assert clean_needed(1) == 1
    assert clean_needed(1 - 1e-12) == 1


def test_one_divergence_in_one_comparison_takes_59_clean_ones() -> None:
    assert clean_needed(lower_bound(1, 1)) == 59
    # Of many that all differ a handful is enough.
    assert [clean_needed(lower_bound(chances, chances)) for chances in (3, 5, 20)] == [7, 4, 2]


# --- both sides ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("seen", "chances"), [pair for pair in COUNTS if pair[1] < 1000])
def test_an_interval_leaves_half_of_what_is_left_at_either_end(seen: int, chances: int) -> None:
    low, high = interval(seen, chances)
    assert 0 <= low <= seen / chances <= high <= 1
    if seen:
        assert _at_least(seen, chances, low) == pytest.approx(0.025, rel=1e-6)
    if seen < chances:
        assert 1 - _at_least(seen + 1, chances, high) == pytest.approx(0.025, rel=1e-6)


def test_an_interval_without_chances_or_at_an_end_is_open_there() -> None:
    assert interval(0, 0) == (0.0, 1.0)
    assert interval(0, 10)[0] == 0.0
    assert interval(10, 10)[1] == 1.0
