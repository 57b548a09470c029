"""One trial on this machine, in the submitit task: tied to its driver's life, and its result merged over all ranks."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from detsweep import locks, results
from detsweep.dispatch.torchrun import Launches, environment_of, stop_on_signals
from detsweep.mitigations import Settings, missing
from detsweep.paths import SweepPaths, TrialPaths, read_json, write_json

RANKS_GONE_S = 60.0


@dataclass(frozen=True)
class Launch:
    """How one trial is launched: its folder, its sweep's, the driver's session, the time limit, and its own GPUs."""

    trial: str
    sweep: str
    session: str
    timeout_min: float
    gpus: tuple[str, ...]


def run_trial(launch: Launch) -> str | None:
    """Run one trial to its end and write its result; returns its verdict, None when the sweep was stopped."""
    trial, sweep = TrialPaths(Path(launch.trial)), SweepPaths(Path(launch.sweep))
    stopped = stop_on_signals()
    spec = read_json(trial.spec)
    lock_paths = (sweep.trials_lock, sweep.trial_lock(spec["cell"], spec["trial"]))
    handles = locks.hold(lock_paths)
    if not locks.driver_lives(sweep.driver_lock, launch.session) or _is_orphan():
        return None
    child = environment_of(spec, os.environ, launch.gpus, trial)
    required = Settings(spec["required"]["env"], {})
    if absent := missing(required, child.variables):
        write_json(trial.result, results.refused(spec, absent))
        return "invalid"
    job: dict[str, Any] = {
        "job_id": os.environ.get("SUBMITIT_LOCAL_JOB_ID"),
        "host": os.uname().nodename,
        "task_pid": os.getpid(),
        "environment_set": child.changed,
        "environment_removed": child.removed,
        "environment_overruled": child.overruled,
        "gpus": list(launch.gpus),
        "started": time.time(),
    }

    def note_start(pid: int, command: list[str]) -> None:
        job["command"] = command
        write_json(trial.job, {**job, "state": "running", "agent_pid": pid})

    ended = Launches(
        trial,
        spec,
        {**child.variables, locks.LOCKS_VARIABLE: os.pathsep.join(map(str, lock_paths))},
        reasons=(stopped, locks.watch_driver(sweep.driver_lock)),
        started=note_start,
        handles=handles,
    ).run(launch.timeout_min)
    # A rank can outlive a torchrun that was killed, and hold its GPU: the slot is not free before its lock is.
    os.close(handles[-1])
    locks.wait_until_free(lock_paths[-1], RANKS_GONE_S)
    result = None
    if not ended.stopped:
        limit = launch.timeout_min if ended.timed_out else None
        result = results.merge(trial, spec, returncode=ended.returncode, timeout_min=limit, seconds=ended.seconds)
    for rank in range(int(spec["world_size"])):
        trial.progress(rank).unlink(missing_ok=True)
    write_json(trial.job, {**job, "state": "stopped" if ended.stopped else "done", "ended": time.time()})
    if result is None:
        return None
    # Last of all: as soon as it is there, the driver gives this trial's slot and GPUs to the next.
    write_json(trial.result, {**result, "started": job["started"]})
    return str(result["verdict"])


def _is_orphan() -> bool:
    """Whether submitit's controller is gone: then the driver takes this trial for lost, and it must not begin.

    The controller's pid is the local job's id.
    """
    controller = os.environ.get("SUBMITIT_LOCAL_JOB_ID")
    return controller is not None and os.getppid() != int(controller)
