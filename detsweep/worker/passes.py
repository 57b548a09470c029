"""What a replay has seen, held against what was recorded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass

import xxhash

from detsweep.capture import Stream, to_line
from detsweep.compare import Comparison, compare, keyed
from detsweep.recording import Step
from detsweep.replays import Pass, Request
from detsweep.worker.parted import BeyondError, PartedError
from detsweep.worker.player import Player


@dataclass
class Seen:
    """The streams of one replay; `parted`: it went another way than the recording; `ended`: it was told to stop."""

    streams: list[Stream]
    parted: str | None = None
    ended: str | None = None

    def end(self, error: BaseException | None, recorded: Step) -> None:
        """The replay stopped inside a step."""
        if not isinstance(error, PartedError):
            self.ended = f"stopped at {error}"
        elif isinstance(error, BeyondError) and not recorded.complete:
            self.ended = f"the recording breaks off in step {recorded.number}, after {len(recorded.calls)} calls"
        else:
            self.parted = str(error)


def judged(
    request: Request, seen: Seen, recorded: Mapping[int, Stream], player: Player, *, seconds: float, aligned: bool
) -> Pass:
    """One replay. `aligned`: it observes what the recording does, so that the two have the same records in order."""
    wanted = [stream for stream in seen.streams if stream.step >= request.first]
    compared, differs, first = 0, Counter[str](), None
    between: tuple[str, ...] = ()
    for stream in wanted:
        if (reference := recorded.get(stream.step)) is None:
            continue
        whole = (seen.ended is None and seen.parted is None) or stream is not wanted[-1]
        comparison = compare(reference, stream, aligned=aligned and whole)
        compared += comparison.compared
        differs.update(comparison.differs)
        if first is None and comparison.first is not None:
            first = comparison.first.to_json()
            between = tuple(_between(reference, stream, comparison))
    mismatches = [one for one in player.mismatches if one.step >= request.first]
    # What was sent is no record at every level: it is seen, and belongs to what passes have in common or not.
    lines = "\n".join(
        [*(to_line(stream, world_size=0) for stream in wanted), *(one.words for one in mismatches), str(seen.parted)]
    )
    return Pass(
        compared,
        dict(differs),
        first,
        between,
        player.checked,
        len(mismatches),
        {**asdict(mismatches[0]), "words": mismatches[0].words} if mismatches else None,
        seen.parted,
        seen.ended,
        tuple(_not_finite(wanted)),
        seconds,
        f"{xxhash.xxh3_64_intdigest(lines.encode()):016x}",
    )


def _between(reference: Stream, stream: Stream, comparison: Comparison) -> list[str]:
    """The operators that ran between the last record that is equal and the first that differs.

    Empty where the recording has operators itself, or the replay has none.
    """
    assert comparison.first is not None
    known = {key for key, _ in keyed(reference)}
    ran: list[str] = []
    for key, record in keyed(stream):
        if record.seq == comparison.first.seq:
            return ran
        if key in known:
            ran = []
        elif record.site == "op":
            ran.append(f"{record.name} ({record.phase})")
    return []


def _not_finite(streams: list[Stream]) -> Iterator[str]:
    for stream in streams:
        if stream.nonfinite:
            name, count = next(iter(stream.nonfinite.items()))
            yield f"{count} values of {name} are not finite in step {stream.step}"
