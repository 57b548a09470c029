"""The streams of one trial that parted, each with what it was held against: a run, the ranks' vote, another trial."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from detsweep import modes
from detsweep.capture import Stream, read_streams
from detsweep.compare import vote, when
from detsweep.crosstrial import streams_of
from detsweep.paths import CellPaths, TrialPaths

VOTE = "vote"
Place = tuple[int, int, str]
"""A rank, a step and a run."""
Pairs = dict[Place, tuple[Stream, Stream]]
"""Reference and stream, by whose they are."""


@dataclass(frozen=True)
class Parted:
    """A trial that diverged: its folder and configuration, and the first divergence of each comparison, as JSON."""

    trial: TrialPaths
    config: Mapping[str, Any]
    divergences: tuple[Mapping[str, Any], ...]

    @property
    def references(self) -> list[str]:
        """What its streams parted from; first that of the first divergence."""
        return list(dict.fromkeys(str(one["reference"]) for one in sorted(self.divergences, key=when)))

    def against(self, reference: str) -> list[Mapping[str, Any]]:
        """The divergences from one reference, in the order of execution."""
        return sorted((one for one in self.divergences if one["reference"] == reference), key=when)

    def firsts(self) -> list[Mapping[str, Any]]:
        """The first divergence of each rank that has one, by rank."""
        found: dict[int, Mapping[str, Any]] = {}
        for one in sorted(self.divergences, key=when):
            found.setdefault(int(one["rank"]), one)
        return [found[rank] for rank in sorted(found)]

    def record_files(self, ranks: Sequence[int]) -> list[Path]:
        """The files that `pairs` reads for all references."""
        trials = [self.trial, *(other for name in self.references if (other := _other(self.trial, name)) is not None)]
        return [trial.records(rank) for trial in trials for rank in ranks]


def pairs(parted: Parted, reference: str) -> Pairs:
    """Each stream that parted from this reference, beside it.

    Raises FileError, naming the file, where records are missing or torn.
    """
    wanted = {(int(d["rank"]), int(d["step"]), str(d["run"])) for d in parted.against(reference)}
    if reference == VOTE:
        return dict(_voted(parted, wanted))
    other = _other(parted.trial, reference)
    found: Pairs = {}
    # Rank by rank: those of all ranks at once would be too many.
    for rank in sorted({rank for rank, _, _ in wanted}):
        own = _by_place(read_streams(parted.trial.records(rank)))
        theirs = own if other is None else _by_place(read_streams(other.records(rank)))
        for place in sorted(place for place in wanted if place[0] == rank):
            step, run = place[1:]
            beside = theirs.get((step, reference if other is None else run))
            if beside is not None and (step, run) in own:
                found[place] = beside, own[step, run]
    return found


def _voted(parted: Parted, wanted: Iterable[Place]) -> Iterator[tuple[Place, tuple[Stream, Stream]]]:
    streams = streams_of(parted.trial, parted.config)
    comparable = partial(modes.comparable_between_ranks, parted.config)
    for step, run in sorted({(step, run) for _, step, run in wanted}):
        voted = vote({rank: own[step, run] for rank, own in streams.items() if (step, run) in own}, comparable)
        yield from (((rank, step, run), pair) for rank, pair in voted.items() if (rank, step, run) in wanted)


def _by_place(streams: Iterable[Stream]) -> dict[tuple[int, str], Stream]:
    return {(stream.step, stream.run): stream for stream in streams}


def _other(trial: TrialPaths, reference: str) -> TrialPaths | None:
    """The trial of the same cell that a reference names; None where it names a run or the vote."""
    number = reference.removeprefix("trial")
    known = reference.startswith("trial") and number.isdigit()
    return CellPaths(trial.folder.parent).trial(int(number)) if known else None
