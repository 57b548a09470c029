"""The matrix, the tables beside it and the pivot, as the page has them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any

import pandas as pd

from detsweep.analysis.control import campaign
from detsweep.analysis.findings import campaign_lines
from detsweep.analysis.fleetreport import fleet_table
from detsweep.analysis.marks import MARKS, mark, shown_as
from detsweep.analysis.page.labels import NOTHING, label_of, text_of
from detsweep.analysis.page.model import STYLES, Axis, Choice, Field, Grid, Matrix, Pivot, Point, Row
from detsweep.analysis.report import readable
from detsweep.analysis.widths import HEADERS

if TYPE_CHECKING:
    from detsweep.analysis.frames import Sweep

# Columns whose text is sorted by a number that stands elsewhere in the table.
LONG = 24
_COUNTS = ("diverged", "replays")


def cells_of(sweep: Sweep) -> list[str]:
    """The cells in the order of the matrix's rows."""
    return list(dict.fromkeys(sweep.trials["cell"]))


def matrix(sweep: Sweep, table: pd.DataFrame, names: Mapping[str, tuple[str, str]]) -> Matrix:
    """The matrix from the cell table; `names` has for each cell the anchors of its row and its detail."""
    shown = readable(table)
    originals = {HEADERS.get(name, name): name for name in table.columns}
    shown = shown.drop(columns=[column for column in shown if column not in sweep.axes and (shown[column] == "").all()])
    orders = {column: orders_of(originals[column], list(table[originals[column]]), shown[column]) for column in shown}
    kinds = [shown_as(row) for row in table.to_dict("records")]
    cells = cells_of(sweep)
    heads = len(sweep.axes) or 1
    rows = []
    for number, (cell, kind) in enumerate(zip(cells, kinds, strict=True)):
        row, detail = names[cell]
        label = label_of(sweep, cell)
        fields = tuple(
            _field(
                text_of(shown[column].iloc[number]),
                orders[column][number],
                originals[column],
                kind,
                link=(f"#{detail}", f"details of {label}") if detail else ("", ""),
            )
            for column in shown
        )
        axes = tuple(text_of(table[axis].iloc[number]) for axis in sweep.axes)
        rows.append(Row(row, kind, axes, fields))
    titles = tuple(Field(column, "number" if _numeric(originals[column]) else "") for column in shown)
    counts = Counter(kinds)
    verdicts = tuple(Choice(kind, MARKS[kind], counts[kind]) for kind in MARKS if counts[kind])
    return Matrix("One row for each cell", titles, tuple(rows), heads, verdicts, _axes(sweep, table))


def _field(text: str, order: int | None, column: str, kind: str, *, link: tuple[str, str]) -> Field:
    if column == "verdict":
        return Field(text, f"mark {style_of(kind)}", order, *link)
    return Field(text, "number" if _numeric(column) else "long" if len(text) > LONG else "", order)


def _numeric(column: str) -> bool:
    return column.endswith("_ms") or column in ("errors", "upper_bound", *_COUNTS)


def style_of(kind: str) -> str:
    return f"v-{kind if kind in STYLES else 'error'}"


def orders_of(column: str, values: Sequence[Any], shown: Sequence[Any]) -> list[int | None]:
    """The place of each field among those of its column: by the number in it where it has one, else by its words.

    `values` are those of the cell table, `shown` how they are shown. Fields that are equal have one place, and those
    without content none.
    """
    texts = [text_of(value) for value in shown]
    keys = [None if text == "" else _key(column, raw, text) for raw, text in zip(values, texts, strict=True)]
    places = {key: place for place, key in enumerate(sorted({key for key in keys if key is not None}))}
    return [None if key is None else places[key] for key in keys]


