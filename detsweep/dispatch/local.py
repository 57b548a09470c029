"""`launch=local`: a bounded pool over submitit's LocalExecutor, which itself has no queue and no idea of GPUs."""

from __future__ import annotations

import signal
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import submitit

from detsweep import results
from detsweep.dispatch import processes
from detsweep.dispatch.pools import Trial, lost
from detsweep.dispatch.trial import Launch, run_trial
from detsweep.locks import is_free
from detsweep.paths import FileError, SweepPaths, read_json, write_json

# submitit's own limit is a second line of defence: it signals its task half a minute before, so it must come later.
_SUBMITIT_MARGIN_MIN = 5.0
_POLL_S = 0.05


@contextmanager
def _interrupt_held() -> Iterator[None]:
    """Start processes that a terminal's Ctrl-C does not reach: what is blocked here stays blocked there.

    The driver ends its trials itself. submitit's controller would otherwise kill its task within a second and print
    a traceback; the task lets the signal through again once it has a handler for it.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


@dataclass(frozen=True)
class _Running:
    trial: Trial
    slot: int
    job: submitit.Job[str | None]


class LocalPool:
    """At most `slots` trials at a time; each slot has GPUs of its own, `gpus` being split evenly among them."""

    def __init__(self, sweep: SweepPaths, *, session: str, slots: int, gpus: Sequence[str]) -> None:
        self._sweep = sweep
        self._session = session
        self._every = tuple(gpus)
        share = len(gpus) // slots
        self._gpus = [tuple(gpus[slot * share : (slot + 1) * share]) for slot in range(slots)]
        self._free = list(range(slots))
        self._running: list[_Running] = []
        self._ending: list[submitit.Job[str | None]] = []

    @property
    def running(self) -> list[Trial]:
        """Trials that have not ended."""
        return [item.trial for item in self._running]

    @property
    def width(self) -> int:
        """The number of slots."""
        return len(self._gpus)

    def adopt(self, trial: Trial) -> bool:
        """Never: a trial on this machine ends with its driver."""
        del trial
        return False

    def launch(self, queue: deque[Trial]) -> list[Trial]:
        """Submit a trial into each free slot."""
        started = []
        while queue and self._free:
            started.append(queue.popleft())
            self._start(started[-1])
        return started

    def _start(self, trial: Trial) -> None:
        slot = self._free.pop(0)
        config = trial.cell.config
        timeout = float(config["launch"]["timeout_min"])
        gpus = self._gpus[slot][: trial.cell.world_size] if config["device"] == "cuda" else ()
        if (pinned := config["world"]["gpu"]) is not None:
            gpus = self._every[pinned : pinned + 1]
        executor = submitit.LocalExecutor(self._sweep.jobs)
        executor.update_parameters(
            timeout_min=timeout + _SUBMITIT_MARGIN_MIN, tasks_per_node=1, signal_delay_s=30, stderr_to_stdout=True
        )
        launch = Launch(str(trial.paths.folder), str(self._sweep.folder), self._session, timeout, gpus)
        with _interrupt_held():
            job = executor.submit(run_trial, launch)
        self._running.append(_Running(trial, slot, job))

    def finished(self) -> list[tuple[Trial, Mapping[str, Any]]]:
        """The trials that have ended since the last call, each with its result.

        These are the ones that left a result, and those that are over without one: submitit's process has ended, and
        so have torchrun and every rank. A result is written when no rank is left; what submitit still does after
        that costs no slot.
        """
        done = [item for item in self._running if item.trial.paths.result.exists() or self._is_over(item)]
        self._running = [item for item in self._running if item not in done]
        self._free = sorted(self._free + [item.slot for item in done])
        self._ending = [job for job in (*self._ending, *(item.job for item in done)) if not job.done()]
        return [(item.trial, results.read_result(item.trial.paths) or self._lost(item)) for item in done]

    def _lost(self, item: _Running) -> Mapping[str, Any]:
        """The result of a trial whose own process ended without writing one: killed from outside, or broken."""
        text = "the trial's launcher process ended without a result (killed from outside?)"
        result = lost(item.trial, "error", text, self._sweep.job_log(str(item.job.job_id)))
        write_json(item.trial.paths.result, result)
        return result

    def stop(self, *, kill: bool) -> bool:
        """Whether every process of every trial has ended; with `kill`, they are killed."""
        left = [item for item in self._running if not self._is_over(item)]
        for item in left if kill else ():
            self._kill(item)
        self._ending = [job for job in self._ending if not job.done()]
        return not left and not self._ending

    def _is_over(self, item: _Running) -> bool:
        return item.job.done() and is_free(self._sweep.trial_lock(item.trial.cell.id, item.trial.number))

    def describe_left(self) -> str:
        """The trials of which processes are left, with the pids that are known."""
        return "; ".join(
            f"{item.trial.paths.folder} (pids {', '.join(map(str, self._pids(item)))})"
            for item in self._running
            if not self._is_over(item)
        )

    def clear(self) -> None:
        """Wait for submitit's processes to leave, and remove their files and the locks."""
        while not self.stop(kill=False):
            time.sleep(_POLL_S)
        for pattern in ("*.pkl", "*.out", "*.sh", "*-trial*.lock"):
            for path in self._sweep.jobs.glob(pattern):
                path.unlink(missing_ok=True)

    def _pids(self, item: _Running) -> list[int]:
        """torchrun, which takes its ranks along, then the two processes of submitit."""
        try:
            job = read_json(item.trial.paths.job)
            known = [int(job["agent_pid"]), int(job["task_pid"])]
        except (FileError, KeyError):
            known = []
        return [*known, int(item.job.job_id)]

    def _kill(self, item: _Running) -> None:
        for pid in self._pids(item):
            processes.send(pid, signal.SIGKILL, folders=(item.trial.paths.folder, self._sweep.jobs))
