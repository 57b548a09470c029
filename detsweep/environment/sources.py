"""Environments as a user names them: a file of either kind, or the ranks of a trial."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from detsweep.capture import SCHEMA
from detsweep.environment.capture import ENVIRONMENT_SCHEMA, KIND
from detsweep.paths import FileError, TrialPaths, read_json

ALONE = -1
"""The number under which the environment stands that a file holds."""


@dataclass(frozen=True)
class Source:
    """What one name stands for: environments by rank (a file's own under ALONE), and what cannot be read, a line each.

    `whole`: they are of the kind that `python -m detsweep.environment` writes, and not of a rank.
    """

    name: str
    environments: Mapping[int, Mapping[str, Any]]
    broken: tuple[str, ...]
    whole: bool

    @property
    def single(self) -> bool:
        return set(self.environments) == {ALONE}


def source(name: str) -> Source:
    """What a user names. Raises FileError where it is neither a file of an environment nor a trial's folder."""
    path = Path(name)
    if path.is_file():
        content = environment_file(path)
        return Source(name, {ALONE: content}, (), content.get("kind") == KIND)
    if not path.is_dir():
        raise FileError(f"{name}: no such file or folder (valid: an environment file, or a trial's folder)")
    return _trial(name, TrialPaths(path))


def environment_file(path: Path) -> dict[str, Any]:
    """The content of an environment file of either kind. Raises FileError, naming it, where it is none."""
    content = read_json(path)
    if content.get("kind") == KIND:
        if content.get("schema") != ENVIRONMENT_SCHEMA:
            raise FileError(f"{path} has schema {content.get('schema')!r}, this version reads {ENVIRONMENT_SCHEMA}")
        return content
    if not isinstance(content.get("rank"), int) or not isinstance(content.get("variables"), Mapping):
        raise FileError(f"{path} is no environment: neither a rank's nor one of `python -m detsweep.environment`")
    if content.get("schema") != SCHEMA:
        raise FileError(f"{path} has schema {content.get('schema')!r}, this version reads {SCHEMA}")
    return content


def _trial(name: str, trial: TrialPaths) -> Source:
    listed = sorted(path.name for path in trial.folder.glob("environment-rank*.json"))
    expected = _ranks(trial)
    if not listed and expected is None:
        found = sorted(str(path.parent) for path in trial.folder.glob("**/spec.json"))[:3]
        hint = f"; trials in it: {', '.join(found)}" if found else ""
        raise FileError(f"{name}: no trial's folder, it has no spec.json and no environment-rank*.json{hint}")
    ranks = range(expected) if expected is not None else range(len(listed))
    environments: dict[int, Mapping[str, Any]] = {}
    broken = []
    for rank in ranks:
        try:
            environments[rank] = environment_file(trial.environment(rank))
        except FileError as error:
            broken.append(f"rank {rank}: {error}")
    if not environments:
        raise FileError(f"{name}: no rank's environment can be read; {broken[0] if broken else 'there is none'}")
    return Source(name, environments, tuple(broken), False)


def _ranks(trial: TrialPaths) -> int | None:
    try:
        return int(read_json(trial.spec)["world_size"])
    except (FileError, KeyError, TypeError, ValueError):
        return None
