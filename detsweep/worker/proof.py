"""Are the settings in force? Before anything is built, where they are required; and when a rank has run its steps."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from detsweep.environment import changes_numerics, thread_variables
from detsweep.mitigations import Settings, catalogue, missing
from detsweep.paths import TrialPaths, write_json
from detsweep.worker import effects, settings, variables
from detsweep.worker.report import environment_report


@dataclass(frozen=True)
class Proof:
    """What became of a rank's settings: `effects` of each mitigation, what is `lost`, and variables that `appeared`."""

    effects: Mapping[str, Any]
    lost: tuple[str, ...]
    appeared: Mapping[str, str]


def refusal(required: Mapping[str, Mapping[str, Any]]) -> list[str] | None:
    """What of the required settings is not in force in this process; None when all is, on every rank.

    All ranks are told, and all stop when one must: the others would wait for it in their first collective.
    """
    wanted = Settings(required["env"], required["torch"])
    if not wanted.env and not wanted.torch:
        return None
    absent = missing(wanted, variables.c_environment(), settings.read_back())
    everyone: list[list[str] | None] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, absent)
    return absent if any(everyone) else None


def prove(spec: Mapping[str, Any], paths: TrialPaths, rank: int, device: torch.device, *, threads_taken: int) -> Proof:
    """Look at all settings once the step has run: every library that it needs is loaded, and has read what it reads.

    `threads_taken`: how many threads torch had before anybody told it.
    Writes the rank's environment-rank<NNN>.json anew, with what was found.
    """
    config, asked = spec["config"], spec["settings"]["env"]
    process = effects.Process.now(config, paths.nccl_log(_host(), os.getpid()), threads_taken=threads_taken)
    became = effects.effects(config["mitigation"], config["env"], process)
    # Threads are asked for whether or not a mitigation does.
    threads = thread_variables(config["world"]["threads_per_rank"], asked)
    wrong = [variables.wrong(name, value, process.kernel, process.c) for name, value in threads.items()]
    lost = dict.fromkeys([*effects.lost(became), *(line for line in wrong if line is not None)])
    appeared = {name: value for name, value in process.appeared.items() if _changes_bits(name)}
    found = Proof(effects.to_json(became), tuple(lost), appeared)
    report = {**environment_report(rank, device), "effects": found.effects, "appeared": found.appeared}
    write_json(paths.environment(rank), report)
    return found


def _host() -> str:
    """This machine's name as NCCL writes it: without its domain."""
    return socket.gethostname().partition(".")[0]


def _changes_bits(name: str) -> bool:
    """Whether a variable that something has set inside the process changes bits: where files are kept does not."""
    variable = catalogue().get(name)
    return changes_numerics(name) and (variable is None or variable.use != "isolated")
