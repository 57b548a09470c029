"""Verdicts of trials, and which of several is that of them all."""

from __future__ import annotations

from collections.abc import Sequence

from detsweep import results

NO_VERDICT = "none"
ALL = (*results.VERDICTS, NO_VERDICT)
"""In the order in which tables sort them; `none`: a trial that has not been reached."""
VALID = ("pass", "diverged")
"""Verdicts that say something about repeating; the others are counted, but not in the rate."""
FAILED = ("error", "timeout", "invalid")
# The worst verdict of a cell's trials is the cell's: a divergence must not hide behind a pass, nor an error.
WORST_FIRST = ("diverged", "error", "timeout", "invalid", "none", "recorded", "pass", "unsupported")


def worst(verdicts: Sequence[str]) -> str:
    """The verdict that stands for several trials."""
    return min(verdicts, key=WORST_FIRST.index)
