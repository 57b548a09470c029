"""What earlier commands on a sweep's folder have with Slurm: found by the files of their arrays, and by names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from detsweep.dispatch.slurm import asking
from detsweep.dispatch.slurm.arrays import Array, read_arrays
from detsweep.dispatch.slurm.asking import AwayError, Element
from detsweep.dispatch.slurm.node import SlurmLaunch
from detsweep.dispatch.slurm.states import alive
from detsweep.dispatch.slurm.submission import restore_pickles
from detsweep.nodes import ClusterError
from detsweep.paths import SweepPaths, TrialPaths, read_json
from detsweep.resources import MARGIN_MIN


@dataclass(frozen=True)
class Job:
    """The job of one trial: its id, how often the trial was submitted again before, and what Slurm says of it.

    `element` is None where the controller does not know it: it ended a while ago.
    """

    id: str
    retry: int
    element: Element | None

    @property
    def alive(self) -> bool:
        """Whether it waits or runs."""
        return alive(self.element)


class Earlier:
    """The arrays of a sweep's folder, and the last job of each trial in them; `absent`: those that Slurm never got.

    Raises AwayError where there are arrays and the controller does not answer, FileError where a file of theirs cannot
    be read.
    """

    def __init__(self, sweep: SweepPaths) -> None:
        self._sweep = sweep
        self._folders = sweep.cell_folders()
        self.absent: list[Array] = []
        arrays = list(read_arrays(sweep))
        queue = asking.queue() if arrays else {}
        self.arrays = [found for array in arrays if (found := self._with_job(array, queue)) is not None]
        self._jobs: dict[tuple[str, int], Job] = {}
        for array in self.arrays:
            for index, member in enumerate(array.members):
                job = array.element(index)
                self._jobs[member.cell, member.trial] = Job(job, member.retry, queue.get(job))

    def job_of(self, cell: str, trial: int) -> Job | None:
        """The last job that a trial was given; None where it was given none."""
        return self._jobs.get((cell, trial))

    def living(self) -> list[tuple[Array, int]]:
        """The arrays of which something waits or runs, and how many trials of each do."""
        counted = (
            (array, sum(self._living(array, index) for index in range(len(array.members)))) for array in self.arrays
        )
        return [(array, count) for array, count in counted if count]

    def jobs(self) -> Iterable[Job]:
        """The last job of each trial."""
        return self._jobs.values()

    def _living(self, array: Array, index: int) -> bool:
        member = array.members[index]
        job = self._jobs[member.cell, member.trial]
        return job.id == array.element(index) and job.alive

    def _with_job(self, array: Array, queue: dict[str, Element]) -> Array | None:
        """An array with its job's id; None where Slurm never got it.

        A driver can die between sbatch's return and the note of it; the name that the array was given tells its job.
        """
        if array.job is not None:
            return array
        found = {job for job, element in queue.items() if element.name == array.name}
        if not found:
            try:
                found = set(asking.accounting((), names=(array.name,)))
            except AwayError:
                found = set()
        if not found:
            # Perhaps its driver lives, and is just about to submit it: whoever has the sweep's lock knows that it died.
            self.absent.append(array)
            return None
        adopted = replace(array, job=min(found, key=lambda job: int(job.partition("_")[0])).partition("_")[0])
        adopted.write(self._sweep)
        self._restore(adopted)
        return adopted

    def _restore(self, array: Array) -> None:
        launches = []
        for member in array.members:
            trial = trial_of(self._sweep, self._folders, member.cell, member.trial)
            limit = float(read_json(trial.spec)["timeout_min"])
            launches.append(SlurmLaunch(str(trial.folder), limit, member.retry))
        restore_pickles(self._sweep, array, launches, int(launches[0].timeout_min) + MARGIN_MIN)


def trial_of(sweep: SweepPaths, folders: Mapping[str, Path], cell: str, number: int) -> TrialPaths:
    """The folder of a trial, by its cell's id; `folders`: those of all cells."""
    return sweep.cell("", cell, folders).trial(number)


def under_way(sweep: SweepPaths) -> str:
    """What of a sweep Slurm still has, in words; empty where it has nothing.

    Raises FileError where a file of its arrays cannot be read.
    """
    folders = sweep.cell_folders()
    waiting = [
        member
        for array in read_arrays(sweep)
        for member in array.members
        if not trial_of(sweep, folders, member.cell, member.trial).result.exists()
    ]
    if not waiting:
        return ""
    try:
        living = [job.id for job in Earlier(sweep).jobs() if job.alive]
    except (AwayError, ClusterError) as error:
        return f"perhaps {len(waiting)} trials (it cannot be asked: {error})"
    return f"{len(living)} jobs ({', '.join(asking.compressed(living))})" if living else ""
