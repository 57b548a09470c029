"""What a replay came to, in lines for a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from detsweep.recording.reading import ranges
from detsweep.replays import Pass, Request

OPERATORS_SHOWN = 6


def lines(request: Request, passes: Sequence[Pass], seconds: float) -> Iterator[str]:
    """The outcome of a rank's replay: first whether it is bit for bit as recorded, then where it is not."""
    steps = ranges(tuple(range(request.first, request.last + 1)))
    ahead = f" (from the snapshot at step {request.start})" if request.start < request.first else ""
    first = passes[0]
    inputs = f"{first.records} records and {first.inputs} inputs of collectives"
    where = f"rank {request.rank}, step{'s' if request.first < request.last else ''} {steps}{ahead}"
    unclean = next((one for one in passes if not one.clean), None)
    if unclean is None and not first.records and not first.inputs:
        yield f"{where}: nothing to compare, in {seconds:.1f} s"
    elif unclean is None:
        yield f"{where}: bit for bit as recorded, {inputs}, in {seconds:.1f} s"
    else:
        yield f"{where}: not as recorded, in {seconds:.1f} s"
        yield from (f"  {line}" for line in _differences(unclean))
    yield from (f"  {line}" for line in first.notes)
    if first.ended is not None:
        yield f"  {first.ended}"
    if len(passes) > 1:
        yield f"  {_repeats(passes)}"


def _differences(one: Pass) -> Iterator[str]:
    if one.first is not None:
        yield f"first difference: {_place(one.first)}"
        if one.operators:
            shown = one.operators[-OPERATORS_SHOWN:]
            more = f"{len(one.operators) - len(shown)} more, " if len(one.operators) > len(shown) else ""
            yield f"since the last record that is equal ran: {more}{', '.join(shown)}"
        counted = ", ".join(f"{count} {site}" for site, count in one.differs.items())
        yield f"of {one.records} records differ: {counted}"
    if one.mismatch is not None:
        yield f"first collective that is given something else: {one.mismatch['words']}"
        yield f"of {one.inputs} inputs of collectives differ: {one.mismatches}"
    if one.parted is not None:
        yield f"the program goes another way: {one.parted}"


def _place(first: Mapping[str, Any]) -> str:
    block = "" if first["block"] is None else f" of block {first['block']}"
    return f"step {first['step']}, {first['site']}{block}: {first['name']} ({first['phase']}, {first['kind']})"


def _repeats(passes: Sequence[Pass]) -> str:
    counts = Counter(one.digest for one in passes)
    clean = sum(one.clean for one in passes)
    if len(counts) == 1:
        return f"{len(passes)} replays are all alike: this rank's compute repeats here"
    return (
        f"{len(passes)} replays gave {len(counts)} different results, {clean} of them as recorded: "
        f"this rank's own compute does not repeat here"
    )
