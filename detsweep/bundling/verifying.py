"""The last look at an archive that is to hold no names and no secrets: every byte of it, and every name in it."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from detsweep.bundling.archive import reading
from detsweep.bundling.assignments import assignments
from detsweep.bundling.names import Names
from detsweep.bundling.patterns import kind_of, shaped
from detsweep.bundling.searching import as_line, held_in, unseen
from detsweep.bundling.texts import decoded, wide

_LARGEST_TEXT = 1 << 28


def leaks(archive: Path, names: Names) -> list[str]:
    """What an archive still holds of `names`, or of any other secret: a line each, which does not repeat it."""
    found = []
    with reading(archive) as opened:
        for member in opened:
            if said := names.found(member.name.encode(errors="surrogatepass"), text=True):
                found.append(f"the name of a file holds what {', '.join(said)} stands for")
            found += [f"the name of a file holds {one}" for one in unseen(member.name, names)]
            source = opened.extractfile(member)
            if source is None:
                continue
            found += [f"{member.name} holds {one}" for one in _held(source, member, names)]
    return found


def _held(source: IO[bytes], member: tarfile.TarInfo, names: Names) -> list[str]:
    """What a member holds of what is known, and of what only looks like a name or a secret."""
    if member.size > _LARGEST_TEXT:
        return held_in(source, names)
    data = source.read()
    text = decoded(member.name, data)
    if text is None:
        return held_in(io.BytesIO(data), names)
    return [*as_line(names.found(data, text=True)), *_in_text(text, names), *unseen(wide(data), names)]


def _in_text(text: str, names: Names) -> list[str]:
    """Secrets by their shape or their place in a text, and what is hidden from a search by escapes of JSON."""
    new = [f"a {kind} that nobody had seen" for kind, value in shaped(text) if not names.may_stay(kind, value)]
    sure = (one for one in assignments(text) if one.sure and kind_of(one.name) == "secret")
    new += [f"a value of {one.name}" for one in sure if not names.may_stay("secret", one.value)]
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
