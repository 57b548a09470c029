"""How sure counts make one: exact (Clopper-Pearson) one-sided bounds of a rate."""

from __future__ import annotations

import math

CONFIDENCE = 0.95


def upper_bound(clean: int, confidence: float = CONFIDENCE) -> float:
    """The rate below which an event lies after `clean` chances without one: 1 - (1-c)^(1/n); 1.0 for no chance."""
    return 1.0 if clean == 0 else float(1 - (1 - confidence) ** (1 / clean))


def lower_bound(seen: int, chances: int, confidence: float = CONFIDENCE) -> float:
    """The rate above which an event lies that was seen `seen` times in so many chances.

    It is the p at which seeing it as often or more often has a probability of 1-c: the binomial tail, solved by
    bisection. 0.0 where it was never seen.
    """
    if seen == 0:
        return 0.0
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if _at_least(seen, chances, middle) < 1 - confidence:
            low = middle
        else:
            high = middle
    return low


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


def _at_least(seen: int, chances: int, rate: float) -> float:
    """P(X >= seen) of a binomial: the smaller tail is summed."""
    if rate <= 0 or rate >= 1:
        return float(rate >= 1)
    below = math.fsum(_exactly(k, chances, rate) for k in range(seen))
    return 1 - below if below < 0.5 else math.fsum(_exactly(k, chances, rate) for k in range(seen, chances + 1))


def _exactly(k: int, chances: int, rate: float) -> float:
    ways = math.lgamma(chances + 1) - math.lgamma(k + 1) - math.lgamma(chances - k + 1)
    return math.exp(ways + k * math.log(rate) + (chances - k) * math.log1p(-rate))
