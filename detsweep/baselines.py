"""`against=key:value`: which cell of a sweep is the baseline that another one is compared with."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any

from detsweep.validate import lookup

Config = Mapping[str, Any]
Cell = tuple[Config, Mapping[str, str]]


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


class Baselines:
    """The baselines of a sweep's cells, each cell given as (configuration, overrides).

    Raises ValueError where `against` does not name keys and values.
    """

    def __init__(self, cells: Sequence[Cell], against: str) -> None:
        self._cells = cells
        self._against = against
        self._target = wanted(against)
        self._axes = sorted({key for _, overrides in cells for key in overrides} - self._target.keys())
        # By their values on the other axes: in a product of axes a cell's baseline is the one that has all of them.
        self._candidates: dict[tuple[str, ...], list[int]] = {}
        for place, cell in enumerate(cells):
            if has(cell, self._target):
                self._candidates.setdefault(self._values(cell), []).append(place)

    def of(self, cell: Cell) -> int | None:
        """The place of a cell's baseline; None for a baseline itself.

        Of the cells that have the values that `against` names it is the one that is like this cell on most other axes.
        Raises ValueError where there is none, or several that are as like.
        """
        if has(cell, self._target):
            return None
        if not self._candidates:
            raise ValueError(f"against={self._against}: no cell of this sweep has {self._valid}")
        best = self._most_alike(self._values(cell))
        if len(best) > 1:
            raise ValueError(f"against={self._against}: {len(best)} cells are as like this one; name one more key")
        return best[0]

    def _values(self, cell: Cell) -> tuple[str, ...]:
        return tuple(str(value_of(cell[0], key, cell[1])) for key in self._axes)

    def _most_alike(self, own: tuple[str, ...]) -> list[int]:
        if exactly := self._candidates.get(own):
            return exactly
        unlike = {values: sum(map(operator.ne, own, values)) for values in self._candidates}
        least = min(unlike.values())
        return [place for values, places in self._candidates.items() if unlike[values] == least for place in places]

    @cached_property
    def _valid(self) -> str:
        return _valid(self._target, self._cells)


def baseline_of(cell: Cell, cells: Sequence[Cell], against: str) -> int | None:
    """The place in `cells` of one cell's baseline, None for a baseline itself. Raises ValueError as Baselines does."""
    return Baselines(cells, against).of(cell)


def has(cell: Cell, target: Mapping[str, str]) -> bool:
    """Whether a cell has all the values of a baseline."""
    return all(_spelt(value_of(cell[0], key, cell[1])) == _spelt(value) for key, value in target.items())


def problems(cells: Sequence[Cell], against: str) -> Iterator[str]:
    """What is wrong with `against` in a sweep of these cells, a line each."""
    try:
        baselines = Baselines(cells, against)
    except ValueError as error:
        yield str(error)
        return
    said = set()
    for cell in cells:
        try:
            baselines.of(cell)
        except ValueError as error:
            if str(error) not in said:
                yield str(error)
            said.add(str(error))


def _spelt(value: Any) -> str:
    """A value as it is compared: numbers by what they are, words without their case."""
    try:
        return str(float(value)) if not isinstance(value, bool) else str(value).lower()
    except ValueError:
        return str(value).lower()


def _valid(target: Mapping[str, str], cells: Sequence[Cell]) -> str:
    key = next(iter(target))
    found = dict.fromkeys(str(value_of(config, key, overrides)).lower() for config, overrides in cells)
    words = ", ".join(value for value in found if value)
    return " ".join(f"{name}={value}" for name, value in target.items()) + f"; {key} is: {words or 'no axis'}"
