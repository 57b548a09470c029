"""What a file says as text, whatever else is in it: a log that a crash cut off has bytes that are no letters."""

from __future__ import annotations

import re
from pathlib import Path

from detsweep.paths import write_bytes

_COMPRESSED = {
    b"\x1f\x8b": "gzip", b"PK\x03\x04": "zip", b"\x28\xb5\x2f\xfd": "zstd", b"\xfd7zXZ": "xz", b"BZh": "bzip2",
    b"PAR1": "Parquet", b"ARROW1": "Arrow", b"\x89PNG": "PNG", b"%PDF": "PDF",
}  # fmt: skip
"""How files begin in which text is compressed, and cannot be seen."""
_TEXTS = (".log", ".txt", ".out", ".err", ".json", ".jsonl", ".md", ".csv", ".yaml", ".yml", ".html", ".xml", ".py")
_HEAD = 1 << 16
_FEW = 0.1
"""The share of odd bytes up to which a file is a text, and not numbers with some letters among them."""
_LONE = re.compile("[\ud800-\udfff]")
_ODD = re.compile("[\x00-\x06\x0e-\x1a\x1c-\x1f\x7f\ud800-\udfff]")
_LETTERS = re.compile(rb"[\t\x20-\x7e]{6,}")
_WIDE = re.compile(rb"(?:[\t\x20-\x7e]\x00){6,}|(?:\x00[\t\x20-\x7e]){6,}")
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def text_of(path: Path) -> str | None:
    """The text of a file, from which `write` makes the same bytes; None where it is none.

    Bytes that are no UTF-8 are kept as lone surrogates, and zeros as they are.
    """
    with path.open("rb") as stream:
        head = stream.read(_HEAD)
    # What is no text is not read whole: it may be as long as a memory.
    return decoded(path.name, path.read_bytes()) if _is_clean(head) or _is_text(path.name, head) else None


def decoded(name: str, data: bytes) -> str | None:
    """The text of a file of this name and content, as `text_of` has it."""
    text = data.decode("utf-8", "surrogateescape")
    if _is_clean(data) or (compressed(data) is None and _is_text(name, data[:_HEAD])):
        return text
    return None


def write(path: Path, text: str) -> None:
    """Write what `text_of` read, changed or not, whole or not at all."""
    write_bytes(path, encoded(text))


def encoded(text: str) -> bytes:
    """The bytes of a text: those that were no UTF-8 as they were, and lone surrogates of other origin in three."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


def compressed(head: bytes) -> str | None:
    """How a file is compressed that begins so; None where it is not."""
    return next((kind for start, kind in _COMPRESSED.items() if head.startswith(start)), None)


def plain(text: str) -> str:
    """A text of the same length for patterns to be looked for in: a zero ends a line, and colours are no letters."""
    if "\0" in text:
        text = text.replace("\0", "\n")
    return _COLOURS.sub(lambda found: " " * len(found[0]), text) if "\x1b" in text else text


def letters(data: bytes) -> str:
    """What can be read in bytes that are no text: all runs of letters and marks, a line each, of two bytes each too."""
    runs = [*_LETTERS.findall(data), *(run.replace(b"\0", b"") for run in _WIDE.findall(data))]
    return b"\n".join(runs).decode("ascii")


def wide(data: bytes) -> str:
    """Of a text only what is written with two bytes a letter, which no pattern sees."""
    return b"\n".join(run.replace(b"\0", b"") for run in _WIDE.findall(data)).decode("ascii") if b"\0" in data else ""


def _is_clean(data: bytes) -> bool:
    """Whether these bytes are UTF-8, but for a last letter that is cut in two, and have no zeros."""
    text = data.decode("utf-8", "surrogateescape")
    return "\0" not in text and (text.isascii() or _LONE.search(text[:-3] if len(data) == _HEAD else text) is None)


def _is_text(name: str, head: bytes) -> bool:
    """Whether a file that begins so is a text for all its odd bytes: it is called one, or most of it is letters."""
    text = head.decode("utf-8", "surrogateescape")
    return name.lower().endswith(_TEXTS) or len(_ODD.findall(text)) < _FEW * len(text)
