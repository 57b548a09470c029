"""What a trial asks of Slurm: its nodes, what each gives, and whatever else sbatch is told. No Slurm is asked here."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from detsweep.schema import LaunchConfig

# Slurm warns its tasks up to a minute before their time, and ranks take a while to end: our own limit must come first.
MARGIN_MIN = 5
LEAST_MARGIN_MIN = 3
WARNING_S = 30
_COMMON = ("name", "max_parallel", "timeout_min", "fail_fast", "rerun")
_OWN = ("array", "dependency", "error", "job-name", "ntasks", "ntasks-per-node", "open-mode", "output", "parsable",
        "signal", "wait", "wrap")  # fmt: skip
_NOT_HERE = {
    "clusters": "its jobs would be looked for on this cluster; start the command with SLURM_CLUSTERS=NAME",
    "cluster-constraint": "its jobs would be looked for on this cluster; start the command with SLURM_CLUSTERS=NAME",
    "hold": "nothing would ever begin; launch.detach=true leaves a sweep alone",
    "test-only": "dry_run=true shows what sbatch is asked for",
}
# Parameters of sbatch for which there is a key.
_KEYS = {
    "account": "launch.account", "constraint": "launch.constraint", "cpus-per-task":
    "launch.cpus_per_node", "exclude": "launch.exclude", "gpus-per-node": "launch.gpus_per_node", "mem":
    "launch.memory_gb", "no-requeue": "launch.requeue", "nodelist": "launch.nodelist", "nodes": "world.nodes",
    "partition": "launch.partition", "qos": "launch.qos", "requeue": "launch.requeue", "reservation":
    "launch.reservation", "time": "launch.time_min",
}  # fmt: skip


@dataclass(frozen=True)
class Resources:
    """What the trials of one job array have in common."""

    nodes: int
    cpus_per_node: int
    gpus_per_node: int | None
    memory_gb: float | None
    time_min: int
    partition: str | None
    account: str | None
    qos: str | None
    reservation: str | None
    constraint: str | None
    nodelist: str | None
    exclude: str | None
    requeue: bool
    sbatch: tuple[tuple[str, str], ...]
    srun_args: tuple[str, ...]
    setup: tuple[str, ...]
    python: str | None

    def flags(self) -> dict[str, Any]:
        """Parameters of sbatch by their long names, without the dashes; True for one that has no value."""
        own = {
            "nodes": self.nodes,
            "cpus-per-task": self.cpus_per_node,
            "gpus-per-node": self.gpus_per_node,
            "mem": None if self.memory_gb is None else f"{math.ceil(self.memory_gb * 1024)}M",
            "time": self.time_min,
            "partition": self.partition,
            "account": self.account,
            "qos": self.qos,
            "reservation": self.reservation,
            "constraint": self.constraint,
            "nodelist": self.nodelist,
            "exclude": self.exclude,
            "requeue" if self.requeue else "no-requeue": True,
        }
        return {key: value for key, value in own.items() if value is not None} | {
            key: True if value.lower() == "true" else value for key, value in self.sbatch
        }

    def words(self) -> list[str]:
        """The same as arguments of sbatch."""
        return [f"--{key}" if value is True else f"--{key}={value}" for key, value in self.flags().items()]

    def keys(self) -> dict[str, Any]:
        """What is asked for, by the keys of the configuration."""
        return {
            key: value
            for flag, value in self.flags().items()
            if (key := _KEYS.get(flag, f"launch.sbatch.{flag}")) and key != "launch.requeue"
        }

    @property
    def srun_flags(self) -> list[str]:
        """Arguments of the srun that starts the task of each node.

        srun does not inherit --cpus-per-task since Slurm 22.05. Pinning is left to the ranks' own thread settings, and
        a node whose ranks fail must not end the one that writes the result.
        """
        return [
            f"--cpus-per-task={self.cpus_per_node}", "--cpu-bind=none", "--kill-on-bad-exit=0", *self.srun_args,
        ]  # fmt: skip


def resources_of(config: Mapping[str, Any]) -> Resources:
    """What a cell's trials ask for."""
    launch, world = config["launch"], config["world"]
    gpus = launch["gpus_per_node"]
    if gpus is None and config["device"] == "cuda":
        gpus = world["nproc_per_node"]
    return Resources(
        nodes=world["nodes"],
        cpus_per_node=launch["cpus_per_node"] or world["nproc_per_node"] * world["threads_per_rank"],
        gpus_per_node=gpus,
        memory_gb=launch["memory_gb"],
        time_min=launch["time_min"] or math.ceil(launch["timeout_min"]) + MARGIN_MIN,
        partition=launch["partition"],
        account=launch["account"],
        qos=launch["qos"],
        reservation=launch["reservation"],
        constraint=launch["constraint"],
        nodelist=world["node"] or launch["nodelist"],
        exclude=launch["exclude"],
        requeue=launch["requeue"],
        sbatch=tuple((key, str(value)) for key, value in launch["sbatch"].items()),
        srun_args=tuple(launch["srun_args"]),
        setup=tuple(launch["setup"]),
        python=launch["python"],
    )


