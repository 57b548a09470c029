"""How the records of two trials differ: what each rank's first divergence is, and how many records follow it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from detsweep import modes
from detsweep.capture import LEVELS, Stream
from detsweep.causes import attribute
from detsweep.compare import Divergence, differences, partners, run_number, when
from detsweep.diff.lines import Lines, Place
from detsweep.diff.sides import CellSide, Trial
from detsweep.paths import FileError

Pair = tuple[Lines, Lines]


@dataclass(frozen=True)
class Streams:
    """`ranks`: those that were compared; `runs`: how many steps and runs of each; `records`: how many in all.

    `first`: of each rank that differs where it first does; `differing`: by rank how many records of each site do;
    `loss`: in how many steps and runs the loss of any rank does. `unread`: what was not compared, and why, by ranks.
    `alone`: how many steps and runs only the first and only the second trial has.
    """

    ranks: tuple[int, ...] = ()
    runs: int = 0
    records: int = 0
    first: tuple[Divergence, ...] = ()
    differing: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    loss: int = 0
    unread: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    alone: tuple[int, int] = (0, 0)


class _Compared:
    """What a comparison has come to so far."""

    def __init__(self) -> None:
        self.records = 0
        self.first: dict[int, Divergence] = {}
        self.differing: dict[int, Counter[str]] = {}
        self.loss = 0
        self.unread: dict[str, list[int]] = {}

    def unreadable(self, line: str, rank: int) -> None:
        self.unread.setdefault(line, []).append(rank)


def compare_streams(one: Trial, other: Trial, cells: tuple[CellSide, CellSide], ranks: Iterable[int]) -> Streams:
    """Compare two trials, each rank's runs with the same runs of the other; divergences are reported of `other`.

    Lines that are equal are not looked into. A trial that is pinned has one run of each step, and every run of the
    other is held against it. What cannot be read is told, and all the rest is compared.
    """
    if other.pinned and not one.pinned:
        one, other, cells = other, one, (cells[1], cells[0])
    compared = _Compared()
    opened = {rank: pair for rank in ranks if (pair := _opened(one, other, rank, compared)) is not None}
    places = {rank: _common(pair, pinned=one.pinned) for rank, pair in opened.items()}
    apart: dict[Place, dict[int, Place]] = {}
    for rank, pair in opened.items():
        for place, reference in places[rank].items():
            try:
                if pair[0].content(reference) == pair[1].content(place):
                    compared.records += pair[1].count(place)
                else:
                    apart.setdefault(place, {})[rank] = reference
            except FileError as error:
                compared.unreadable(str(error), rank)
    for place in sorted(apart, key=lambda place: (place[0], run_number(place[1]))):
        try:
            _compare_place(place, apart[place], opened, (other, cells), compared)
        except ValueError as error:
            # Another checksum; it is the same one in every step.
            compared.unread[f"records are not compared: {error}"] = sorted(opened)
            break
    return Streams(
        tuple(opened),
        max((len(common) for common in places.values()), default=0),
        compared.records,
        tuple(compared.first[rank] for rank in sorted(compared.first)),
        {rank: dict(compared.differing[rank]) for rank in sorted(compared.differing)},
        compared.loss,
        {line: tuple(where) for line, where in compared.unread.items()},
        _alone(opened.values(), places),
    )


def _opened(one: Trial, other: Trial, rank: int, compared: _Compared) -> Pair | None:
    found = []
    for trial in (one, other):
        try:
            found.append(trial.lines(rank))
        except FileError as error:
            compared.unreadable(str(error), rank)
    return (found[0], found[1]) if len(found) == 2 else None


def _common(pair: Pair, *, pinned: bool) -> dict[Place, Place]:
    """Each step and run of the second that has its like in the first, with that."""
    there = set(pair[0].places)
    wanted = {place: (place[0], "r1") if pinned else place for place in pair[1].places}
    return {place: reference for place, reference in wanted.items() if reference in there}


def _alone(opened: Iterable[Pair], places: Mapping[int, Mapping[Place, Place]]) -> tuple[int, int]:
    alone = [
        (len(set(one.places) - set(common.values())), len(set(other.places) - common.keys()))
        for (one, other), common in zip(opened, places.values(), strict=True)
    ]
    return max((a for a, _ in alone), default=0), max((b for _, b in alone), default=0)


def _compare_place(
    place: Place,
    references: Mapping[int, Place],
    opened: Mapping[int, Pair],
    other: tuple[Trial, tuple[CellSide, CellSide]],
    compared: _Compared,
) -> None:
    """Compare one step and run of all ranks in which its lines differ."""
    pairs: dict[int, tuple[Stream, Stream]] = {}
    for rank, reference in references.items():
        try:
            pairs[rank] = opened[rank][0].stream(reference), opened[rank][1].stream(place)
        except FileError as error:
            compared.unreadable(str(error), rank)
    trial, (mine, its) = other
    aligned = mine.id == its.id or all(one.order_bits() == two.order_bits() for one, two in pairs.values())
    for rank, (one, two) in pairs.items():
        compared.records += sum(1 for _ in partners(one, two, aligned=aligned))
        found = Counter(
            "sequence" if d.kind == "sequence" else d.record.site for d in differences(one, two, aligned=aligned)
        )
        if found:
            compared.differing.setdefault(rank, Counter()).update(found)
    compared.loss += any(one.digests("loss") != two.digests("loss") for one, two in pairs.values())
    divergences = attribute(
        pairs,
        level=min(mine.config["observe"]["name"], its.config["observe"]["name"], key=LEVELS.index),
        groups=_groups(trial.result),
        aligned=aligned,
        exchanges=modes.exchanges(mine.config) or modes.exchanges(its.config),
    )
    for rank, divergence in divergences.items():
        known = compared.first.get(rank)
        if known is None or when(divergence.to_json()) < when(known.to_json()):
            compared.first[rank] = divergence


def _groups(result: Mapping[str, Any]) -> dict[int, dict[str, tuple[int, ...]]]:
    return {
        rank["rank"]: {name: tuple(members) for name, members in rank.get("groups", {}).items()}
        for rank in result.get("ranks", ())
    }
