"""Places of one kind of hardware against each other: the majority, and where a place outside it first differs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import xxhash

from detsweep.analysis.places import Place
from detsweep.capture import Stream
from detsweep.compare import Divergence
from detsweep.crosstrial import cross_compare, streams_of
from detsweep.paths import FileError

Streams = Mapping[int, Mapping[tuple[int, str], Stream]]


@dataclass(frozen=True)
class Screened:
    """How a place stands among those of its kind.

    `verdict`: `equal`, `odd`, `undecided` (places differ, and none of them is known to be right), `alone` (there is no
    other place of its kind) or `error`. `reference`: the place that it is held against, chosen `by` "majority" or
    "golden", or None where that cannot be told. It differs from `differing_from` of the `compared` other places;
    `records`: how many fingerprints it has.
    """

    place: Place
    verdict: str
    reference: str | None = None
    by: str | None = None
    differing_from: int = 0
    compared: int = 0
    records: int = 0
    first: Divergence | None = None
    error: str | None = None


@dataclass(frozen=True)
class _Alike:
    """Places whose records are the same, bit for bit."""

    places: tuple[Place, ...]
    records: int


def screen(places: Sequence[Place], golden: Collection[str] = ()) -> Iterator[Screened]:
    """Hold places of one kind, all with records, against each other; `golden` are cells that are known to be good.

    Files are told apart by their digests; records are read of one place for each digest, one place at a time beside
    the reference.
    """
    groups, broken = _alike(places)
    yield from broken
    count = sum(len(group.places) for group in groups)
    if count < 2:
        yield from (Screened(group.places[0], "alone", records=group.records) for group in groups)
        return
    right, by = _right(groups, golden)
    for group, reference, first, error in _compared(groups, right, golden):
        verdict = "error" if error else "equal" if group is right else "odd" if right else "undecided"
        for place in group.places:
            yield Screened(
                place,
                verdict,
                reference if reference != place.name else None,
                by,
                count - len(group.places),
                count - 1,
                group.records,
                first,
                error,
            )


def _alike(places: Sequence[Place]) -> tuple[list[_Alike], list[Screened]]:
    """The groups of places with the same records, in the order of their first ones, and those that cannot be read."""
    by_files: dict[str, list[Place]] = {}
    for place in places:
        by_files.setdefault(place.files, []).append(place)
    found: dict[str, _Alike] = {}
    broken: list[Screened] = []
    for members in by_files.values():
        try:
            digest, records = _content(_streams(members[0]))
        except FileError as error:
            # The same bytes in each of them, each in files of its own.
            texts = [str(error).replace(_folder(members[0]), _folder(place)) for place in members]
            broken += [Screened(place, "error", error=text) for place, text in zip(members, texts, strict=True)]
            continue
        # Other bytes need not be other records: versions may write them otherwise.
        known = found.get(digest, _Alike((), records))
        found[digest] = _Alike((*known.places, *members), records)
    return list(found.values()), broken


def _right(groups: Sequence[_Alike], golden: Collection[str]) -> tuple[_Alike | None, str | None]:
    """The group that has what most golden places have, or where none of these is here, what most places have."""
    votes = [sum(place.cell["id"] in golden for place in group.places) for group in groups]
    by = "golden" if any(votes) else "majority"
    counts = votes if any(votes) else [len(group.places) for group in groups]
    best = [group for group, count in zip(groups, counts, strict=True) if count == max(counts)]
    return (best[0], by) if len(best) == 1 else (None, None)


def _compared(
    groups: Sequence[_Alike], right: _Alike | None, golden: Collection[str]
) -> Iterator[tuple[_Alike, str, Divergence | None, str | None]]:
    """Each group with the place it is held against, and where it first differs, or why that cannot be told.

    Without a right one all are held against the first group, and this one against the second.
    """
    base = right or groups[0]
    against = next((place for place in base.places if place.cell["id"] in golden), base.places[0])
    if right is not None:
        yield right, against.name, None, None
    others = [group for group in groups if group is not base]
    reference = _streams(against) if others else {}
    for number, group in enumerate(others):
        other = _streams(group.places[0])
        if right is None and number == 0:
            yield base, group.places[0].name, *_first(other, reference, against)
        yield group, against.name, *_first(reference, other, group.places[0])


def _first(reference: Streams, other: Streams, place: Place) -> tuple[Divergence | None, str | None]:
    try:
        first = cross_compare(reference, other, place.config, groups={}).first
    except ValueError as error:
        return None, str(error)
    return first, None if first else "its records are others than its configuration asks for"


def _folder(place: Place) -> str:
    assert place.trial is not None
    return str(place.trial.folder)


def _streams(place: Place) -> Streams:
    assert place.trial is not None
    return streams_of(place.trial, place.config)


def _content(streams: Streams) -> tuple[str, int]:
    """A digest of all that a comparison looks at, and how many records there are."""
    state, count = xxhash.xxh3_128(), 0
    for rank, runs in streams.items():
        for (step, run), stream in runs.items():
            state.update(f"{rank} {step} {run} {stream.checksum}\n".encode())
            for r in stream.records:
                state.update(f"{r.site}\t{r.name}\t{r.phase}\t{r.dtype}\t{r.shape}\t{r.digest}\t{r.inputs}\n".encode())
            count += len(stream.records)
    return state.hexdigest(), count
