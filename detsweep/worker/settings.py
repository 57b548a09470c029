"""Seeds, threads and torch switches: set, read back, and held against what the cell asked for."""

from __future__ import annotations

import os
import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch


def seed_everything(seed: int) -> None:
    """Seed Python, NumPy, torch and the device."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def apply(switches: Mapping[str, Any]) -> None:
    """Set threads from the environment and the switches of the cell's mitigations."""
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    if "deterministic_algorithms" in switches:
        level = switches["deterministic_algorithms"]
        torch.use_deterministic_algorithms(level != "off", warn_only=level == "warn")
    if "fill_uninitialized_memory" in switches:
        torch.utils.deterministic.fill_uninitialized_memory = switches["fill_uninitialized_memory"]  # type: ignore[attr-defined]
    if "cudnn_deterministic" in switches:
        torch.backends.cudnn.deterministic = switches["cudnn_deterministic"]
    if "cudnn_benchmark" in switches:
        torch.backends.cudnn.benchmark = switches["cudnn_benchmark"]


def read_back() -> dict[str, Any]:
    """The state of every switch, as torch tells it."""
    level = "off"
    if torch.are_deterministic_algorithms_enabled():
        level = "warn" if torch.is_deterministic_algorithms_warn_only_enabled() else "strict"
    return {
        "deterministic_algorithms": level,
        "fill_uninitialized_memory": torch.utils.deterministic.fill_uninitialized_memory,  # type: ignore[attr-defined]
        "cudnn_deterministic": torch.backends.cudnn.deterministic,
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "num_threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
    }


def lost(env: Mapping[str, str | None], switches: Mapping[str, Any]) -> list[str]:
    """The settings asked for that are not in force in this process, a line each."""
    state = read_back()
    missing = [
        f"{name} should be {'unset' if value is None else value}, is {os.environ.get(name, 'unset')}"
        for name, value in env.items()
        if os.environ.get(name) != value
    ]
    missing += [
        f"{name} should be {value}, is {state[name]}" for name, value in switches.items() if state[name] != value
    ]
    return missing