def contradictions(config: Mapping[str, Any]) -> Iterator[str]:
    """What does not go together in how a cell is launched, and where; a line each."""
    if config["launch"]["name"] == "local":
        yield from _local(config)
    else:
        yield from _slurm(config)
    world = config["world"]
    if world["nodes"] != 1 and world["node"] is not None:
        yield f"world.node={world['node']}: pins a cell of one node, this one has world.nodes={world['nodes']}"
    if world["gpu"] is not None and (world["nodes"], world["nproc_per_node"]) != (1, 1):
        yield f"world.gpu={world['gpu']}: pins a cell of one rank; world.nodes=1 world.nproc_per_node=1"
    if world["gpu"] is not None and config["device"] != "cuda":
        yield f"world.gpu={world['gpu']}: needs device=cuda, this is {config['device']}"
    if config["fleet"] == "gpus" and world["nproc_per_node"] != 1:
        yield f"world.nproc_per_node={world['nproc_per_node']}: fleet=gpus has one rank on each GPU; use 1"
    if config["fleet"] != "none" and world["nodes"] != 1:
        yield f"world.nodes={world['nodes']}: fleet={config['fleet']} has a cell on each node alone; use 1"


def _local(config: Mapping[str, Any]) -> Iterator[str]:
    launch, world = config["launch"], config["world"]
    unset = LaunchConfig()
    for key, value in launch.items():
        if key not in _COMMON and value != getattr(unset, key):
            yield f"launch.{key}={value}: only means something with launch=slurm"
    if world["nodes"] != 1:
        yield f"world.nodes={world['nodes']}: launch=local has one node; several need launch=slurm"
    if world["node"] is not None:
        yield f"world.node={world['node']}: launch=local has this machine alone; use launch=slurm"
    if config["fleet"] == "nodes":
        yield "fleet=nodes: launch=local has this machine alone; use launch=slurm, or fleet=gpus"
    if world["gpu"] is not None and launch["max_parallel"] != 1:
        yield f"launch.max_parallel={launch['max_parallel']}: cells that are pinned to a GPU run one at a time; use 1"


def _slurm(config: Mapping[str, Any]) -> Iterator[str]:
    launch = config["launch"]
    for key, least in (("time_min", 1), ("gpus_per_node", 0), ("cpus_per_node", 1), ("memory_gb", 0)):
        if launch[key] is not None and launch[key] < least:
            yield f"launch.{key}={launch[key]}: must be at least {least}, or null"
    if launch["platform"] not in (None, "nvidia", "amd"):
        yield f"launch.platform={launch['platform']}: valid: nvidia, amd, or null"
    shortest = math.ceil(launch["timeout_min"]) + LEAST_MARGIN_MIN
    if launch["time_min"] is not None and launch["time_min"] < shortest:
        yield (
            f"launch.time_min={launch['time_min']}: must be at least {shortest}: a trial's own limit, "
            f"launch.timeout_min={launch['timeout_min']:g}, is to end it before Slurm does"
        )
    yield from _sbatch(launch["sbatch"])
    if launch["nodelist"] is not None and (config["world"]["node"] is not None or config["fleet"] == "nodes"):
        yield f"launch.nodelist={launch['nodelist']}: the cell has its node already (world.node, fleet=nodes)"
    if launch["detach"] and launch["fail_fast"]:
        yield "launch.detach=true: launch.fail_fast=true needs somebody who watches; give one of the two"
    if launch["detach"] and config["drill"]:
        yield "launch.detach=true: drill=true looks closer once results are there; give it when you come back"
    if launch["detach"] and config["search"]["name"] != "none":
        yield f"launch.detach=true: search={config['search']['name']} decides by results what to launch; leave it on"


def _sbatch(parameters: Mapping[str, Any]) -> Iterator[str]:
    for key, value in parameters.items():
        name = key.lstrip("-").replace("_", "-")
        if name != key:
            yield f"launch.sbatch.{key}: write {name}, as in launch.sbatch.{name}=..."
        elif name in _OWN:
            yield f"launch.sbatch.{key}: detsweep sets it itself"
        elif name in _NOT_HERE:
            yield f"launch.sbatch.{key}: {_NOT_HERE[name]}"
        elif name in _KEYS:
            yield f"launch.sbatch.{key}: use {_KEYS[name]}"
        elif longer := [one for one in (*_OWN, *_NOT_HERE, *_KEYS) if one.startswith(name)]:
            # sbatch takes what is short for them.
            yield f"launch.sbatch.{key}: write it out; as {longer[0]} it cannot be given here"
        if isinstance(value, (list, dict)) or value in (None, "", False):
            yield f"launch.sbatch.{key}={value}: must be a word, a number or true"
