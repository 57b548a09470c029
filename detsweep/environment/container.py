"""Whether this process runs in a container, how that is known, and how much CPU and memory it may use there."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from detsweep.environment.files import number, text

ROOT = Path("/")
# What cgroups of version 1 have in place of no limit: the largest number of pages, or more than any machine's memory.
_NO_LIMIT = 1 << 60


@dataclass(frozen=True)
class Sign:
    """A sign of a container: its kind, and what was seen."""

    kind: str
    evidence: str


def signs(root: Path = ROOT, variables: Mapping[str, str] | None = None) -> list[Sign]:
    """All signs of a container, the surest first; empty where there are none, which is no proof that there is none."""
    return list(_signs(root, os.environ if variables is None else variables))


def _signs(root: Path, variables: Mapping[str, str]) -> Iterator[Sign]:
    for name, kind in (
        ("SINGULARITY_CONTAINER", "singularity"),
        ("APPTAINER_CONTAINER", "apptainer"),
        ("ENROOT_ROOTFS", "enroot"),
        ("KUBERNETES_SERVICE_HOST", "kubernetes"),
    ):
        if name in variables:
            yield Sign(kind, f"{name} is set")
    for file, kind in (
        (".dockerenv", "docker"),
        ("run/.containerenv", "podman"),
        (".singularity.d", "singularity"),
        ("var/run/secrets/kubernetes.io", "kubernetes"),
    ):
        if (root / file).exists():
            yield Sign(kind, f"/{file} is there")
    groups = text(root / "proc/self/cgroup") or ""
    for pattern, kind in (
        (r"kubepods", "kubernetes"),
        (r"docker[-/]", "docker"),
        (r"libpod", "podman"),
        (r"/lxc", "lxc"),
    ):
        if re.search(pattern, groups):
            yield Sign(kind, "/proc/self/cgroup")
    if said := variables.get("container"):
        yield Sign(said, "the variable `container`")


@dataclass(frozen=True)
class Limits:
    """What a process may use at most, with the files that say so: CPUs' worth of time, memory in bytes, cpuset."""

    cpus: float | None
    memory: int | None
    cpuset: str | None
    evidence: tuple[str, ...]


def limits(root: Path = ROOT) -> Limits:
    """The tightest limits of this process's own cgroup and of those that it is in; None where there is no limit."""
    cpus: list[tuple[float, Path]] = []
    memory: list[tuple[int, Path]] = []
    sets: list[tuple[str, Path]] = []
    for folder in _groups(root):
        quota, period = (*(text(folder / "cpu.max") or "").split(), "", "")[:2]
        if quota.isdigit() and period.isdigit():
            cpus.append((int(quota) / int(period), folder / "cpu.max"))
        old_quota, old_period = number(folder / "cpu.cfs_quota_us"), number(folder / "cpu.cfs_period_us")
        if old_quota is not None and old_quota > 0 and old_period:
            cpus.append((old_quota / old_period, folder / "cpu.cfs_quota_us"))
        asked = {folder / name: number(folder / name) for name in ("memory.max", "memory.limit_in_bytes")}
        memory += [(most, file) for file, most in asked.items() if most is not None and most < _NO_LIMIT]
        for name in ("cpuset.cpus.effective", "cpuset.cpus"):
            if listed := text(folder / name):
                sets.append((listed, folder / name))
                break
    found = [min(values, default=None) for values in (cpus, memory)]
    evidence = [str(one[1]) for one in (*found, sets[0] if sets else None) if one is not None]
    return Limits(
        found[0][0] if found[0] else None,
        int(found[1][0]) if found[1] else None,
        sets[0][0] if sets else None,
        tuple(evidence),
    )


def _groups(root: Path) -> Iterator[Path]:
    """The folders of this process's cgroups, its own first, of both versions."""
    mounted = root / "sys/fs/cgroup"
    for line in (text(root / "proc/self/cgroup") or "").splitlines():
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        bases = [mounted / controllers] if controllers else [mounted, mounted / "unified"]
        if controllers not in ("", "cpu", "cpuacct", "cpu,cpuacct", "memory", "cpuset"):
            continue
        for base in bases:
            # In a container the path is that of the host and not there below the mount: then the mount is its own.
            own = base / path.strip("/")
            while True:
                if own.is_dir():
                    yield own
                if own == base or base not in own.parents:
                    break
                own = own.parent
