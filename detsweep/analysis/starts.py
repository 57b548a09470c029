"""Whether trials had the same data, and began with the same random numbers: by the digests that ranks recorded."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from detsweep.analysis.recorded import Recorded, Trial
from detsweep.capture import Record, Stream, read_streams
from detsweep.paths import FileError

BATCH = "input_ids"
"""The record that each batch, or micro-batch, has one of."""


@dataclass
class Held:
    """Records, each held against the first ones of its kind.

    `seen`: how many there were; `over`: how many were compared with those of another run, trial or cell; `differing`:
    those that are others than the first, a line each.
    """

    seen: int = 0
    over: Counter[str] = field(default_factory=Counter)
    differing: list[str] = field(default_factory=list)
    _first: dict[tuple[Any, ...], tuple[Trial, str, tuple[Record, ...]]] = field(default_factory=dict)

    def hold(self, kind: tuple[Any, ...], trial: Trial, place: str, records: tuple[Record, ...], number: int) -> None:
        """Hold records, which count as `number`, against the first of this kind; the first itself is only kept."""
        self.seen += number
        other, its_place, first = self._first.setdefault(kind, (trial, place, records))
        if first is records:
            return
        self.over["runs" if other is trial else "trials" if other.cell == trial.cell else "cells"] += number
        if _told(records) != _told(first):
            pairs = zip(_told(records), _told(first), strict=False)
            name = next((one[0] for one, another in pairs if one != another), "their number")
            self.differing.append(f"{trial.label} {place}: {name} is not that of {other.label} {its_place}")


@dataclass
class Starts:
    """What trials began with: their batches, and their random states before the first step.

    `kinds`: the kinds of batches that are others by their seed, sizes or ranks. `struck`: how many runs are left out
    because a fault changed their input on purpose. `unread`: trials of which not all was read, each with the reason;
    `unreadable`: files that could not be read, a line each.
    """

    batches: Held = field(default_factory=Held)
    random: Held = field(default_factory=Held)
    kinds: set[tuple[Any, ...]] = field(default_factory=set)
    struck: int = 0
    unread: list[tuple[Trial, str]] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)


def starts(recorded: Recorded, base: str) -> Starts:
    """Read the records of each rank of each trial that came to its end; of one rank at a time.

    Paths below `base` are given relative to it.
    """
    found = Starts()
    for trial in recorded.trials:
        if trial.state != "ran" or not trial.config:
            found.unread.append((trial, trial.why))
            continue
        errors = []
        for rank in range(trial.world_size):
            try:
                _add(found, trial, rank, read_streams(trial.paths.records(rank)))
            except FileError as error:
                errors.append(str(error).replace(f"{base}/", ""))
        found.unreadable += errors
        found.unread += [(trial, error) for error in errors[:1]]
    return found


def _add(found: Starts, trial: Trial, rank: int, streams: list[Stream]) -> None:
    for number, stream in enumerate(streams):
        place = f"rank {rank} step {stream.step} {stream.run}"
        if number == 0:
            states = tuple(record for record in stream.records if record.site == "rng" and record.phase == "before")
            found.random.hold((trial.cell, rank), trial, place, states, len(states))
        if (rank, stream.step, stream.run) in trial.struck:
            found.struck += 1
            continue
        inputs = tuple(record for record in stream.records if record.site == "input")
        kind = _kind(trial, stream.checksum)
        found.kinds.add(kind)
        batches = sum(record.name == BATCH for record in inputs)
        found.batches.hold((*kind, rank, stream.step), trial, place, inputs, batches)


def _kind(trial: Trial, checksum: str) -> tuple[Any, ...]:
    """What makes a rank's batches: they can only be the same where this is."""
    config, model = trial.config, trial.config["model"]
    made_from = (config["seed"], model["vocab_size"], model["batch_size"], model["seq_len"], config["accum"])
    # In lockstep every rank gets the batches of the first one.
    return (*map(str, made_from), trial.world_size, config["mode"]["name"] == "lockstep", checksum)


def _told(records: tuple[Record, ...]) -> list[tuple[Any, ...]]:
    return [(record.name, record.shape, record.dtype, record.digest) for record in records]
