"""How the environments of two trials differ, rank by rank; what is each process's own is no difference."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from detsweep.diff.sides import CellSide, Trial
from detsweep.environment import EnvironmentDifference, environment_differences, facts
from detsweep.environment.differences import SECTIONS
from detsweep.environment.redacted import alike
from detsweep.paths import FileError

_PLACES = {
    ("machine", "host"),
    ("machine", "node"),
    ("device", "index"),
    ("device", "uuid"),
    ("variables", "MASTER_ADDR"),
    ("variables", "CUDA_VISIBLE_DEVICES"),
    ("variables", "HIP_VISIBLE_DEVICES"),
    ("variables", "ROCR_VISIBLE_DEVICES"),
}
"""Which of several machines or devices it was, and not of which kind."""
# A trial's own folder, and with it that of its cell and sweep, wherever it lay.
_OWN_FOLDER = re.compile(
    r"(?<![\w.-])/[^\s:;,'\"]*/cells/[^\s:;,'\"/]+-[0-9a-f]{10}(?:/trial\d+(?:-attempt-[\w.-]+)?)?"
)
_SET = "set"
_LAUNCH = {"environment_set": _SET, "environment_removed": "kept out", "environment_overruled": "overruled"}


@dataclass(frozen=True)
class Apart:
    """A fact of the environment that differs, with the ranks on which it does so in just this way."""

    section: str
    name: str
    before: str | None
    after: str | None
    ranks: tuple[int, ...]

    def __str__(self) -> str:
        return str(EnvironmentDifference(self.section, self.name, self.before, self.after))


@dataclass(frozen=True)
class Environments:
    """`apart`: what differs, libraries' versions first; `ranks`: those that were compared; `places`: on which machines
    and devices the two ran, where these are not the same; `shells`: what the shells had that reached neither trial;
    `unread`: what could not be read, by its ranks.
    """

    ranks: tuple[int, ...]
    apart: tuple[Apart, ...]
    places: tuple[Apart, ...]
    shells: tuple[Apart, ...]
    unread: Mapping[str, tuple[int, ...]]


def compare_environments(one: Trial, other: Trial, ranks: Iterable[int]) -> Environments:
    """Compare what each rank had, and what the launcher says of the variables that it gave and took."""
    found: dict[EnvironmentDifference, list[int]] = {}
    unread: dict[str, list[int]] = {}
    compared = []
    for rank in ranks:
        sides = []
        for trial in (one, other):
            try:
                sides.append(_without_folders(trial.environment(rank)))
            except FileError as error:
                unread.setdefault(_of_any_rank(str(error)), []).append(rank)
        if len(sides) < 2:
            continue
        compared.append(rank)
        if one.pinned or other.pinned:
            sides = [pinned_facts(side) for side in sides]
        for difference in environment_differences(*sides):
            found.setdefault(difference, []).append(rank)
    # A rank that comes later may have what is told first.
    ordered = sorted(found, key=lambda d: (SECTIONS.index(d.section), d.name))
    told = [Apart(d.section, d.name, d.before, d.after, tuple(found[d])) for d in ordered]
    apart = [fact for fact in told if (fact.section, fact.name) not in _PLACES]
    launched: list[Apart] = []
    if not (one.pinned or other.pinned):
        try:
            launched = _launched(one.job(), other.job(), apart)
        except FileError as error:
            unread[str(error)] = []
    return Environments(
        tuple(compared),
        (*apart, *(fact for fact in launched if fact.name.startswith(f"{_SET} "))),
        tuple(fact for fact in told if (fact.section, fact.name) in _PLACES),
        tuple(fact for fact in launched if not fact.name.startswith(f"{_SET} ")),
        {line: tuple(where) for line, where in unread.items()},
    )


def pinned_facts(environment: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Of an environment what a golden file keeps of it: the facts that can decide bits, by section.

    Not where it was, nor what holds a path, which is another one on each machine.
    """
    kept: dict[str, dict[str, str]] = {}
    for (section, name), value in facts(environment).items():
        if section in ("run", "machine") or (section, name) in _PLACES or "/" in value or name == "MASTER_PORT":
            continue
        kept.setdefault(section, {})[name] = value
    return kept


def ranks_of_both(one: CellSide, other: CellSide) -> range:
    """The ranks that two cells have in common."""
    return range(min(one.world_size, other.world_size))


def _launched(before: Mapping[str, Any], after: Mapping[str, Any], apart: Iterable[Apart]) -> list[Apart]:
    """What the launcher set, removed and overruled, where the environments themselves do not already say it."""
    said = {(fact.name, fact.before, fact.after) for fact in apart if fact.section == "variables"}
    lines = []
    for key, word in _LAUNCH.items():
        ours, theirs = (_without_folders(job.get(key) or {}) for job in (before, after))
        for name in {**ours, **theirs}:
            values = (ours.get(name), theirs.get(name))
            if not alike(*values) and (name, *values) not in said and ("variables", name) not in _PLACES:
                lines.append(Apart("launch", f"{word} {name}", *values, ()))
    return lines


def _without_folders(content: Any) -> Any:
    """The same with the trial's own folder under one name, which is another one for every sweep."""
    if isinstance(content, str):
        return _OWN_FOLDER.sub("<cell>", content)
    if isinstance(content, Mapping):
        return {key: _without_folders(value) for key, value in content.items()}
    return [_without_folders(one) for one in content] if isinstance(content, list) else content


def _of_any_rank(line: str) -> str:
    return re.sub(r"rank\d{3,}", "rank<NNN>", line)
