"""Files of a sweep that are missing, torn, changed or not its own, as lines: every one of them by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from detsweep.analysis.frames import Sweep

CHECKED_AT_ONCE = 100_000_000
"""Bytes of records that are read without being asked to."""
SAID = 8


def unread(sweep: Sweep, *, most_bytes: int | None = CHECKED_AT_ONCE) -> list[str]:
    """A line for each such file, with its path relative to the sweep's folder.

    The records of a sweep with more than `most_bytes` of them are left unread, and a line says so.
    """
    size = bytes_of_records(sweep)
    large = most_bytes is not None and size > most_bytes
    lines = [f"{one.file} {one.problem}" for one in sweep.checked(records=not large).itertuples()]
    left = f"{size / 1e6:.0f} MB of records were not read to see whether they are whole: .problems does"
    return [*lines, left] if large else lines


def unread_lines(sweep: Sweep) -> Iterator[str]:
    """The same for a terminal: the first of them, and how many more there are."""
    lines = unread(sweep)
    yield from (f"file: {line}" for line in lines[:SAID])
    if len(lines) > SAID:
        yield f"file: {len(lines) - SAID} more, all named in matrix.md and in .problems"


def bytes_of_records(sweep: Sweep) -> int:
    """How large the records of all trials are."""
    paths = (files.paths.folder for files in sweep.files.values())
    return sum(path.stat().st_size for folder in paths for path in folder.glob("rank*.jsonl"))
