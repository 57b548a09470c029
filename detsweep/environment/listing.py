"""An environment for people: sections of lines, and at their end what is not known."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

WIDTH = 120
_BYTES = ("memory", "memory_limit", "swap", "memory_available", "shared_memory_free", "size")
_SECTIONS = (
    ("machine", "machine"),
    ("torch", "torch and Python"),
    ("device", "device"),
    ("settings", "switches of torch"),
    ("versions", "versions of loaded libraries"),
    ("packages", "installed packages"),
    ("gpus", "GPUs"),
    ("network", "network cards"),
    ("configuration_files", "configuration files of NCCL and RCCL"),
)


def lines(environment: Mapping[str, Any]) -> Iterator[str]:
    """The lines of an environment as `detsweep.environment.capture` makes it."""
    captured = time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(environment["now"]["captured"]))
    node = f", node {environment['node']}" if environment["node"] else ""
    yield f"environment of {environment['host']}{node}, {captured}"
    for key, title in _SECTIONS:
        yield from _section(title, environment[key])
    yield ""
    yield f"loaded libraries ({len(environment['libraries'])})"
    for library in environment["libraries"]:
        yield f"  {library['path']}"
        build = f"build id {library['build_id']}" if library.get("build_id") else "no build id"
        digest = f", sha256 {library['sha256'][:16]}..." if "sha256" in library else ""
        yield f"    {_size(library.get('size'))}, {build}{digest}{_unreadable(library)}"
    yield from _variables(environment)
    yield from _section("at this moment", {k: v for k, v in environment["now"].items() if k != "captured"})
    yield ""
    yield "not known" if environment["not_known"] else "not known: nothing"
    yield from (f"  {name}: {why}" for name, why in environment["not_known"].items())


def _unreadable(library: Mapping[str, Any]) -> str:
    return f" (cannot be read now: {library['unreadable']})" if "unreadable" in library else ""


def _section(title: str, content: Mapping[str, Any]) -> Iterator[str]:
    yield ""
    yield title if content else f"{title}: none"
    yield from _entries(content, "  ")


def _entries(content: Mapping[str, Any], indent: str) -> Iterator[str]:
    width = max((len(name) for name, value in content.items() if not isinstance(value, Mapping)), default=0)
    for name, value in content.items():
        if isinstance(value, Mapping):
            yield f"{indent}{name}" if value else f"{indent}{name}: none"
            yield from _entries(value, indent + "  ")
        else:
            yield from _folded(f"{indent}{name:<{width}}  ", _shown(name, value))


def _shown(name: str, value: Any) -> str:
    if value is None:
        return "not known"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) and name in _BYTES:
        return _size(value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return (" " if name == "flags" else ", ").join(map(str, value)) or "none"
    return str(value)


def _folded(start: str, text: str) -> Iterator[str]:
    """A text in lines of at most WIDTH, later ones under the first; a word that is longer stays whole."""
    line = start
    for word in text.split(" "):
        if len(line) + len(word) > WIDTH and line.strip() and line != " " * len(start) and line != start:
            yield line.rstrip()
            line = " " * len(start)
        line += word + " "
    yield line.rstrip()


def _variables(environment: Mapping[str, Any]) -> Iterator[str]:
    yield from _section("variables that change bits, set here", environment["variables"])
    yield ""
    yield from _folded("variables of the catalogue, unset: ", ", ".join(environment["variables_unset"]))


def _size(amount: Any) -> str:
    if not isinstance(amount, int):
        return "size not known"
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if amount >= factor:
            return f"{amount / factor:.1f} {unit}"
    return f"{amount} bytes"
