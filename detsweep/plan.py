"""Cells: the points of a sweep as frozen values, each with an identity that outlives the way it was asked for."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from detsweep import asked, baselines, consistency, environment, fleet, mitigations, nodes, stopping
from detsweep.capture import SCHEMA
from detsweep.mitigations import Settings
from detsweep.paths import conf_dir
from detsweep.schema import FaultConfig
from detsweep.validate import lookup, problems

# How a cell is launched, where it is kept and how its result is judged say nothing about what it computes.
NOT_IDENTITY = (
    "launch", "folder", "dry_run", "trials", "mitigation_force", "positive_control", "against", "drill", "require",
    "search", "fleet", "stop_after", "log",
)  # fmt: skip
SWEEP_WIDE = (
    "folder", "dry_run", "trials", "mitigation_force", "positive_control", "against", "drill", "require", "search.name",
    "search.candidates", "search.axes", "search.confidence", "search.verify", "search.max_trials", "launch.name",
    "launch.max_parallel", "launch.timeout_min", "launch.fail_fast", "launch.rerun", "launch.retries", "launch.ask_s",
    "launch.detach", "launch.requeue", "fleet", "stop_after.divergences", "stop_after.bound", "log",
)  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """One resolved configuration. `unsupported` says why this platform cannot run it; None where it can.

    `required`: what must be in force in its trials, or they are refused. `drill_of`: the cells at which this one is a
    closer look; empty for a cell that was asked for.
    """

    id: str
    slug: str
    overrides: Mapping[str, str]
    config: Mapping[str, Any]
    unsupported: str | None
    required: Settings = asked.NOTHING
    drill_of: tuple[str, ...] = ()

    @property
    def trials(self) -> int:
        return int(self.config["trials"])

    @property
    def world_size(self) -> int:
        return int(self.config["world"]["nodes"]) * int(self.config["world"]["nproc_per_node"])

    @property
    def label(self) -> str:
        """The cell in the words of the command line."""
        return " ".join(f"{key}={value}" for key, value in self.overrides.items()) or str(self.config["model"]["name"])

    def to_json(self) -> dict[str, Any]:
        """The content of cell.json."""
        config = {key: value for key, value in self.config.items() if key not in ("launch", "folder", "dry_run")}
        return {
            "schema": SCHEMA,
            "id": self.id,
            "slug": self.slug,
            "overrides": dict(self.overrides),
            "unsupported": self.unsupported,
            "drill_of": list(self.drill_of),
            "config": config,
        }

    def spec(self, trial: int) -> dict[str, Any]:
        """The content of a trial's spec.json: all that a rank reads."""
        settings = mitigations.combine(self.config["mitigation"], self.config["env"])
        return {
            "schema": SCHEMA,
            "cell": self.id,
            "trial": trial,
            "world_size": self.world_size,
            "settings": settings.to_json(),
            "required": self.required.to_json(),
            "timeout_min": self.config["launch"]["timeout_min"],
            "config": self.to_json()["config"],
        }

    def closer(self) -> Cell | None:
        """This cell at the closest level of observation that it can have; None where that is the one it has."""
        lockstep = self.config["mode"]["name"] == "lockstep" and self.config["world"]["shard_ranks"] != 1
        level = "collective" if lockstep else "op"
        if self.config["compile"] or self.config["observe"]["name"] in (level, "op"):
            return None
        trials = self.trials if self.config["mode"]["name"] == "relaunch" else 1
        config = {**self.config, "observe": {"name": level}, "trials": trials}
        overrides = {**self.overrides, "observe": level}
        return replace(
            self, id=_identity(config), slug=slug_of(overrides), overrides=overrides, config=config, drill_of=(self.id,)
        )


