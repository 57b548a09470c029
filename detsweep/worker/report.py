"""What a rank really had: variables, torch, switches, device and the libraries that were loaded."""

from __future__ import annotations

import os
import platform
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from detsweep import __version__
from detsweep.capture import SCHEMA
from detsweep.environment import KEPT_NAMES, NODE_VARIABLE, changes_numerics
from detsweep.worker import settings
from detsweep.worker.libraries import loaded, versions
from detsweep.worker.variables import kernel_environment

# Files that NCCL and RCCL read, and in them variables that no launcher sees. The first two are kept away from trials
# by NCCL_CONF_FILE; those of the machine cannot be.
_CONFIGURATION_FILES = ("~/.nccl.conf", "~/.rccl.conf", "/etc/nccl.conf", "/etc/rccl.conf")


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
        "device": _device(device),
        "settings": settings.read_back(),
        "variables": _relevant(os.environ),
        "started_with": None if kernel is None else _relevant(kernel),
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


def configuration_files() -> dict[str, list[str]]:
    """The configuration files of NCCL and RCCL that there are, with the settings in them."""
    paths = {name: Path(name).expanduser() for name in _CONFIGURATION_FILES}
    return {
        name: [line.strip() for line in path.read_text(errors="replace").splitlines() if "=" in line]
        for name, path in paths.items()
        if path.is_file()
    }


def _relevant(variables: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in sorted(variables.items()) if changes_numerics(name) or _ours(name)}


def _ours(name: str) -> bool:
    return name in (
        *KEPT_NAMES,
        "CUDA_VISIBLE_DEVICES",
        "ROCR_VISIBLE_DEVICES",
        "MASTER_ADDR",
        "MASTER_PORT",
        "LD_PRELOAD",
    )
