"""The sweep: every trial that has no result yet is launched, a failed one costs no other, and a stop leaves nothing."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from detsweep import asked, environment, locks, results, stopping
from detsweep.crosstrial import settled
from detsweep.dispatch import slurm
from detsweep.dispatch.gate import Gate
from detsweep.dispatch.local import LocalPool
from detsweep.dispatch.pools import Pool, Trial
from detsweep.dispatch.progress import Progress
from detsweep.dispatch.provenance import add_cell, open_session
from detsweep.dispatch.stop import Stop, stop_on_signals
from detsweep.paths import FileError, SweepPaths, TrialPaths, read_json, write_json
from detsweep.plan import Cell, Plan

Launch = Callable[[Cell, int], Mapping[int, Mapping[str, Any]]]
"""Launches those of a cell's first trials that have no result; the results of all its trials. See _search."""
POLL_S = 0.05
STOP_LIMIT_S = 60.0


class StoppedError(Exception):
    """A signal asked the sweep to end."""


def run_trials(
    plan: Plan, sweep: SweepPaths, arguments: Sequence[str], search: Callable[[Launch], None] | None = None
) -> bool:
    """Launch every trial of the plan that has no settled result; False when a signal stopped the sweep.

    With a `search` it says itself, with the function that it is given, which cells are launched. With launch.detach it
    returns when all is with the cluster.
    Raises FolderBusyError when another driver works on this folder or a cluster still has jobs of it, ClusterError when
    Slurm refuses what is asked for or cannot be reached, FileError when its sweep.json cannot be read.
    """
    lock = locks.DriverLock(sweep.driver_lock)
    _take_over(lock, sweep)
    with stop_on_signals() as stop:
        try:
            pool = _pool(plan, sweep, lock.session)
            open_session(sweep, plan, arguments)
            try:
                if search is None:
                    _launch(plan, sweep, pool, stop)
                else:
                    _search(search, sweep, pool, stop)
                if plan.options["drill"] and not stop.requested and not pool.running:
                    _drill(plan, sweep, pool, stop)
                if not pool.running:
                    # Still under the lock: another driver's files of the same kind must not be there yet.
                    pool.clear()
            finally:
                lock.release()
                if stop.requested or not plan.options["launch"]["detach"]:
                    _wait_for_the_last(pool, stop)
        finally:
            lock.release()
    return not stop.requested


def _pool(plan: Plan, sweep: SweepPaths, session: str) -> Pool:
    launch = plan.options["launch"]
    if launch["name"] == "slurm":
        slurm.check(plan)
        return slurm.SlurmPool(sweep, launch)
    if queued := slurm.under_way(sweep):
        raise locks.FolderBusyError(
            f"Slurm still has {queued} of {sweep.folder}: go on with launch=slurm, or cancel them first "
            f"(python -m detsweep.status {sweep.folder} --cancel)"
        )
    gpus = environment.visible_gpus()
    return LocalPool(sweep, session=session, slots=int(launch["max_parallel"]), gpus=gpus)


def _search(search: Callable[[Launch], None], sweep: SweepPaths, pool: Pool, stop: Stop) -> None:
    def launch(cell: Cell, trials: int) -> Mapping[int, Mapping[str, Any]]:
        wanted = replace(cell, config={**cell.config, "trials": max(trials, _trials_kept(cell, sweep))})
        add_cell(sweep, cell.id)
        _launch(Plan((wanted,), (), 0), sweep, pool, stop, quiet=True)
        if stop.requested:
            raise StoppedError
        return _settled(cell, sweep)

    with suppress(StoppedError):
        search(launch)


def _trials_kept(cell: Cell, sweep: SweepPaths) -> int:
    """How many trials of a cell are on disk: none of them is forgotten because fewer are asked for."""
    return sum(1 for _ in sweep.cell(cell.slug, cell.id).trials())


def _launch(plan: Plan, sweep: SweepPaths, pool: Pool, stop: Stop, *, quiet: bool = False) -> None:
    """Launch the trials of a plan that have no settled result, and wait for them."""
    queue = deque(_outstanding(plan, sweep, pool))
    adopted, queued = pool.running, plan.options["launch"]["name"] == "slurm"
    left = len(queue) + len(adopted)
    with Progress(plan, left=left, width=pool.width, queued=queued, quiet=quiet) as progress:
        if adopted:
            progress.note(f"{len(adopted)} are under way since an earlier command")
        for trial in adopted:
            progress.started(trial)
        gate = Gate(plan, lambda cell: _settled(cell, sweep), rounds=queued)
        _drain(queue, gate, plan, pool=pool, progress=progress, stop=stop)


