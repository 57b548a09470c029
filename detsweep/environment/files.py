"""What the kernel's own files say: read where they are there, and silent where they are not."""

from __future__ import annotations

import re
from pathlib import Path


def text(path: Path, limit: int = 1 << 20) -> str | None:
    """The text of a file of at most `limit` bytes, without blanks around it; None where it cannot be read.

    Files in /sys can be there and still refuse to be read (the speed of a network card without a cable).
    """
    try:
        with path.open("rb") as stream:
            return stream.read(limit).decode(errors="replace").strip()
    except OSError:
        return None


def number(path: Path) -> int | None:
    """The whole number that a file holds; None where it holds none."""
    found = text(path)
    return int(found) if found is not None and re.fullmatch(r"-?\d+", found) else None


def link_name(path: Path) -> str | None:
    """The last part of what a link leads to, as /sys has drivers and devices; None where it is no link."""
    try:
        return path.readlink().name
    except OSError:
        return None


def folders(path: Path) -> list[Path]:
    """What lies in a folder, in the order of the names; nothing where it cannot be read."""
    try:
        return sorted(path.iterdir(), key=lambda one: [int(part) if part.isdigit() else part for part in _parts(one)])
    except OSError:
        return []


def _parts(path: Path) -> list[str]:
    # Split at numbers, so that node10 comes after node9; the first part is always text.
    return re.split(r"(\d+)", path.name)


def ranges(numbers: list[int]) -> str:
    """`0-3, 6` for 0, 1, 2, 3 and 6."""
    spans: list[list[int]] = []
    for one in sorted(set(numbers)):
        if spans and one == spans[-1][1] + 1:
            spans[-1][1] = one
        else:
            spans.append([one, one])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)
