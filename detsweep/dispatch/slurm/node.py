"""A trial on one node of a job: torchrun for the ranks of this node, and on the first node the result of all.

This runs inside the submitit task, one for each node, and imports neither torch nor Hydra. What the nodes have to tell
each other goes through the trial's folder, which they share.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import submitit

from detsweep import results
from detsweep.capture import SCHEMA
from detsweep.dispatch.slurm import attempt as attempts
from detsweep.dispatch.slurm.meeting import Others, host, join, own_address
from detsweep.dispatch.torchrun import Ended, Launches, Place, environment_of, stop_on_signals
from detsweep.environment import NODE_VARIABLE, ChildEnvironment, visible_gpus
from detsweep.mitigations import Settings, missing
from detsweep.nodes import plain_environment
from detsweep.paths import CellPaths, TrialPaths, read_json, write_json

_SLURM_ENDS_S = 900.0
_LOOK_S = 2.0


@dataclass(frozen=True)
class SlurmLaunch:
    """How one trial is launched: its folder, its limit in minutes, and how often it was submitted again before."""

    trial: str
    timeout_min: float
    retry: int


@dataclass(frozen=True)
class Task:
    """Where this process is: the job, how often it was begun before, and this node among those of the job."""

    job: str
    slurm_job: str
    restart: int
    number: int
    name: str
    hosts: tuple[str, ...]

    @staticmethod
    def here() -> Task:
        """From what Slurm says to this process."""
        own = submitit.JobEnvironment()
        return Task(
            job=str(own.job_id),
            slurm_job=os.environ["SLURM_JOB_ID"],
            restart=int(os.environ.get("SLURM_RESTART_COUNT", "0")),
            number=own.node,
            name=os.environ.get("SLURMD_NODENAME", own.hostname),
            hosts=tuple(own.hostnames),
        )


def run_on_node(launch: SlurmLaunch) -> str | None:
    """Run this node's part of a trial; returns its verdict on the first node, None elsewhere or when stopped."""
    stopped = stop_on_signals()
    task, trial = Task.here(), TrialPaths(Path(launch.trial))
    attempts.recover(trial)
    if trial.result.exists():
        # Started anew by Slurm in the moment after its end.
        return None
    spec, cell = read_json(trial.spec), CellPaths(trial.folder.parent)
    attempt = cell.attempt(spec["trial"], f"{task.job}.{task.restart}")
    if task.number == 0:
        place: Place | None = _begin(cell, trial, attempt, task, spec)
    else:
        nodes, limit_s = len(task.hosts), launch.timeout_min * 60
        place = join(attempt, trial, node=task.number, nodes=nodes, stopped=stopped, limit_s=limit_s)
    result = None
    if place is not None:
        result = _Part(launch, task, attempt, spec, place, stopped).run()
    if stopped.is_set():
        # Whether the job is over, or begun anew elsewhere, is Slurm's to say: leaving now would end it.
        _wait_for_slurm(task.job)
        return None
    if result is None:
        return None
    write_json(attempt.result, result)
    attempts.publish(attempt, trial)
    return str(result["verdict"])


def _begin(cell: CellPaths, trial: TrialPaths, attempt: TrialPaths, task: Task, spec: Mapping[str, Any]) -> Place:
    """Begin an attempt on the first node; where that fails the others, who wait for it, are told to leave."""
    cell.set_attempts_aside(spec["trial"], keep=attempt)
    attempt.folder.mkdir(exist_ok=True)
    try:
        shutil.copyfile(trial.spec, attempt.spec)
        return host(attempt, task.hosts, task.slurm_job, spec)
    except OSError as error:
        write_json(attempt.node(0), {"schema": SCHEMA, "node": 0, "name": task.name, "error": str(error)})
        raise


