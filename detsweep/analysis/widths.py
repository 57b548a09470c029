"""The columns of the matrix on a terminal: their headers, which fold, and which a narrow one does without."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

# Headers break where a terminal would otherwise need more than 100 columns; Markdown joins the lines again.
HEADERS = {
    "diverged": "diverged\n/valid",
    "replays": "replays\ndiverged",
    "upper_bound": "95%\nbound",
    "rate": "rate\n(95%)",
    "launch_rate": "rate of\nlaunches",
    "against_none": "against no\nmitigation",
    "first": "first\ndivergence",
    "closer_look": "closer\nlook",
    "loss": "loss\ndiffers",
    "differs_from_baseline": "differs from\nbaseline",
    "baseline_loss": "its\nloss",
    "ranks": "diverged\nranks",
    "plain_step_ms": "step\nms",
    "step_ms": "observed\nms",
    "slug": "cell",
}
# These fold; the number is the least width at which they are still read.
FOLDED = {
    "stopped": 16,
    HEADERS["against_none"]: 24,
    HEADERS["first"]: 24,
    HEADERS["closer_look"]: 24,
    HEADERS["differs_from_baseline"]: 24,
    "error": 40,
}
LONG = 80
# An error's text stands below the table too.
EXPENDABLE = ("error", "retries", *(HEADERS[name] for name in ("plain_step_ms", "step_ms", "launch_rate")), "stopped",
              *(HEADERS[name] for name in ("upper_bound", "replays")), "errors",
              *(HEADERS[name] for name in ("baseline_loss", "loss")), "baseline",
              *(HEADERS[name] for name in ("diverged", "rate")), "cause", "cost",
              *(HEADERS[name] for name in ("against_none", "closer_look")), "mitigation", "fault")  # fmt: skip


def fit(shown: pd.DataFrame, width: int, *, kept: Sequence[str] = ()) -> list[str]:
    """Drop columns in place, the least important first, until the rest fits; returns what was dropped.

    Without the axes, which are `kept`, rows could not be told apart.
    """
    dropped = []
    for column in [name for name in EXPENDABLE if name in shown and name not in kept]:
        if _width(shown) <= width:
            break
        del shown[column]
        dropped.append(column)
    return dropped


def _width(shown: pd.DataFrame) -> int:
    def columns(name: str) -> int:
        longest, least = _longest(shown, name), folded(shown, name)
        return longest if least is None else min(longest, least)

    return sum(columns(name) for name in shown.columns) + 2 * (len(shown.columns) - 1)


def _longest(shown: pd.DataFrame, name: str) -> int:
    return max(len(word) for word in [*name.split("\n"), *(str(item) for item in shown[name])])


def folded(shown: pd.DataFrame, name: str) -> int | None:
    """The least width of a column that folds; None for one that does not. Long names of stacks of mitigations do."""
    return FOLDED.get(name, LONG // 2 if _longest(shown, name) > LONG else None)
