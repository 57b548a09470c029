"""The order of events around a first difference: some records of both streams, before it and after it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any

from detsweep.analysis.page.model import Field, Grid
from detsweep.capture import Record, Stream
from detsweep.compare import NO_MAJORITY, keyed

BEFORE, AFTER = 4, 7
DIGITS = 16
COLUMNS = ("number", "compared", "site", "name", "block", "phase")


def events(
    reference: Stream, stream: Stream, first: Mapping[str, Any], *, titles: tuple[str, str], caption: str
) -> Grid:
    """The records from 4 before the `first` difference (as JSON) to 7 after it, in the order of execution.

    What both streams have stands in one row with both digests, what only one has in a row of its own. `titles` name
    reference and stream.
    """
    place = int(first["seq"])
    begin, end = max(0, place - BEFORE), place + AFTER + 1
    ours, theirs = list(keyed(reference))[begin:end], list(keyed(stream))[begin:end]
    aligned = list(_aligned(ours, theirs))
    # What is only in another place has two rows, and the first of them is where the streams part.
    begins = next((row for row, pair in enumerate(aligned) if _is(first, *pair)), None)
    rows = tuple(_row(*pair, reference, stream, first=row == begins) for row, pair in enumerate(aligned))
    styles = tuple(f"{_mark(*pair)[1]}{' first' * (row == begins)}" for row, pair in enumerate(aligned))
    total = max(len(reference.records), len(stream.records))
    long = max((record.hexadecimal(stream.checksum) for record in stream.records[:1]), key=len, default="")
    cut = f", digests cut to {DIGITS} of {len(long)} digits" if len(long) > DIGITS else ""
    note = f"Records {begin} to {min(end, total) - 1} of {total}{cut}."
    return Grid(caption, (*COLUMNS, *titles), rows, heads=0, note=note, style="events", row_styles=styles)


def _aligned(
    ours: Sequence[tuple[Any, Record]], theirs: Sequence[tuple[Any, Record]]
) -> Iterator[tuple[Record | None, Record | None]]:
    matcher = SequenceMatcher(None, [key for key, _ in ours], [key for key, _ in theirs], autojunk=False)
    for tag, i, j, k, m in matcher.get_opcodes():
        if tag == "equal":
            yield from ((a, b) for (_, a), (_, b) in zip(ours[i:j], theirs[k:m], strict=True))
        else:
            yield from ((a, None) for _, a in ours[i:j])
            yield from ((None, b) for _, b in theirs[k:m])


def _is(first: Mapping[str, Any], before: Record | None, after: Record | None) -> bool:
    """Whether a row is where the streams part first; a record that is missing stands under the number it had."""
    one = after or before
    assert one is not None
    same = (one.site, one.name, one.phase) == (first["site"], first["name"], first["phase"])
    return same and (one.seq == first["seq"] or (first["kind"] == "sequence" and after is None))


def _row(
    before: Record | None, after: Record | None, reference: Stream, stream: Stream, *, first: bool
) -> tuple[Field, ...]:
    one = after or before
    assert one is not None
    mark, _ = _mark(before, after)
    block = "" if one.block is None else str(one.block)
    words = (str(one.seq), f"{mark}{' first' if first else ''}", one.site, one.name, block, one.phase)
    digests = (_digest(before, reference, after), _digest(after, stream, before))
    return tuple(Field(text) for text in (*words, *digests))


def _mark(before: Record | None, after: Record | None) -> tuple[str, str]:
    if before is None:
        return "+ only here", "differs"
    if after is None:
        return "- missing here", "differs"
    if (before.shape, before.dtype) != (after.shape, after.dtype):
        return "≠ layout", "differs"
    if before.digest != after.digest:
        return "≠ differs", "differs"
    if before.inputs != after.inputs:
        return "≠ inputs differ", "differs"
    return "= equal", "equal"


def _digest(record: Record | None, stream: Stream, partner: Record | None) -> str:
    if record is None:
        return ""
    if record.digest == NO_MAJORITY:
        return "no majority"
    text = record.hexadecimal(stream.checksum)[:DIGITS]
    if partner is not None and (partner.shape, partner.dtype) != (record.shape, record.dtype):
        text += f" {record.dtype}{list(record.shape)}"
    return text
