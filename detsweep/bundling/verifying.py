"""The last look at an archive that is to hold no names and no secrets: every byte of it, and every name in it."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from detsweep.bundling.archive import reading
from detsweep.bundling.assignments import assignments
from detsweep.bundling.names import Names
from detsweep.bundling.patterns import kind_of, shaped
from detsweep.bundling.redaction import found_in

_LARGEST_TEXT = 1 << 28
_NEW = ("secret", "mail", "mac", "uuid")


def leaks(archive: Path, names: Names) -> list[str]:
    """What an archive still holds of `names`, or of any other secret: a line each, which does not repeat it."""
    found = []
    with reading(archive) as opened:
        for member in opened:
            if said := names.found(member.name.encode(errors="surrogatepass"), text=True):
                found.append(f"the name of a file holds what {', '.join(said)} stands for")
            source = opened.extractfile(member)
            if source is None:
                continue
            if member.size > _LARGEST_TEXT:
                said, new = found_in(source, names, text=False), []
            else:
                data = source.read()
                text = _decoded(data)
                said = found_in(io.BytesIO(data), names, text=text is not None)
                new = [] if text is None else _in_text(text, names)
            if said:
                found.append(f"{member.name} holds what {', '.join(said)} stands for")
            found += [f"{member.name} holds {one}" for one in new]
    return found


def _decoded(data: bytes) -> str | None:
    try:
        return None if b"\0" in data else data.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _in_text(text: str, names: Names) -> list[str]:
    """Secrets by their shape or their place in a text, and what is hidden from a search by escapes of JSON."""
    new = [f"a {kind} that nobody had seen" for kind, value in shaped(text) if kind in _NEW and "REDACTED" not in value]
    sure = (one for one in assignments(text) if one.sure and kind_of(one.name) == "secret")
    new += [f"a value of {one.name}" for one in sure if "REDACTED" not in one.value]
    if "\\" in text:
        said = names.found("\n".join(_strings(text)).encode(errors="surrogatepass"), text=True)
        new += [f"what {label} stands for, in escapes" for label in said]
    return list(dict.fromkeys(new))


def _strings(text: str) -> Iterator[str]:
    """The texts in a JSON file, or in its lines."""
    try:
        yield from _texts(json.loads(text))
    except ValueError:
        for line in text.splitlines():
            try:
                yield from _texts(json.loads(line))
            except ValueError:
                continue


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, one in value.items():
            yield key
            yield from _texts(one)
    elif isinstance(value, list):
        for one in value:
            yield from _texts(one)
