"""What Slurm says of jobs that have no result: which are over and why, and which wait for what may not come."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from detsweep.dispatch.pools import Trial
from detsweep.dispatch.slurm import asking, attempt
from detsweep.dispatch.slurm.asking import AwayError, Element
from detsweep.dispatch.slurm.states import Fate, alive, fate
from detsweep.nodes import ClusterError, nodes_of

# Reasons of a job that waits for its turn; any other may last, and is said (squeue(1), JOB REASON CODES).
_TURN = ("", "None", "BeginTime", "Cleaning", "Dependency", "JobArrayTaskLimit", "Priority", "Prolog", "Resources")


@dataclass(frozen=True)
class Job:
    """A trial that is with Slurm, the id of its job, and how often it was submitted again before."""

    trial: Trial
    id: str
    retry: int


class Voice:
    """Lines for the user, each said once."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def say(self, text: str) -> None:
        """Say something that was not said before."""
        if text not in self._said:
            self._said.add(text)
            print(f"detsweep: {text}", file=sys.stderr)

    def unsay(self, beginning: str, text: str) -> None:
        """What begins so is over: say that, where it was said, and it may be said anew."""
        over = {one for one in self._said if one.startswith(beginning)}
        if over:
            self._said -= over
            print(f"detsweep: {text}", file=sys.stderr)


class Watch:
    """Asks the controller for all jobs at once, and accounting for those alone that it has forgotten."""

    def __init__(self, voice: Voice) -> None:
        self._voice = voice
        self._over: set[str] = set()
        self._away: set[str] = set()

    def ended(self, queue: Mapping[str, Element], jobs: Sequence[Job]) -> list[tuple[Job, Fate]]:
        """The jobs that came to an end without a result, and what that means; `queue` is what the controller says.

        What is over must have been over at the last look too: a job that is requeued shows an end for a moment, and the
        files of one that has just ended may not be seen here yet.
        """
        over = [job for job in jobs if not alive(queue.get(job.id))]
        decided = [job for job in over if job.id in self._over]
        self._over = {job.id for job in over}
        unknown = [job.id for job in decided if job.id not in queue]
        known = {**(self._accounting(unknown) if unknown else {}), **queue}
        ends = []
        for job in decided:
            attempt.recover(job.trial.paths)
            # With a result it is seen at the next look at the files.
            if not job.trial.paths.result.exists():
                element = known.get(job.id)
                ends.append((job, fate(job.id, None if alive(element) else element)))
        return [*ends, *self._without_their_node(queue, jobs)]

    def _accounting(self, jobs: list[str]) -> dict[str, Element]:
        try:
            return asking.accounting(jobs)
        except AwayError as error:
            self._voice.say(f"accounting cannot be asked ({error}): what the controller has forgotten counts as lost")
            return {}

    def _without_their_node(self, queue: Mapping[str, Element], jobs: Sequence[Job]) -> Iterator[tuple[Job, Fate]]:
        """Jobs that wait for the one node that they are pinned to, which takes none: they are cancelled.

        Of all others that wait for more than their turn the reason is said.
        """
        waiting = [(job, queue[job.id].detail) for job in jobs if job.id in queue and queue[job.id].state == "PENDING"]
        waiting = [(job, reason) for job, reason in waiting if reason not in _TURN]
        pinned = {job.id: job.trial.cell.config["world"]["node"] for job, _ in waiting}
        away = self._nodes_away(waiting[0][0]) if any(pinned.values()) else {}
        before, self._away = self._away, {job.id for job, _ in waiting if pinned[job.id] in away}
        said: dict[str, list[str]] = {}
        for job, reason in waiting:
            if job.id in before & self._away:
                try:
                    asking.cancel([job.id])
                except AwayError:
                    continue
                node = pinned[job.id]
                yield job, Fate("error", f"node {node} is {away[node]}: job {job.id} waited for it, and was cancelled")
            elif job.id not in self._away:
                said.setdefault(reason, []).append(job.id)
        for reason, ids in said.items():
            self._voice.say(f"Slurm does not start {', '.join(asking.compressed(ids)[:4])}: {reason}; still waiting")

    @staticmethod
    def _nodes_away(job: Job) -> dict[str, str]:
        try:
            nodes = nodes_of(job.trial.cell.config["launch"]["partition"])
        except ClusterError:
            return {}
        return {node.name: node.away for node in nodes if node.away is not None}
