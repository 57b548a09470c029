"""`launch=slurm`: trials become job arrays; results are read from the files first, and from Slurm, seldom, second."""

from __future__ import annotations

import secrets
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from detsweep import results
from detsweep.dispatch.pools import Trial, lost
from detsweep.dispatch.slurm import arrays, asking, attempt, submission
from detsweep.dispatch.slurm.arrays import Array, Member, key_of
from detsweep.dispatch.slurm.asking import AwayError
from detsweep.dispatch.slurm.earlier import Earlier, trial_of
from detsweep.dispatch.slurm.node import SlurmLaunch
from detsweep.dispatch.slurm.states import Fate, alive
from detsweep.dispatch.slurm.watch import Job, Voice, Watch
from detsweep.nodes import ClusterError
from detsweep.paths import CellPaths, SweepPaths, write_json
from detsweep.resources import Resources

# A look at each file that is waited for: often enough for a person, seldom enough for a network file system.
_LOOK_S = 0.5
_LOOK_S_PER_TRIAL = 0.001
_STOP_S = 1.0
_NAMED = 8


@dataclass(frozen=True)
class _Uncertain:
    """An array whose submission had no answer: it may have arrived."""

    array: Array
    trials: list[Trial]
    launches: Sequence[SlurmLaunch]
    time_min: int


