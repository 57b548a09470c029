"""A golden file against trials: refused where these are of another torch, hardware or configuration, else compared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from detsweep.diff.compared import ComparedCells, compare_cells
from detsweep.diff.configuration import key_differences
from detsweep.diff.pairing import pairs_of
from detsweep.diff.sides import CellSide, Side, Trial
from detsweep.diff.words import counted, numbers, of
from detsweep.environment import facts
from detsweep.golden.file import KIND, GoldenError
from detsweep.paths import FileError

EQUAL, DIFFERS, NOT_CHECKED = 0, 1, 3
_FIXED = {
    ("torch", "torch"): "torch",
    ("torch", "torch_git"): "torch's commit",
    ("torch", "torch_cuda"): "CUDA",
    ("torch", "torch_hip"): "HIP",
    ("device", "type"): "device type",
    ("device", "name"): "device",
    ("settings", "cpu_capability"): "CPU capability in force",
}
"""What a golden file holds for: elsewhere other kernels give other bits, and a difference says nothing."""
_RAN = ("pass", "recorded", "diverged")


@dataclass(frozen=True)
class Checked:
    """`pairs`: golden cells with those that were held against them; `unchecked`: what of the golden file could not be,
    a line each; `more`: how many cells the golden file says nothing about.
    """

    pairs: tuple[ComparedCells, ...]
    unchecked: tuple[str, ...]
    more: int

    @property
    def differs(self) -> bool:
        return any(trial.streams.first for pair in self.pairs for trial in pair.trials)

    @property
    def exit_code(self) -> int:
        """0 all bits are equal, 1 some differ, 3 none does but not all could be compared."""
        if self.differs:
            return DIFFERS
        return NOT_CHECKED if self.unchecked or any(pair.incomplete for pair in self.pairs) else EQUAL


def check(golden: Side, side: Side) -> Checked:
    """Hold every trial of a side against a golden file.

    Raises GoldenError, a line for each reason, where the two are not of one configuration, torch and hardware.
    """
    if side.kind == KIND:
        raise GoldenError(f"{side.name} is a golden file too: compare the two with python -m detsweep.diff")
    near, left, right = pairs_of(golden.cells, side.cells)
    pairs = [(golden.cells[a], side.cells[b]) for a, b in near]
    refused = _refused(pairs)
    if not pairs:
        refused = [f"{side.name} has nothing that could be held against {golden.name}"]
    if refused:
        raise GoldenError("\n".join(refused))
    unchecked = [*side.unread]
    if side.kind == "sweep":
        unchecked += [f"{golden.cells[place].label} is in the golden file, and not in {side.name}" for place in left]
    compared = []
    for one, other in pairs:
        whole = {number: trial for number, trial in other.trials.items() if trial.result["verdict"] in _RAN}
        unchecked += [
            f"{other.label} trial {number} is {_ended(trial.result)}"
            for number, trial in other.trials.items()
            if number not in whole
        ]
        kept = CellSide(other.id, other.slug, other.overrides, other.config, whole)
        compared.append(compare_cells(one, kept, (golden.kind, side.kind)))
    return Checked(tuple(compared), tuple(unchecked), len(right))


def _ended(result: Mapping[str, Any]) -> str:
    verdict = "not reached" if result["verdict"] == "none" else str(result["verdict"])
    return verdict + (f": {result['error']}" if result.get("error") else "")


def _refused(pairs: Sequence[tuple[CellSide, CellSide]]) -> list[str]:
    """Why the golden file does not hold for these cells, each reason once, with the first cell of which it is one."""
    found: dict[str, list[str]] = {}
    for golden, cell in pairs:
        for line in _refusals(golden, cell):
            found.setdefault(line, []).append(cell.label)
    more = {line: f" and {len(labels) - 1} more" if len(labels) > 1 else "" for line, labels in found.items()}
    return [f"{labels[0]}{more[line]}: {line}" for line, labels in found.items()]


def _refusals(golden: CellSide, cell: CellSide) -> Iterator[str]:
    keys = key_differences(golden.config, cell.config, (golden.overrides, cell.overrides))
    if golden.world_size != cell.world_size:
        yield f"the golden file is of {golden.world_size} ranks, this is of {cell.world_size}"
    if keys:
        yield f"the golden file is of another configuration: {', '.join(map(str, keys))}"
        return
    for trial in cell.trials.values():
        if trial.result["verdict"] in _RAN:
            found = list(_elsewhere(next(iter(golden.trials.values())), trial, golden.world_size))
            yield from found or _other_digests(next(iter(golden.trials.values())), trial, golden.world_size)


def _elsewhere(golden: Trial, trial: Trial, world_size: int) -> Iterator[str]:
    """On what else a trial ran than the golden file holds for."""
    found: dict[str, list[int]] = {}
    for rank in range(world_size):
        try:
            lines = list(_other_facts(golden.environment(rank), trial.environment(rank)))
        except FileError as error:
            lines = [f"on what it ran is not known: {error}"]
        for line in lines:
            found.setdefault(line, []).append(rank)
    for line, ranks in found.items():
        yield line + ("" if len(ranks) == world_size else f" ({of('rank', ranks)})")


def _other_digests(golden: Trial, trial: Trial, world_size: int) -> Iterator[str]:
    """That a trial was fingerprinted by another algorithm, which `checksum=auto` may stand for."""
    for rank in range(world_size):
        try:
            ours, theirs = (one.lines(rank) for one in (golden, trial))
            kept, own = (one.stream(one.places[0]).checksum for one in (ours, theirs))
        except (FileError, IndexError):
            # It is named where the records are compared.
            continue
        if kept != own:
            yield f"the golden file has digests of {kept}, this has digests of {own}"
            return


def _other_facts(golden: Mapping[str, Any], own: Mapping[str, Any]) -> Iterator[str]:
    kept, theirs = facts(golden), facts(own)
    for fact, name in _FIXED.items():
        before, after = kept.get(fact), theirs.get(fact)
        if before != after:
            yield f"the golden file holds for {name} {before or 'none'}, this ran with {after or 'none'}"


def scope(checked: Checked) -> str:
    """What was compared, in words."""
    trials = [trial for pair in checked.pairs for trial in pair.trials]
    records = sum(trial.streams.records for trial in trials)
    ranks = numbers({len(trial.streams.ranks) for trial in trials} or {0})
    where = f"{counted(len(trials), 'trial')} of {counted(len(checked.pairs), 'cell')}"
    return f"{counted(records, 'record')} in {where}, {ranks} ranks"
