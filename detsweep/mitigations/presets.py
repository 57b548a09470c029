"""Presets as they are on disk, one file each: read here without Hydra, for the catalogue, `require` and the search."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

from detsweep.mitigations.stack import Settings, combine, unsupported_reason

GROUP = "mitigation"
FIELDS = ("env", "torch", "platforms", "reads", "expect", "cost", "source", "members", "advice")
KINDS: Mapping[str, tuple[type, str]] = {
    **dict.fromkeys(("env", "torch"), (dict, "names with values")),
    **dict.fromkeys(("platforms", "members", "advice"), (list, "a list")),
}


@dataclass(frozen=True)
class Preset:
    """One mitigation: what it sets, where it has a place, and what is known of it.

    `members`: the presets of which it is the union; `advice`: what no variable or switch can set.
    """

    name: str
    env: Mapping[str, str | None]
    torch: Mapping[str, Any]
    platforms: tuple[str, ...]
    reads: str
    expect: str
    cost: str
    source: str
    members: tuple[str, ...]
    advice: tuple[str, ...]
    file: Path

    def supports(self, platform: str) -> bool:
        """Whether it has a place on a platform: cpu, nvidia or amd."""
        return unsupported_reason({self.name: {"platforms": self.platforms}}, platform) is None

    def raw(self) -> dict[str, Any]:
        """What `combine` takes."""
        return {"env": dict(self.env), "torch": dict(self.torch), "platforms": list(self.platforms)}


def load_presets(folders: Iterable[Path]) -> dict[str, Preset]:
    """All presets of some configuration folders by name, sorted; of two with one name the first folder's, as in Hydra.

    Raises ValueError, naming the file, for one that cannot be read as a preset.
    """
    found: dict[str, Preset] = {}
    for folder in folders:
        for file in sorted((folder / GROUP).glob("*.yaml")):
            for name, entry in _content(file).items():
                found.setdefault(str(name), _preset(str(name), entry, file))
    return dict(sorted(found.items()))


def chosen(presets: Mapping[str, Preset], names: Sequence[str], key: str) -> list[Preset]:
    """Presets by name. Raises ValueError, naming `key` and what is valid, for one that does not exist."""
    for name in names:
        if name not in presets:
            close = get_close_matches(name, list(presets), n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise ValueError(f"{key}={name}: no such mitigation{hint}; valid: {', '.join(presets)}")
    return [presets[name] for name in names]


def settings_of_all(presets: Sequence[Preset]) -> Settings:
    """What presets ask for together. Raises ValueError as `combine` does."""
    return combine({preset.name: preset.raw() for preset in presets}, {})


def _content(file: Path) -> Mapping[str, Any]:
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ValueError(f"{file}: cannot be read: {_reason(error)}") from None
    if isinstance(content, dict) and content.pop("defaults", ["_self_"]) != ["_self_"]:
        raise ValueError(f"{file}: has defaults; stack presets by name instead: {GROUP}=[a,b]")
    # One that could only stand in a file with `# @package _global_`.
    if not isinstance(content, dict) or not all(isinstance(content[name], dict) for name in content if name != GROUP):
        raise ValueError(f"{file}: must hold `name: {{env: ..., torch: ...}}`")
    return {name: entry for name, entry in content.items() if name != GROUP}


def _reason(error: Exception) -> str:
    """An error in one line; one of YAML with the number of the line in the file."""
    mark = getattr(error, "problem_mark", None)
    if isinstance(error, yaml.MarkedYAMLError) and mark is not None:
        return f"line {mark.line + 1}: {error.problem}"
    return str(error).splitlines()[0]


def _preset(name: str, entry: Mapping[str, Any], file: Path) -> Preset:
    if unknown := sorted(entry.keys() - set(FIELDS)):
        raise ValueError(f"{file}: {name}.{unknown[0]}: no such key; valid: {', '.join(FIELDS)}")
    for key, (kind, words) in KINDS.items():
        if not isinstance(entry.get(key) or kind(), kind):
            raise ValueError(f"{file}: {name}.{key}: must be {words}")
    env = {str(key): None if value is None else str(value) for key, value in (entry.get("env") or {}).items()}
    preset = Preset(
        name=name,
        env=env,
        torch=dict(entry.get("torch") or {}),
        platforms=tuple(entry.get("platforms") or ()),
        reads=str(entry.get("reads", "")),
        expect=str(entry.get("expect", "")),
        cost=str(entry.get("cost", "")),
        source=str(entry.get("source", "")),
        members=tuple(entry.get("members") or ()),
        advice=tuple(entry.get("advice") or ()),
        file=file,
    )
    try:
        settings_of_all([preset])
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None
    return preset
