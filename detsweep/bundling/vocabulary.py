"""Words of detsweep's own: a secret that is one of them could not be removed everywhere without breaking the files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from detsweep import results
from detsweep.capture import LEVELS, PHASES, SITES, Stream, to_line
from detsweep.causes import CAUSES
from detsweep.mitigations import EFFECTS, catalogue
from detsweep.paths import conf_dir

_WORD = re.compile(r"[A-Za-z0-9_.+-]+")
_FIRST_LINE = 1 << 20
_OWN_LINES = re.compile(r"(rank|step)\d+\.jsonl")


def words(text: str) -> Iterator[str]:
    """The words of a text in small letters, and their parts."""
    for word in _WORD.findall(text.lower()):
        yield word
        yield from re.split(r"[_.+-]", word)


@cache
def own() -> frozenset[str]:
    """The words of the configuration, of verdicts, causes, sites, phases and variables, and the keys of records."""
    found = {word for path in sorted(conf_dir().rglob("*.yaml")) for word in words(f"{path.stem} {_code(path)}")}
    records = json.loads(to_line(Stream(0, 0, "r1", "xxh3", ()), world_size=1))
    for names in (records, _RUNS, _DIVERGES, CAUSES, results.VERDICTS, SITES, PHASES, LEVELS, EFFECTS, catalogue()):
        found.update(word for name in names for word in words(name))
    return frozenset(found)


_RUNS = tuple(f"r{number}" for number in range(1000))
_DIVERGES = ("value", "inputs", "layout", "sequence", "tie", "vote", "reference")
"""How a record differs, and from what."""


def _code(path: Path) -> str:
    """A file of the configuration without its comments, which have the words of any language."""
    return "\n".join(line.partition("#")[0] for line in path.read_text(encoding="utf-8").splitlines())


def of_records(path: Path) -> set[str]:
    """The keys in the first line of JSON lines, and of records the names of what was recorded and of its types."""
    with path.open("rb") as stream:
        line = stream.readline(_FIRST_LINE)
    try:
        told = json.loads(line)
    except ValueError:
        return set()
    # Lines of anybody else's have names of theirs for keys.
    keys = set(of_keys(told)) if _OWN_LINES.fullmatch(path.name) else set()
    return {word for name in _names(told) for word in words(name)} | keys


def _names(told: Any) -> Iterator[str]:
    if not isinstance(told, Mapping):
        return
    for key in ("grads", "params"):
        if isinstance(told.get(key), Mapping):
            yield from told[key]
    if isinstance(told.get("checksum"), str):
        yield told["checksum"]
    for row in told.get("records") or ():
        if isinstance(row, list):
            yield from (one for one in row[:4] if isinstance(one, str))


def of_keys(value: Any) -> Iterator[str]:
    """The keys in a JSON file that are written as detsweep writes its own."""
    if isinstance(value, Mapping):
        for key, one in value.items():
            if re.fullmatch(r"[a-z][a-z0-9_]*", key):
                yield key
            yield from of_keys(one)
    elif isinstance(value, list):
        for one in value:
            yield from of_keys(one)
