"""What a rank really had: variables, torch, switches, device and the libraries that were loaded."""

from __future__ import annotations

import os
import platform
import socket
import sys
from pathlib import Path
from typing import Any

import torch

from detsweep import __version__
from detsweep.capture import SCHEMA
from detsweep.environment import NODE_VARIABLE, machine
from detsweep.environment.libraries import loaded, versions
from detsweep.environment.variables import configuration_files, relevant
from detsweep.worker import settings
from detsweep.worker.variables import kernel_environment


def environment_report(rank: int, device: torch.device) -> dict[str, Any]:
    """The content of environment-rank<NNN>.json, without what became of mitigations.

    `variables` are those that change bits, as Python has them; `started_with` the same as the kernel gave them.
    """
    libraries = loaded()
    kernel = kernel_environment()
    return {
        "schema": SCHEMA,
        "rank": rank,
        "host": socket.gethostname(),
        "node": os.environ.get(NODE_VARIABLE),
        "pid": os.getpid(),
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "detsweep": __version__,
        "torch": str(torch.__version__),
        "torch_cuda": torch.version.cuda,
        "torch_hip": torch.version.hip,
        "torch_git": torch.version.git_version,
        "machine": machine(),
        "device": _device(device),
        "settings": settings.read_back(),
        "variables": relevant(os.environ),
        "started_with": None if kernel is None else relevant(kernel),
        "libraries": libraries,
        "versions": versions(libraries),
        "configuration_files": configuration_files(),
    }


def _device(device: torch.device) -> dict[str, Any]:
    if device.type != "cuda":
        return {"type": device.type, "name": _cpu_name(), "cores": os.cpu_count()}
    properties = torch.cuda.get_device_properties(device)
    return {
        "type": "cuda",
        "index": device.index,
        "name": properties.name,
        "memory": properties.total_memory,
        "uuid": str(getattr(properties, "uuid", "")),
    }


def _cpu_name() -> str:
    """The model of the CPU, as the kernel has it; elsewhere its architecture."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text(errors="replace").splitlines() if file.exists() else []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())
