"""Which tracker gets a sweep, and what is said when it does not."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from detsweep.analysis.frames import Sweep
from detsweep.analysis.tracking.runs import Tracked, tracked
from detsweep.trackers import NAMES, problem


class TrackerError(Exception):
    """A tracker that is unknown or not installed; the message says what there is."""


def send(tracker: str, sweep: Sweep) -> str:
    """Log every cell of a sweep as a run; a cell that was logged before is brought up to date, never doubled.

    Returns where it went and how to look at it, in a line. Raises TrackerError for a tracker that cannot be used, and
    whatever the tracker raises.
    """
    if tracker not in NAMES:
        raise TrackerError(f"log {tracker}: no such tracker; valid: {', '.join(NAMES)}")
    if line := problem(tracker):
        raise TrackerError(line)
    write: Callable[[Tracked], str] = import_module(f"detsweep.analysis.tracking.to_{tracker}").write
    return write(tracked(sweep))