class SlurmPool:
    """The trials of a sweep that are with Slurm. Raises ClusterError where the controller does not answer at first."""

    def __init__(self, sweep: SweepPaths, launch: Mapping[str, Any]) -> None:
        self._sweep = sweep
        self._retries = int(launch["retries"])
        self._ask_s = float(launch["ask_s"])
        self.width = int(launch["max_parallel"])
        self._lanes = arrays.Lanes(self.width)
        self._name = submission.name_of(sweep)
        self._jobs: dict[tuple[str, int], Job] = {}
        self._retried: dict[tuple[str, int], int] = {}
        self._ready: list[tuple[Trial, Mapping[str, Any]]] = []
        self._again: deque[Trial] = deque()
        self._own: list[Array] = []
        self._uncertain: _Uncertain | None = None
        self._looked = self._asked = time.monotonic()
        self._submit_at = 0.0
        self._voice = Voice()
        self._watch = Watch(self._voice)
        self._cancelled = False
        self._fits = 1
        self._stop_at = 0.0
        try:
            self._largest = asking.largest_array()
            self._earlier = Earlier(sweep)
        except AwayError as error:
            raise ClusterError(f"launch=slurm: Slurm does not answer ({error}); nothing was started") from None
        for array in self._earlier.absent:
            sweep.array(array.number).unlink(missing_ok=True)
        self._number = max((array.number for array in self._earlier.arrays), default=0)
        # Not all of these need be this command's: those of other cells have no trial here.
        self._before: set[str] = set()
        for array, count in self._earlier.living():
            assert array.job is not None
            self._lanes.give(array.lanes, count, array.job)
            self._before.add(array.job)

    @property
    def running(self) -> list[Trial]:
        """Trials that are with Slurm, are to be submitted again, or have an end that was not yet told."""
        return [*(job.trial for job in self._jobs.values()), *self._again, *(trial for trial, _ in self._ready)]

    def adopt(self, trial: Trial) -> bool:
        """Whether a job of an earlier command has this trial, or has just brought it to its end."""
        job = self._earlier.job_of(*key_of(trial))
        if job is None:
            return False
        if not job.alive:
            attempt.recover(trial.paths)
            if not trial.paths.result.exists():
                return False
        self._jobs[key_of(trial)] = Job(trial, job.id, job.retry)
        return True

    def launch(self, queue: deque[Trial]) -> list[Trial]:
        """Submit the whole queue, as one array for each group of equal resources; none while Slurm is away."""
        if not queue or time.monotonic() < self._submit_at:
            return []
        try:
            self._settle()
        except AwayError as error:
            self._voice.say(f"Slurm does not answer ({error}): waiting for it; what runs goes on")
            self._submit_at = time.monotonic() + self._ask_s
            return []
        # What arrived without an answer may stand in this queue or in the one of trials that are given again.
        taken = [trial for trial in queue if key_of(trial) in self._jobs]
        waiting = [trial for trial in queue if key_of(trial) not in self._jobs]
        queue.clear()
        for resources, trials in arrays.grouped(waiting, self._largest):
            try:
                self._submit(resources, trials)
            except submission.RefusedError as error:
                self._sweep.array(self._number).unlink(missing_ok=True)
                self._ready += [(trial, self._give(trial, Fate("error", str(error)), None)) for trial in trials]
            except submission.FullError as error:
                self._sweep.array(self._number).unlink(missing_ok=True)
                self._make_room(len(trials), error)
                break
            except AwayError as error:
                self._voice.say(f"{error}; it is tried again")
                self._submit_at = time.monotonic() + self._ask_s
                break
            self._fits = len(trials)
            taken += trials
        if ids := [self._jobs[key].id for trial in taken if (key := key_of(trial)) in self._jobs]:
            jobs = asking.compressed(ids)
            some = " ".join(jobs[:_NAMED]) + (f" ... ({len(jobs)} in all)" if len(jobs) > _NAMED else "")
            count = "1 trial" if len(ids) == 1 else f"{len(ids)} trials"
            print(f"with Slurm: {count}, {some}")
        left = {key_of(trial) for trial in taken}
        queue.extend(trial for trial in waiting if key_of(trial) not in left)
        return taken

    def _make_room(self, trials: int, error: submission.FullError) -> None:
        """Slurm has as many jobs of this user as it takes: next time fewer, and where not even one, later."""
        if trials > 1:
            self._largest = trials // 2
            return
        self._voice.say(f"{error}: the rest is submitted as others end")
        self._largest = self._fits
        self._submit_at = time.monotonic() + self._ask_s

    def _submit(self, resources: Resources, trials: list[Trial]) -> None:
        living = self._before | {job.id.partition("_")[0] for job in self._jobs.values()}
        place = self._lanes.take(len(trials), lambda array: array not in living)
        members = arrays.members_of(trials, self._retried)
        self._number += 1
        array = Array(self._number, f"{self._name}-{self._number}.{secrets.token_hex(3)}", None, place.lanes, members)
        array.write(self._sweep)
        launches = [
            SlurmLaunch(str(trial.paths.folder), float(trial.cell.config["launch"]["timeout_min"]), member.retry)
            for trial, member in zip(trials, members, strict=True)
        ]
        try:
            array = submission.submit(self._sweep, array, resources, launches, place.after)
        except AwayError:
            self._uncertain = _Uncertain(array, trials, launches, resources.time_min)
            raise
        self._with_slurm(array, trials)

    def _with_slurm(self, array: Array, trials: list[Trial]) -> None:
        assert array.job is not None
        self._lanes.give(array.lanes, len(trials), array.job)
        self._own.append(array)
        for index, (trial, member) in enumerate(zip(trials, array.members, strict=True)):
            self._jobs[key_of(trial)] = Job(trial, array.element(index), member.retry)

    def _settle(self) -> None:
        """See whether the array whose submission had no answer arrived all the same: its trials are with Slurm then.

        Raises AwayError where the controller still does not answer.
        """
        uncertain = self._uncertain
        if uncertain is None:
            return
        job = next((job for job, one in asking.queue().items() if one.name == uncertain.array.name), None)
        self._uncertain = None
        if job is None:
            self._sweep.array(uncertain.array.number).unlink(missing_ok=True)
            return
        array = replace(uncertain.array, job=job.partition("_")[0])
        array.write(self._sweep)
        submission.restore_pickles(self._sweep, array, uncertain.launches, uncertain.time_min)
        self._with_slurm(array, uncertain.trials)

    def finished(self) -> list[tuple[Trial, Mapping[str, Any]]]:
        """The trials that have ended since the last call, each with its result."""
        now = time.monotonic()
        ended, self._ready = self._ready, []
        if now - self._looked >= max(_LOOK_S, len(self._jobs) * _LOOK_S_PER_TRIAL):
            self._looked = now
            ended += self._with_results()
        if self._jobs and now - self._asked >= self._ask_s:
            self._asked = now
            ended += self._judge()
        if self._again:
            self.launch(self._again)
        return ended

    def _with_results(self) -> Iterator[tuple[Trial, Mapping[str, Any]]]:
        for key, job in list(self._jobs.items()):
            if job.trial.paths.result.exists() and (result := results.read_result(job.trial.paths)) is not None:
                del self._jobs[key]
                yield job.trial, result

    def _judge(self) -> Iterator[tuple[Trial, Mapping[str, Any]]]:
        """Trials whose jobs came to an end without a result; those that infrastructure has cost are submitted again."""
        try:
            queue = asking.queue()
        except AwayError as error:
            self._voice.say(f"Slurm does not answer ({error}): waiting for it; what runs goes on")
            return
        self._voice.unsay("Slurm does not answer", "Slurm answers again")
        self._before &= {job.partition("_")[0] for job, element in queue.items() if alive(element)}
        for job, end in self._watch.ended(queue, list(self._jobs.values())):
            if not end.infrastructure or job.retry >= self._retries:
                del self._jobs[key_of(job.trial)]
                yield job.trial, self._give(job.trial, end, job)
            elif attempt.claim_for_driver(job.trial.paths):
                # Else an attempt of it publishes just now.
                del self._jobs[key_of(job.trial)]
                self._submit_again(job, end)

    def _submit_again(self, job: Job, end: Fate) -> None:
        trial = job.trial
        number = job.retry + 1
        self._retried[key_of(trial)] = number
        name = f"{trial.cell.label} trial {trial.number}"
        print(f"detsweep: {name}: {end.text}: submitted again ({number} of {self._retries})", file=sys.stderr)
        CellPaths(trial.paths.folder.parent).set_aside(trial.number)
        write_json(trial.paths.spec, trial.cell.spec(trial.number))
        self._again.append(trial)

    def _give(self, trial: Trial, end: Fate, job: Job | None) -> Mapping[str, Any]:
        """The result of a trial that left none; unless one of its attempts is just about to give it after all."""
        log = self._sweep.job_log(job.id) if job is not None else self._sweep.jobs
        begun = attempt.newest(trial.paths, trial.number) is not None
        if job is not None and not begun and not log.exists() and not end.infrastructure:
            end = replace(end, text=f"{end.text} (nor a log: do the nodes share {self._sweep.folder}?)")
        result = {**lost(trial, end.verdict, end.text, log), "retries": job.retry if job else 0}
        if attempt.claim_for_driver(trial.paths):
            write_json(trial.paths.result, result)
        return results.read_result(trial.paths) or result

    def stop(self, *, kill: bool) -> bool:
        """Cancel the jobs of this pool, by their ids; whether the controller has none of them any more."""
        del kill
        if not self._jobs and self._uncertain is None:
            return True
        if time.monotonic() < self._stop_at:
            return False
        self._stop_at = time.monotonic() + _STOP_S
        try:
            self._settle()
            if not self._cancelled:
                asking.cancel(job.id for job in self._jobs.values())
                self._cancelled = True
            queue = asking.queue()
        except AwayError as error:
            self._voice.say(f"{error}")
            return False
        return not any(alive(queue.get(job.id)) for job in self._jobs.values())

    def describe_left(self) -> str:
        """The jobs that were not seen to end, as scancel takes them."""
        return f"scancel {' '.join(asking.compressed(job.id for job in self._jobs.values()))}"

    def clear(self) -> None:
        """Remove the files of arrays that are over, and what submitit kept for them."""
        living, folders = [array for array, _ in self._earlier.living()], self._sweep.cell_folders()
        over = [
            array
            for array in (*self._earlier.arrays, *self._own)
            if array not in living or all(self._has_result(member, folders) for member in array.members)
        ]
        submission.clear(self._sweep, over)

    def _has_result(self, member: Member, folders: Mapping[str, Path]) -> bool:
        return trial_of(self._sweep, folders, member.cell, member.trial).result.exists()
