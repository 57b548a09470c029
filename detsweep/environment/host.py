"""All that can be read of this machine without being root: system, container, CPUs, NUMA nodes, memory."""

from __future__ import annotations

import os
import platform
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from detsweep.environment.container import ROOT, limits, signs
from detsweep.environment.files import folders, number, ranges, text
from detsweep.environment.machine import cpu_info, flags, machine, memory

Unknown = dict[str, str]
"""What could not be found out, by its name, and why not."""
# The kernel's command line can name disks and hosts; these say how it schedules, and how it reaches memory and devices.
_PARAMETERS = (
    "amd_iommu", "amd_pstate", "cpufreq", "cpuidle", "default_hugepagesz", "hugepages", "idle", "intel_iommu",
    "intel_idle", "intel_pstate", "iommu", "isolcpus", "mitigations", "nohz", "nosmt", "numa", "pci", "pcie_aspm",
    "preempt", "processor", "rcu_nocbs", "swiotlb", "transparent_hugepage", "tsc",
)  # fmt: skip


def host(unknown: Unknown, root: Path = ROOT, variables: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The section `machine`: what every rank says of it, and more. What is not known is added to `unknown`."""
    found, allowed = signs(root, variables), limits(root)
    told = machine(root, variables)
    for name, why in (("os", "no /etc/os-release"), ("libc", "the C library is not glibc, and does not tell")):
        if name not in told:
            unknown[f"machine.{name}"] = why
    return {
        **told,
        "platform": platform.platform(),
        "architecture": platform.machine(),
        "kernel_build": platform.version(),
        "kernel_parameters": _parameters(root),
        "container_signs": [f"{sign.kind}: {sign.evidence}" for sign in found],
        "limits_from": list(allowed.evidence),
        "cpuset": allowed.cpuset,
        "cpus": _cpus(unknown, root),
        "numa": _numa(unknown, root),
        "swap": memory(root).get("SwapTotal"),
        "huge_pages": text(root / "sys/kernel/mm/transparent_hugepage/enabled"),
        "virtual_machine": "hypervisor" in flags(cpu_info(root)),
    }


def _parameters(root: Path) -> list[str]:
    words = (text(root / "proc/cmdline") or "").split()
    return [word for word in words if re.split(r"[=.]", word)[0] in _PARAMETERS]


def _cpus(unknown: Unknown, root: Path) -> dict[str, Any]:
    folder = root / "sys/devices/system/cpu"
    listed = flags(cpu_info(root))
    if not listed:
        unknown["machine.cpus.flags"] = "not in /proc/cpuinfo"
    # How many CPUs have each value: where one of them differs it is seen.
    policies = [one for one in folders(folder / "cpufreq") if one.name.startswith("policy")]
    governors = Counter(found for one in policies if (found := text(one / "scaling_governor")) is not None)
    if not governors:
        unknown["machine.cpus.governor"] = "no cpufreq in /sys/devices/system/cpu: the host or a hypervisor sets it"
    smt = text(folder / "smt/control")
    if smt is None:
        unknown["machine.cpus.smt"] = "no /sys/devices/system/cpu/smt"
    return {
        "online": text(folder / "online"),
        "usable": ranges(list(os.sched_getaffinity(0))),
        "governor": ", ".join(f"{name} ({count})" for name, count in sorted(governors.items())) or None,
        "frequency_driver": next((text(one / "scaling_driver") for one in policies), None),
        "boost": text(folder / "cpufreq/boost") or text(folder / "intel_pstate/no_turbo"),
        "smt": smt,
        "flags": listed,
    }


def _numa(unknown: Unknown, root: Path) -> dict[str, Any]:
    nodes = [one for one in folders(root / "sys/devices/system/node") if one.name[4:].isdigit()]
    if not nodes:
        unknown["machine.numa"] = "no /sys/devices/system/node"
        return {}
    told = {}
    for node in nodes:
        first = (text(node / "meminfo") or "").partition("\n")[0].split()
        size = int(first[3]) * 1024 if len(first) > 3 and first[3].isdigit() else None
        told[node.name] = {"cpus": text(node / "cpulist"), "memory": size}
    return {"balancing": number(root / "proc/sys/kernel/numa_balancing"), **told}
