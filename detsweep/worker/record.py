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
from detsweep.worker.parted import PartedError
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
    keep, steps = config["record"]["keep"], config["steps"]
    try:
        yield from _steps(step, config, recorder)
    except BaseException as error:
        recorder.note(f"recording ended by {type(error).__name__}: {error}")
        raise
    else:
        if keep is not None and recorder.on:
            recorder.keep_nothing(f"nothing went wrong in {steps} steps, so that nothing is kept (record.keep)")
    finally:
        recorder.close()


def _steps(step: TrainingStep, config: Mapping[str, Any], recorder: Recorder) -> Iterator[Done]:
    wanted, steps = config["record"], config["steps"]
    window = range(wanted["first"], steps if wanted["last"] is None else wanted["last"] + 1)
    plain = plain_steps(step, Snapshot.take(step.model, step.device, step.optimizer), steps)
    noticed = Noticed(wanted["spike"], step.device)
    for number in range(steps):
        runs = _repeated(step, number, config["runs"], recorder if number in window else None)
        if number in window and noticed.first is None:
            reason = noticed.look([run.stream for run in runs], float(step.loss), step.model)
            if reason is not None and wanted["keep"] is not None:
                recorder.note(f"{reason}: the last steps up to {number} are kept")
                recorder.stop()
            elif reason is not None:
                recorder.note(reason)
        yield Done(tuple(runs), plain if number == 0 else ())


def _repeated(step: TrainingStep, number: int, runs: int, recorder: Recorder | None) -> list[TimedRun]:
    """All runs of a step from one state, the first one recorded, and then what the first one left."""
    start = Snapshot.take(step.model, step.device, step.optimizer) if runs > 1 else None
    done = [step.observed(number, 1) if recorder is None else _recorded(step, number, recorder)]
    if start is not None:
        end = Snapshot.take(step.model, step.device, step.optimizer)
        for run in range(2, runs + 1):
            start.restore()
            done.append(step.observed(number, run))
        end.restore()
    return done


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
            try:
                with through(step, player.batch), player.step(recorded):
                    runs.append(step.observed(number, run))
            except PartedError as parted:
                # In the middle of a step there is no way back, and no run after it that would mean anything.
                raise RuntimeError(
                    f"r{run} of step {number}, fed what r1 received, goes another way by its own compute: {parted}"
                ) from parted
        end.restore()
        yield Done(tuple(runs), plain if number == 0 else ())
    for line in (one.words for one in player.mismatches[:1]):
        recorder.note(f"fed what r1 received, the first collective to be given something else: {line}")
    recorder.close()


def _recorded(step: TrainingStep, number: int, recorder: Recorder) -> TimedRun:
    with through(step, recorder.batch), recorder.step(number, step.model, step.optimizer):
        done = step.observed(number, 1)
        recorder.seal(done.stream)
    return done


@contextmanager
def through(step: TrainingStep, fed: Callable[[int, Batch], Batch]) -> Iterator[None]:
    """Data of the step pass through `fed` inside this context."""
    step.fed = fed
    try:
        yield
    finally:
        step.fed = None
