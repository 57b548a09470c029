"""Modes `record` and `playback`: steps whose collectives are kept, and runs that are given what was kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist

from detsweep import modes
from detsweep.paths import RecordingPaths
from detsweep.recording import open_rank
from detsweep.worker.noticed import Noticed
from detsweep.worker.player import Player
from detsweep.worker.recorder import Recorder
from detsweep.worker.replay import Done
from detsweep.worker.snapshot import Snapshot
from detsweep.worker.step import Batch, TimedRun, TrainingStep
from detsweep.worker.train import plain_steps


def record(step: TrainingStep, config: Mapping[str, Any], recorder: Recorder) -> Iterator[Done]:
    """Every step once, recorded where it is in the window; with more `runs` each is repeated at once and compared.

    What the recorded run left is what the next step begins with. A recording that is kept only when something went
    wrong ends with the step in which it did, on every rank.
    """
    wanted, steps = config["record"], config["steps"]
    last = steps - 1 if wanted["last"] is None else wanted["last"]
    plain = plain_steps(step, Snapshot.take(step.model, step.device, step.optimizer), steps)
    noticed = Noticed(wanted["spike"], step.device)
    for number in range(steps):
        start = Snapshot.take(step.model, step.device, step.optimizer) if config["runs"] > 1 else None
        recorded = wanted["first"] <= number <= last
        runs = [_recorded(step, number, recorder) if recorded else step.observed(number, 1)]
        if start is not None:
            end = Snapshot.take(step.model, step.device, step.optimizer)
            for run in range(2, config["runs"] + 1):
                start.restore()
                runs.append(step.observed(number, run))
            end.restore()
        if noticed.first is None and (
            reason := noticed.look([run.stream for run in runs], float(step.loss), step.model)
        ):
            kept = "" if wanted["keep"] is None else f": the last steps up to {number} are kept"
            recorder.note(f"{reason}{kept}")
            if kept:
                recorder.stop()
        yield Done(tuple(runs), plain if number == 0 else ())
    if wanted["keep"] is not None and recorder.on:
        recorder.keep_nothing(f"nothing went wrong in {steps} steps, so that nothing is kept (record.keep)")
    recorder.close()


def playback(
    step: TrainingStep, config: Mapping[str, Any], recorder: Recorder, player: Player, recording: RecordingPaths
) -> Iterator[Done]:
    """Each step recorded as r1; of the other runs from the same state every second is fed, the others are live."""
    plain = plain_steps(step, Snapshot.take(step.model, step.device, step.optimizer), config["steps"])
    for number in range(config["steps"]):
        start = Snapshot.take(step.model, step.device, step.optimizer)
        runs = [_recorded(step, number, recorder)]
        end = Snapshot.take(step.model, step.device, step.optimizer)
        if not recorder.on:
            raise RuntimeError(f"mode=playback: {'; '.join(recorder.notes)}")
        for run in range(2, config["runs"] + 1):
            start.restore()
            if not modes.fed(config, run):
                runs.append(step.observed(number, run))
                continue
            recorded = open_rank(recording, dist.get_rank()).step(number)
            with through(step, player.batch), player.step(recorded):
                runs.append(step.observed(number, run))
        end.restore()
        yield Done(tuple(runs), plain if number == 0 else ())
    for line in (one.words for one in player.mismatches[:1]):
        recorder.note(f"first to be given other bits than in r1: {line}")
    recorder.close()


def _recorded(step: TrainingStep, number: int, recorder: Recorder) -> TimedRun:
    with through(step, recorder.batch), recorder.step(number, step.model, step.optimizer):
        return step.observed(number, 1)


@contextmanager
def through(step: TrainingStep, fed: Callable[[int, Batch], Batch]) -> Iterator[None]:
    """Data of the step pass through `fed` inside this context."""
    step.fed = fed
    try:
        yield
    finally:
        step.fed = None
