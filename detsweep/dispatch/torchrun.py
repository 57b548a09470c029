"""One trial: torchrun as a child process in an environment of its own, ended in order whatever happens around it.

This runs inside the submitit task and imports neither torch nor Hydra.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from detsweep import locks, modes, results
from detsweep.dispatch import processes
from detsweep.environment import ChildEnvironment, child_environment, isolated
from detsweep.failures import position
from detsweep.mitigations import Settings, missing
from detsweep.orphans import PARENT_VARIABLE
from detsweep.paths import SweepPaths, TrialPaths, read_json, write_json

POLL_S = 0.02
# torchrun gives its ranks 30 seconds of their own before it kills them.
TERM_GRACE_S = 40.0
STACKS_S = 0.5
SIGNALS_MEET_S = 0.1
RANKS_GONE_S = 60.0


@dataclass(frozen=True)
class Launch:
    """How one trial is launched: its folder, its sweep's, the driver's session, the time limit, and its own GPUs."""

    trial: str
    sweep: str
    session: str
    timeout_min: float
    gpus: tuple[str, ...]


def torchrun_arguments(spec: Mapping[str, Any], trial: TrialPaths, launch: int = 0) -> list[str]:
    """torchrun's arguments for a launch of a trial on one node. A restart would hide a failure, so there is none."""
    world = spec["config"]["world"]
    return [
        "--standalone",
        "--local-addr=127.0.0.1",
        "--nnodes=1",
        f"--nproc-per-node={world['nproc_per_node']}",
        "--max-restarts=0",
        "-m",
        "detsweep.worker",
        str(trial.folder),
        str(launch),
    ]


def environment_of(
    spec: Mapping[str, Any], base: Mapping[str, str], gpus: Sequence[str], trial: TrialPaths
) -> ChildEnvironment:
    """The environment of a trial's processes, made from the shell's."""
    config, wanted = spec["config"], spec["settings"]["env"]
    gpu = config["device"] != "cpu"
    defaults = isolated(_cache(config, trial), compiles=modes.compiles(config), gpu=gpu)
    if gpu and "NCCL_DEBUG" not in base:
        # It says then which variables it has read: the proof that they got there. In every cell, as it takes time.
        log = str(trial.nccl_log("%p"))
        defaults |= {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "ENV", "NCCL_DEBUG_FILE": log}
    threads = config["world"]["threads_per_rank"]
    return child_environment(base, wanted, threads=threads, gpus=gpus, defaults=defaults)


def _cache(config: Mapping[str, Any], trial: TrialPaths) -> Path | None:
    return {"cell": trial.cell_cache, "trial": trial.cache, "shared": None}[config["kernel_cache"]]


def run_trial(launch: Launch) -> str | None:
    """Run one trial to its end and write its result; returns its verdict, None when the sweep was stopped."""
    trial, sweep = TrialPaths(Path(launch.trial)), SweepPaths(Path(launch.sweep))
    stopped = _stop_on_signals()
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
    commands = [_command(spec, trial, number) for number in range(modes.launches(spec["config"]))]
    job: dict[str, Any] = {
        "job_id": os.environ.get("SUBMITIT_LOCAL_JOB_ID"),
        "host": os.uname().nodename,
        "task_pid": os.getpid(),
        "command": commands[0],
        "environment_set": child.changed,
        "environment_removed": child.removed,
        "environment_overruled": child.overruled,
        "gpus": list(launch.gpus),
        "started": time.time(),
    }
    trial.logs.mkdir(parents=True, exist_ok=True)
    if spec["config"]["device"] != "cpu" and (cache := _cache(spec["config"], trial)) is not None:
        # Not every library makes the folder of a file that it is to write.
        cache.mkdir(exist_ok=True)
    variables = {
        **child.variables,
        PARENT_VARIABLE: str(os.getpid()),
        locks.LOCKS_VARIABLE: os.pathsep.join(map(str, lock_paths)),
    }
    started = time.monotonic()
    reasons = (stopped, locks.watch_driver(sweep.driver_lock))
    for command in commands:
        agent = _start(command, variables, trial.launcher_log, handles)
        write_json(trial.job, {**job, "command": command, "state": "running", "agent_pid": agent.pid})
        end = _Ending(agent, trial, spec, reasons)
        timed_out = end.wait(started + launch.timeout_min * 60)
        if timed_out or end.stopped or agent.returncode != 0:
            break
    # A rank can outlive a torchrun that was killed, and hold its GPU: the slot is not free before its lock is.
    os.close(handles[-1])
    locks.wait_until_free(lock_paths[-1], RANKS_GONE_S)
    result = None
    if not end.stopped:
        limit = launch.timeout_min if timed_out else None
        seconds = time.monotonic() - started
        result = results.merge(trial, spec, returncode=agent.wait(), timeout_min=limit, seconds=seconds)
    for rank in range(int(spec["world_size"])):
        trial.progress(rank).unlink(missing_ok=True)
    write_json(trial.job, {**job, "state": "stopped" if end.stopped else "done", "ended": time.time()})
    if result is None:
        return None
    # Last of all: as soon as it is there, the driver gives this trial's slot and GPUs to the next.
    write_json(trial.result, {**result, "started": job["started"]})
    return str(result["verdict"])


