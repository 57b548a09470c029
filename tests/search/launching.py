"""Launches without processes: what a set of items comes to follows from the set and the number of the trial."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from detsweep import modes
from detsweep.capture import SCHEMA
from detsweep.paths import SweepPaths
from detsweep.plan import Cell
from detsweep.results import SETTLED
from tests.support import BLOCK_0_POST, one_cell, trial_of, write_trial

Outcome = Callable[[frozenset[str], int], int | str]
"""How many comparisons of a launch of a set differ, or why it failed: of its items and the number of its trial."""


class Launches:
    """The cells of a search over items, and what their trials come to; of the words `overrides` the cell is made.

    Results are those of trials that ranks have written down. As on disk they stay for the next command, and only what
    has no verdict about repeating is launched again. `started`: every launch, as (items with plus signs, trial).
    `inert`: nothing reads what an item sets.
    """

    def __init__(self, outcome: Outcome, *overrides: str, inert: bool = False) -> None:
        self.started: list[tuple[str, int]] = []
        self.outcome = outcome
        self._status = "inert" if inert else "effective"
        self._overrides = ("search=minimal", *overrides)
        self._cell = one_cell(*self._overrides)
        self._results: dict[str, dict[int, dict[str, Any]]] = {}
        self._members: dict[str, frozenset[str]] = {}

    @property
    def settings(self) -> Mapping[str, Any]:
        """The `search` part of the configuration."""
        found: Mapping[str, Any] = self._cell.config["search"]
        return found

    def cell_of(self, members: Sequence[str]) -> Cell:
        name = "+".join(sorted(members)) or "nothing"
        self._members[name] = frozenset(members)
        return replace(self._cell, id=name)

    def launch(self, cell: Cell, trials: int) -> Mapping[int, Mapping[str, Any]]:
        kept = self._results.setdefault(cell.id, {})
        for number in range(max(trials, len(kept))):
            if number not in kept or kept[number]["verdict"] not in SETTLED:
                self.started.append((cell.id, number))
                kept[number] = self._result(cell, number)
        return dict(kept)

    def forget(self) -> None:
        """What was started; the results stay."""
        self.started = []

    def _result(self, cell: Cell, number: int) -> dict[str, Any]:
        outcome = self.outcome(self._members[cell.id], number)
        if isinstance(outcome, str):
            return {"schema": SCHEMA, "cell": cell.id, "trial": number, "verdict": "error", "error": outcome}
        effects = {item: {"status": self._status, "settings": {}} for item in self._members[cell.id]}
        return {**finished(*self._overrides, differ=outcome), "cell": cell.id, "trial": number, "effects": effects}


@cache
def finished(*overrides: str, differ: int) -> Mapping[str, Any]:
    """The result of a trial of which so many runs differ; in modes that train trajectories, from their second step."""
    cell = one_cell(*overrides)
    later = [(step, int(run[1:])) for step, run in modes.expected_runs(cell.config) if run != "r1"]
    if modes.trains(cell.config):
        struck = [(step, run) for step, run in later if step > 0 and run < 2 + differ]
    else:
        struck = later[:differ]
    with TemporaryDirectory() as folder:
        trial = trial_of(SweepPaths(Path(folder)), cell)
        return write_trial(trial, cell, differs={0: dict.fromkeys(struck, BLOCK_0_POST)})
