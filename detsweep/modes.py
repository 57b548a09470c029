"""What each mode runs and compares: a trial's runs, its launches, and what may be held against what."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from detsweep.capture import Record

TRAINING = ("train", "resume")
RECORDING = ("record", "playback")
# What every rank has whole, whatever is sharded. A reduce-scatter is given all gradients, an all-gather delivers
# all parameters; the other side of each is a shard.
_REPLICATED = ("rng", "input", "block_pre", "block_post", "module", "logits", "loss", "global", "block_grad_out",
               "block_grad_in", "module_grad_out", "module_grad_in", "norm")  # fmt: skip


def trains(config: Mapping[str, Any]) -> bool:
    """Whether a cell takes optimizer steps."""
    mode = config["mode"]["name"]
    return mode in TRAINING or (mode in RECORDING and config["optimizer"] != "none")


def trajectories(config: Mapping[str, Any]) -> bool:
    """Whether a run of a cell is a whole trajectory of steps, and the next one begins where the first began."""
    return config["mode"]["name"] in TRAINING


def records(config: Mapping[str, Any]) -> bool:
    """Whether a cell keeps what its collectives delivered."""
    return config["mode"]["name"] in RECORDING


def fed(config: Mapping[str, Any], run: int) -> bool:
    """Whether a run is given what r1's collectives delivered, and issues none: every second one of mode=playback."""
    return config["mode"]["name"] == "playback" and run % 2 == 0


def compiles(config: Mapping[str, Any]) -> bool:
    """Whether a cell's step compiles anything: flex attention is compiled whatever `compile` says."""
    return bool(config["compile"]) or config["model"]["attention"] == "flex"


def exchanges(config: Mapping[str, Any]) -> bool:
    """Whether activations go from rank to rank inside a block: to experts that other ranks hold, and back."""
    # Sweeps from before there was a choice have no such key.
    return bool(config["moe"].get("dispatch", "local") == "all_to_all")


def launches(config: Mapping[str, Any]) -> int:
    """How many torchrun launches, in fresh processes, one trial is made of."""
    return 2 if config["mode"]["name"] == "resume" else 1


def expected_runs(config: Mapping[str, Any]) -> list[tuple[int, str]]:
    """(step, run) of every stream in a rank's file, in order: runs of a step, or steps of a trajectory."""
    steps, runs = range(config["steps"]), [f"r{run}" for run in range(1, config["runs"] + 1)]
    if trajectories(config):
        return [(step, run) for run in runs for step in steps]
    return [(step, run) for step in steps for run in runs]


def replays(config: Mapping[str, Any]) -> int:
    """How many streams of a rank are compared with the same step of its first run."""
    return int(config["steps"] * (config["runs"] - 1))


def clean_verdict(config: Mapping[str, Any]) -> str:
    """The verdict of a trial in which nothing differed: nothing can where nothing was compared."""
    return "recorded" if config["mode"]["name"] == "record" and config["runs"] == 1 else "pass"


def resumed_at(config: Mapping[str, Any]) -> int:
    """The first step after the break of mode=resume."""
    return (int(config["steps"]) + 1) // 2


def comparable_between_ranks(config: Mapping[str, Any], record: Record) -> bool:
    """Whether ranks that do the same work on the same data have this record in common."""
    if config["world"]["shard_ranks"] == 1:
        # Each rank has a copy of the whole model; groups of one rank do nothing that could be compared.
        return True
    if record.site in ("collective_in", "collective_out"):
        return ("all_gather" if record.site == "collective_out" else "reduce_scatter") in record.name.replace(
            "allgather", "all_gather"
        )
    return record.site in _REPLICATED
