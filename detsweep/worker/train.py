"""Modes `train` and `resume`: trajectories of optimizer steps from one state, whole or with a break in the middle."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from detsweep.worker import checkpoint
from detsweep.worker.replay import Done
from detsweep.worker.snapshot import Snapshot
from detsweep.worker.step import TrainingStep

PLAIN_STEPS = 3


def train(step: TrainingStep, steps: int, runs: int) -> Iterator[Done]:
    """`runs` trajectories of `steps` steps, each from the state that is there now; yields step by step.

    A few plain steps come first, for their time alone.
    """
    snapshot = Snapshot.take(step.model, step.device, step.optimizer)
    plain = plain_steps(step, snapshot, steps)
    for run in range(1, runs + 1):
        snapshot.restore(random=not step.faults.drops_random_state(0, run))
        for number in range(steps):
            yield Done((step.observed(number, run),), plain if number == 0 else ())


def interrupted(step: TrainingStep, steps: int, middle: int, folder: Path) -> Iterator[Done]:
    """The first launch of mode `resume`: r1 from start to end, then r2 up to step `middle`, and its checkpoint."""
    snapshot = Snapshot.take(step.model, step.device, step.optimizer)
    for number in range(steps):
        yield Done((step.observed(number, 1),), ())
    snapshot.restore()
    for number in range(middle):
        yield Done((step.observed(number, 2),), ())
    assert step.optimizer is not None
    step.progress.phase("saving a checkpoint")
    checkpoint.save(folder, step.model, step.optimizer, step.device, next_step=middle)


def resumed(step: TrainingStep, steps: int, middle: int, folder: Path) -> Iterator[Done]:
    """The second launch of mode `resume`: load the checkpoint in fresh processes, then the rest of r2."""
    assert step.optimizer is not None
    plain = plain_steps(step, Snapshot.take(step.model, step.device, step.optimizer), steps)
    step.progress.phase("loading the checkpoint")
    with_random = not step.faults.drops_random_state(middle, 2)
    first = checkpoint.load(folder, step.model, step.optimizer, step.device, random=with_random)
    if first != middle:
        raise RuntimeError(f"the checkpoint is of step {first}, {middle} was saved")
    for number in range(middle, steps):
        yield Done((step.observed(number, 2),), plain if number == middle else ())


def plain_steps(step: TrainingStep, snapshot: Snapshot, steps: int) -> tuple[float, ...]:
    """Milliseconds of the first few steps with nothing observed; then everything is as in the snapshot."""
    times = []
    for number in range(min(PLAIN_STEPS, steps)):
        step.progress.run(number, 0, f"plain run of step {number}")
        times.append(step.plain(number))
    snapshot.restore()
    return tuple(times)
