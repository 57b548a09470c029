"""The one comparison that everything rests on: two streams, and the first record at which they part."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from detsweep.capture import Record, Stream

Key = tuple[str, str, str, int]
NO_MAJORITY = 1 << 256
"""A digest that no fingerprint has: what a vote leaves where no value has a majority."""


@dataclass(frozen=True)
class Divergence:
    """The first record at which a stream parts from its reference.

    `kind`: `value` (other bits), `inputs` (an operator read other bits and wrote the same), `layout` (another shape
    or dtype), `sequence` (a record that the other stream does not have at this place) or `tie` (ranks differ, and no
    value has a majority).
    `reference`: what it parts from: a run, the ranks' vote, or another trial. `cause`: one of causes.CAUSES.
    `origin`: of an upstream divergence the rank that started it. `closer`: the level of observation that would say
    more, None where there is nothing more to say.
    """

    rank: int
    step: int
    run: str
    seq: int
    site: str
    block: int | None
    name: str
    phase: str
    kind: str
    reference: str = "r1"
    cause: str | None = None
    origin: int | None = None
    closer: str | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Comparison:
    """How two streams differ: how many records were compared, the first that differs, and how many by site."""

    compared: int
    first: Divergence | None
    differs: Mapping[str, int]


@dataclass(frozen=True)
class Difference:
    """A record of a stream that differs from its partner in the reference, and how."""

    record: Record
    partner: Record | None
    kind: str


def compare(reference: Stream, other: Stream, *, aligned: bool = True) -> Comparison:
    """Compare two streams in the order of execution; `other` is the one that a divergence is reported of.

    Where the sequences of records themselves differ, the first place of that is a divergence of kind `sequence`;
    the records that both streams have are still compared by site, name and phase. With `aligned` false the two come
    from programs that need not do the same things in the same order: only what both have is compared.

    Raises ValueError when the two were fingerprinted by different algorithms.
    """
    pairs = list(partners(reference, other, aligned=aligned))
    differing = list(differences(reference, other, aligned=aligned))
    differs = Counter("sequence" if d.kind == "sequence" else d.record.site for d in differing)
    first = differing[0] if differing else None
    divergence = None if first is None else described(other, first, reference.run)
    return Comparison(len(pairs), divergence, dict(differs))


def differences(reference: Stream, other: Stream, *, aligned: bool = True) -> Iterator[Difference]:
    """Every record of `other` that differs, in its order of execution. See `compare`."""
    if reference.checksum != other.checksum:
        raise ValueError(f"checksum {reference.checksum} cannot be compared with {other.checksum}")
    if reference.records is other.records:
        return
    parted = _first_out_of_sequence(reference, other) if aligned else None
    pending = parted
    for record, partner in partners(reference, other, aligned=aligned):
        # At one and the same place the broken sequence comes first: what follows may have the wrong partner.
        if pending is not None and pending.seq <= record.seq:
            yield Difference(pending, None, "sequence")
            pending = None
        if (partner.shape, partner.dtype) != (record.shape, record.dtype):
            yield Difference(record, partner, "layout")
        elif partner.digest != record.digest:
            yield Difference(record, partner, "value")
        elif partner.inputs != record.inputs:
            yield Difference(record, partner, "inputs")
    if pending is not None:
        yield Difference(pending, None, "sequence")


def partners(reference: Stream, other: Stream, *, aligned: bool = True) -> Iterator[tuple[Record, Record]]:
    """Each record of `other` with its partner in the reference, where it has one.

    Where programs differ, what one recomputes has its partner in what the other computed once.
    """
    expected = dict(keyed(reference))
    for key, record in keyed(other):
        if not aligned and record.site in ("collective_in", "collective_out"):
            # Other buckets, other numbers: a collective of the one is none of the other.
            continue
        partner = expected.get(key)
        if partner is None and not aligned and record.phase == "recompute":
            partner = expected.get((key[0], key[1], "forward", key[3]))
        if partner is not None:
            yield record, partner


def recomputed(stream: Stream) -> Iterator[Difference]:
    """What activation checkpointing recomputed to other bits than the forward of the same stream had."""
    forward = {key: record for key, record in keyed(stream) if record.phase == "forward"}
    for key, record in keyed(stream):
        partner = forward.get((key[0], key[1], "forward", key[3]))
        if record.phase == "recompute" and partner is not None and partner.digest != record.digest:
            yield Difference(record, partner, "value")


def vote(streams: Mapping[int, Stream], comparable: Callable[[Record], bool]) -> dict[int, tuple[Stream, Stream]]:
    """What most ranks saw, and what each saw, restricted to the records that can be compared between ranks.

    Where no value has a majority (two ranks, or three that all differ) the reference has NO_MAJORITY, and every
    rank differs from it. Renumbers the records, so that places can be compared between ranks.
    """
    own = {rank: _restricted(stream, comparable) for rank, stream in streams.items()}
    orders = Counter(stream.order_bits() for stream in own.values())
    order, votes = orders.most_common(1)[0]
    if 2 * votes <= len(own):
        return _undecided(own)
    base = next(stream for stream in own.values() if stream.order_bits() == order)
    ballots: dict[Key, list[Record]] = {key: [record] for key, record in keyed(base)}
    for stream in own.values():
        for key, record in keyed(stream):
            if stream is not base and key in ballots:
                ballots[key].append(record)
    elected = tuple(_elected(records) for records in ballots.values())
    return {rank: (replace(stream, records=elected, run="vote"), stream) for rank, stream in own.items()}


def _undecided(own: Mapping[int, Stream]) -> dict[int, tuple[Stream, Stream]]:
    """Where no order of records has a majority: every rank differs at the first place at which any two part."""
    orders = [[key for key, _ in keyed(stream)] for stream in own.values()]
    shortest = min(len(order) for order in orders)
    parted = next((n for n in range(shortest) if len({order[n] for order in orders}) > 1), shortest)
    common = [_elected([stream.records[place] for stream in own.values()]) for place in range(parted)]
    pairs = {}
    for rank, stream in own.items():
        # Of a rank that ends here its last record stands for the place.
        place = min(parted, len(stream.records) - 1)
        tied = (replace(record, digest=NO_MAJORITY) for record in stream.records[place : place + 1])
        records = (*common[:place], *tied)
        pairs[rank] = (replace(stream, records=records, run="vote"), stream)
    return pairs


def _elected(records: list[Record]) -> Record:
    """What most ranks have at one place, NO_MAJORITY where there is none."""
    content, votes = Counter(_content(record) for record in records).most_common(1)[0]
    shape, dtype, digest, inputs = content
    if 2 * votes <= len(records):
        digest = NO_MAJORITY
    return replace(records[0], shape=shape, dtype=dtype, digest=digest, inputs=inputs)


def keyed(stream: Stream) -> Iterator[tuple[Key, Record]]:
    """Each record under its site, name, phase and how many of these came before it in the stream."""
    seen: Counter[tuple[str, str, str]] = Counter()
    for record in stream.records:
        key = (record.site, record.name, record.phase)
        yield (*key, seen[key]), record
        seen[key] += 1


def described(stream: Stream, difference: Difference, reference: str) -> Divergence:
    """A difference as the divergence of a stream from a reference, without its cause."""
    record = difference.record
    return Divergence(
        stream.rank,
        stream.step,
        stream.run,
        record.seq,
        record.site,
        record.block,
        record.name,
        record.phase,
        difference.kind,
        reference,
    )


def run_number(run: str) -> int:
    """2 of `r2`: as words, `r10` comes before it."""
    return int(run.removeprefix("r"))


def when(divergence: Mapping[str, Any]) -> tuple[int, int, int, int]:
    """What orders divergences (as JSON) of one trial: step, run, place in the run, rank."""
    return divergence["step"], run_number(divergence["run"]), divergence["seq"], divergence["rank"]


def _content(record: Record) -> tuple[Any, ...]:
    return record.shape, record.dtype, record.digest, record.inputs


def _restricted(stream: Stream, comparable: Callable[[Record], bool]) -> Stream:
    kept = (record for record in stream.records if comparable(record))
    return replace(stream, records=tuple(replace(record, seq=seq) for seq, record in enumerate(kept)))


def _first_out_of_sequence(reference: Stream, other: Stream) -> Record | None:
    """The first record that is missing, added or in another place; a missing one stands where it should have been."""
    ours, theirs = list(keyed(reference)), list(keyed(other))
    for place, ((mine, missing), (its, added)) in enumerate(zip(ours, theirs, strict=False)):
        if mine == its:
            continue
        gone = mine not in dict(theirs) and its in dict(ours)
        return replace(missing, seq=place) if gone else added
    if len(ours) == len(theirs):
        return None
    return (ours if len(ours) > len(theirs) else theirs)[min(len(ours), len(theirs))][1]
