"""What the trials of a sweep recorded of themselves: what the evidence of a checklist is."""

from __future__ import annotations

from collections.abc import Mapping, Sized
from dataclasses import dataclass
from typing import Any

from detsweep.analysis.words import counted
from detsweep.paths import TrialPaths


@dataclass(frozen=True)
class Rank:
    """What a rank recorded of its own process.

    `environment` is the content of environment-rank<NNN>.json; `lost` what its result says to be asked for and not in
    force in any of the trial's launches.
    """

    cell: str
    slug: str
    trial: int
    rank: int
    environment: Mapping[str, Any]
    lost: tuple[str, ...]

    @property
    def place(self) -> str:
        return f"{self.slug} trial {self.trial} rank {self.rank}"

    def table(self, key: str) -> Mapping[str, Any]:
        """One of the tables in the environment; empty where there is none."""
        value = self.environment.get(key)
        return value if isinstance(value, Mapping) else {}


@dataclass(frozen=True)
class Trial:
    """One launch of a cell.

    `state`: `waiting` (no result yet), `idle` (not started: unsupported, or refused), `failed` or `ran`. `config` is
    what its ranks read, empty where that cannot be read; `ranks` those whose environment can be read. `missing`: what
    should be there and is not, a line each; `gaps` the same of a failed trial, which may have ended before it.
    `struck`: rank, step and run of the inputs that a fault changed on purpose.
    """

    cell: str
    slug: str
    number: int
    paths: TrialPaths
    state: str
    world_size: int
    config: Mapping[str, Any]
    ranks: tuple[Rank, ...]
    missing: tuple[str, ...]
    gaps: tuple[str, ...]
    struck: frozenset[tuple[int, int, str]]

    @property
    def label(self) -> str:
        return f"{self.slug} trial {self.number}"

    @property
    def heard(self) -> bool:
        """Whether its configuration and the environment of every rank can be read."""
        return bool(self.config) and len(self.ranks) == self.world_size

    @property
    def why(self) -> str:
        """Why something of it is not there."""
        return "no result yet" if self.state == "waiting" else next(iter((*self.missing, *self.gaps)), "it failed")


@dataclass(frozen=True)
class Recorded:
    """`trials` are all that the cells of a sweep ask for or have, but those that are idle, in the order of the cells.

    `sessions`: those of sweep.json. `broken`: cells that cannot be read; `unsaid`: what sweep.json does not say; a
    line each.
    """

    trials: tuple[Trial, ...]
    sessions: tuple[Mapping[str, Any], ...]
    broken: tuple[str, ...]
    unsaid: tuple[str, ...]

    @property
    def ranks(self) -> list[Rank]:
        return [rank for trial in self.trials for rank in trial.ranks]

    def by_cell(self) -> dict[str, list[Trial]]:
        """The trials of which all was heard, by the id of their cell."""
        cells: dict[str, list[Trial]] = {}
        for trial in self.trials:
            if trial.heard:
                cells.setdefault(trial.cell, []).append(trial)
        return cells

    def unread_cells(self) -> list[str]:
        """A line where there are cells that cannot be read: no answer is about them."""
        return [f"{counted(len(self.broken), 'cell')} cannot be read, first {self.broken[0]}"] if self.broken else []

    def unheard(self) -> list[str]:
        """What an answer from the environments of ranks is not about, a line each: cells and trials without them."""
        silent = [trial for trial in self.trials if not trial.heard]
        lines = self.unread_cells()
        if silent:
            lines.append(f"incomplete in {among(silent, self.trials)}, first {silent[0].label}: {silent[0].why}")
        return lines


def among(some: Sized, trials: Sized) -> str:
    """How many of a sweep's trials: 1 of 4 trials."""
    return f"{len(some)} of {counted(len(trials), 'trial')}"
