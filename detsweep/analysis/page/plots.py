"""Drawings in numbers: what mitigations cost, and how rates depend on each axis."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import pandas as pd

from detsweep.analysis import rates
from detsweep.analysis.costs import SLOWER, cost_words
from detsweep.analysis.page.labels import NOTHING, label_of, text_of
from detsweep.analysis.page.model import AxisRates, Bar, CostBar, CostPlot, Rate
from detsweep.analysis.words import counted
from detsweep.bounds import interval

if TYPE_CHECKING:
    from detsweep.analysis.frames import Sweep

WIDTH, ROW, LABELS, WORDS, TOP = 960.0, 26.0, 330.0, 250.0, 30.0
"""Of the cost plot, in units of the drawing: all of it, a row, room for labels on the left, for words on the right."""
BAR = 100.0
MOST_VALUES = 40
"""An axis with more values than that, as one of seeds, makes no table that anybody reads."""
CUT = 52


def cost_plot(sweep: Sweep) -> CostPlot | None:
    """The ratio of step times with its spread, a row for each cell with a mitigation; None without one."""
    rows = sweep.costs.to_dict("records")
    if not rows:
        return None
    low = min(0.9, *(float(row["low"]) for row in rows))
    high = max(SLOWER + 0.1, *(float(row["high"]) for row in rows))

    def x(ratio: float) -> float:
        return round(LABELS + (ratio - low) / (high - low) * (WIDTH - LABELS - WORDS), 1)

    bars = tuple(
        CostBar(
            _cut(label_of(sweep, row["cell"])),
            cost_words(row),
            TOP + number * ROW,
            x(float(row["low"])),
            x(float(row["ratio"])),
            x(float(row["high"])),
            bool(row["slower"]) if pd.notna(row["slower"]) else False,
        )
        for number, row in enumerate(rows)
    )
    said = "; ".join(f"{bar.label}: {bar.text}" for bar in bars)
    return CostPlot(
        "Step time of each cell with a mitigation, as a ratio to the same cell without it",
        f"A line from the lower to the upper end of each interval, a dot at the ratio. {said}",
        WIDTH,
        TOP + len(bars) * ROW + 8,
        bars,
        ((x(1.0), "1.0"), (x(SLOWER), f"{SLOWER:g}")),
    )


def axis_rates(sweep: Sweep) -> tuple[AxisRates, ...]:
    """For each axis how often launches and replays diverged at each of its values, all cells with that value together.

    The rates are of the sum of the cells' chances, see detsweep.analysis.rates.pooled. Trials with a fault that was put
    in are no findings and left out, but where the axis is the fault, or there is no other trial.
    """
    known = rates.rates(sweep)
    return tuple(found for axis in sweep.axes if axis != "cell" and (found := _of_axis(sweep, axis, known)) is not None)


def _of_axis(sweep: Sweep, axis: str, known: Mapping[str, rates.Rate]) -> AxisRates | None:
    trials, note = sweep.trials, ""
    faulty = ~trials["fault"].isin(["none", ""])
    if faulty.all():
        note = "Faults were put into all of these trials on purpose: these rates are no findings."
    elif faulty.any() and not axis.startswith("fault"):
        trials = trials[~faulty]
        note = f"{counted(int(faulty.sum()), 'trial')} with a fault that was put in on purpose left out."
    values = list(dict.fromkeys(map(text_of, trials[axis])))
    if not 1 < len(values) <= MOST_VALUES:
        return None
    # What a trial has on an axis, and as a fault, is its cell's.
    cells = dict(zip(trials["cell"], trials[axis].map(text_of), strict=True))
    together = {value: rates.pooled(known[cell] for cell, own in cells.items() if own == value) for value in values}
    return AxisRates(
        axis, tuple((value or NOTHING, of_launches(one), of_replays(one)) for value, one in together.items()), note
    )


def of_launches(known: rates.Rate) -> Rate:
    """How many launches diverged of those that could have."""
    return rate(known.seen.diverged_launches, known.seen.launches, known.launch_interval)


def of_replays(known: rates.Rate) -> Rate:
    """How many replays diverged of those that could have."""
    return rate(known.seen.diverged, known.seen.compared)


def rate(seen: int, chances: int, ends: tuple[float, float] | None = None) -> Rate:
    """A rate with its exact 95% interval, or `ends` where that is another one; without a chance there is neither."""
    if not chances:
        return Rate("0/0", "", "", None)
    low, high = ends or interval(seen, chances)
    bar = Bar(round(low * BAR, 2), round(seen / chances * BAR, 2), round(high * BAR, 2), BAR)
    return Rate(f"{seen}/{chances}", percent(seen / chances), f"{percent(low)} to {percent(high)}", bar)


def percent(share: float) -> str:
    """A share as tables have it: 0%, 0.4%, 12.5%, 100%."""
    return f"{share * 100:.1f}".removesuffix(".0") + "%"


def _cut(label: str) -> str:
    return label if len(label) <= CUT else f"{label[: CUT - 3]}..."
