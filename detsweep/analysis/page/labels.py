"""What a cell is called, and how a value is written, wherever the page names one."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from detsweep.analysis.words import missing
from detsweep.baselines import value_of

if TYPE_CHECKING:
    from detsweep.analysis.frames import Sweep

NOTHING = "(none)"
"""A value that a cell does not have: where it has no fault, nothing of it has one."""


def label_of(sweep: Sweep, cell: str) -> str:
    """What tells a cell from the others, in the words of the command line; of a sweep of one cell all that was said.

    A cell whose own file is broken has no more than its folder.
    """
    if cell not in sweep.configs:
        return str(sweep.trials[sweep.trials["cell"] == cell]["slug"].iloc[0])
    config, said = sweep.configs[cell], sweep.overrides[cell]
    keys = [key for key in sweep.axes if key != "cell"]
    words = [f"{key}={value}" for key in keys if (value := value_of(config, key, said)) != ""]
    if "cell" in sweep.axes:
        words.append(cell)
    return " ".join(words or [f"{key}={value}" for key, value in said.items()]) or str(config["model"]["name"])


def text_of(value: Any) -> str:
    """A value of a frame as text, nothing where it holds nothing."""
    return "" if missing(value) else str(value)


def anchors(names: list[str], prefix: str) -> list[str]:
    """An id in the page for each name: of letters, digits, dashes and underscores, and none twice."""
    made: list[str] = []
    for name in names:
        own = f"{prefix}-{re.sub(r'[^A-Za-z0-9_-]+', '-', name)}"
        made.append(own if own not in made else f"{own}-{len(made)}")
    return made
