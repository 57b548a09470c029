"""What a mitigation costs: the time of a step against that of the same cell without it, launch by launch."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from detsweep.analysis.rows import Trials
from detsweep.crosstrial import RAN
from detsweep.plan import NOT_IDENTITY

SLOWER = 1.15
"""Above this ratio a cell is marked: what is slower has other timing, and that alone can hide a race."""
PAIRED = 3
"""From so many pairs of launches on the spread is that between launches, and tells something; below, steps of single
launches are all there is, and launches differ by more than that."""
BOUNDED = 6
"""From so many values on a median has bounds of 95% confidence: 1 - 2 / 2^6."""
COST_COLUMNS = ("cell", "baseline", "mitigation", "ratio", "low", "high", "launches", "slower", "within_noise")


@dataclass(frozen=True)
class Launched:
    """The milliseconds of a launch's unobserved steps, and when it was started, in seconds."""

    started: float
    milliseconds: tuple[float, ...]


@dataclass(frozen=True)
class Cost:
    """The ratio of step times and its spread, `low` to `high`, from so many pairs of launches with so many `steps`."""

    ratio: float
    low: float
    high: float
    launches: int
    steps: int

    @property
    def within_noise(self) -> bool | None:
        """Whether the spread holds 1, no difference was seen; None where too few launches can tell."""
        return self.low <= 1 <= self.high if self.launches >= PAIRED else None

    @property
    def slower(self) -> bool:
        """Whether it is so much slower that its timing alone could hide a race; of few launches all the spread is."""
        if self.launches >= PAIRED:
            return self.ratio > SLOWER and not self.within_noise
        return self.low > SLOWER and self.steps >= BOUNDED


def cost(own: Sequence[Launched], baseline: Sequence[Launched]) -> Cost | None:
    """The cost from the launches of a cell and of its baseline; None without a pair.

    Launches that ran next to each other are compared pair by pair: the ratio is the median of the pairs' ratios of
    medians. With at least 3 pairs the spread is the narrowest pair of order statistics that holds the median with 95%
    confidence, or lowest to highest where there are fewer than 6; else it is made from the steps within the launches,
    the same bounds of both medians against each other.
    """
    pairs = _pairs(own, baseline)
    if not pairs:
        return None
    ratios = [statistics.median(one.milliseconds) / statistics.median(other.milliseconds) for one, other in pairs]
    ours, theirs = ([value for pair in pairs for value in pair[side].milliseconds] for side in (0, 1))
    if len(pairs) >= PAIRED:
        low, high = median_bounds(ratios)
    else:
        slow, fast = median_bounds(ours), median_bounds(theirs)
        low, high = slow[0] / fast[1], slow[1] / fast[0]
    return Cost(statistics.median(ratios), low, high, len(pairs), min(len(ours), len(theirs)))


def _pairs(own: Sequence[Launched], baseline: Sequence[Launched]) -> list[tuple[Launched, Launched]]:
    """Each launch with the one of the baseline that started nearest to it, the nearest of all first, none twice."""
    candidates = sorted(
        ((abs(one.started - other.started), place, beside)
         for place, one in enumerate(own) for beside, other in enumerate(baseline)
         if one.milliseconds and other.milliseconds),
    )  # fmt: skip
    taken: dict[int, int] = {}
    for _, place, beside in candidates:
        if place not in taken and beside not in taken.values():
            taken[place] = beside
    return [(own[place], baseline[beside]) for place, beside in sorted(taken.items())]


def median_bounds(values: Sequence[float]) -> tuple[float, float]:
    """A 95% confidence interval of a median that takes no distribution for granted: two order statistics.

    With k values left out at either end it holds the median with a confidence of 1 - 2 P(X <= k), X being binomial with
    n and 1/2. Below 6 values the ends are all there is, and their confidence is less: 75% for 3, 94% for 5.
    """
    ordered, count = sorted(values), len(values)
    left_out = 0
    # In whole numbers: P(X <= k) is the sum of the first binomial coefficients by 2^n.
    term = count
    tail = 1 + term
    while left_out + 1 < count - 1 - (left_out + 1) and tail * 40 <= 2**count:
        left_out += 1
        term = term * (count - left_out) // (left_out + 1)
        tail += term
    return ordered[left_out], ordered[count - 1 - left_out]


def cost_rows(cells: Sequence[Mapping[str, Any]], found: Mapping[str, Trials]) -> Iterator[dict[str, Any]]:
    """A row for each cell with a mitigation, or variables of its own, that has a baseline among the cells."""
    bare = {without_mitigations(cell["config"]): cell for cell in cells if not has_settings(cell["config"])}
    for cell in cells:
        baseline = bare.get(without_mitigations(cell["config"]))
        if baseline is None or not has_settings(cell["config"]):
            continue
        measured = cost(_launched(found[cell["id"]]), _launched(found[baseline["id"]]))
        if measured is not None:
            yield {
                "cell": cell["id"],
                "baseline": baseline["id"],
                "mitigation": "+".join(sorted(cell["config"]["mitigation"])),
                "ratio": measured.ratio,
                "low": measured.low,
                "high": measured.high,
                "launches": measured.launches,
                "slower": measured.slower,
                "within_noise": measured.within_noise,
            }


def cost_words(row: Mapping[Any, Any]) -> str:
    """A row of the costs as a table has it."""
    few = f", {row['launches']} launch{'' if row['launches'] == 1 else 'es'}" if row["launches"] < PAIRED else ""
    words = f"{row['ratio']:.2f}x ({row['low']:.2f}-{row['high']:.2f}{few})"
    known = {word: row[column] for word, column in (("noise", "within_noise"), ("slower", "slower"))}
    return " ".join([words, *(word for word, true in known.items() if not pd.isna(true) and true)])


def without_mitigations(config: Mapping[str, Any]) -> str:
    """A cell's configuration but for its mitigations, as a key: cells that have it in common differ in them alone."""
    left_out = {*NOT_IDENTITY, "mitigation", "env", "keep_env"}
    return json.dumps({key: value for key, value in config.items() if key not in left_out}, sort_keys=True, default=str)


def has_settings(config: Mapping[str, Any]) -> bool:
    """Whether a cell has a mitigation that sets anything, or variables of its own."""
    return bool(config["env"]) or any(one.get("env") or one.get("torch") for one in config["mitigation"].values())


def _launched(trials: Trials) -> list[Launched]:
    valid = [(number, result) for number, (_, result) in trials.items() if result["verdict"] in RAN]
    # Without a time, as in results of earlier versions, by the number: those of one number ran next to each other.
    return [Launched(result.get("started", number), tuple(result.get("plain_ms") or ())) for number, result in valid]
