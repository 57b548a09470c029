"""Every form in which a name or a secret may be written, and where in a text each of them counts."""

from __future__ import annotations

import base64
import html
import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import quote, quote_plus

from detsweep.bundling.texts import encoded

ANYWHERE, WORD, PATH, PLACE = "anywhere", "word", "path", "place"
"""Where a text is replaced: anywhere; as a word of its own; as the beginning of a path; only where its name stands."""
SHORT, LONG = 3, 6
"""Lengths from which a secret is a word of its own, and from which it is looked for anywhere."""
INSENSITIVE = ("node", "domain", "mail", "uuid", "mac", "ip", "node-list")


@dataclass(frozen=True)
class Name:
    """A text that is to be removed, what it is, what stands in its place, and where it is replaced."""

    kind: str
    value: str
    label: str
    reach: str


@dataclass(frozen=True)
class Form:
    """One way in which a name can be written, and what stands for it."""

    text: str
    label: str
    reach: str
    insensitive: bool


def forms_of(name: Name) -> Iterator[Form]:
    """The forms in which a name is replaced and looked for: of a secret all that are known, of others their own."""
    if name.kind in INSENSITIVE:
        yield Form(name.value.lower(), name.label, name.reach, True)
        return
    yield Form(name.value, name.label, name.reach, False)
    if name.kind == "path":
        yield Form(quote(encoded(name.value), safe=""), name.label, ANYWHERE, False)
        yield Form(name.value.replace("/", "\\/"), name.label, PATH, False)
    if name.kind != "secret":
        return
    for text in dict.fromkeys(_written(name.value)):
        if text != name.value and len(text) >= SHORT:
            # What is left of it in a file name may be far shorter than it is, or look like a part of a digest.
            loose = len(text) >= LONG and re.fullmatch(r"[0-9a-fA-F]+", text) is None
            yield Form(text, name.label, name.reach if loose else WORD, False)
    if name.reach == ANYWHERE or len(name.value) >= LONG:
        for text in dict.fromkeys(_encoded(name.value)):
            yield Form(text, name.label, ANYWHERE, False)


def _written(value: str) -> Iterator[str]:
    """A text as programs write it: escaped for JSON, Python, a shell, a URL, HTML, a file name."""
    for escaped in (json.dumps(value), json.dumps(value, ensure_ascii=False)):
        yield escaped[1:-1]
        yield json.dumps(escaped[1:-1])[1:-1]
    yield repr(value)[1:-1]
    yield shlex.quote(value).strip("'")
    data = encoded(value)
    yield from (quote(data, safe=""), quote(data), quote_plus(data))
    yield html.escape(value)
    yield re.sub(r"[^A-Za-z0-9.+_-]+", "", value.replace(",", "+"))


def _encoded(value: str) -> Iterator[str]:
    """A text in base64, alone and in the middle of something longer, and in hexadecimal."""
    data = encoded(value)
    yield data.hex()
    yield data.hex().upper()
    for shift in range(3):
        # Of 3 bytes base64 makes 4 characters: what lies between whole groups is always the same.
        coded = base64.b64encode(b"\0" * shift + data).decode().rstrip("=")
        start = (shift * 8 + 5) // 6
        core = coded[start : (shift + len(data)) * 8 // 6]
        if len(core) >= LONG:
            yield core
            yield core.replace("+", "-").replace("/", "_")


_BOUNDS: Mapping[str, tuple[str, str]] = {
    ANYWHERE: ("", ""),
    WORD: ("(?<![A-Za-z0-9])", "(?![A-Za-z0-9])"),
    PATH: ("(?<![A-Za-z0-9_.>])", "(?![A-Za-z0-9_-])"),
}


@lru_cache(maxsize=256)
def pattern_of(forms: tuple[Form, ...]) -> re.Pattern[str]:
    """What matches any of these forms where it counts; the first of them wins."""
    parts = []
    for form in forms:
        before, after = _BOUNDS[form.reach]
        text = re.escape(form.text)
        parts.append(f"{before}{f'(?i:{text})' if form.insensitive else text}{after}")
    return re.compile("|".join(parts))


def bounded(form: Form, written: bytes, data: bytes) -> bool:
    """Whether a form, encoded in some way, is in some bytes where it counts."""
    before, after = (bound.encode() for bound in _BOUNDS[form.reach])
    return re.search(before + re.escape(written) + after, data) is not None
