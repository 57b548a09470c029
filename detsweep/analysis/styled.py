"""The matrix as pandas styles it for a notebook: a sign and a word for each verdict, and a colour besides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

from detsweep.analysis.marks import MARKS
from detsweep.analysis.matrix import pivot
from detsweep.analysis.words import missing

if TYPE_CHECKING:
    from pandas.io.formats.style import Styler

    from detsweep.analysis.frames import Sweep

NO_CELL = "· no cell"
"""A field in which no cell of the sweep is."""
NO_VALUE = "-"
"""A field that has no such value, of a cell or because there is no cell."""
# Backgrounds on which black text has a contrast of at least 7 to 1.
_COLOURS = {
    "pass": "#c8e6c9",
    "inert": "#eeeeee",
    "recorded": "#d1e3f8",
    "diverged": "#ffcdd2",
    "error": "#ffe0b2",
    "timeout": "#ffe0b2",
    "invalid": "#ffe0b2",
    "unsupported": "#eeeeee",
    "none": "#ffffff",
}


def styled(
    sweep: Sweep, *, rows: str | list[str] | None = None, columns: str | list[str] | None = None, value: str = "verdict"
) -> Styler:
    """The wide table, see `detsweep.analysis.matrix.pivot`; verdicts have their sign and their word.

    A field that no cell is in says so. The other values are shown as they are, numbers with three digits after the
    point.
    """
    shown = pivot(sweep, rows=rows, columns=columns, value="shown_as" if value == "verdict" else value)
    shown = shown.rename(columns={"shown_as": "verdict"})
    nothing = NO_CELL if value == "verdict" else NO_VALUE
    styler: Styler = shown.style.format(_text, na_rep=nothing).set_caption(f"{value}: {sweep.folder.name}")
    if value == "verdict":
        styler = styler.map(_colour)
    return styler.set_table_styles([{"selector": "th, td", "props": [("text-align", "left"), ("padding", "2px 8px")]}])


def _text(item: Any) -> str:
    if isinstance(item, str):
        return MARKS.get(item, item)
    return f"{item:.3f}".rstrip("0").rstrip(".") if isinstance(item, float) else str(item)


def _colour(item: Any) -> str:
    if missing(item):
        return "color: #595959"
    return f"background-color: {_COLOURS[item]}; color: #000000" if item in _COLOURS else ""


def as_text(styler: Styler) -> pd.DataFrame:
    """What a styled matrix shows, field by field."""
    data: pd.DataFrame = styler.data  # type: ignore[attr-defined]
    nothing = NO_CELL if str(styler.caption).startswith("verdict: ") else NO_VALUE  # type: ignore[attr-defined]
    shown: pd.DataFrame = data.map(lambda item: nothing if missing(item) else _text(item))
    return shown
