"""The cluster of scripts/slurm_cluster.sh, as tests see it: what ran where and when, and nodes that fail."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "slurm_cluster.sh"
CONFIGURATION = Path("/etc/slurm/slurm.conf")
NODES = 4


@dataclass(frozen=True)
class Ran:
    """One job as accounting has it; times in seconds since the epoch."""

    id: str
    state: str
    node: str
    begun: float
    ended: float


def absent() -> str | None:
    """Why the tests that need the cluster cannot run; None where they can. No other Slurm is ever touched."""
    if not CONFIGURATION.exists() or "slurm_cluster.sh of detsweep" not in CONFIGURATION.read_text().splitlines()[0]:
        return "no cluster of scripts/slurm_cluster.sh runs here"
    done = subprocess.run(["sinfo", "-h", "-N", "-p", "main", "-o", "%T"], capture_output=True, text=True, check=False)
    if done.returncode != 0 or len(done.stdout.split()) < NODES:
        return f"the cluster of scripts/slurm_cluster.sh has not {NODES} nodes"
    return None if os.geteuid() == 0 else "the cluster's scripts need root"


needs_cluster = pytest.mark.skipif(absent() is not None, reason=absent() or "")


def cluster(*words: str) -> None:
    """Run the cluster's script: `node crash node2`, `daemon stop slurmctld`, ..."""
    subprocess.run([str(SCRIPT), *words], check=True, timeout=120, capture_output=True)


def ask(*words: str) -> list[str]:
    """The lines that one of Slurm's commands prints."""
    return subprocess.run(words, capture_output=True, text=True, check=True, timeout=60).stdout.splitlines()


def jobs_of(folder: Path) -> dict[str, str]:
    """The jobs of a sweep that the controller knows: state by id; none before it has submitted any."""
    if not (folder / ".jobs" / "cluster.json").exists():
        return {}
    name = json.loads((folder / ".jobs" / "cluster.json").read_text())["name"]
    found = [line.split("|") for line in ask("squeue", "-h", "-r", "-t", "all", "-o", "%i|%j|%T")]
    return {job: state for job, own, state in found if own.rpartition("-")[0] == name}


def accounted(folder: Path) -> list[Ran]:
    """Every job of a sweep, each start of a requeued one for itself."""
    name = json.loads((folder / ".jobs" / "cluster.json").read_text())["name"]
    fields = "--format=JobID,JobName,State,NodeList,Start,End"
    lines = ask("env", "SLURM_TIME_FORMAT=%s", "sacct", "-n", "-P", "-X", "-D", "-S", "now-1hour", fields)
    rows = [line.split("|") for line in lines]
    return [
        Ran(job, state.split()[0], node, *(float(time) if time.isdigit() else 0.0 for time in times))
        for job, own, state, node, *times in rows
        if own.rpartition("-")[0] == name
    ]


def at_once(ran: list[Ran]) -> int:
    """How many of them ran at one time at most."""
    # An end and a start within one second are no overlap: that is as fine as Slurm writes them.
    changes = sorted([(one.begun, 1) for one in ran if one.begun] + [(one.ended, -1) for one in ran if one.begun])
    most = now = 0
    for _, change in changes:
        now += change
        most = max(most, now)
    return most
