"""`python -m detsweep.status <folder>`: every cell of a sweep, done, running and where, queued and why, or lost.

`--follow` goes on with the sweep and waits for it, `--cancel` cancels the jobs that it has with Slurm.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from detsweep import locks, results
from detsweep.arguments import Parser
from detsweep.crosstrial import settled
from detsweep.dispatch.slurm import AwayError, Earlier, cancel, compressed
from detsweep.failures import position
from detsweep.nodes import ClusterError
from detsweep.output import tolerate_broken_output
from detsweep.paths import CellPaths, FileError, SweepPaths, TrialPaths, read_json
from detsweep.stopping import Stopped, has_rule, stopped

WAITING, RUNNING, LOST, ABSENT, UNKNOWN = "queued", "running", "lost", "not launched", "not known"
NO_SWEEP, UNFINISHED = 2, 3
# Of these a cell shows the first that any of its trials has, when they differ.
ORDER = (RUNNING, WAITING, LOST, ABSENT, UNKNOWN)


@dataclass(frozen=True)
class State:
    """Where a trial stands: `done` with a verdict, or one of the words above; and what there is to say of it."""

    word: str
    detail: str = ""


def main() -> int:
    """Leaves with 0 when every trial has a result, 3 when one has none, 2 where no sweep is found or Slurm is away."""
    tolerate_broken_output()
    parser = Parser(prog="python -m detsweep.status", description="Where each cell of a sweep stands")
    parser.add_argument("folder", help="the sweep's folder, e.g. runs/2026-01-31/14-05-59")
    todo = parser.add_mutually_exclusive_group()
    todo.add_argument("--follow", action="store_true", help="go on with the sweep: wait for what runs, submit the rest")
    todo.add_argument("--cancel", action="store_true", help="cancel the jobs that this sweep has with Slurm")
    asked = parser.parse_args()
    sweep = SweepPaths(Path(asked.folder).absolute())
    try:
        if not sweep.sweep.exists():
            raise FileNotFoundError(f"{asked.folder}: no sweep here (no sweep.json)")
        if asked.follow:
            return _follow(sweep)
        earlier = _asked(sweep)
        return _cancel(earlier) if asked.cancel else show(sweep, earlier)
    except (OSError, FileError, AwayError, ClusterError) as error:
        print(f"detsweep: {error}", file=sys.stderr)
        return NO_SWEEP


def show(sweep: SweepPaths, earlier: Earlier | None) -> int:
    """Print a line for each cell and one for the whole; `earlier` is what the sweep has with Slurm, None: unknown."""
    cells = [(paths, read_json(paths.cell)) for paths in sweep.all_cells() if paths.cell.exists()]
    counts: Counter[str] = Counter()
    for paths, cell in cells:
        states = [state_of(sweep, paths, cell, number, earlier) for number in range(int(cell["config"]["trials"]))]
        if (early := _stopped(paths, cell)) is not None:
            # What it does without is not waited for; what still runs of it is.
            states = [state for state in states if state.word not in (LOST, ABSENT, UNKNOWN)]
        counts.update(state.word for state in states)
        ended = f"; stopped {early.words}" if early else ""
        print(f"{_label(cell)}: {_line(states)}{ended}")
    total = sum(counts.values())
    done = total - sum(counts[word] for word in ORDER)
    rest = "".join(f", {counts[word]} {word}" for word in ORDER if counts[word])
    print(f"\n{done} of {total} trials of {len(cells)} cells have a result{rest}")
    if rest and earlier is not None:
        print(f"to wait for them and see the matrix: python -m detsweep.status {sweep.folder} --follow")
    return 0 if done == total else UNFINISHED


def state_of(
    sweep: SweepPaths, paths: CellPaths, cell: Mapping[str, Any], number: int, earlier: Earlier | None
) -> State:
    """Where one trial stands."""
    trial = paths.trial(number)
    if (result := results.read_result(trial)) is not None:
        seconds = result.get("seconds")
        return State(str(result["verdict"]), f"{seconds:.1f} s" if seconds else str(result.get("error") or ""))
    job = earlier.job_of(cell["id"], number) if earlier is not None else None
    if job is not None and job.element is not None and job.alive:
        if job.element.state == "PENDING":
            why = job.element.detail
            return State(WAITING, f"job {job.id}" + (f": {why}" if why not in ("", "None") else ""))
        attempts = paths.attempts(number)
        where = f"on {job.element.nodes}, job {job.id}"
        return State(RUNNING, f"{where}{_progress(attempts[-1], cell) if attempts else ''}")
    if job is not None:
        said = f", {job.element.state.lower()}" if job.element is not None else ""
        return State(LOST, f"job {job.id} is over{said}, and left no result")
    lock = sweep.trial_lock(cell["id"], number)
    if lock.exists() and not locks.is_free(lock):
        return State(RUNNING, f"on this machine{_progress(trial, cell)}")
    if earlier is None:
        return State(UNKNOWN, "Slurm cannot be asked")
    if trial.job.exists():
        return State(LOST, "its processes are gone, and left no result")
    return State(ABSENT)


def _stopped(paths: CellPaths, cell: Mapping[str, Any]) -> Stopped | None:
    """How a cell stopped early, None where it did not; its results are read for that only where it could."""
    if not has_rule(cell["config"]):
        return None
    found = {number: (trial, results.read_result(trial)) for number, trial in paths.trials()}
    known = {number: (trial, result) for number, (trial, result) in found.items() if result is not None}
    return stopped(cell["config"], settled(known, cell["config"]))


def _progress(trial: TrialPaths, cell: Mapping[str, Any]) -> str:
    """How far the rank is that came least far."""
    world = cell["config"]["world"]
    places = [position(trial.progress(rank)) for rank in range(world["nodes"] * world["nproc_per_node"])]
    known = [place for place in places if place is not None]
    return f", {min(known, key=lambda place: place.order).words}" if known and len(known) == len(places) else ""


def _line(states: Sequence[State]) -> str:
    if len(states) == 1:
        return f"{states[0].word}{f' ({states[0].detail})' if states[0].detail else ''}"
    counted = Counter(state.word for state in states)
    words = sorted(counted, key=lambda word: ORDER.index(word) if word in ORDER else len(ORDER))
    details = [f"trial {n}: {state.detail}" for n, state in enumerate(states) if state.word in (RUNNING, LOST)]
    return ", ".join(f"{counted[word]} {word}" for word in words) + (f" ({'; '.join(details)})" if details else "")


def _label(cell: Mapping[str, Any]) -> str:
    return " ".join(f"{key}={value}" for key, value in cell["overrides"].items()) or str(cell["slug"])


def _asked(sweep: SweepPaths) -> Earlier | None:
    """What the sweep has with Slurm; None, and a line that says so, where Slurm cannot be asked."""
    try:
        return Earlier(sweep)
    except (AwayError, ClusterError) as error:
        print(f"detsweep: Slurm cannot be asked ({error}): what it has of this sweep is not known", file=sys.stderr)
        return None


def _cancel(earlier: Earlier | None) -> int:
    if earlier is None:
        return NO_SWEEP
    living = [job.id for job in earlier.jobs() if job.alive]
    cancel(living)
    print(f"cancelled: {', '.join(compressed(living))}" if living else "nothing of this sweep is with Slurm")
    return 0


def _follow(sweep: SweepPaths) -> int:
    """Give the last command on this folder again, where it was given."""
    try:
        session = read_json(sweep.sweep)["sessions"][-1]
        arguments, where = list(session["arguments"]), str(session["cwd"])
    except (KeyError, IndexError, TypeError):
        raise FileError(f"{sweep.sweep} has no command that could be given again") from None
    try:
        os.chdir(where)
    except OSError as error:
        raise FileError(f"{where}, where the command was given: {error.strerror}; give it by hand") from None
    from detsweep.app import again
    from detsweep.app import main as sweep_main

    replaced = ("folder=", "hydra.run.dir=", "hydra.sweep.dir=", "launch.detach=")
    sys.argv = ["detsweep", *again(arguments, str(sweep.folder), replaced)]
    return sweep_main()


if __name__ == "__main__":
    sys.exit(main())