def _key(column: str, raw: Any, text: str) -> tuple[Any, ...]:
    if column == "verdict":
        return (list(MARKS).index(next(kind for kind, sign in MARKS.items() if sign == text)),)
    if column in _COUNTS and (found := re.fullmatch(r"(\d+)/(\d+)", text)):
        seen, chances = int(found[1]), int(found[2])
        # Of equal rates the one with more chances first: it says more.
        return (seen / chances if chances else -1.0, -chances if not seen else chances)
    if not isinstance(raw, bool) and isinstance(raw, Real):
        return (0, float(raw), "")
    return _natural(text)


def _natural(text: str) -> tuple[Any, ...]:
    """Words in the order of the alphabet, but the numbers in them by their size: 2 before 10, 1.06x before 1.65x."""
    parts = re.split(r"(\d+(?:\.\d+)?)", text.lower())
    return (1, tuple((part, 0.0) if place % 2 == 0 else ("", float(part)) for place, part in enumerate(parts)), text)


def _axes(sweep: Sweep, table: pd.DataFrame) -> tuple[Axis, ...]:
    found = []
    for axis in sweep.axes:
        counts = Counter(map(text_of, table[axis]))
        found.append(Axis(axis, tuple(Choice(value, value or NOTHING, count) for value, count in counts.items())))
    return tuple(found)


def pivot(sweep: Sweep, table: pd.DataFrame, names: Mapping[str, tuple[str, str]]) -> Pivot | None:
    """Axes against axes, the last of them across; None where there are not two."""
    axes = sweep.axes
    if len(axes) < 2:
        return None
    cells, records = cells_of(sweep), table.to_dict("records")
    points = tuple(
        Point(
            tuple(text_of(row[axis]) or NOTHING for axis in axes),
            mark(row),
            style_of(shown_as(row)),
            f"#{names[cell][1]}" if names[cell][1] else "",
            label_of(sweep, cell),
        )
        for cell, row in zip(cells, records, strict=True)
    )
    fields: dict[tuple[tuple[str, ...], str], list[Point]] = {}
    for point in points:
        fields.setdefault((point.axes[:-1], point.axes[-1]), []).append(point)
    down = list(dict.fromkeys(point.axes[:-1] for point in points))
    over = list(dict.fromkeys(point.axes[-1] for point in points))
    rows = tuple((row, tuple(tuple(fields.get((row, column), ())) for column in over)) for row in down)
    return Pivot(axes, axes[:-1], tuple(f"{axes[-1]}={value}" for value in over), rows, points)


def fleet_grid(sweep: Sweep) -> Grid | None:
    """The places of fleets, as the terminal has them."""
    if sweep.fleet.empty:
        return None
    table = fleet_table(sweep)
    styles = [{"equal": "v-pass", "unsupported": "v-unsupported", "none": "v-none", "alone": "v-none"}.get(verdict,
              "v-diverged" if verdict in ("odd", "diverged", "undecided") else "v-error")
              for verdict in sweep.fleet["verdict"]]  # fmt: skip
    rows = tuple(
        tuple(
            Field(str(text), f"mark {style}" if column == "place" else "")
            for column, text in zip(table.columns, words, strict=True)
        )
        for words, style in zip(table.to_numpy(), styles, strict=True)
    )
    return Grid("Each place of each fleet against the others of its hardware", tuple(table.columns), rows)


def campaign_grid(sweep: Sweep) -> tuple[Grid | None, str]:
    """What became of the faults of a campaign, and the line on clean comparisons below it."""
    lines = campaign_lines(sweep)
    if not lines:
        return None, ""
    table = campaign(sweep)
    names = ["mode", "persistence", "kind", "put_in", "detected", "placed", "cause", "missed", "by_replay"]
    sums = ["all", "", "", *map(str, table[names[3:]].sum())]
    rows = [*([str(item) for item in row] for row in table[names].to_numpy()), sums]
    shown = tuple(tuple(Field(item, "number" if place > 2 else "") for place, item in enumerate(row)) for row in rows)
    titles = tuple(name.replace("_", " ") for name in names)
    return Grid("Faults that were put in on purpose, by mode, persistence and kind", titles, shown, heads=3), lines[-1]
