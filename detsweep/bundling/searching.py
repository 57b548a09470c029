"""Looking for names and secrets in bytes: those that are known, and those that only look like one."""

from __future__ import annotations

from typing import IO

from detsweep.bundling.assignments import assignments, looks_secret
from detsweep.bundling.names import Names
from detsweep.bundling.patterns import kind_of, shaped
from detsweep.bundling.texts import letters

_PIECE, _OVERLAP = 1 << 26, 1 << 16
_SHORTEST = 8
"""Shorter ones that look like an address are somewhere in a long file of numbers."""


def held_in(stream: IO[bytes], names: Names) -> list[str]:
    """What a stream of bytes that are no text holds of names and secrets, known or by their shape: a line for each.

    It may be of any length, and is gone through once, piece by piece.
    """
    known: dict[str, None] = {}
    new: dict[str, None] = {}
    before = b""
    while piece := stream.read(_PIECE):
        # What is split by the border between two pieces lies whole in the end of the one and the other.
        known |= dict.fromkeys(names.found(before + piece, text=False))
        new |= dict.fromkeys(unseen(letters(before + piece), names))
        before = piece[-_OVERLAP:]
    return [*as_line(list(known)), *new]


def as_line(labels: list[str]) -> list[str]:
    """A line that says what is held, without it; none where nothing is."""
    return [f"what {', '.join(labels)} stands for"] if labels else []


def unseen(text: str, names: Names) -> list[str]:
    """What looks like a name or a secret in letters that were picked out of bytes, or in file names."""
    found = [
        f"a {kind} that nobody had seen"
        for kind, value in shaped(text)
        if len(value) >= _SHORTEST and not names.may_stay(kind, value)
    ]
    sure = (one for one in assignments(text) if one.sure and kind_of(one.name) == "secret" and looks_secret(one.value))
    found += [f"a value of {one.name}" for one in sure if not names.may_stay("secret", one.value)]
    return list(dict.fromkeys(found))
