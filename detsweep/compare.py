"""The one comparison that everything rests on: two streams, and the first record at which they part."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from detsweep.capture import Record, Stream


@dataclass(frozen=True)
class Divergence:
    """The first record at which a stream parts from its reference.

    `kind` is `value` (other bits), `layout` (another shape or dtype) or `sequence` (a record that the other
    stream does not have at this place).
    """

    rank: int
    step: int
    run: str
    seq: int
    site: str
    block: int | None
    name: str
    kind: str
    cause: str | None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Comparison:
    """How two streams differ: how many records were compared, the first that differs, and how many by site."""

    compared: int
    first: Divergence | None
    differs: dict[str, int]


def compare(reference: Stream, other: Stream) -> Comparison:
    """Compare two streams in the order of execution; `other` is the one that a divergence is reported of.

    Where the sequences of records themselves differ, the first place of that is a divergence of kind `sequence`;
    the records that both streams have are still compared by site and name.

    Raises ValueError when the two were fingerprinted by different algorithms.
    """
    if reference.checksum != other.checksum:
        raise ValueError(f"checksum {reference.checksum} cannot be compared with {other.checksum}")
    expected = dict(_keyed(reference))
    differing: list[tuple[Record, str]] = []
    compared = 0
    for key, record in _keyed(other):
        partner = expected.get(key)
        if partner is None:
            continue
        compared += 1
        if (partner.shape, partner.dtype) != (record.shape, record.dtype):
            differing.append((record, "layout"))
        elif partner.digest != record.digest:
            differing.append((record, "value"))
    parted = _first_out_of_sequence(reference, other)
    if parted is not None:
        differing.append((parted, "sequence"))
    differs = Counter("sequence" if kind == "sequence" else record.site for record, kind in differing)
    # At one and the same place the broken sequence comes first: what follows may be compared with the wrong partner.
    first = min(differing, key=lambda item: (item[0].seq, item[1] != "sequence"), default=None)
    divergence = None if first is None else _divergence(other, *first)
    return Comparison(compared, divergence, dict(differs))


def _keyed(stream: Stream) -> Iterator[tuple[tuple[str, str, int], Record]]:
    """Each record under its site, its name and how many of these came before it in the stream."""
    seen: Counter[tuple[str, str]] = Counter()
    for record in stream.records:
        key = (record.site, record.name)
        yield (*key, seen[key]), record
        seen[key] += 1


def _first_out_of_sequence(reference: Stream, other: Stream) -> Record | None:
    ours, theirs = reference.records, other.records
    for mine, its in zip(ours, theirs, strict=False):
        if (mine.site, mine.name) != (its.site, its.name):
            return its
    if len(ours) == len(theirs):
        return None
    return (ours if len(ours) > len(theirs) else theirs)[min(len(ours), len(theirs))]


def _divergence(stream: Stream, record: Record, kind: str) -> Divergence:
    # At block level only these two name their own cause; whether a block's output differs by compute or by what a
    # collective brought takes records of both.
    cause = record.site if kind == "value" and record.site in ("input", "rng") else None
    if kind == "sequence":
        cause = "sequence"
    return Divergence(
        stream.rank, stream.step, stream.run, record.seq, record.site, record.block, record.name, kind, cause
    )