@dataclass(frozen=True)
class Plan:
    """All cells of one command, what is wrong with them, and what is worth knowing before they run, a line each."""

    cells: tuple[Cell, ...]
    problems: tuple[str, ...]
    repeated: int
    notes: tuple[str, ...] = ()

    def label(self, cell: Cell) -> str:
        """What tells a cell from the others of the sweep, in the words of the command line."""
        varying = [f"{key}={value}" for key, value in cell.overrides.items() if key in self._varying]
        return " ".join(varying) or cell.label

    @cached_property
    def _varying(self) -> frozenset[str]:
        """The keys that not all cells have alike; once for a plan, as every trial's lines are labelled by them."""
        keys = {key for cell in self.cells for key in cell.overrides}
        return frozenset(key for key in keys if len({cell.overrides.get(key) for cell in self.cells}) > 1)

    @property
    def options(self) -> Mapping[str, Any]:
        """Settings of the sweep as a whole: they are the same in every cell."""
        return self.cells[0].config


def make_plan(points: Sequence[tuple[Sequence[str], Mapping[str, Any]]], folders: Sequence[Path] | None = None) -> Plan:
    """Turn the points that Hydra composed, as (overrides, resolved configuration), into cells.

    `folders`: where presets are looked up that a key names (`require`), detsweep's own by default. A configuration that
    comes twice is one cell. Problems and notes are collected over all points, each said once.
    """
    gpus, platform = environment.visible_gpus(), environment.gpu_platform()
    cells: dict[str, Cell] = {}
    found: dict[str, None] = {}
    notes: dict[str, None] = {}
    listed = functools.cache(nodes.nodes_of)
    total = 0
    presets: Mapping[str, mitigations.Preset] = {}
    try:
        if any(config.get("require") for _, config in points):
            presets = mitigations.load_presets(folders or [conf_dir()])
    except ValueError as error:
        found[str(error)] = None
    for overrides, config in points:
        resolved = dict(config)
        if resolved.get("device") == "auto":
            resolved["device"] = "cuda" if _gpus(resolved, len(gpus)) else "cpu"
            if resolved["device"] == "cpu" and resolved.get("launch", {}).get("name") == "slurm":
                notes["launch=slurm without launch.gpus_per_node=N: trials run on the nodes' CPUs"] = None
        found.update(dict.fromkeys(_keep(resolved)))
        wrong = problems(resolved, gpus=len(gpus))
        found.update(dict.fromkeys(wrong))
        on = _platform(resolved, platform)
        required = asked.NOTHING
        if not wrong:
            try:
                required = asked.required(resolved, presets, on)
            except ValueError as error:
                found[str(error)] = None
            notes.update(dict.fromkeys((*asked.notes(resolved), *stopping.notes(resolved))))
        try:
            placed = fleet.spread(overrides, resolved, listed, gpus=_gpus(resolved, len(gpus))) if not wrong else []
        except nodes.ClusterError as error:
            found[str(error)] = None
            placed = []
        for words, own, away in placed or [(overrides, resolved, None)]:
            total += 1
            _forget_moot(own)
            cell = _cell(words, own, away or (None if wrong else _unsupported(own, on)), required)
            before = cells.setdefault(cell.id, cell).config
            found.update(dict.fromkeys(_two_launches(before, own)))
    found.update(dict.fromkeys(_swept_options([config for _, config in points])))
    found.update(dict.fromkeys(_faulty_node([config for _, config in points], cells.values())))
    if not found and (against := next(iter(cells.values())).config["against"]) is not None:
        pairs = [(cell.config, cell.overrides) for cell in cells.values()]
        found.update(dict.fromkeys(baselines.problems(pairs, against)))
    return Plan(tuple(cells.values()), tuple(found), total - len(cells), tuple(notes))


def _gpus(config: Mapping[str, Any], here: int) -> int:
    """How many GPUs a trial may have on a node; the machine that submits to Slurm says nothing about them."""
    launch = config.get("launch", {})
    return int(launch.get("gpus_per_node") or 0) if launch.get("name") == "slurm" else here


def _platform(config: Mapping[str, Any], here: str) -> str:
    """What reads a trial's variables: the platform of this machine, or the one that the nodes are said to have."""
    if config.get("device") == "cpu":
        return "cpu"
    launch = config.get("launch", {})
    if launch.get("name") != "slurm":
        return here
    return str(launch.get("platform") or (here if here != "cpu" else "nvidia"))