@dataclass(frozen=True)
class _Part:
    """What one node does of a trial, in the folder of this attempt."""

    launch: SlurmLaunch
    task: Task
    attempt: TrialPaths
    spec: Mapping[str, Any]
    place: Place
    stopped: threading.Event

    def run(self) -> dict[str, Any] | None:
        """Run torchrun here; returns the trial's result on the first node, None elsewhere or when stopped."""
        begun = time.time()
        gpus, error = self._gpus()
        child = environment_of(self.spec, os.environ, gpus, self.attempt)
        others = Others(self.attempt, self.place)
        absent = missing(Settings(self.spec["required"]["env"], {}), child.variables)
        job = self._job(child, gpus, begun)
        ended = Ended(1, False, False, 0.0)
        if error is None and not absent:
            ended = self._launches(child, others, job).run(self.launch.timeout_min)
        own = {"error": error, **asdict(ended), **self._node(child)}
        write_json(self.attempt.node(self.place.node), own)
        if ended.returncode != 0 and not ended.stopped:
            self.attempt.failed.touch()
        if self.place.node > 0 or ended.stopped:
            return None
        said = {0: own, **others.wait(self.stopped)}
        if self.stopped.is_set():
            return None
        for rank in range(int(self.spec["world_size"])):
            self.attempt.progress(rank).unlink(missing_ok=True)
        write_json(self.attempt.job, {**job, "state": "done", "ended": time.time()})
        result = results.refused(self.spec, absent) if absent else self._merged(said)
        return {
            **result,
            "started": begun,
            "nodes": list(self.task.hosts),
            "retries": self.launch.retry,
            "requeues": self.task.restart,
        }

    def _gpus(self) -> tuple[tuple[str, ...], str | None]:
        """The GPUs of this node's ranks, and what is wrong with what the job was given."""
        config = self.spec["config"]
        if config["device"] != "cuda":
            return (), None
        given, pinned, needed = visible_gpus(), config["world"]["gpu"], int(config["world"]["nproc_per_node"])
        chosen = given[:needed] if pinned is None else given[pinned : pinned + 1]
        if len(chosen) == needed:
            return chosen, None
        wanted = str(needed) if pinned is None else f"GPU {pinned}"
        return (), f"node {self.task.name} gives the job {len(given)} GPUs, the trial needs {wanted}"

    def _launches(self, child: ChildEnvironment, others: Others, job: dict[str, Any]) -> Launches:
        def note_start(pid: int, command: list[str]) -> None:
            job["command"] = command
            if self.place.node == 0:
                write_json(self.attempt.job, {**job, "state": "running", "agent_pid": pid})

        return Launches(
            self.attempt,
            self.spec,
            {**child.variables, NODE_VARIABLE: self.task.name},
            reasons=(self.stopped,),
            started=note_start,
            place=self.place,
            failed_elsewhere=others.failed,
        )

    def _job(self, child: ChildEnvironment, gpus: tuple[str, ...], begun: float) -> dict[str, Any]:
        each = int(self.spec["config"]["world"]["nproc_per_node"])
        return {
            "launcher": "slurm",
            "job_id": self.task.job,
            "restarts": self.task.restart,
            "retries": self.launch.retry,
            "host": os.uname().nodename,
            "nodes": [
                {"node": number, "name": name, "ranks": list(range(number * each, (number + 1) * each))}
                for number, name in enumerate(self.task.hosts)
            ],
            "meeting": {"address": self.place.address, "ports": list(self.place.ports)} if self.place.ports else None,
            "environment_set": child.changed,
            "environment_removed": child.removed,
            "environment_overruled": child.overruled,
            "gpus": list(gpus),
            "started": begun,
        }

    def _node(self, child: ChildEnvironment) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "node": self.place.node,
            "name": self.task.name,
            "host": os.uname().nodename,
            "address": own_address(self.place, self.task.hosts),
            "environment_set": child.changed,
            "environment_removed": child.removed,
            "environment_overruled": child.overruled,
        }

    def _merged(self, said: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
        """The trial's result, from what all nodes say of their end and all ranks left."""
        codes = [one["returncode"] for one in said.values()]
        absent = [name for number, name in enumerate(self.task.hosts) if number not in said]
        errors = [one["error"] for one in said.values() if one["error"]]
        errors += [f"node {name} left no word of its end" for name in absent]
        timed_out = any(one["timed_out"] for one in said.values())
        result = results.merge(
            self.attempt,
            self.spec,
            returncode=next((code for code in codes if code), 1 if errors else 0),
            timeout_min=self.launch.timeout_min if timed_out else None,
            seconds=max(one["seconds"] for one in said.values()),
        )
        result = {**result, **self._placed(result)}
        if errors and result["verdict"] != "timeout":
            result = {**result, "verdict": "error", "error": "; ".join(dict.fromkeys(errors))}
        return {**result, "notes": [*result.get("notes", ()), *_overruled(said)]}

    def _placed(self, result: Mapping[str, Any]) -> dict[str, Any]:
        """The error of ranks of several nodes, with the nodes that they are on."""
        ranks = result.get("error_ranks") or ()
        if self.place.nodes == 1 or not ranks:
            return {}
        each = int(self.spec["config"]["world"]["nproc_per_node"])
        where = ", ".join(f"rank {rank} on {self.task.hosts[rank // each]}" for rank in ranks)
        return {"error": f"{result['error']} ({where})"}


def _overruled(said: Mapping[int, Mapping[str, Any]]) -> Iterator[str]:
    """What the submitting shell, or a line of set-up, had of variables that the cell sets: each said once."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for one in said.values():
        for name, value in one["environment_overruled"].items():
            found.setdefault((name, value, one["environment_set"].get(name, "unset")), []).append(one["name"])
    for (name, had, now), nodes in found.items():
        yield f"{name}={had} came with the job's environment and is overruled: {now} ({', '.join(nodes)})"


def _wait_for_slurm(job: str) -> None:
    """Return when Slurm has the job for ended, and at the latest when nobody waits any more."""
    deadline = time.monotonic() + _SLURM_ENDS_S
    while time.monotonic() < deadline:
        words = ["squeue", "--noheader", f"--jobs={job}", "--format=%T"]
        try:
            done = subprocess.run(
                words, capture_output=True, text=True, check=False, timeout=60, env=plain_environment()
            )
        except (OSError, subprocess.TimeoutExpired):
            done = subprocess.CompletedProcess(words, 0, "RUNNING", "")
        if done.returncode == 0 and "RUNNING" not in done.stdout:
            return
        time.sleep(_LOOK_S)
