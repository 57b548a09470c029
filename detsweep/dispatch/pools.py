"""What the sweep's loop asks of whatever launches its trials: this machine, or a cluster."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from detsweep.capture import SCHEMA
from detsweep.failures import tail
from detsweep.paths import TrialPaths
from detsweep.plan import Cell


@dataclass(frozen=True)
class Trial:
    """One launch of one cell that is to be made. `owed`: it was made before, and failed; no rule makes it needless."""

    cell: Cell
    number: int
    paths: TrialPaths
    owed: bool = False


class Pool(Protocol):
    """Launches trials, and says which have ended and how."""

    @property
    def running(self) -> list[Trial]:
        """Trials that were launched and have not ended, whether or not they have begun."""
        ...

    @property
    def width(self) -> int:
        """How many trials run side by side at most."""
        ...

    def adopt(self, trial: Trial) -> bool:
        """Whether an earlier command launched this trial and it is still under way: it is then one of `running`."""
        ...

    def launch(self, queue: deque[Trial]) -> list[Trial]:
        """Launch as many trials of the queue as there is room for, from its front; returns those that it took."""
        ...

    def finished(self) -> list[tuple[Trial, Mapping[str, Any]]]:
        """The trials that have ended since the last call, each with its result."""
        ...

    def stop(self, *, kill: bool) -> bool:
        """End what runs; whether every process of every trial has ended. With `kill`, it is not asked but killed."""
        ...

    def describe_left(self) -> str:
        """The trials of which something is left, and where."""
        ...

    def clear(self) -> None:
        """Remove what only running trials needed."""
        ...


def lost(trial: Trial, verdict: str, text: str, log: Path) -> dict[str, Any]:
    """The result of a trial that ended without writing one."""
    return {
        "schema": SCHEMA,
        "cell": trial.cell.id,
        "trial": trial.number,
        "verdict": verdict,
        "error": text,
        "error_ranks": [],
        "log": str(log),
        "log_tail": list(tail(log)),
    }
