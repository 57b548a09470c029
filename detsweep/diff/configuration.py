"""How two configurations differ: the keys that a user would name, each with both values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from detsweep.plan import NOT_IDENTITY

ABSENT = "unset"
# What chooses an option of these groups; the rest of the group follows from it unless the command line says otherwise.
_GROUPS = {"model": "name", "dtype": "name", "moe": "name", "mode": "name", "observe": "name", "stress": "name",
           "fault": "kind"}  # fmt: skip
# Keys whose value is that of another one, or a group's own, unless the command line says otherwise.
_FOLLOWS = {
    "runs": ("mode",),
    "top_k": ("moe",),
    "moe.experts": ("experts",),
    "moe.top_k": ("top_k", "moe"),
}
# What describes a preset and sets nothing.
_SETS = ("env", "torch")


@dataclass(frozen=True)
class KeyDifference:
    """A key of the configuration with its two values, as text; ABSENT where there is none."""

    key: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.key}: {self.before} -> {self.after}"


def flat(config: Mapping[str, Any]) -> dict[str, str]:
    """Every key that is part of what a cell is, with its value as text.

    Of the mitigations their names under one key, and what each of them sets.
    """
    kept = {key: value for key, value in config.items() if key not in (*NOT_IDENTITY, "mitigation")}
    found = dict(_flat(kept))
    presets: Mapping[str, Any] = config.get("mitigation", {})
    found["mitigation"] = "+".join(sorted(presets)) or "none"
    for name, preset in presets.items():
        found |= _flat({key: preset.get(key) for key in _SETS if preset.get(key)}, f"mitigation.{name}.")
    return found


def key_differences(
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    overrides: tuple[Mapping[str, str], Mapping[str, str]] = ({}, {}),
) -> list[KeyDifference]:
    """The keys in which two cells differ; what only follows from another one of them is left out.

    `overrides`: what the two command lines say: a key that is named there follows from nothing.
    """
    ours, theirs = flat(before), flat(after)
    apart = frozenset(key for key in {**ours, **theirs} if ours.get(key) != theirs.get(key))
    named = frozenset(key.lstrip("+~") for one in overrides for key in one)
    presets = frozenset(ours["mitigation"].split("+")) & frozenset(theirs["mitigation"].split("+"))
    kept = sorted(key for key in apart if not _follows(key, apart, named, presets))
    return [KeyDifference(_said(key), ours.get(key, ABSENT), theirs.get(key, ABSENT)) for key in kept]


def aside_differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[KeyDifference]:
    """The keys in which two cells differ that say nothing about what they compute: how often, why, against what."""
    # One that has no such key is of a version that did not know it.
    both = [key for key in NOT_IDENTITY if key in before and key in after]
    ours, theirs = (dict(_flat({key: config[key] for key in both})) for config in (before, after))
    return [
        KeyDifference(key, ours.get(key, ABSENT), theirs.get(key, ABSENT))
        for key in {**ours, **theirs}
        if ours.get(key) != theirs.get(key)
    ]


def _follows(key: str, apart: frozenset[str], named: frozenset[str], presets: frozenset[str]) -> bool:
    """Whether that a key differs says nothing new; `presets`: the mitigations that both cells have."""
    group, _, rest = key.partition(".")
    if group == "mitigation" and rest:
        # What a preset sets differs for itself only where both cells have the preset.
        return rest.split(".")[0] not in presets
    if key in named:
        return False
    if rest != _GROUPS.get(group) and _chosen(group, apart):
        return True
    return any(one in apart or _chosen(one, apart) for one in _FOLLOWS.get(key, ()))


def _chosen(group: str, apart: frozenset[str]) -> bool:
    """Whether two cells have different options of a group."""
    return f"{group}.{_GROUPS.get(group)}" in apart


def _said(key: str) -> str:
    group, _, rest = key.partition(".")
    return group if _GROUPS.get(group) == rest else key


def _flat(content: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in content.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        elif isinstance(value, list):
            yield f"{prefix}{key}", f"[{','.join(map(str, value))}]"
        elif isinstance(value, bool):
            yield f"{prefix}{key}", str(value).lower()
        else:
            yield f"{prefix}{key}", "null" if value is None else str(value)
