"""Every form in which a name or a secret may be written, and where in a text each of them counts."""

from __future__ import annotations

import base64
import html
import json
import re
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
        coded = quote(encoded(name.value), safe="")
        yield from (Form(text, name.label, ANYWHERE, False) for text in dict.fromkeys((coded, _small_escapes(coded))))
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
    """A text as programs write it: escaped for JSON, Python, a shell, a URL, HTML, Markdown, CSV, a file name."""
    for escaped in (json.dumps(value), json.dumps(value, ensure_ascii=False)):
        inner = escaped[1:-1]
        yield inner
        yield json.dumps(inner)[1:-1]
        yield inner.replace("/", "\\/")
        yield _in_script(inner)
        yield inner.replace('"', '""')
    yield repr(value)[1:-1]
    yield value.replace("\\", "\\\\").replace("'", "\\'")
    yield from _in_shell(value)
    yield from _in_url(encoded(value))
    for page in (html.escape(value), html.escape(value, quote=False)):
        for written in (page, page.replace("&quot;", "&#34;").replace("&#x27;", "&#39;")):
            yield written
            yield written.replace("|", "\\|")
    # In a table of Markdown, in CSV and in YAML.
    yield value.replace("|", "\\|")
    yield value.replace('"', '""')
    yield value.replace("'", "''")
    yield re.sub(r"[^A-Za-z0-9.+_-]+", "", value.replace(",", "+"))


def _in_script(escaped: str) -> str:
    """JSON in a page, where nothing may end the script or the attribute that it stands in."""
    marks = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "'": "\\u0027"}
    return "".join(marks.get(letter, letter) for letter in escaped)


def _in_shell(value: str) -> Iterator[str]:
    """Without the outer quotes: in single ones, in which one is written in two ways; in double ones; without any."""
    yield value.replace("'", "'\"'\"'")
    yield value.replace("'", "'\\''")
    yield re.sub(r'(["\\$`])', r"\\\1", value)
    yield re.sub(r"([^\w@%+=:,./-])", r"\\\1", value)


def _in_url(data: bytes) -> Iterator[str]:
    for written in (quote(data, safe=""), quote(data), quote_plus(data)):
        yield written
        yield _small_escapes(written)


def _small_escapes(written: str) -> str:
    return re.sub("%[0-9A-F]{2}", lambda found: found[0].lower(), written)


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


# The letter with which an escape sequence ends is none of the word that it colours.
_AFTER_COLOUR = "".join(rf"|(?<=\x1b\[{code}m)" for code in (r"\d", r"\d\d", r"\d;\d\d", r"\d\d;\d", r"\d\d;\d\d"))
_BOUNDS: Mapping[str, tuple[str, str]] = {
    ANYWHERE: ("", ""),
    WORD: (f"(?:(?<![A-Za-z0-9]){_AFTER_COLOUR})", "(?![A-Za-z0-9])"),
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
