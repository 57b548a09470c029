"""How two environments differ: as facts with names, the versions of the libraries that were loaded first."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from detsweep.environment.redacted import alike

SECTIONS = (
    "versions",
    "torch",
    "packages",
    "device",
    "gpus",
    "settings",
    "variables",
    "configuration_files",
    "machine",
    "network",
    "libraries",
    "run",
)
"""In the order in which differences are told: what most often explains one comes first."""
_TORCH = ("torch", "torch_git", "torch_cuda", "torch_hip", "python", "detsweep")
_MACHINE = ("platform", "host", "node", "gpu_platform")
# Of every process its own, of this moment alone, or said elsewhere: no difference between two environments.
_NOTHING = (
    "schema", "kind", "rank", "pid", "started_with", "effects", "appeared", "now", "not_known", "variables_unset",
)  # fmt: skip
_OF_A_PROCESS = ("MASTER_PORT",)
# The folder of a cell, or of a trial in it: each has files of its own there, for what it compiles and tunes.
_OWN_FOLDER = re.compile(r"(?<![\w.-])/[^\s:;,]*/cells/[^\s:;,/]+-[0-9a-f]{10}(?:/trial\d+(?:-attempt-[\w.-]+)?)?")


@dataclass(frozen=True)
class EnvironmentDifference:
    """One fact that two environments do not have alike; None where one of them does not have it at all."""

    section: str
    name: str
    before: str | None
    after: str | None

    def __str__(self) -> str:
        before, after = (shown(value) for value in (self.before, self.after))
        return f"{self.section}: {self.name}: {before} -> {after}"


def shown(value: str | None) -> str:
    """A value of a fact, so that one that is empty is seen to be there."""
    return "not there" if value is None else value or '""'


def facts(environment: Mapping[str, Any]) -> dict[tuple[str, str], str]:
    """What an environment file says, by section and name; any of a rank, or one that `detsweep.environment` wrote.

    What only tells one process from another (its pid, its rank, the port at which it meets the others) is no fact,
    nor is where the folder of its own cell lies.
    """
    found: dict[tuple[str, str], str] = {}
    for key, value in environment.items():
        if key in _NOTHING or value is None:
            continue
        if key in SECTIONS and isinstance(value, Mapping):
            found |= {(key, name): one for name, one in _flat(value)}
        elif key == "libraries" and isinstance(value, list):
            found |= {("libraries", name): one for library in value for name, one in _library(library)}
        else:
            section = "torch" if key in _TORCH else "machine" if key in _MACHINE else "run"
            found |= {(section, name): one for name, one in _flat({key: value})}
    return {
        place: _OWN_FOLDER.sub("<its cell>", value) if place[0] == "variables" else value
        for place, value in found.items()
        if place[1] not in _OF_A_PROCESS
    }


def environment_differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[EnvironmentDifference]:
    """The facts that two environments do not have alike, those of SECTIONS in their order.

    What was redacted is equal to whatever it may have been.
    """
    ours, theirs = facts(before), facts(after)
    apart = [place for place in {**ours, **theirs} if not alike(ours.get(place), theirs.get(place))]
    apart.sort(key=lambda place: (SECTIONS.index(place[0]), place[1]))
    return [EnvironmentDifference(*place, ours.get(place), theirs.get(place)) for place in apart]


def _library(library: Any) -> Iterator[tuple[str, str]]:
    """A library that is loaded, by its name: where it lies is seen in its version, and paths differ everywhere.

    A rank has its path alone; an environment file has which build it is as well.
    """
    told = library if isinstance(library, Mapping) else {"path": str(library)}
    name = str(told.get("path", "")).rpartition("/")[2]
    yield name, "loaded"
    for key in ("build_id", "sha256"):
        if told.get(key) is not None:
            yield f"{name} {key}", str(told[key])


def _flat(content: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in content.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        elif isinstance(value, list) and all(isinstance(one, str) for one in value):
            # One by one, so that what is new in a list of a hundred is all that is told.
            yield from ((f"{prefix}{name} {one}", "there") for one in value)
        elif value is not None:
            yield f"{prefix}{name}", value if isinstance(value, str) else json.dumps(value, sort_keys=True)
