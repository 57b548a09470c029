"""The sweep: every trial that has no result yet is launched, a failed one costs no other, and a stop leaves nothing."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType
from typing import Any

from detsweep import environment, locks, results
from detsweep.capture import SCHEMA
from detsweep.crosstrial import settled
from detsweep.dispatch.local import LocalPool, Trial
from detsweep.dispatch.progress import Progress
from detsweep.dispatch.provenance import open_session
from detsweep.dispatch.torchrun import environment_of, torchrun_arguments
from detsweep.failures import tail
from detsweep.paths import SweepPaths, read_json, write_json
from detsweep.plan import Cell, Plan

POLL_S = 0.05
STOP_LIMIT_S = 60.0


class Stop:
    """Set by the first INT, TERM or HUP; a second one is `impatient`: trials are then killed, not asked."""

    def __init__(self) -> None:
        self.requested = False
        self.impatient = False

    def __call__(self, _: int, __: FrameType | None) -> None:
        self.impatient = self.requested
        self.requested = True


@contextmanager
def stop_on_signals() -> Iterator[Stop]:
    """Turn INT, TERM and HUP into a request while the sweep runs."""
    stop = Stop()
    # What is ignored was meant to be: nohup.
    numbers = [n for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) != signal.SIG_IGN]
    previous = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def dry_run(plan: Plan, sweep: SweepPaths) -> None:
    """Print every cell and the exact command of its first trial; start nothing, write nothing."""
    print(f"{len(plan.cells)} cells, {sum(cell.trials for cell in plan.cells)} trials, into {sweep.folder}")
    for number, cell in enumerate(plan.cells, start=1):
        paths = sweep.cell(cell.slug, cell.id)
        print(f"\n[{number}/{len(plan.cells)}] {cell.label}  (id {cell.id}, trials={cell.trials})")
        if cell.unsupported:
            print(f"  unsupported: {cell.unsupported}")
            continue
        spec, trial = cell.spec(0), paths.trial(0)
        gpus = environment.visible_gpus()[: cell.world_size] if cell.config["device"] == "cuda" else ()
        child = environment_of(spec, os.environ, gpus)
        words = ["env", *(word for name in sorted(child.removed) for word in ("-u", name))]
        words += [f"{name}={value}" for name, value in sorted(child.changed.items())]
        print("  " + shlex.join([*words, "torchrun", *torchrun_arguments(spec, trial)]))
    print("\nA trial's folder gets the spec.json that its ranks read when the sweep is run.")


def run_trials(plan: Plan, sweep: SweepPaths, arguments: Sequence[str]) -> bool:
    """Launch every trial of the plan that has no settled result; False when a signal stopped the sweep.

    Raises FolderBusyError when another driver works on this folder, FileError when its sweep.json cannot be read.
    """
    lock = locks.DriverLock(sweep.driver_lock)
    _take_over(lock, sweep)
    with stop_on_signals() as stop:
        try:
            open_session(sweep, plan, arguments)
            slots = int(plan.options["launch"]["max_parallel"])
            pool = LocalPool(sweep, session=lock.session, slots=slots, gpus=environment.visible_gpus())
            try:
                _launch(plan, sweep, pool, stop)
                if plan.options["drill"] and not stop.requested and not pool.running:
                    _drill(plan, sweep, pool, stop)
                if not pool.running:
                    # Still under the lock: another driver's files of the same kind must not be there yet.
                    _clear_jobs(sweep, pool)
            finally:
                lock.release()
                _wait_for_the_last(pool, stop)
        finally:
            lock.release()
    return not stop.requested


def _launch(plan: Plan, sweep: SweepPaths, pool: LocalPool, stop: Stop) -> None:
    """Launch the trials of a plan that have no settled result, and wait for them."""
    queue = deque(_outstanding(plan, sweep))
    fail_fast = bool(plan.options["launch"]["fail_fast"])
    with Progress(plan, left=len(queue)) as progress:
        _drain(queue, sweep=sweep, pool=pool, progress=progress, stop=stop, fail_fast=fail_fast)


def _drill(plan: Plan, sweep: SweepPaths, pool: LocalPool, stop: Stop) -> None:
    """Run the cells that diverged once more, at the closest level of observation that each can have."""
    closer: dict[str, Cell] = {}
    for cell in plan.cells:
        if not _diverged(cell, sweep):
            continue
        drilled = cell.closer()
        if drilled is None:
            print(f"{plan.label(cell)}: drill=true has no closer look at it")
        elif not _has_own_row(drilled, plan, sweep):
            # Cells that differ in their level of observation alone have one closer look in common.
            others = closer[drilled.id].drill_of if drilled.id in closer else ()
            closer[drilled.id] = replace(drilled, drill_of=(*others, cell.id))
    if closer:
        print(f"looking closer at {sum(len(cell.drill_of) for cell in closer.values())} of {len(plan.cells)} cells")
        _launch(Plan(tuple(closer.values()), (), 0), sweep, pool, stop)


def _has_own_row(drilled: Cell, plan: Plan, sweep: SweepPaths) -> bool:
    """Whether the closer look at a cell is a cell that was itself asked for, now or by an earlier command."""
    if any(cell.id == drilled.id for cell in plan.cells):
        return True
    paths = sweep.cell(drilled.slug, drilled.id)
    return paths.cell.exists() and not read_json(paths.cell).get("drill_of")


def _diverged(cell: Cell, sweep: SweepPaths) -> bool:
    found = {number: (trial, results.read_result(trial)) for number, trial in sweep.cell(cell.slug, cell.id).trials()}
    trials = {number: (trial, result) for number, (trial, result) in found.items() if result is not None}
    return any(result["verdict"] == "diverged" for result in settled(trials, cell.config).values())


def _take_over(lock: locks.DriverLock, sweep: SweepPaths) -> None:
    if not lock.acquire():
        raise locks.FolderBusyError(f"another detsweep works on {sweep.folder}")
    if locks.is_free(sweep.trials_lock):
        return
    # Trials of a driver that died are ending; they can only see that it died while nobody has its lock.
    lock.release()
    print("detsweep: waiting for trials of an earlier command to end", file=sys.stderr)
    if not locks.wait_until_free(sweep.trials_lock, STOP_LIMIT_S) or not lock.acquire():
        raise locks.FolderBusyError(f"trials of another detsweep still run in {sweep.folder}")


def _outstanding(plan: Plan, sweep: SweepPaths) -> list[Trial]:
    """Write every cell, set aside what is to be done again, and return what is to be launched, in order."""
    rerun = str(plan.options["launch"]["rerun"])
    trials = []
    for cell in plan.cells:
        paths = sweep.cell(cell.slug, cell.id)
        write_json(paths.cell, cell.to_json())
        for number in range(cell.trials):
            trial = paths.trial(number)
            result = results.read_result(trial)
            if result is not None and not _again(result, rerun, unsupported=cell.unsupported is not None):
                continue
            paths.set_aside(number)
            spec = cell.spec(number)
            write_json(trial.spec, spec)
            if cell.unsupported is not None:
                write_json(trial.result, results.unsupported(spec, cell.unsupported))
            else:
                trials.append(Trial(cell, number, trial))
    return trials


def _again(result: Mapping[str, Any], rerun: str, *, unsupported: bool) -> bool:
    if (result["verdict"] == "unsupported") != unsupported:
        return True
    if rerun == "errors":
        return result["verdict"] not in results.SETTLED
    return rerun == "all" and not unsupported


def _drain(
    queue: deque[Trial], *, sweep: SweepPaths, pool: LocalPool, progress: Progress, stop: Stop, fail_fast: bool
) -> None:
    while (queue or pool.running) and not stop.requested:
        while queue and pool.has_room:
            trial = queue.popleft()
            progress.started(trial)
            pool.start(trial)
        for trial, job_id in pool.finished():
            result = results.read_result(trial.paths) or _lost(trial, sweep, job_id)
            progress.finished(trial, result)
            if fail_fast and result["verdict"] != "pass":
                progress.note("launch.fail_fast=true: no further trial is started")
                return
        time.sleep(POLL_S)


def _lost(trial: Trial, sweep: SweepPaths, job_id: str) -> dict[str, Any]:
    """The result of a trial whose own process ended without writing one: killed from outside, or broken."""
    log = sweep.job_log(job_id)
    result = {
        "schema": SCHEMA,
        "cell": trial.cell.id,
        "trial": trial.number,
        "verdict": "error",
        "error": "the trial's launcher process ended without a result (killed from outside?)",
        "error_ranks": [],
        "log": str(log),
        "log_tail": list(tail(log)),
    }
    write_json(trial.paths.result, result)
    return result


def _wait_for_the_last(pool: LocalPool, stop: Stop) -> None:
    """Return when no process of any trial is left; after a second signal, or a minute, they are killed.

    What cannot even be killed (a process that waits for a dead disk) is named, and not waited for.
    """
    if pool.running:
        print("detsweep: ending the running trials", file=sys.stderr)
    deadline, killing = time.monotonic() + STOP_LIMIT_S, False
    while not pool.stop(kill=killing):
        if not killing and (stop.impatient or time.monotonic() > deadline):
            print("detsweep: killing the running trials", file=sys.stderr)
            deadline, killing = time.monotonic() + STOP_LIMIT_S, True
        elif killing and time.monotonic() > deadline:
            print(f"detsweep: still there, and not ended by SIGKILL: {pool.describe_left()}", file=sys.stderr)
            return
        time.sleep(POLL_S)


def _clear_jobs(sweep: SweepPaths, pool: LocalPool) -> None:
    while not pool.stop(kill=False):
        time.sleep(POLL_S)
    for pattern in ("*.pkl", "*.out", "*.sh", "*-trial*.lock"):
        for path in sweep.jobs.glob(pattern):
            path.unlink(missing_ok=True)
