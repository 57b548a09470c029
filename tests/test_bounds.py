"""Exact bounds of a rate and comparisons of two: published values, and a second way of computing, in whole numbers."""

from __future__ import annotations

import math
import subprocess
import sys
from fractions import Fraction
from itertools import pairwise

import pytest

from detsweep.bounds import CONFIDENCE, clean_needed, fisher, holm, interval, interval_until, lower_bound, upper_bound

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


@pytest.mark.parametrize("clean", [30, 51, 100, 1000])
def test_the_bound_is_just_below_the_rule_of_three(clean: int) -> None:
    # J. A. Hanley, A. Lippman-Hand, If nothing goes wrong, is everything all right?, JAMA 249 (1983) 1743-1745: 3/n.
    assert 0.94 * 3 / clean < upper_bound(clean) < 3 / clean


def test_of_51_clean_chances_the_bound_is_5_7_percent() -> None:
    assert f"{upper_bound(51):.1%}" == "5.7%"


# --- two-sided intervals ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seen", "chances", "low", "high"),
    [
        # R. G. Newcombe, Two-sided confidence intervals for the single proportion, Statistics in Medicine 17 (1998)
        # 857-872, table I, method 5.
        (81, 263, 0.2527, 0.3676),
        (15, 148, 0.0578, 0.1617),
        (0, 20, 0.0, 0.1684),
        (1, 29, 0.0009, 0.1776),
        # Documenta Geigy, Scientific Tables, 7th edition (1970), exact confidence limits for p of n=10.
        (0, 10, 0.0, 0.3085),
        (1, 10, 0.0025, 0.4450),
        (5, 10, 0.1871, 0.8129),
        (10, 10, 0.6915, 1.0),
    ],
)
def test_intervals_are_those_of_tables(seen: int, chances: int, low: float, high: float) -> None:
    assert interval(seen, chances) == pytest.approx((low, high), abs=5.1e-5)


def test_without_a_chance_a_rate_can_be_anything() -> None:
    assert interval(0, 0) == (0.0, 1.0)


def _binomial(at_least: int, chances: int, rate: float) -> Fraction:
    """P(X >= at_least), in whole numbers."""
    p = Fraction(rate)
    return sum(
        (math.comb(chances, k) * p**k * (1 - p) ** (chances - k) for k in range(at_least, chances + 1)), Fraction()
    )


SMALL = [pair for pair in COUNTS if pair[1] <= 50]


@pytest.mark.parametrize(("seen", "chances"), [*SMALL, (0, 7), (0, 51), (7, 13)])
@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.999])
def test_at_the_ends_of_an_interval_what_was_seen_is_as_improbable_as_it_says(
    seen: int, chances: int, confidence: float
) -> None:
    low, high = interval(seen, chances, confidence)
    tail = (1 - confidence) / 2
    assert (float(_binomial(seen, chances, low)) == pytest.approx(tail)) if seen else low == 0
    fewer = 1 - _binomial(seen + 1, chances, high)
    assert (float(fewer) == pytest.approx(tail)) if seen < chances else high == 1


@pytest.mark.parametrize(("seen", "chances"), [(1, 1), (1, 4), (2, 2), (3, 10), (5, 40)])
def test_chances_that_were_taken_until_it_was_seen_are_negative_binomial(seen: int, chances: int) -> None:
    low, high = interval_until(seen, chances)

    def takes(count: int, rate: float) -> Fraction:
        """The probability that it has been seen so often with this chance, and not before."""
        p = Fraction(rate)
        return math.comb(count - 1, seen - 1) * p**seen * (1 - p) ** (count - seen)

    at_most = sum((takes(count, low) for count in range(seen, chances + 1)), Fraction())
    assert float(at_most) == pytest.approx(0.025)
    at_least = 1 - sum((takes(count, high) for count in range(seen, chances)), Fraction())
    assert (float(at_least) == pytest.approx(0.025)) if chances > seen else high == 1
    # What is printed for a number of chances that was fixed beforehand is wider: it can be relied on here too.
    assert interval(seen, chances)[0] == low
    assert interval(seen, chances)[1] >= high


# --- two rates against each other ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("a", "b", "alternative", "p"),
    [
        # R. A. Fisher, The Design of Experiments (1935), chapter II: of 4 cups with the milk first she named 3, or all.
        ((3, 4), (1, 4), "greater", 0.2429),
        ((3, 4), (1, 4), "two-sided", 0.4857),
        ((4, 4), (0, 4), "greater", 0.014286),
        # R. A. Fisher, The logic of inductive inference, JRSS 98 (1935) 39-82: convicted twins of convicts.
        ((2, 17), (10, 13), "less", 0.0004652),
        ((2, 17), (10, 13), "two-sided", 0.0005367),
    ],
)
def test_fishers_own_examples(a: tuple[int, int], b: tuple[int, int], alternative: str, p: float) -> None:
    assert fisher(a, b, alternative=alternative) == pytest.approx(p, rel=2e-4)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("a", "b"), [((0, 20), (11, 20)), ((1, 20), (0, 20)), ((5, 9), (14, 31)), ((7, 50), (35, 50)), ((2, 2), (0, 400))]
)
def test_the_test_sums_what_is_no_more_probable_than_what_was_seen(a: tuple[int, int], b: tuple[int, int]) -> None:
    (seen, of_a), (other, of_b) = a, b
    both = seen + other

    def deal(count: int) -> Fraction:
        return Fraction(math.comb(of_a, count) * math.comb(of_b, both - count), math.comb(of_a + of_b, both))

    deals = {count: deal(count) for count in range(max(0, both - of_b), min(both, of_a) + 1)}
    assert fisher(a, b) == pytest.approx(float(sum(p for p in deals.values() if p <= deals[seen])))
    assert fisher(a, b) == pytest.approx(fisher(b, a))
    fewer = sum(p for count, p in deals.items() if count <= seen)
    assert fisher(a, b, alternative="less") == pytest.approx(float(fewer))


def test_what_had_no_chance_differs_from_nothing() -> None:
    assert fisher((0, 0), (3, 5)) == fisher((0, 10), (0, 3)) == 1


@pytest.mark.parametrize(
    ("values", "adjusted"),
    [
        # As R's p.adjust(c(0.01, 0.04, 0.03, 0.005), "holm") has it.
        ([0.01, 0.04, 0.03, 0.005], [0.03, 0.06, 0.06, 0.02]),
        ([0.5, 0.6], [1.0, 1.0]),
        ([0.03], [0.03]),
        ([], []),
    ],
)
def test_several_comparisons_are_held_to_more(values: list[float], adjusted: list[float]) -> None:
    assert holm(values) == pytest.approx(adjusted)


def test_bounds_cost_the_driver_no_import_before_one_is_asked_for() -> None:
    code = "import sys, detsweep.bounds as b; b.upper_bound(5), b.clean_needed(0.1); print('scipy' in sys.modules)"
    code += "; b.lower_bound(3, 5), b.interval(3, 5); print('scipy.stats' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
