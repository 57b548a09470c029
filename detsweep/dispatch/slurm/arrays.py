"""Job arrays: which trials share one, how many run side by side, and their record on disk, from before they exist."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from detsweep.capture import SCHEMA
from detsweep.dispatch.pools import Trial
from detsweep.paths import FileError, SweepPaths, read_json, write_json
from detsweep.resources import Resources, resources_of


@dataclass(frozen=True)
class Member:
    """A trial in an array, and how often it was submitted again before."""

    cell: str
    trial: int
    retry: int


@dataclass(frozen=True)
class Array:
    """A job array, as its file has it: `job` is None until Slurm has given it an id; for `lanes` see Lanes."""

    number: int
    name: str
    job: str | None
    lanes: tuple[int, ...]
    members: tuple[Member, ...]

    @property
    def width(self) -> int:
        """How many of its trials run side by side."""
        return len(self.lanes)

    def element(self, index: int) -> str:
        """The id of one trial's job. submitit makes no array of a single one."""
        assert self.job is not None
        return f"{self.job}_{index}" if len(self.members) > 1 else self.job

    def write(self, sweep: SweepPaths) -> None:
        """Write the file of this array, whole."""
        members = [[member.cell, member.trial, member.retry] for member in self.members]
        content = {"name": self.name, "job": self.job, "lanes": list(self.lanes), "members": members}
        write_json(sweep.array(self.number), {"schema": SCHEMA, "number": self.number, **content})


def read_arrays(sweep: SweepPaths) -> Iterator[Array]:
    """The arrays of a sweep that are not over, in the order in which they were made.

    Raises FileError, naming the file, where one cannot be read.
    """
    for path in sweep.arrays():
        content = read_json(path)
        if content.get("schema") != SCHEMA:
            raise FileError(f"{path} has schema {content.get('schema')!r}, this version reads {SCHEMA}")
        members = tuple(Member(*member) for member in content["members"])
        yield Array(content["number"], content["name"], content["job"], tuple(content["lanes"]), members)


def grouped(trials: Sequence[Trial], largest: int) -> Iterator[tuple[Resources, list[Trial]]]:
    """Trials that ask for the same, in pieces of at most `largest`, groups in the order of their first trials."""
    groups: dict[Resources, list[Trial]] = {}
    for trial in trials:
        groups.setdefault(resources_of(trial.cell.config), []).append(trial)
    for resources, members in groups.items():
        for start in range(0, len(members), largest):
            yield resources, members[start : start + largest]


@dataclass(frozen=True)
class Place:
    """The lanes of an array that is to be submitted, and the arrays that it has to wait for."""

    lanes: tuple[int, ...]
    after: tuple[str, ...]


@dataclass
class _Lane:
    """A place in which one trial of the sweep runs at a time; `array` was the last that was given it."""

    array: str | None = None
    load: int = 0


class Lanes:
    """Holds `launch.max_parallel` over several arrays, without anybody who watches.

    Slurm throttles one array, not several. So an array gets as many lanes as it runs trials side by side, the least
    loaded ones, and begins after the arrays that had those lanes before it. Which ones it has stands in its file: with
    others, the next command would not know what waits for what.
    """

    def __init__(self, number: int) -> None:
        self._lanes = [_Lane() for _ in range(number)]

    def take(self, trials: int, over: Callable[[str], bool]) -> Place:
        """Lanes for an array of so many trials; `over` says of a job id whether that array has ended."""
        for lane in self._lanes:
            if lane.array is not None and over(lane.array):
                lane.array, lane.load = None, 0
        numbers = sorted(range(len(self._lanes)), key=lambda number: self._lanes[number].load)[:trials]
        arrays = {array for number in numbers if (array := self._lanes[number].array) is not None}
        return Place(tuple(sorted(numbers)), tuple(sorted(arrays, key=int)))

    def give(self, numbers: Sequence[int], trials: int, job: str) -> None:
        """Lanes are an array's, of which so many trials have not ended."""
        # There may have been more of them, in an earlier command.
        chosen = [self._lanes[number] for number in {number % len(self._lanes) for number in numbers}]
        for lane in chosen:
            lane.array, lane.load = job, lane.load + math.ceil(trials / len(chosen))


def key_of(trial: Trial) -> tuple[str, int]:
    """What tells a trial from the others of a sweep."""
    return trial.cell.id, trial.number


def members_of(trials: Sequence[Trial], retries: dict[tuple[str, int], Any]) -> tuple[Member, ...]:
    """Trials as an array's members."""
    return tuple(Member(trial.cell.id, trial.number, retries.get(key_of(trial), 0)) for trial in trials)
