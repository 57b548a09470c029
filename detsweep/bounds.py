"""How sure counts make one: exact (Clopper-Pearson) bounds of a rate, and exact comparisons of two.

From scipy, imported where it is needed: scipy.special takes a third of a second, scipy.stats, which only Fisher's test
is taken from, more than one, and the driver imports this.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

CONFIDENCE = 0.95
Counts = tuple[int, int]
"""How often something was seen, and in how many chances."""


def upper_bound(clean: int, confidence: float = CONFIDENCE) -> float:
    """The rate below which an event lies after `clean` chances without one: 1 - (1-c)^(1/n); 1.0 for no chance."""
    return 1.0 if clean == 0 else float(1 - (1 - confidence) ** (1 / clean))


def rate_below(seen: int, chances: int, confidence: float = CONFIDENCE) -> float:
    """The rate below which an event lies that was seen `seen` times in so many chances; 1.0 where it always was."""
    return 1.0 if seen >= chances else _highest(seen, chances, 1 - confidence)


def lower_bound(seen: int, chances: int, confidence: float = CONFIDENCE) -> float:
    """The rate above which an event lies that was seen `seen` times in so many chances.

    It is the p at which seeing it as often or more often has a probability of 1-c. 0.0 where it was never seen.
    """
    return _lowest(seen, chances, 1 - confidence)


def interval_until(seen: int, chances: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """The same of chances that were taken until the event had been seen `seen` times, and no longer.

    How many that takes is negative binomial. The lower end is that of `interval`; the upper one is less, as the last
    chance could not but be a hit. J. B. S. Haldane, On a method of estimating frequencies, Biometrika 33 (1945)
    222-225.
    """
    tail = (1 - confidence) / 2
    return _lowest(seen, chances, tail), _highest(seen - 1, chances - 1, tail)


def interval(seen: int, chances: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """The exact (Clopper-Pearson) two-sided interval of a rate; 0 to 1 where there was no chance."""
    # scipy.special and not scipy.stats, which takes a second longer to import.
    from scipy.special import betaincinv

    tail = (1 - confidence) / 2
    low = 0.0 if seen == 0 else float(betaincinv(seen, chances - seen + 1, tail))
    high = 1.0 if seen == chances else float(betaincinv(seen + 1, chances - seen, 1 - tail))
    return low, high


def clean_needed(rate: float, confidence: float = CONFIDENCE) -> int:
    """How many chances without an event say that its rate is not `rate`: (1-rate)^n <= 1-c."""
    if rate >= 1:
        return 1
    return math.ceil(math.log(1 - confidence) / math.log1p(-rate))


def fisher(a: Counts, b: Counts, *, alternative: Literal["two-sided", "less", "greater"] = "two-sided") -> float:
    """The probability that chance alone deals what was seen as unevenly: Fisher's exact test of (seen, chances) pairs.

    `less`: that `a` has so few of them, `greater`: so many. 1.0 where either had no chance.
    """
    import numpy as np
    from scipy.stats import fisher_exact

    table = np.array([[seen, chances - seen] for seen, chances in (a, b)])
    return float(fisher_exact(table, alternative=alternative)[1])


def holm(values: Sequence[float]) -> list[float]:
    """p values adjusted for being several: below 0.05 they stay for any of them to be chance in 1 of 20 cases at most.

    S. Holm, A simple sequentially rejective multiple test procedure, Scandinavian Journal of Statistics 6 (1979) 65-70.
    """
    adjusted = [1.0] * len(values)
    reached = 0.0
    for place, number in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        reached = max(reached, min(1.0, (len(values) - place) * values[number]))
        adjusted[number] = reached
    return adjusted


def _lowest(seen: int, chances: int, tail: float) -> float:
    """The p at which as many or more are seen with the probability `tail`: a quantile of the beta distribution."""
    from scipy.special import betaincinv

    return 0.0 if seen == 0 else float(betaincinv(seen, chances - seen + 1, tail))


def _highest(seen: int, chances: int, tail: float) -> float:
    from scipy.special import betaincinv

    return 1.0 if seen == chances else float(betaincinv(seen + 1, chances - seen, 1 - tail))