class _Ending:
    """Waits for a trial's end: its own, its time limit, a signal, or the death of its driver."""

    def __init__(
        self,
        agent: subprocess.Popen[bytes],
        trial: TrialPaths,
        spec: Mapping[str, Any],
        reasons: Sequence[threading.Event],
    ) -> None:
        self._agent = agent
        self._trial = trial
        self._world_size = int(spec["world_size"])
        self._reasons = reasons
        self.stopped = False

    def wait(self, deadline: float) -> bool:
        """Return when torchrun has ended; True when the time limit, at `deadline` (monotonic, seconds), ended it."""
        while self._agent.poll() is None:
            if any(reason.is_set() for reason in self._reasons):
                self.stopped = True
                self._terminate()
            elif time.monotonic() > deadline:
                self._ask_for_stacks()
                self._terminate()
                return True
            time.sleep(POLL_S)
        if self._agent.returncode != 0:
            # A signal to every process at once reaches torchrun and us in any order.
            time.sleep(SIGNALS_MEET_S)
            self.stopped = any(reason.is_set() for reason in self._reasons)
        return False

    def _ask_for_stacks(self) -> None:
        for rank in range(self._world_size):
            place = position(self._trial.progress(rank))
            if place is not None:
                processes.send(place.pid, signal.SIGUSR1, folders=(self._trial.folder,))
        time.sleep(STACKS_S)

    def _terminate(self) -> None:
        # torchrun ends its ranks on TERM; if it cannot, they die with it (see orphans.die_with_parent).
        self._agent.terminate()
        try:
            self._agent.wait(TERM_GRACE_S)
        except subprocess.TimeoutExpired:
            self._agent.kill()
            self._agent.wait()


def _command(spec: Mapping[str, Any], trial: TrialPaths, launch: int) -> list[str]:
    arguments = torchrun_arguments(spec, trial, launch)
    return [sys.executable, "-m", "detsweep.dispatch.agent", str(trial.exits), *arguments]


def _start(
    command: list[str], variables: Mapping[str, str], log: Path, handles: tuple[int, ...]
) -> subprocess.Popen[bytes]:
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # A session of its own keeps the terminal's Ctrl-C, and a scheduler's signals to the task, away from it.
            start_new_session=True,
            pass_fds=handles,
        )


def _is_orphan() -> bool:
    """Whether submitit's controller is gone: then the driver takes this trial for lost, and it must not begin.

    The controller's pid is the local job's id.
    """
    controller = os.environ.get("SUBMITIT_LOCAL_JOB_ID")
    return controller is not None and os.getppid() != int(controller)


def _stop_on_signals() -> threading.Event:
    """An event set by INT, TERM or HUP, unless they are ignored (nohup), and by USR2.

    It takes the place of submitit's own handlers, which ignore TERM and start the task a second time after USR2.
    """
    stop = threading.Event()

    def handle(_: int, __: FrameType | None) -> None:
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, handle)
    # Blocked where this process was started, and ranks would inherit that.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    return stop
