"""The GPUs of this machine, asked of the driver and not of torch."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from itertools import takewhile
from pathlib import Path


def visible_gpus() -> tuple[str, ...]:
    """Ids of the GPUs that this process may use, as CUDA_VISIBLE_DEVICES takes them; asks no torch.

    The shell's CUDA_VISIBLE_DEVICES is obeyed; on AMD, as torch does, HIP_VISIBLE_DEVICES comes before it, and both
    number the GPUs that ROCR_VISIBLE_DEVICES leaves.
    """
    amd = Path("/dev/kfd").exists()
    count = _amd_count() if amd else _nvidia_count()
    if amd and (left := _listed("ROCR_VISIBLE_DEVICES")) is not None:
        count = min(count, len(left))
    chosen = _listed("HIP_VISIBLE_DEVICES") if amd else None
    chosen = _listed("CUDA_VISIBLE_DEVICES") if chosen is None else chosen
    every = tuple(str(index) for index in range(count))
    return every if count == 0 or chosen is None else chosen


def _listed(variable: str) -> tuple[str, ...] | None:
    """The ids that a variable lists, None where it is unset; what follows an invalid one, -1 by convention, is not."""
    text = os.environ.get(variable)
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",") if part.strip()]
    return tuple(takewhile(lambda name: not name.startswith("-"), parts))


def gpu_platform() -> str:
    """`amd`, `nvidia`, or `cpu` where the machine has no GPU driver."""
    if Path("/dev/kfd").exists():
        return "amd"
    return "nvidia" if _nvidia_count() else "cpu"


def _amd_count() -> int:
    nodes = Path("/sys/class/kfd/kfd/topology/nodes").glob("*/properties")
    return sum(1 for node in nodes if re.search(r"^simd_count [1-9]", node.read_text(), re.MULTILINE))


def _nvidia_count() -> int:
    tool = shutil.which("nvidia-smi")
    if tool is not None:
        listed = subprocess.run([tool, "-L"], capture_output=True, text=True, check=False)
        if listed.returncode == 0:
            return sum(1 for line in listed.stdout.splitlines() if line.startswith("GPU "))
    return len([path for path in Path("/dev").glob("nvidia*") if re.fullmatch(r"nvidia\d+", path.name)])
