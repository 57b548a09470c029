"""What the end of a job means for the trial in it, where it left no result."""

from __future__ import annotations

from dataclasses import dataclass

from detsweep.dispatch.slurm.asking import Element

ALIVE = frozenset(
    ("PENDING", "RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD",
     "RESIZING", "RESV_DEL_HOLD", "SIGNALING", "SPECIAL_EXIT", "STAGE_OUT", "STOPPED")
)  # fmt: skip
"""States, as squeue has them, of a job that is waiting, running, or will be run again (squeue(1), JOB STATE CODES)."""
RUNNING = frozenset(("RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT"))


@dataclass(frozen=True)
class Fate:
    """The verdict of a trial that ended without a result, why, and whether the cluster's infrastructure is to blame."""

    verdict: str
    text: str
    infrastructure: bool = False


def alive(element: Element | None) -> bool:
    """Whether a job has not come to its end."""
    return element is not None and element.state in ALIVE


def fate(job: str, element: Element | None) -> Fate:
    """What became of a job that is over; None: neither the controller nor accounting knows of it any more."""
    if element is None:
        return Fate("error", f"Slurm knows nothing of job {job} any more, and it left no result", True)
    where = f" on {element.nodes}" if element.nodes and element.nodes != "None assigned" else ""
    told = {
        "NODE_FAIL": Fate("error", f"a node failed (job {job}{where})", True),
        "BOOT_FAIL": Fate("error", f"a node did not boot (job {job}{where})", True),
        "LAUNCH_FAILED": Fate("error", f"Slurm could not launch job {job}{where}", True),
        "RECONFIG_FAIL": Fate("error", f"a node could not be configured (job {job}{where})", True),
        "PREEMPTED": Fate("error", f"preempted, and not requeued (job {job}{where})", True),
        "CANCELLED": Fate("error", f"cancelled, not by this sweep (job {job}{where})"),
        "TIMEOUT": Fate("timeout", f"ended by Slurm's own time limit (job {job}{where})"),
        "DEADLINE": Fate("timeout", f"ended by its deadline (job {job}{where})"),
        "OUT_OF_MEMORY": Fate("error", f"out of memory (job {job}{where}; launch.memory_gb=N asks for more)"),
    }
    if element.state in told:
        return told[element.state]
    return Fate("error", f"job {job} ended as {element.state}{where} ({element.detail}), and left no result")
