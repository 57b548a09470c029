"""The machine in few words: what every rank says of it, and costs no more than reading files of the kernel."""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from detsweep.environment.container import ROOT, limits, signs
from detsweep.environment.files import text

# The kernel writes /proc/cpuinfo as it is read, CPU by CPU: the first one is all that is asked for.
_ONE_CPU = 8192


def machine(root: Path = ROOT, variables: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Kernel, distribution, C library, container, CPU and memory of this machine; bytes, and CPUs' worth of time.

    `cpu_flags` is a digest of the names of what the CPU can do, which decide on kernels. What is not known is left out.
    """
    found = signs(root, variables)
    allowed = limits(root)
    first = cpu_info(root)
    listed = flags(first)
    told = {
        "kernel": platform.release(),
        "os": distribution(root),
        "libc": c_library(),
        "container": found[0].kind if found else "no sign of one",
        "cpu": first.get("model name"),
        "microcode": first.get("microcode"),
        "cpu_flags": hashlib.sha256(" ".join(listed).encode()).hexdigest()[:16] if listed else None,
        "memory": memory(root).get("MemTotal"),
        "cpu_limit": allowed.cpus,
        "memory_limit": allowed.memory,
    }
    return {name: value for name, value in told.items() if value is not None}


def cpu_info(root: Path = ROOT) -> dict[str, str]:
    """What /proc/cpuinfo says of the first CPU."""
    lines = (text(root / "proc/cpuinfo", _ONE_CPU) or "").split("\n\n")[0].splitlines()
    pairs = (line.partition(":") for line in lines if ":" in line)
    return {name.strip(): value.strip() for name, _, value in pairs}


def flags(first: Mapping[str, str]) -> list[str]:
    """What the CPU can do, as the kernel names it, on x86 and on ARM."""
    return sorted((first.get("flags") or first.get("Features") or "").split())


def distribution(root: Path = ROOT) -> str | None:
    """The name and version of the distribution."""
    lines = (text(root / "etc/os-release") or "").splitlines()
    named = (line.partition("=")[2].strip("\"'") for line in lines if line.startswith("PRETTY_NAME="))
    return next(named, None)


def c_library() -> str | None:
    """`glibc 2.36`; None where it is another one, which does not tell."""
    try:
        return os.confstr("CS_GNU_LIBC_VERSION")
    except (OSError, ValueError):
        return None


def memory(root: Path = ROOT) -> dict[str, int]:
    """/proc/meminfo in bytes."""
    sizes = {}
    for line in (text(root / "proc/meminfo") or "").splitlines():
        name, _, rest = line.partition(":")
        amount, _, unit = rest.strip().partition(" ")
        if amount.isdigit() and unit == "kB":
            sizes[name] = int(amount) * 1024
    return sizes