def _drill(plan: Plan, sweep: SweepPaths, pool: Pool, stop: Stop) -> None:
    """Run the cells that diverged once more, at the closest level of observation that each can have."""
    closer: dict[str, Cell] = {}
    known, ids = sweep.cell_folders(), {cell.id for cell in plan.cells}
    for cell in plan.cells:
        if not _diverged(cell, sweep, known):
            continue
        drilled = cell.closer()
        if drilled is None:
            print(f"{plan.label(cell)}: drill=true has no closer look at it")
        elif drilled.id not in ids and not _has_own_row(drilled, sweep, known):
            # Cells that differ in their level of observation alone have one closer look in common.
            others = closer[drilled.id].drill_of if drilled.id in closer else ()
            closer[drilled.id] = replace(drilled, drill_of=(*others, cell.id))
    if closer:
        print(f"looking closer at {sum(len(cell.drill_of) for cell in closer.values())} of {len(plan.cells)} cells")
        _launch(Plan(tuple(closer.values()), (), 0), sweep, pool, stop)


def _has_own_row(drilled: Cell, sweep: SweepPaths, known: Mapping[str, Path]) -> bool:
    """Whether the closer look at a cell is a cell that was itself asked for by an earlier command."""
    paths = sweep.cell(drilled.slug, drilled.id, known)
    return paths.cell.exists() and not read_json(paths.cell).get("drill_of")


def _diverged(cell: Cell, sweep: SweepPaths, known: Mapping[str, Path]) -> bool:
    return any(result["verdict"] == "diverged" for result in _settled(cell, sweep, known).values())


def _settled(cell: Cell, sweep: SweepPaths, known: Mapping[str, Path] | None = None) -> dict[int, Mapping[str, Any]]:
    """The results of all trials of a cell that have one, by number."""
    paths = sweep.cell(cell.slug, cell.id, known)
    found = {number: (trial, results.read_result(trial)) for number, trial in paths.trials()}
    trials = {number: (trial, result) for number, (trial, result) in found.items() if result is not None}
    return settled(trials, cell.config)


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


def _outstanding(plan: Plan, sweep: SweepPaths, pool: Pool) -> list[Trial]:
    """Write every cell, set aside what is to be done again, and return what is to be launched, in order.

    What is under way since an earlier command is left to the pool, and not launched twice.

    First the first trial of every cell, then the second, ...: what drifts on a machine drifts alike for a cell and
    for the one that its cost is measured against.
    """
    rerun = str(plan.options["launch"]["rerun"])
    trials = []
    known = sweep.cell_folders()
    for cell in plan.cells:
        paths = sweep.cell(cell.slug, cell.id, known)
        write_json(paths.cell, cell.to_json())
        for number in range(cell.trials):
            trial = paths.trial(number)
            result = results.read_result(trial)
            kept = result is not None and not _again(result, rerun, unsupported=cell.unsupported is not None)
            if kept and _required_then(trial, cell):
                continue
            if result is None and pool.adopt(Trial(cell, number, trial)):
                continue
            paths.set_aside(number)
            spec = cell.spec(number)
            if cell.unsupported is not None:
                write_json(trial.spec, spec)
                write_json(trial.result, results.unsupported(spec, cell.unsupported))
                continue
            if not stopping.has_rule(cell.config):
                write_json(trial.spec, spec)
            failed = result is not None and result["verdict"] not in results.SETTLED
            trials.append(Trial(cell, number, trial, owed=failed and rerun == "errors"))
    return sorted(trials, key=lambda trial: trial.number)


def _required_then(trial: TrialPaths, cell: Cell) -> bool:
    """Whether a trial that has a result was held to all that is required now; where nothing is, any was."""
    required = cell.required.to_json()
    if required == asked.NOTHING.to_json():
        return True
    try:
        return bool(read_json(trial.spec).get("required") == required)
    except FileError:
        # Nobody knows what it was held to.
        return False


def _again(result: Mapping[str, Any], rerun: str, *, unsupported: bool) -> bool:
    if (result["verdict"] == "unsupported") != unsupported:
        return True
    if rerun == "errors":
        return result["verdict"] not in results.SETTLED
    return rerun == "all" and not unsupported


def _drain(queue: deque[Trial], gate: Gate, plan: Plan, *, pool: Pool, progress: Progress, stop: Stop) -> None:
    launch = plan.options["launch"]
    passed: deque[Trial] = deque()
    while not stop.requested:
        for one in gate.withheld(queue, pool.running):
            more = f" ({one.under_way} more under way)" if one.under_way else ""
            progress.spared(one.spared, f"{plan.label(one.cell)}: stopped {one.stopped.words}{more}")
        passed.extend(gate.passed(queue, [*pool.running, *passed], pool.width))
        if not (queue or passed or pool.running):
            return
        for trial in pool.launch(passed):
            progress.started(trial)
        if launch["detach"] and not (queue or passed):
            return
        for trial, result in pool.finished():
            gate.ended(trial)
            progress.finished(trial, result)
            if launch["fail_fast"] and result["verdict"] not in ("pass", "recorded"):
                progress.note("launch.fail_fast=true: no further trial is started")
                return
        time.sleep(POLL_S)


def _wait_for_the_last(pool: Pool, stop: Stop) -> None:
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
