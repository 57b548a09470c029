"""Seeds, threads and torch switches: set for a trial, and read back."""

from __future__ import annotations

import os
import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from detsweep.mitigations import torch_switches


def seed_everything(seed: int) -> None:
    """Seed Python, NumPy, torch and the device."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def apply(threads: Mapping[str, str], switches: Mapping[str, Any]) -> int:
    """Set the threads that these variables ask for, then the switches of the cell's mitigations.

    The thread count as torch itself takes it from both variables, but not cut off at the number of cores. Returns the
    one that torch has taken from them by itself, which shows that they are read.
    """
    taken = torch.get_num_threads()
    torch.set_num_threads(min(int(value) for value in threads.values()))
    torch_switches.apply(switches)
    return taken


def read_back() -> dict[str, Any]:
    """The state of every switch, as torch tells it, the threads of all kinds, and ATen's CPU kernels."""
    return {
        **torch_switches.read_back(),
        "num_interop_threads": torch.get_num_interop_threads(),
        "cores": len(os.sched_getaffinity(0)),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
    }
