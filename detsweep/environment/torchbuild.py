"""torch as it was built, and its switches as they are: what only torch itself can tell."""

from __future__ import annotations

import os
import platform
import re
import sys
from typing import Any

from detsweep.environment.host import Unknown


def build(unknown: Unknown) -> dict[str, Any]:
    """The section `torch`, with the names that a rank's environment has for the same facts."""
    python = {
        "python": sys.version.split()[0],
        "python_implementation": f"{platform.python_implementation()}, {platform.python_compiler()}",
    }
    try:
        import torch
    except Exception as error:
        # A library that a build needs and that is not there comes as OSError, a broken install as anything.
        unknown["torch"] = f"import torch: {type(error).__name__}: {error}"
        return python
    from detsweep import __version__

    return {
        "torch": str(torch.__version__),
        "torch_git": torch.version.git_version,
        "torch_cuda": torch.version.cuda,
        "torch_hip": torch.version.hip,
        **python,
        "detsweep": __version__,
        "debug_build": torch.version.debug,
        "cxx11_abi": torch.compiled_with_cxx11_abi(),
        "gpu_architectures": torch.cuda.get_arch_list() if torch.cuda.is_available() else [],
        **_build(torch.__config__.show()),
        "parallel": _parallel(torch.__config__.parallel_info()),
    }


def switches() -> dict[str, Any]:
    """The section `settings`: the state of every switch, the threads of all kinds, and ATen's CPU kernels."""
    import torch

    from detsweep.mitigations.torch_switches import read_back

    return {
        **read_back(),
        "num_interop_threads": torch.get_num_interop_threads(),
        "cores": len(os.sched_getaffinity(0)),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
    }


def device() -> dict[str, Any]:
    """The section `device`: what `device=auto` takes here, named as a rank names it."""
    import torch

    from detsweep.environment.machine import cpu_info

    if not torch.cuda.is_available():
        name = cpu_info().get("model name") or platform.processor() or platform.machine()
        return {"type": "cpu", "name": name, "cores": os.cpu_count()}
    told = torch.cuda.get_device_properties(0)
    return {"type": "cuda", "name": told.name, "memory": told.total_memory}


def _build(described: str) -> dict[str, Any]:
    """What torch says of its build: the lines about what it was built with, and the settings by their names."""
    lines = [line.strip().lstrip("- ") for line in described.splitlines() if line.strip(" -")]
    settings = next((line for line in lines if line.startswith("Build settings:")), "")
    pairs = re.findall(r"\b([A-Z][A-Z0-9_]+)=(.*?)(?=, [A-Z][A-Z0-9_]+=|,?\s*$)", settings)
    return {
        "built_with": [line for line in lines if line != settings and not line.startswith("PyTorch built with")],
        "build_settings": {name: value.strip() for name, value in pairs},
    }


def _parallel(described: str) -> dict[str, str]:
    """How torch runs in parallel on the CPU. What it says of variables is said of all of them elsewhere."""
    pairs = (line.partition(" : " if " : " in line else ": ") for line in described.splitlines())
    return {name.strip(): value.strip() for name, mark, value in pairs if mark and not name.endswith("_NUM_THREADS")}