def _two_launches(one: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[str]:
    """A line on a cell that is asked for twice, to be launched in two ways."""
    own, others = one.get("launch", {}), other.get("launch", {})
    for key in own:
        if own[key] != others.get(key) and f"launch.{key}" not in SWEEP_WIDE:
            pair = f"{own[key]},{others.get(key)}"
            line = f"launch.{key}={pair}: cannot be an axis of a sweep"
            yield f"{line} (a name with a comma in it: launch.{key}=\"'{pair}'\")"


def _faulty_node(configs: Iterable[Mapping[str, Any]], cells: Iterable[Cell]) -> Iterator[str]:
    """A fault on a node that no cell is pinned to would be in none, and its sweep a clean one."""
    pinned = dict.fromkeys(str(cell.config["world"]["node"]) for cell in cells)
    asked = dict.fromkeys(config.get("fault", {}).get("node") for config in configs)
    for node in asked:
        if node is not None and node not in pinned:
            yield f"fault.node={node}: no cell is pinned to it; valid: {', '.join(pinned)}"


def _forget_moot(config: dict[str, Any]) -> None:
    """Settings of what a cell does not have say nothing about it: without them it is the same cell."""
    if config.get("fault", {}).get("kind") == "none" or not fleet.struck(config):
        config["fault"] = asdict(FaultConfig())
    if config.get("checkpointing") == "none":
        config["preserve_rng_state"] = True


def _keep(config: dict[str, Any]) -> list[str]:
    """Make the shell's variables that are to be kept the cell's own: their values are part of what the cell is."""
    kept = list(config.get("keep_env") or ())
    config["env"] = {**{name: os.environ[name] for name in kept if name in os.environ}, **(config.get("env") or {})}
    return [f"keep_env={name}: this shell does not have it" for name in kept if name not in os.environ]


def _cell(overrides: Sequence[str], config: Mapping[str, Any], unsupported: str | None, required: Settings) -> Cell:
    told = dict(_told_apart(overrides))
    slug = slug_of(told) or str(config["model"]["name"])
    return Cell(_identity(config), slug, told, config, unsupported, required)


def _unsupported(config: Mapping[str, Any], platform: str) -> str | None:
    reason = consistency.unsupported(config)
    if reason is None and not config["mitigation_force"]:
        reason = mitigations.unsupported_reason(config["mitigation"], platform)
    return reason


def _identity(config: Mapping[str, Any]) -> str:
    kept = {key: value for key, value in config.items() if key not in NOT_IDENTITY}
    # What a preset sets is what it is; the words that describe it may change.
    kept["mitigation"] = {
        name: {key: preset.get(key) for key in ("env", "torch")} for name, preset in config["mitigation"].items()
    }
    canonical = json.dumps(kept, sort_keys=True, default=str)
    return hashlib.sha256(canonical.encode()).hexdigest()[:10]


def _told_apart(overrides: Sequence[str]) -> list[tuple[str, str]]:
    pairs = []
    for override in overrides:
        key, _, value = override.lstrip("+~").partition("=")
        if key.split(".")[0] not in NOT_IDENTITY and not key.startswith("hydra"):
            pairs.append((key, value))
    return pairs


def slug_of(told: Mapping[str, str]) -> str:
    """A cell's overrides as a part of a file name."""
    text = "_".join(f"{key}-{value}" for key, value in sorted(told.items()))
    return re.sub(r"[^A-Za-z0-9.+_-]+", "", text.replace(",", "+"))[:80].strip("._-")


def _swept_options(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Settings of the whole sweep that were given as an axis: there is one pool and one folder, and a cell is one
    cell however many trials it gets and however its result is judged.
    """
    lines = []
    for key in SWEEP_WIDE:
        try:
            values = {str(lookup(config, key)) for config in configs}
        except KeyError:
            continue
        if len(values) > 1:
            lines.append(f"{key}={','.join(sorted(values))}: cannot be an axis of a sweep")
    return lines
