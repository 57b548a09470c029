"""How two environments differ: as facts with names, the versions of the libraries that were loaded first."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

SECTIONS = (
    "versions",
    "torch",
    "device",
    "settings",
    "variables",
    "configuration_files",
    "machine",
    "libraries",
    "run",
)
"""In the order in which differences are told: what most often explains one comes first."""
_TORCH = ("torch", "torch_git", "torch_cuda", "torch_hip", "python", "detsweep")
_MACHINE = ("platform", "host", "node")
# Of every process its own, and no difference between two environments.
_NOTHING = ("schema", "rank", "pid", "started_with", "effects", "appeared", "captured")
_OF_A_PROCESS = ("MASTER_PORT",)


@dataclass(frozen=True)
class EnvironmentDifference:
    """One fact that two environments do not have alike; None where one of them does not have it at all."""

    section: str
    name: str
    before: str | None
    after: str | None

    def __str__(self) -> str:
        before, after = ("not there" if value is None else value for value in (self.before, self.after))
        return f"{self.section}: {self.name}: {before} -> {after}"


def facts(environment: Mapping[str, Any]) -> dict[tuple[str, str], str]:
    """What an environment file says, by section and name; any of a rank, or one that `detsweep.environment` wrote.

    What only tells one process from another (its pid, its rank, the port at which it meets the others) is no fact.
    """
    found: dict[tuple[str, str], str] = {}
    for key, value in environment.items():
        if key in _NOTHING or value is None:
            continue
        if key in SECTIONS and isinstance(value, Mapping):
            found |= {(key, name): one for name, one in _flat(value)}
        elif key == "libraries" and isinstance(value, list):
            # By their names: where a library lies is seen in its version, and paths differ from machine to machine.
            found |= {("libraries", path.rpartition("/")[2]): "loaded" for path in map(str, value)}
        else:
            section = "torch" if key in _TORCH else "machine" if key in _MACHINE else "run"
            found |= {(section, name): one for name, one in _flat({key: value})}
    return {place: value for place, value in found.items() if place[1] not in _OF_A_PROCESS}


def environment_differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[EnvironmentDifference]:
    """The facts that two environments do not have alike, those of SECTIONS in their order."""
    ours, theirs = facts(before), facts(after)
    apart = [place for place in {**ours, **theirs} if ours.get(place) != theirs.get(place)]
    apart.sort(key=lambda place: (SECTIONS.index(place[0]), place[1]))
    return [EnvironmentDifference(*place, ours.get(place), theirs.get(place)) for place in apart]


def _flat(content: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in content.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        elif value is not None:
            yield f"{prefix}{name}", value if isinstance(value, str) else json.dumps(value, sort_keys=True)
