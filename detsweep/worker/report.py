"""What a rank really had: variables, torch, switches, device and the libraries that were loaded."""

from __future__ import annotations

import os
import platform
import re
import socket
import sys
from pathlib import Path
from typing import Any

import torch

from detsweep import __version__
from detsweep.capture import SCHEMA
from detsweep.environment import KEPT_NAMES, changes_numerics
from detsweep.worker import settings

_LIBRARIES = re.compile(
    r"lib(torch|c10|gomp|omp|iomp|mkl|onednn|dnnl|gloo|nccl|rccl|cublas|cudnn|hipblas|rocblas|MIOpen|cudart|amdhip|"
    r"openblas|transformer_engine|triton)[\w.+-]*\.so"
)


def environment_report(rank: int, device: torch.device) -> dict[str, Any]:
    """The content of environment-rank<NNN>.json."""
    return {
        "schema": SCHEMA,
        "rank": rank,
        "host": socket.gethostname(),
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
        "variables": {
            name: value for name, value in sorted(os.environ.items()) if changes_numerics(name) or _ours(name)
        },
        "libraries": loaded_libraries(),
    }


def loaded_libraries() -> list[str]:
    """Paths of the numerical libraries mapped into this process, from the kernel's own list; empty elsewhere."""
    maps = Path("/proc/self/maps")
    if not maps.exists():
        return []
    paths = {line.split(maxsplit=5)[-1].strip() for line in maps.read_text().splitlines() if "/" in line}
    return sorted(path for path in paths if _LIBRARIES.search(Path(path).name))


def _device(device: torch.device) -> dict[str, Any]:
    if device.type != "cuda":
        return {"type": device.type, "name": platform.processor() or platform.machine(), "cores": os.cpu_count()}
    properties = torch.cuda.get_device_properties(device)
    return {
        "type": "cuda",
        "index": device.index,
        "name": properties.name,
        "memory": properties.total_memory,
        "uuid": str(getattr(properties, "uuid", "")),
    }


def _ours(name: str) -> bool:
    return name in (
        *KEPT_NAMES,
        "CUDA_VISIBLE_DEVICES",
        "ROCR_VISIBLE_DEVICES",
        "MASTER_ADDR",
        "MASTER_PORT",
        "LD_PRELOAD",
    )
