"""Modes `replay`, `relaunch` and `lockstep`: the same step several times from one snapshot in one process.

Whether runs, launches or ranks are held against each other is decided later, from the streams.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from detsweep.worker.snapshot import Snapshot
from detsweep.worker.step import TimedRun, TrainingStep


@dataclass(frozen=True)
class Done:
    """Observed runs that belong together, and the times of the same work with nothing observed."""

    runs: tuple[TimedRun, ...]
    plain_milliseconds: tuple[float, ...]


def warm_up(step: TrainingStep, passes: int) -> None:
    """Run the step `passes` times unobserved and leave the model and random state as they were."""
    snapshot = Snapshot.take(step.model, step.device, step.optimizer)
    for number in range(passes):
        step.progress.phase(f"warm-up {number + 1} of {passes}")
        step.plain(0)
        snapshot.restore()


def replay(step: TrainingStep, steps: int, runs: int, *, cold: bool, plain_steps: int) -> Iterator[Done]:
    """Snapshot, run, restore, run again; `runs` times for each of `steps` steps.

    There is no optimizer step: every step starts from the same parameters with data of its own, so more steps are
    more chances to differ.

    The control arm of the first `plain_steps` steps, a plain run before them and one after them, is unobserved and only
    timed: two, so that a machine that still warms up or drifts does not favour one side. With `cold` the first step has
    only the one after them: its r1 is the very first execution of the model.
    """
    for number in range(steps):
        snapshot = Snapshot.take(step.model, step.device)
        plain = []
        if number < plain_steps and not (cold and number == 0):
            step.progress.run(number, 0, f"plain run of step {number}")
            plain.append(step.plain(number))
        done = []
        for run in range(1, runs + 1):
            drops = step.faults.drops_random_state(number, run, moved=snapshot.random_moved())
            snapshot.restore(random=not drops)
            done.append(step.observed(number, run))
        snapshot.restore()
        if number < plain_steps:
            step.progress.run(number, runs + 1, f"plain run after step {number}")
            plain.append(step.plain(number))
            snapshot.restore()
        yield Done(tuple(done), tuple(plain))
