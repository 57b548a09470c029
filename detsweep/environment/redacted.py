"""Values of which a redacted bundle keeps only a part: what stands in the place of a name is no difference."""

from __future__ import annotations

import re

_PLACES = re.compile(r"<(?:sweep|cwd|home|python|detsweep|path-\d+)>")
_SECRETS = re.compile(r"REDACTEDx*-\d+")
# A name, and not something that is called so: `ip-10-0-0-1` is a machine.
_NAMES = re.compile(
    r"(?:(?<=GPU-)|(?<![A-Za-z0-9-]))(?:nodes|(?:node|user|domain|mail|ip|mac|uuid|serial|account|partition|qos|reservation|node-list)"
    r"x*-\d+)(?![A-Za-z0-9-])"
)
_ALL = re.compile("|".join(f"(?P<{name}>{one.pattern})" for name, one in (
    ("place", _PLACES), ("secret", _SECRETS), ("name", _NAMES)
)))  # fmt: skip


def alike(before: str | None, after: str | None) -> bool:
    """Whether two values are equal, or may have been before one of them was redacted.

    A path, secret or name that was replaced stands for any other, and all around it must be the same. Two nodes, users
    or the like that both have a number (`node-1`, `node-2`) are two.
    """
    if before == after:
        return True
    if before is None or after is None:
        return False
    return _may_be(before, after) or _may_be(after, before)


def _may_be(redacted: str, other: str) -> bool:
    """Whether a redacted value could have been another one."""
    if _ALL.search(redacted) is None:
        return False
    parts, place = [], 0
    for found in _ALL.finditer(redacted):
        parts += [re.escape(redacted[place : found.start()]), _STANDS_FOR[str(found.lastgroup)]]
        place = found.end()
    return re.fullmatch("".join([*parts, re.escape(redacted[place:])]), other, re.DOTALL) is not None


_STANDS_FOR = {
    # A list of paths is one path after the other.
    "place": r"(?:<[\w-]+>|/)[^:;,\s]*",
    "secret": r".+",
    "name": rf"(?!{_NAMES.pattern})[^\s:/,]+",
}
