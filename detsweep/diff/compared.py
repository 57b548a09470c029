"""Two sides held against each other: cells with their partners, trial by trial."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from detsweep.chances import chances
from detsweep.diff.configuration import KeyDifference, aside_differences, key_differences
from detsweep.diff.environments import Environments, compare_environments, ranks_of_both
from detsweep.diff.pairing import pairs_of
from detsweep.diff.sides import NO_VERDICT, CellSide, Side, Trial
from detsweep.diff.streams import Streams, compare_streams

_WHOLE = ("pass", "recorded", "diverged")
_JUDGED = ("pass", "diverged")
_COUNTED = {"replays", "diverged_replays", "ranks"}
"""What a result has whose replays can be counted."""
EQUAL, DIFFERS, NOT_COMPARED = 0, 1, 3


@dataclass(frozen=True)
class ComparedTrials:
    """Two trials. `results`: what each came to in words; `unread`: why something of them was not compared, with the
    ranks that it is about (none: all).
    """

    numbers: tuple[int, int]
    verdicts: tuple[str, str]
    results: tuple[str, str]
    environments: Environments
    streams: Streams
    unread: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def differs(self) -> bool:
        judged = self.verdicts[0] != self.verdicts[1] and set(self.verdicts) <= {*_WHOLE}
        return bool(self.environments.apart or self.streams.first or judged)

    @property
    def incomplete(self) -> bool:
        return bool(self.unread)


@dataclass(frozen=True)
class ComparedCells:
    """Two cells: `configuration` and `aside` the keys in which they differ, those that are part of what is computed and
    those that are not; `alone` the trials that only one of them has; `rates` what each came to in all.
    """

    cells: tuple[CellSide, CellSide]
    configuration: tuple[KeyDifference, ...]
    aside: tuple[KeyDifference, ...]
    trials: tuple[ComparedTrials, ...]
    alone: tuple[tuple[int, ...], tuple[int, ...]]
    rates: tuple[str, str]

    @property
    def differs(self) -> bool:
        return bool(self.configuration or any(self.alone) or any(trial.differs for trial in self.trials))

    @property
    def incomplete(self) -> bool:
        return any(trial.incomplete for trial in self.trials)


@dataclass(frozen=True)
class Compared:
    """Two sides: their cells in pairs, and the cells that only one of them has."""

    sides: tuple[Side, Side]
    pairs: tuple[ComparedCells, ...]
    alone: tuple[tuple[CellSide, ...], tuple[CellSide, ...]]

    @property
    def differs(self) -> bool:
        return any(self.alone) or any(pair.differs for pair in self.pairs)

    @property
    def exit_code(self) -> int:
        """0 nothing differs and all was compared, 1 something differs, 3 nothing does of what could be compared."""
        if self.differs:
            return DIFFERS
        unread = any(side.unread for side in self.sides) or not self.pairs
        return NOT_COMPARED if unread or any(pair.incomplete for pair in self.pairs) else EQUAL


def compare_sides(one: Side, other: Side) -> Compared:
    """Compare two sides; one that is a part of a sweep alone (a cell, a trial) with its part of the other."""
    near, left, right = pairs_of(one.cells, other.cells)
    if one.kind != other.kind:
        # What a single cell is held against is one of many, and the rest of these is nothing that it lacks.
        left, right = (left if len(one.cells) == 1 else []), (right if len(other.cells) == 1 else [])
        left, right = ([] if near else left), ([] if near else right)
    pairs = tuple(compare_cells(one.cells[a], other.cells[b], (one.kind, other.kind)) for a, b in near)
    alone = tuple(one.cells[place] for place in left), tuple(other.cells[place] for place in right)
    return Compared((one, other), pairs, alone)


def compare_cells(one: CellSide, other: CellSide, kinds: tuple[str, str]) -> ComparedCells:
    """Compare two cells, their trials by number; two trials that were named themselves whatever their numbers."""
    both, alone = _partners(one, other, kinds)
    return ComparedCells(
        (one, other),
        tuple(key_differences(one.config, other.config, (one.overrides, other.overrides))),
        tuple(aside_differences(one.config, other.config)) if "golden file" not in kinds else (),
        tuple(compare_trials(one.trials[a], other.trials[b], (one, other)) for a, b in both),
        alone,
        (_rates(one), _rates(other)),
    )


def _partners(
    one: CellSide, other: CellSide, kinds: tuple[str, str]
) -> tuple[list[tuple[int, int]], tuple[tuple[int, ...], tuple[int, ...]]]:
    ours, theirs = sorted(one.trials), sorted(other.trials)
    if "golden file" in kinds:
        # It stands for all trials of its cell.
        return [(a, b) for a in ours for b in theirs], ((), ())
    if kinds == ("trial", "trial"):
        return [(ours[0], theirs[0])], ((), ())
    common = [number for number in ours if number in other.trials]
    if "trial" in kinds:
        return [(number, number) for number in common] or [(ours[0], theirs[0])], ((), ())
    alone = tuple(n for n in ours if n not in common), tuple(n for n in theirs if n not in common)
    return [(number, number) for number in common], alone


def compare_trials(one: Trial, other: Trial, cells: tuple[CellSide, CellSide]) -> ComparedTrials:
    """Compare two trials as far as they came."""
    ranks, verdicts = ranks_of_both(*cells), (str(one.result["verdict"]), str(other.result["verdict"]))
    ended = tuple(_ended(side, trial.result) for side, trial in zip("AB", (one, other), strict=True))
    unread: dict[str, tuple[int, ...]] = {line: () for line in ended if line}
    environments, streams = Environments((), (), (), (), {}), Streams()
    if not {NO_VERDICT, "unsupported"} & set(verdicts):
        environments, streams = compare_environments(one, other, ranks), compare_streams(one, other, cells, ranks)
        # Of a trial that broke off it is no news that files are missing.
        broke_off = any(line and "seconds" in trial.result for line, trial in zip(ended, (one, other), strict=True))
        found = {**environments.unread, **streams.unread}
        unread |= {line: where for line, where in found.items() if not (broke_off and line.endswith(" is missing"))}
    results = _came_to(one, cells[0]), _came_to(other, cells[1])
    return ComparedTrials((one.number, other.number), verdicts, results, environments, streams, unread)


def _ended(side: str, result: Mapping[str, Any]) -> str | None:
    """Why a trial cannot be compared as a whole; None where it can, or where there is nothing to compare on purpose."""
    verdict = str(result["verdict"])
    if verdict in (*_WHOLE, "unsupported"):
        return None
    return f"{side} has no result yet" if verdict == NO_VERDICT else f"{side} ended as {verdict}: {result.get('error')}"


def _came_to(trial: Trial, cell: CellSide) -> str:
    verdict = str(trial.result["verdict"])
    if verdict not in _JUDGED or not trial.result.keys() >= _COUNTED:
        return verdict
    seen = chances({trial.number: trial.result}, cell.config)
    return f"{verdict}, {seen.diverged} of {seen.compared} replays diverged"


def _rates(cell: CellSide) -> str:
    """What all trials of a cell came to, as a rate of trials and one of replays, those of the matrix."""
    found = [trial.result for trial in cell.trials.values()]
    valid = [result for result in found if result["verdict"] in _JUDGED]
    words = list(_others(found))
    if valid:
        trials = sum(result["verdict"] == "diverged" for result in valid)
        counted = {number: one.result for number, one in cell.trials.items() if one.result.keys() >= _COUNTED}
        seen = chances(counted, cell.config)
        words = [f"{trials}/{len(valid)} trials and {seen.diverged}/{seen.compared} replays diverged", *words]
    return ", ".join(words)


def _others(found: list[Mapping[str, Any]]) -> Iterator[str]:
    counts: dict[str, int] = {}
    for result in found:
        if result["verdict"] not in _JUDGED:
            counts[str(result["verdict"])] = counts.get(str(result["verdict"]), 0) + 1
    yield from (f"{count} {'not reached' if verdict == NO_VERDICT else verdict}" for verdict, count in counts.items())
