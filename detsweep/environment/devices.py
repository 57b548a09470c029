"""The GPUs of this machine: by the vendor's tool, or else by torch, where that sees any."""

from __future__ import annotations

import shutil
from typing import Any

from detsweep.environment import amd, nvidia
from detsweep.environment.gpus import gpu_platform
from detsweep.environment.host import Unknown
from detsweep.environment.tools import Ask, ask

MOMENTARY = ("clock_sm", "clock_gfx", "clock_memory", "temperature", "power", "throttled")
"""What is another in the next moment, and no difference between two machines."""

Facts = dict[str, dict[str, Any]]


def devices(unknown: Unknown, asking: Ask = ask) -> tuple[Facts, Facts]:
    """The facts of each GPU by its number, and apart from them those of this moment; empty without GPUs.

    Where the tool is not there the driver's own files and torch say less, and `unknown` says why.
    """
    platform = gpu_platform()
    tool = {"nvidia": nvidia, "amd": amd}.get(platform)
    if tool is None:
        missing = [name for name in (nvidia.TOOL, amd.TOOL, amd.OLDER) if shutil.which(name) is None]
        tools = f"; not on PATH: {', '.join(missing)}" if missing else ""
        unknown["gpus"] = f"no GPU driver here (no /dev/nvidia*, no /dev/kfd){tools}"
        return {}, {}
    found = tool.gpus(unknown, asking)
    if found is None:
        found = {}
        try:
            found = _by_torch()
        except Exception as error:
            # A driver that does not fit torch raises whatever it likes; why there is nothing is all that can be said.
            unknown["gpus.torch"] = f"torch: {type(error).__name__}: {error}"
        for one in found.values():
            if module := tool.kernel_module():
                one["driver"] = module
        if not found:
            unknown.setdefault("gpus.torch", "torch sees no GPU either")
    lasting = {index: {k: v for k, v in one.items() if k not in MOMENTARY} for index, one in found.items()}
    momentary = {index: {k: v for k, v in one.items() if k in MOMENTARY} for index, one in found.items()}
    return lasting, {index: one for index, one in momentary.items() if one}


def _by_torch() -> Facts:
    """What torch says of the GPUs that this process may use."""
    import torch

    found: Facts = {}
    for index in range(torch.cuda.device_count()):
        told = torch.cuda.get_device_properties(index)
        facts = {
            "name": told.name,
            "uuid": str(getattr(told, "uuid", "")) or None,
            "memory": f"{told.total_memory // 2**20} MiB",
            "compute_capability": f"{told.major}.{told.minor}",
            "architecture": getattr(told, "gcnArchName", None),
            "multiprocessors": str(told.multi_processor_count),
        }
        found[str(index)] = {name: value for name, value in facts.items() if value is not None}
    return found
