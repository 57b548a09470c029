"""From a cell and the `search` part of its configuration to what is searched."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from detsweep import environment, stopping
from detsweep.baselines import value_of
from detsweep.mitigations import Preset, chosen, combine
from detsweep.plan import Cell
from detsweep.search.run import Task
from detsweep.validate import lookup

Compose = Callable[[Mapping[str, str]], Cell]
"""The cell of the command line with some keys set otherwise; ValueError where that is no valid cell."""


def task_of(cell: Cell, presets: Mapping[str, Preset], compose: Compose) -> tuple[Task, list[str]]:
    """What `search` asks for, and what of it is left out, a line each.

    Raises ValueError, one line, where nothing is left to search.
    """
    if cell.config["search"]["name"] == "minimal":
        return _minimal(cell, presets, compose)
    return _culprit(cell, compose)


def _minimal(cell: Cell, presets: Mapping[str, Preset], compose: Compose) -> tuple[Task, list[str]]:
    config = cell.config
    named = list(dict.fromkeys(config["search"]["candidates"]))
    wanted = chosen(presets, named, "search.candidates")
    platform = "cpu" if config["device"] == "cpu" else environment.gpu_platform()
    fixed = [name for name in config["mitigation"] if name != "none"]

    def usable(name: str) -> bool:
        has_place = bool(config["mitigation_force"]) or presets[name].supports(platform)
        return has_place and name not in fixed and bool(presets[name].env or presets[name].torch)

    def contradiction(members: Sequence[str]) -> str | None:
        try:
            combine({name: presets[name].raw() for name in (*fixed, *members)}, config["env"])
        except ValueError as error:
            return str(error)
        return None

    notes = []
    if in_force := [name for name in named if name in fixed]:
        notes.append(f"left out, the cell has them already: {', '.join(in_force)}")
    if misplaced := [one.name for one in wanted if one.name not in fixed and not usable(one.name)]:
        notes.append(f"left out, without a place on {platform}: {', '.join(misplaced)}")
    possible = {name: contradiction([name]) for name in named if usable(name)}
    notes += [f"left out: {line}" for line in possible.values() if line is not None]
    items = tuple(name for name, line in possible.items() if line is None)
    if not items:
        raise ValueError(f"search.candidates={','.join(named)}: none of them has a place here ({platform})")

    def cell_of(members: Sequence[str]) -> Cell:
        names = [*fixed, *members] or ["none"]
        return compose({"mitigation": f"[{','.join(names)}]"})

    def parts(name: str) -> list[str]:
        """Members without a place here, or that the cell has already, are left out."""
        return [part for part in presets[name].members if usable(part)]

    return Task(
        "minimal",
        items,
        cell_of,
        lambda some: contradiction(some) is None,
        parts,
        config["search"],
        believable_only_if_read=not config["fault"]["unless"],
    ), [*notes, *_moot(cell)]


def _moot(cell: Cell) -> Iterator[str]:
    if cell.trials > 1 and cell.config["mode"]["name"] != "relaunch":
        yield f"trials={cell.trials} does not apply: a search makes as many launches as it takes (search.max_trials)"


def _culprit(cell: Cell, compose: Compose) -> tuple[Task, list[str]]:
    notes: list[str] = []
    harmless: dict[str, str] = {}
    names: dict[str, str] = {}
    for key, value in dict(_dotted(cell.config["search"]["axes"])).items():
        try:
            own = value_of(cell.config, key) if key in cell.config else lookup(cell.config, key)
        except KeyError:
            raise ValueError(f"search.axes.{key}: no such key of the configuration") from None
        moot = cell.config["experts"] == 1 and (key == "top_k" or key.startswith("moe."))
        try:
            if moot or not _differs(own, value):
                continue
        except ValueError:
            raise ValueError(f"search.axes.{key}={value}: must be a number") from None
        name = f"{key}={_spelt(own)}"
        try:
            compose({key: _spelt(value)})
        except ValueError as error:
            line = str(error).splitlines()[0]
            if re.match(rf"{re.escape(key)}\S*=\S+: (no such option|valid:|must be (a|true) )", line):
                raise ValueError(f"search.axes.{line}") from None
            notes.append(f"left out, {key} cannot be {_spelt(value)} here: {line}")
            continue
        harmless[name], names[name] = _spelt(value), key
    if not harmless:
        raise ValueError("search=culprit: the cell has the harmless value on every axis of search.axes")

    def cell_of(members: Sequence[str]) -> Cell:
        return compose({names[item]: value for item, value in harmless.items() if item not in members})

    task = Task("culprit", tuple(harmless), cell_of, lambda _: True, lambda _: (), cell.config["search"])
    return task, [*notes, *_moot(cell)]


def _dotted(axes: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Axes by their dotted keys: `+search.axes.model.dropout=0` on the command line makes one within another."""
    for key, value in axes.items():
        if isinstance(value, Mapping):
            yield from _dotted(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _differs(own: Any, harmless: Any) -> bool:
    """Whether a cell's value is another than the harmless one; of numbers whether it is larger."""
    if isinstance(own, bool) or isinstance(harmless, bool) or not isinstance(own, (int, float)):
        return _spelt(own) != _spelt(harmless)
    return own > float(harmless)


def _spelt(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def contradictions(cells: Sequence[Cell]) -> Iterator[str]:
    """What does not go with a search, a line each."""
    config, name = cells[0].config, cells[0].config["search"]["name"]
    if len(cells) > 1:
        yield f"search={name}: takes one cell, the command line has {len(cells)}"
    for key in ("drill", "positive_control"):
        if config[key]:
            yield f"{key}=true: does not go with search={name}"
    if config["against"] is not None:
        yield f"against={config['against']}: does not go with search={name}"
    if config["launch"]["fail_fast"]:
        yield f"launch.fail_fast=true: does not go with search={name}, in which sets diverge on the way"
    if config["launch"]["rerun"] == "all":
        yield f"launch.rerun=all: does not go with search={name}, which would repeat itself without an end"
    for key, value in stopping.rule_of(config).items():
        if value is not None:
            yield f"stop_after.{key}={value}: does not go with search={name}, which makes as many launches as it takes"
    if cells[0].unsupported:
        yield f"search={name}: the cell cannot run here: {cells[0].unsupported}"
