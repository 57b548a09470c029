"""The nodes of a Slurm cluster, and whether they take jobs."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass

# What a node's state begins with where no job can start on it; see sinfo(1), NODE STATE CODES.
_AWAY = ("down", "drain", "drng", "fail", "maint", "unk", "inval", "no_respond", "error", "power_down", "powered_down")
_TIMEOUT_S = 60
# SQUEUE_PARTITION=a, say, in a profile would hide the jobs of all others.
_OPTIONS = ("SACCT_", "SCANCEL_", "SINFO_", "SQUEUE_")


class ClusterError(Exception):
    """Slurm could not be asked, or does not know what was asked for."""


@dataclass(frozen=True)
class Node:
    """A node by its name, and why it takes no jobs; None where it does."""

    name: str
    away: str | None


def nodes_of(partition: str | None) -> list[Node]:
    """All nodes of a partition, in sinfo's order; None: of the default partition.

    Raises ClusterError where Slurm cannot be asked, or has no such partition.
    """
    # %P is the partition's name with a star behind the default one.
    lines = _sinfo("%P|%N|%T|%E", partition)
    found: dict[str, Node] = {}
    for line in lines:
        place, name, state, reason = line.split("|", 3)
        if partition is not None or place.endswith("*"):
            found.setdefault(name, Node(name, _away(state, reason)))
    if not found:
        asked = f"launch.partition={partition}: no such partition" if partition else "no default partition"
        raise ClusterError(f"{asked}; valid: {', '.join(partitions())}")
    return list(found.values())


def partitions() -> list[str]:
    """The names of all partitions. Raises ClusterError where Slurm cannot be asked."""
    return sorted({line.strip() for line in _sinfo("%R", None)})


def _away(state: str, reason: str) -> str | None:
    """Why no job starts there: the state's words, with a star where the node does not answer."""
    words = state.lower()
    if not words.startswith(_AWAY) and not words.endswith("*"):
        return None
    said = "" if reason.strip().lower() in ("", "none") else f" ({reason.strip()})"
    return re.sub(r"\W+$", "", words) + (", not responding" if words.endswith("*") and not said else "") + said


def plain_environment() -> dict[str, str]:
    """The shell's variables without those that change what Slurm's commands for looking and cancelling do."""
    return {name: value for name, value in os.environ.items() if not name.startswith(_OPTIONS)}


def _sinfo(fields: str, partition: str | None) -> list[str]:
    words = ["sinfo", "--noheader", "--Node", f"--format={fields}"]
    words += [f"--partition={partition}"] if partition else []
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, check=True, timeout=_TIMEOUT_S, env=plain_environment()
        )
    except FileNotFoundError:
        raise ClusterError("launch=slurm: no sinfo on PATH: this machine cannot reach a Slurm cluster") from None
    except subprocess.CalledProcessError as error:
        said = (error.stderr or error.stdout).strip().splitlines() or ["no word of why"]
        raise ClusterError(f"launch=slurm: {said[-1]}") from None
    except subprocess.TimeoutExpired:
        raise ClusterError(f"sinfo gave no answer in {_TIMEOUT_S} s") from None
    return list(dict.fromkeys(line for line in done.stdout.splitlines() if line.strip()))
