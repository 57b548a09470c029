"""Places, ranks and counts of a comparison, as its lines say them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from detsweep.compare import Divergence

_SAID_BY_THE_SITE = ("input", "logits", "loss", "grad", "norm", "global")


def numbers(found: Iterable[int]) -> str:
    """Numbers in their order, those that follow each other as a range: `0-127, 130`."""
    parts: list[list[int]] = []
    for number in sorted(set(found)):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(f"{a}-{b}" if b > a + 1 else ", ".join(map(str, range(a, b + 1))) for a, b in parts)


def of(noun: str, found: Iterable[int]) -> str:
    """A noun with its numbers: `rank 3`, `ranks 0-127, 130`."""
    every = sorted(set(found))
    return f"{noun}{'s' if len(every) > 1 else ''} {numbers(every)}"


def counted(number: int, noun: str) -> str:
    """A number and its noun: 1 trial, 2 trials."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def sites(differing: Mapping[str, int]) -> str:
    """How many records of each site, most first."""
    return ", ".join(f"{count} {site}" for site, count in sorted(differing.items(), key=lambda one: (-one[1], one[0])))


def place(divergence: Divergence) -> str:
    """Where a stream parts, and why, without its rank: two ranks of which this is the same part alike."""
    site, name = divergence.site, divergence.name
    if site.startswith("block_"):
        said = f"{site} of block {divergence.block}"
    else:
        said = site if name == site else f"{site} {name}"
        if site not in _SAID_BY_THE_SITE:
            said += f" ({divergence.phase})"
    if divergence.kind not in ("value", "tie"):
        said = f"{divergence.kind} differs at {said}"
    cause = "" if divergence.cause is None else f", cause {divergence.cause}"
    origin = "" if divergence.origin is None else f" from rank {divergence.origin}"
    return f"{said}, step {divergence.step} {divergence.run}{cause}{origin}"
