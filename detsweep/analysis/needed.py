"""How many clean replays it takes to say that a rate lies below a bound, and how many more cells of a sweep need."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from detsweep.analysis.celltable import label_of
from detsweep.analysis.rates import Rate, rate_words, rates
from detsweep.analysis.words import counted
from detsweep.bounds import clean_needed, interval
from detsweep.chances import planned

if TYPE_CHECKING:
    from detsweep.analysis.frames import Sweep

IN_A_LAUNCH = 100


def needed_lines(bound: float, confidence: float) -> Iterator[str]:
    """How many replays, or launches, without a divergence say that the rate lies below `bound`."""
    needed = clean_needed(bound, confidence)
    sure = f"{100 * confidence:.6g}% confidence"
    yield f"{counted(needed, 'replay')} without a divergence: the rate is below {100 * bound:.3g}% per replay ({sure})"
    ways = [f"steps={needed}"]
    if needed > IN_A_LAUNCH:
        ways.append(f"steps={IN_A_LAUNCH} trials={math.ceil(needed / IN_A_LAUNCH)}")
    yield f"with two runs of each step: {', or '.join(ways)}; for a bound of the rate per launch: trials={needed}"


def needed_of_cells(sweep: Sweep, bound: float, confidence: float) -> Iterator[str]:
    """The same of each cell of a sweep: what it has, and how many trials like those that it has are missing."""
    for cell, rate in rates(sweep).items():
        if cell in sweep.configs:
            yield f"{label_of(sweep, cell)}: {_needed(sweep, cell, rate, clean_needed(bound, confidence), confidence)}"


def _needed(sweep: Sweep, cell: str, rate: Rate, needed: int, confidence: float) -> str:
    seen = rate.seen
    has = f"{seen.diverged} of {counted(seen.compared, 'replay')} diverged"
    if seen.diverged:
        ends = interval(seen.diverged, seen.compared, confidence)
        return f"{has}, {rate_words(seen.diverged / seen.compared, *ends)}: no bound of zero"
    if seen.compared >= needed:
        return f"{has}: enough"
    each = planned(sweep.configs[cell], 1)
    if not each:
        return f"{has}, and its trials compare nothing"
    missing = needed - seen.compared
    return f"{has}: {missing} more, {counted(math.ceil(missing / each), 'trial')} of {counted(each, 'replay')}"
