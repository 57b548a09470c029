"""`stop_after` while a sweep runs: which trials of the queue may be launched now, and which never need to be."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from detsweep import stopping
from detsweep.chances import Chances, chances
from detsweep.dispatch.pools import Trial
from detsweep.paths import CellPaths, write_json
from detsweep.plan import Cell, Plan

Settled = Callable[[Cell], Mapping[int, Mapping[str, Any]]]
"""The results of all trials of a cell that have one, launches held against each other where its mode does that."""


@dataclass(frozen=True)
class Withheld:
    """A cell that stopped, how, how many trials that spares, and how many are still under way that it does not need."""

    cell: Cell
    stopped: stopping.Stopped
    spared: int
    under_way: int


class Gate:
    """Lets through what is needed, decided before each launch by what the cell's other trials came to.

    First what is needed whatever comes of the trials in flight; places that are left then, as no other cell needs them,
    go to trials that may turn out not to have been needed. With `rounds`, as on a cluster, where what is submitted is
    decided, nothing is let through before all that was has ended. Where no cell has such a rule, all passes at once.
    """

    def __init__(self, plan: Plan, settled: Settled, *, rounds: bool) -> None:
        self._ruled = {cell.id: cell for cell in plan.cells if stopping.has_rule(cell.config)}
        self._settled = settled
        self._rounds = rounds
        self._seen: dict[str, Chances] = {}
        self._news = dict(self._ruled)

    def passed(self, queue: deque[Trial], in_flight: Sequence[Trial], width: int) -> list[Trial]:
        """Take from the queue what may be launched now, beside what is `in_flight`; at most `width` in all."""
        if not self._ruled:
            passed = list(queue)
            queue.clear()
            return passed
        if self._rounds and in_flight:
            return []
        chosen: dict[int, Trial] = {}
        for surely in (True, False):
            for place, trial in enumerate(queue):
                if len(in_flight) + len(chosen) >= width:
                    break
                if place not in chosen and (not surely or self._surely_needed(trial, [*in_flight, *chosen.values()])):
                    chosen[place] = trial
        if chosen:
            left = [trial for place, trial in enumerate(queue) if place not in chosen]
            queue.clear()
            queue.extend(left)
        passed = [chosen[place] for place in sorted(chosen)]
        for trial in passed:
            self._prepare(trial)
        return passed

    def ended(self, trial: Trial) -> None:
        """A trial has a result: what is known of its cell is to be read anew."""
        self._seen.pop(trial.cell.id, None)
        if trial.cell.id in self._ruled:
            self._news[trial.cell.id] = trial.cell

    def withheld(self, queue: deque[Trial], in_flight: Sequence[Trial]) -> Iterator[Withheld]:
        """Take from the queue what is not needed any more."""
        news, self._news = self._news, {}
        for cell in news.values():
            if stopping.reason(cell.config, self._known(cell)) is None:
                continue
            left = [trial for trial in queue if trial.cell.id != cell.id or trial.owed]
            count = len(queue) - len(left)
            queue.clear()
            queue.extend(left)
            if count and (stopped := stopping.stopped(cell.config, self._settled(cell))) is not None:
                yield Withheld(cell, stopped, count, sum(trial.cell.id == cell.id for trial in in_flight))

    def _surely_needed(self, trial: Trial, in_flight: Iterable[Trial]) -> bool:
        if trial.owed or trial.cell.id not in self._ruled:
            return True
        numbers = [other.number for other in in_flight if other.cell.id == trial.cell.id]
        return stopping.surely_needed(trial.cell.config, self._known(trial.cell), numbers)

    def _known(self, cell: Cell) -> Chances:
        if cell.id not in self._seen:
            self._seen[cell.id] = chances(self._settled(cell), cell.config)
        return self._seen[cell.id]

    def _prepare(self, trial: Trial) -> None:
        """Make the folder that a trial is launched in: one that is never launched has none."""
        CellPaths(trial.paths.folder.parent).set_aside(trial.number)
        write_json(trial.paths.spec, trial.cell.spec(trial.number))
