"""How a verdict is shown: a sign of its own and a word, so that it never hangs on colour alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MARKS = {
    "pass": "✓ pass",
    "inert": "○ inert",
    "recorded": "• recorded",
    "diverged": "✗ diverged",
    "error": "! error",
    "timeout": "~ timeout",
    "invalid": "≠ invalid",
    "unsupported": "- unsupported",
    "none": "? none yet",
}
"""By what a cell is shown as: a verdict, or `inert`."""
STYLES = {"pass": "green", "inert": "dim", "diverged": "bold red", "unsupported": "dim", "none": "dim"}
OTHER_STYLE = "yellow"


def shown_as(row: Mapping[Any, Any]) -> str:
    """What a row of the cell table or of the trials is shown as: its verdict, or `inert`.

    A pass that nothing read the mitigation of is no cure, and not to be taken for one at a glance. `effect` is a word
    for each of the mitigations, or counts of them. A fault that was put in may have its cure in variables that nothing
    else reads (`fault.unless`): there a pass is one.
    """
    verdict, effect = str(row["verdict"]), row.get("effect")
    effects = str(effect).split(", ") if isinstance(effect, str) and effect else []
    planted = row.get("fault") not in (None, "", "none")
    idle = verdict == "pass" and not planted and bool(effects) and all(word.endswith("inert") for word in effects)
    return "inert" if idle else verdict


def mark(row: Mapping[Any, Any]) -> str:
    """The sign and the word of a row, as all tables have it."""
    return MARKS[shown_as(row)]
