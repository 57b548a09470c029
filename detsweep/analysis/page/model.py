"""What the page shows, as values: every text is here, and the template only lays it out."""

from __future__ import annotations

from dataclasses import dataclass

STYLES = ("pass", "inert", "recorded", "diverged", "error", "timeout", "invalid", "unsupported", "none")
"""Classes of the style sheet for what a cell is shown as; all else that a verdict may be has `error`."""


@dataclass(frozen=True)
class Field:
    """One field of a table.

    `style`: classes of the style sheet. `order`: its place among the fields of its column when sorted, None where it
    is empty and comes last. `href` makes it a link, and `hint` says to a screen reader where that leads.
    """

    text: str
    style: str = ""
    order: int | None = None
    href: str = ""
    hint: str = ""


@dataclass(frozen=True)
class Grid:
    """A table; the first `heads` fields of each row are its headings. `note` stands below it.

    `row_styles`: classes of the style sheet for each row; none at all where no row has one.
    """

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Field, ...], ...]
    heads: int = 1
    note: str = ""
    style: str = ""
    row_styles: tuple[str, ...] = ()

    @property
    def styled_rows(self) -> tuple[tuple[str, tuple[Field, ...]], ...]:
        """Each row after its classes."""
        return tuple(zip(self.row_styles or [""] * len(self.rows), self.rows, strict=True))


@dataclass(frozen=True)
class Log:
    """The end of a log, and where it lies."""

    name: str
    text: str


@dataclass(frozen=True)
class Part:
    """A part of what is known of a cell: lines of words, tables, ends of logs, a command to copy."""

    title: str
    lines: tuple[str, ...] = ()
    grids: tuple[Grid, ...] = ()
    logs: tuple[Log, ...] = ()
    command: str = ""


@dataclass(frozen=True)
class Detail:
    """All that is known of one cell. `printed`: whether paper has it too."""

    anchor: str
    back: str
    mark: str
    style: str
    label: str
    printed: bool
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class Row:
    """A row of the matrix: `shown_as` and `axes` are what filters and the pivot go by."""

    anchor: str
    shown_as: str
    axes: tuple[str, ...]
    fields: tuple[Field, ...]


@dataclass(frozen=True)
class Choice:
    """Something to filter by: what it is called, and in how many rows it is."""

    value: str
    text: str
    count: int


@dataclass(frozen=True)
class Axis:
    name: str
    choices: tuple[Choice, ...]


@dataclass(frozen=True)
class Matrix:
    """The matrix: its columns and rows, and what it can be filtered by."""

    caption: str
    columns: tuple[Field, ...]
    rows: tuple[Row, ...]
    heads: int
    verdicts: tuple[Choice, ...]
    axes: tuple[Axis, ...]


@dataclass(frozen=True)
class Point:
    """What the pivot knows of a cell."""

    axes: tuple[str, ...]
    mark: str
    style: str
    href: str
    hint: str


@dataclass(frozen=True)
class Pivot:
    """Axes against axes: the table as it is before anybody chooses others, and the cells that it is made of.

    `along` are the axes whose values head the rows; `head` heads the columns; a field holds all cells that meet in it.
    """

    axes: tuple[str, ...]
    along: tuple[str, ...]
    head: tuple[str, ...]
    rows: tuple[tuple[tuple[str, ...], tuple[tuple[Point, ...], ...]], ...]
    points: tuple[Point, ...]


@dataclass(frozen=True)
class Bar:
    """A value with its interval on a scale of 0 to `width`, in units of the drawing."""

    low: float
    value: float
    high: float
    width: float


@dataclass(frozen=True)
class Rate:
    """How often something diverged among launches or replays: in words, as an interval in words and as a bar."""

    counted: str
    share: str
    interval: str
    bar: Bar | None


@dataclass(frozen=True)
class AxisRates:
    """The rates for each value of an axis: (value, of launches, of replays)."""

    axis: str
    rows: tuple[tuple[str, Rate, Rate], ...]
    note: str = ""


@dataclass(frozen=True)
class CostBar:
    """One cell of the cost plot: its row begins at `y`."""

    label: str
    text: str
    y: float
    low: float
    ratio: float
    high: float
    slower: bool


@dataclass(frozen=True)
class CostPlot:
    """The drawing of what mitigations cost; `lines` are (x, label) of ratios to compare with."""

    title: str
    description: str
    width: float
    height: float
    bars: tuple[CostBar, ...]
    lines: tuple[tuple[float, str], ...]


@dataclass(frozen=True)
class Fact:
    """A line of how the sweep was run; `code` where it is a command."""

    name: str
    text: str
    code: bool = False


@dataclass(frozen=True)
class Page:
    """The whole page. `unread`: files that could not be read or are not a sweep's, `left_out`: what is too much for
    one page, a line each."""

    title: str
    outcome: str
    outcome_style: str
    summary: tuple[str, ...]
    unread: tuple[str, ...]
    facts: tuple[Fact, ...]
    matrix: Matrix
    pivot: Pivot | None
    fleet: Grid | None
    campaign: Grid | None
    campaign_line: str
    rates: tuple[AxisRates, ...]
    costs: CostPlot | None
    checklist: tuple[str, ...]
    details: tuple[Detail, ...]
    left_out: tuple[str, ...] = ()
