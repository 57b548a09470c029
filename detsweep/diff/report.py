"""A comparison in lines for a terminal: what all pairs have in common once, then what is each pair's own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from detsweep.diff.compared import Compared, ComparedCells, ComparedTrials
from detsweep.diff.environments import Apart
from detsweep.diff.sides import CellSide, Side
from detsweep.diff.words import counted, numbers, of, place, sites

SHOWN = 20
"""So many pairs of cells have lines of their own."""
_NAMED = 6
T = TypeVar("T")
Line = tuple[str, tuple[int, ...]]
"""A line and the ranks that it is about; none: all that were compared, or no rank in particular."""


def lines(compared: Compared) -> Iterator[str]:
    """The comparison, beginning with the two sides; one line alone where there is nothing to tell."""
    if compared.exit_code == 0 and not any(_has_asides(pair) for pair in compared.pairs):
        yield f"no difference: {_scope(compared)}"
        return
    for letter, side in zip("AB", compared.sides, strict=True):
        yield f"{letter}: {_side(side)}"
    for letter, side, alone in zip("AB", compared.sides, compared.alone, strict=True):
        yield from (f"not read, of {letter}: {line}" for line in side.unread)
        if alone:
            yield f"only in {letter}: {_labels(alone)}"
    yield from pair_lines(compared.pairs)
    if not compared.pairs:
        yield "nothing in the one has its like in the other"
    if compared.exit_code == 0:
        yield f"no other difference: {_scope(compared)}"
    elif not compared.differs:
        yield f"no difference in what could be compared: {_scope(compared)}"


def _has_asides(pair: ComparedCells) -> bool:
    """Whether two cells that are alike were asked for otherwise all the same."""
    return bool(pair.aside) or any(trial.environments.shells for trial in pair.trials)


def _side(side: Side) -> str:
    what = {"trial": "", "cell": f", {counted(side.trials, 'trial')}"}
    more = what.get(side.kind, f", {counted(len(side.cells), 'cell')}, {counted(side.trials, 'trial')}")
    return f"{side.kind} {side.name}{more}"


def _scope(compared: Compared) -> str:
    trials = [trial for pair in compared.pairs for trial in pair.trials]
    ranks = {len(trial.streams.ranks) for trial in trials}
    records = sum(trial.streams.records for trial in trials)
    each = f" of {numbers(ranks)} ranks" if ranks and max(ranks) != 1 else ""
    where = f"{counted(len(trials), 'trial')}{each} in {counted(len(compared.pairs), 'cell')}"
    return f"configuration, environment and bits of {where}, {counted(records, 'record')}"


def _labels(cells: Sequence[CellSide]) -> str:
    more = f" and {len(cells) - _NAMED} more" if len(cells) > _NAMED else ""
    return f"{counted(len(cells), 'cell')}: {'; '.join(cell.label for cell in cells[:_NAMED])}{more}"


def pair_lines(pairs: Sequence[ComparedCells]) -> Iterator[str]:
    """What differs in each pair of cells: what does so in all of them once, then what is each pair's own."""
    own = [list(_of_cells(pair)) for pair in pairs]
    if len(pairs) == 1:
        yield from own[0]
        return
    common = [line for line in own[0] if all(line in one for one in own[1:])] if own else []
    if common:
        yield f"in all {len(pairs)} pairs of cells:"
        yield from (f"  {line}" for line in common)
    told = [(pair, rest) for pair, one in zip(pairs, own, strict=True) if (rest := [x for x in one if x not in common])]
    for pair, rest in told[:SHOWN]:
        yield f"{pair.cells[0].label}:"
        yield from (f"  {line}" for line in rest)
    if len(told) > SHOWN:
        yield f"and {len(told) - SHOWN} more pairs of cells that differ (--json has all of them)"
    if told and len(told) < len(pairs):
        others = len(pairs) - len(told)
        yield f"nothing {'else ' if common else ''}in the other {'pair' if others == 1 else f'{others} pairs'}"


def _of_cells(pair: ComparedCells) -> Iterator[str]:
    yield from (f"configuration: {one}" for one in pair.configuration)
    yield from (f"asked for otherwise: {one}" for one in pair.aside)
    for letter, alone in zip("AB", pair.alone, strict=True):
        if alone:
            yield f"only in {letter}: {of('trial', alone)}"
    if pair.cells[0].world_size != pair.cells[1].world_size:
        sizes = " and ".join(str(cell.world_size) for cell in pair.cells)
        yield f"{sizes} ranks: {of('rank', range(min(cell.world_size for cell in pair.cells)))} compared"
    yield from _over_trials(pair.trials)
    if pair.rates[0] != pair.rates[1] and any(_told(trial) for trial in pair.trials):
        yield f"rates: {pair.rates[0]} -> {pair.rates[1]}"


def _told(trial: ComparedTrials) -> bool:
    """Whether the two trials came to something else."""
    return bool(trial.streams.first) or trial.verdicts[0] != trial.verdicts[1]


def _over_trials(trials: Sequence[ComparedTrials]) -> Iterator[str]:
    """The lines of all trials of a pair of cells; those that several have are said once, and of which."""
    found: dict[str, list[ComparedTrials]] = {}
    for trial in trials:
        for line in _of_trials(trial):
            found.setdefault(line, []).append(trial)
    for line, where in found.items():
        yield line if len(where) == len(trials) else f"{_trials(where)}: {line}"


def _trials(trials: Sequence[ComparedTrials]) -> str:
    if all(one == other for one, other in (trial.numbers for trial in trials)):
        return of("trial", [trial.numbers[0] for trial in trials])
    return ", ".join(f"trial {one} against {other}" for one, other in (trial.numbers for trial in trials))


def _of_trials(trial: ComparedTrials) -> Iterator[str]:
    environments, streams = trial.environments, trial.streams
    for fact, where in _facts(environments.apart):
        yield f"environment: {fact}{_on(where, environments.ranks)}"
    yield from (f"reached neither: {fact}" for fact in environments.shells)
    if environments.apart or streams.first:
        for fact, where in _facts(environments.places):
            yield f"ran elsewhere: {fact}{_on(where, environments.ranks)}"
    if trial.verdicts[0] != trial.verdicts[1]:
        yield f"verdict: {trial.results[0]} -> {trial.results[1]}"
    for divergence, where in _grouped((place(one), one.rank) for one in streams.first):
        yield f"first difference of {of('rank', where)}: {divergence}"
    for differing, where in _grouped((sites(one), rank) for rank, one in streams.differing.items()):
        yield f"records that differ on {'each of ' if len(where) > 1 else ''}{of('rank', where)}: {differing}"
    if streams.first:
        yield f"the loss differs in {streams.loss} of {counted(streams.runs, 'run')}"
    for letter, alone in zip("AB", streams.alone, strict=True):
        if alone:
            yield f"{counted(alone, 'run')} only in {letter}, not compared"
    for line, where in trial.unread.items():
        yield f"not compared: {line}{_on(where, ())}"


def _facts(apart: Sequence[Apart]) -> Iterator[tuple[str, tuple[int, ...]]]:
    for one in apart:
        yield str(one), one.ranks


def _on(where: Sequence[int], ranks: Sequence[int]) -> str:
    """On which ranks, where it is not on all that were compared."""
    return "" if not where or len(where) == len(ranks) else f" ({of('rank', where)})"


def _grouped(found: Iterator[tuple[str, int]]) -> Iterator[tuple[str, tuple[int, ...]]]:
    groups: dict[str, list[int]] = {}
    for line, rank in found:
        groups.setdefault(line, []).append(rank)
    yield from ((line, tuple(ranks)) for line, ranks in groups.items())
