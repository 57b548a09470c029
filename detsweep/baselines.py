"""`against=key:value`: which cell of a sweep is the baseline that another one is compared with."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from detsweep.validate import lookup

Config = Mapping[str, Any]


def value_of(config: Config, key: str, overrides: Mapping[str, str] = MappingProxyType({})) -> Any:
    """A cell's value on an axis: of a group the option's name, of the mitigations all their names.

    What is no key of the configuration, as `experiment`, has the value that the command line gave it.
    """
    if key.startswith("fault.") and config["fault"]["kind"] == "none":
        return ""
    if key == "mitigation":
        return "+".join(sorted(config["mitigation"])) or "none"
    try:
        value = lookup(config, key)
    except KeyError:
        return overrides.get(key, "")
    if isinstance(value, Mapping):
        return value.get("name", value.get("kind", str(value)))
    if value is None:
        return "null"
    return ",".join(map(str, value)) if isinstance(value, list) else value


def wanted(against: str) -> dict[str, str]:
    """The keys and values that `against` names, as in `checkpointing:none` or `compile:false+wrap:root`.

    Raises ValueError where it is not written so.
    """
    # The names of mitigations have plus signs between them too.
    parts = re.split(r"\+(?=[\w./]+[:=])" if "mitigation" in against else r"\+", against)
    pairs = dict(part.replace("=", ":", 1).partition(":")[::2] for part in parts)
    if not all(key and value for key, value in pairs.items()):
        raise ValueError(f"against={against}: must be key:value, several as key:value+key:value")
    return pairs


def baseline_of(
    cell: tuple[Config, Mapping[str, str]], cells: Sequence[tuple[Config, Mapping[str, str]]], against: str
) -> int | None:
    """The place in `cells` of a cell's baseline, each given as (configuration, overrides); None for a baseline itself.

    Of the cells that have the values that `against` names it is the one that is like this cell on most other axes.
    Raises ValueError where there is none, or several that are as like.
    """
    target = wanted(against)
    if has(cell, target):
        return None
    candidates = [place for place, other in enumerate(cells) if has(other, target)]
    if not candidates:
        raise ValueError(f"against={against}: no cell of this sweep has {_valid(target, cells)}")
    axes = {key for _, overrides in cells for key in overrides} - target.keys()
    unlike = {
        place: sum(str(value_of(cell[0], key, cell[1])) != str(value_of(*_at(cells, place, key))) for key in axes)
        for place in candidates
    }
    best = [place for place in candidates if unlike[place] == min(unlike.values())]
    if len(best) > 1:
        raise ValueError(f"against={against}: {len(best)} cells are as like this one; name one more key")
    return best[0]


def has(cell: tuple[Config, Mapping[str, str]], target: Mapping[str, str]) -> bool:
    """Whether a cell has all the values of a baseline."""
    return all(_spelt(value_of(cell[0], key, cell[1])) == _spelt(value) for key, value in target.items())


def problems(cells: Sequence[tuple[Config, Mapping[str, str]]], against: str) -> Iterator[str]:
    """What is wrong with `against` in a sweep of these cells, a line each."""
    said = set()
    for cell in cells:
        try:
            baseline_of(cell, cells, against)
        except ValueError as error:
            if str(error) not in said:
                yield str(error)
            said.add(str(error))


def _at(
    cells: Sequence[tuple[Config, Mapping[str, str]]], place: int, key: str
) -> tuple[Config, str, Mapping[str, str]]:
    config, overrides = cells[place]
    return config, key, overrides


def _spelt(value: Any) -> str:
    """A value as it is compared: numbers by what they are, words without their case."""
    try:
        return str(float(value)) if not isinstance(value, bool) else str(value).lower()
    except ValueError:
        return str(value).lower()


def _valid(target: Mapping[str, str], cells: Sequence[tuple[Config, Mapping[str, str]]]) -> str:
    key = next(iter(target))
    found = dict.fromkeys(str(value_of(config, key, overrides)).lower() for config, overrides in cells)
    words = ", ".join(value for value in found if value)
    return " ".join(f"{name}={value}" for name, value in target.items()) + f"; {key} is: {words or 'no axis'}"
