"""Slurm's commands as small programs over one file of jobs, which a test edits, and a pool whose clock it moves."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from detsweep.dispatch.outstanding import outstanding
from detsweep.dispatch.pools import Trial
from detsweep.dispatch.slurm import SlurmPool, pool
from detsweep.paths import SweepPaths, TrialPaths, write_json
from detsweep.plan import Plan
from tests.support import trial_of, write_cells, write_trial

PROGRAMS = ("sbatch", "srun", "squeue", "sacct", "scancel", "scontrol", "sinfo")
AWAY = "Unable to contact slurm controller (connect failure)"
ASK_S = 15.0
PROGRAM = """#!{python} -ISs
import json, os, re, sys
from pathlib import Path

name, words, folder = Path(sys.argv[0]).name, sys.argv[1:], Path({folder!r})
state = json.loads((folder / "state.json").read_text())
jobs, text = state["jobs"], ""
if name == "sbatch" and Path(words[-1]).is_file():
    text = Path(words[-1]).read_text()
call = dict(name=name, words=words, text=text, environment=dict(os.environ))
with (folder / "calls.jsonl").open("a") as calls:
    calls.write(json.dumps(call) + "\\n")


def fail(text):
    sys.exit(f"{{name}}: error: {{text}}")


def save():
    (folder / "state.new").write_text(json.dumps(state))
    (folder / "state.new").replace(folder / "state.json")


def ids(word):
    array, _, inside = word.rstrip("]").partition("_[")
    for part in inside.split(",") if inside else []:
        first, _, last = part.partition("-")
        yield from (f"{{array}}_{{n}}" for n in range(int(first), int(last or first) + 1))
    if not inside:
        yield array


if name == "sacct":
    if state["no_accounting"]:
        fail("Slurm accounting storage is disabled")
    asked = dict(word[2:].split("=", 1) for word in words if "=" in word)
    for job, one in jobs.items():
        arrays, names = asked.get("jobs", "").split(","), asked.get("name", "").split(",")
        if job.partition("_")[0] in arrays or one["name"] in names:
            said = "CANCELLED by 1000" if one["state"] == "CANCELLED" else one["state"]
            print(job, one["name"], said, one["nodes"] or "None assigned", one["code"], sep="|")
elif name == "sinfo":
    print(state["sinfo"])
elif state["down"]:
    fail(state["down"])
elif name == "sbatch" and "--test-only" in words:
    if state["refused"]:
        fail(state["refused"])
elif name == "sbatch":
    if state["refused"]:
        fail("Batch job submission failed: " + state["refused"])
    size = re.search(r"--array=0-(\\d+)", text)
    waiting = sum(one["state"] in ("PENDING", "RUNNING") for one in jobs.values())
    if waiting + (int(size[1]) + 1 if size else 1) > state["limit"]:
        fail("Batch job submission failed: Job violates accounting/QOS policy: QOSMaxSubmitJobPerUserLimit")
    number, state["next"] = state["next"], state["next"] + 1
    called = re.search("--job-name=(.*)", text)[1]
    array = re.search(r"--array=0-(\\d+)", text)
    for job in [f"{{number}}_{{n}}" for n in range(int(array[1]) + 1)] if array else [str(number)]:
        jobs[job] = dict(name=called, state="PENDING", nodes="", detail="Priority", code="0:0", known=True)
    silent, state["silent"] = state["silent"], False
    save()
    if silent == "killed":
        os.kill(os.getpid(), 9)
    if silent:
        fail("Batch job submission failed: Socket timed out on send/recv operation")
    print("Submitted batch job", number)
elif name == "squeue":
    for job, one in jobs.items():
        if one["known"]:
            print(job, one["name"], one["state"], one["nodes"], one["detail"], sep="|")
elif name == "scontrol":
    print("MaxArraySize            =", state["largest"])
elif name == "scancel":
    named = [job for word in words for job in ids(word)]
    for job in named:
        if job in jobs:
            jobs[job]["state"] = "CANCELLED"
    save()
    if not set(named) <= jobs.keys():
        fail("Invalid job id specified")
"""


class Cluster:
    """What the programs find and did: jobs by their ids, and every call of a program with its environment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.folder.mkdir()
        self._write(
            next=101,
            jobs={},
            down="",
            silent=False,
            refused="",
            largest=1001,
            limit=10_000,
            no_accounting=False,
            sinfo="",
        )
        (folder / "calls.jsonl").touch()
        for name in PROGRAMS:
            path = folder / name
            path.write_text(PROGRAM.format(python=sys.executable, folder=str(folder)))
            path.chmod(0o755)

    def _write(self, **state: Any) -> None:
        # Whole, as a test's other threads read it.
        (self.folder / "state.mine").write_text(json.dumps(state))
        (self.folder / "state.mine").replace(self.folder / "state.json")

    @property
    def state(self) -> dict[str, Any]:
        return dict(json.loads((self.folder / "state.json").read_text()))

    def set(self, **changed: Any) -> None:
        """Change what the programs say: `down` (the text of every failure), `silent`, `refused`, `sinfo`, ..."""
        self._write(**{**self.state, **changed})

    @property
    def jobs(self) -> dict[str, dict[str, Any]]:
        return dict(self.state["jobs"])

    def become(self, state: str, *jobs: str, **more: Any) -> None:
        """Give jobs (all, where none is named) a state; `known`=False: the controller has forgotten them."""
        all_jobs = self.jobs
        for job in jobs or all_jobs:
            all_jobs[job] = {**all_jobs[job], "state": state, **more}
        self.set(jobs=all_jobs)

    def forget(self, *jobs: str) -> None:
        """Make jobs unknown to everybody."""
        self.set(jobs={job: one for job, one in self.jobs.items() if job not in (jobs or self.jobs)})

    @property
    def calls(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "calls.jsonl").read_text().splitlines()]

    def count(self) -> Counter[str]:
        """How often each program was called."""
        return Counter(call["name"] for call in self.calls)

    def submitted(self) -> list[dict[str, Any]]:
        """The calls of sbatch that were given a script."""
        return [call for call in self.calls if call["text"]]

    def cancelled(self) -> list[str]:
        """The words that scancel was given, in all its calls."""
        return [word for call in self.calls if call["name"] == "scancel" for word in call["words"]]


@dataclass
class Clock:
    """Time as a test has it pass."""

    now: float = 1000.0

    def monotonic(self) -> float:
        return self.now


@dataclass
class Driver:
    """A sweep in a folder and its pool, as a command has them; the loop's part is done by `step`."""

    plan: Plan
    sweep: SweepPaths
    clock: Clock
    retries: int = 1
    max_parallel: int = 16
    ended: dict[tuple[str, int], Mapping[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        launch = {"retries": self.retries, "ask_s": ASK_S, "max_parallel": self.max_parallel}
        self.pool = SlurmPool(self.sweep, launch)
        self.queue: deque[Trial] = deque(outstanding(self.plan, self.sweep, self.pool))

    def step(self, times: int = 1, seconds: float = ASK_S + 1) -> None:
        """What the loop does, after so much time, so often."""
        for _ in range(times):
            self.clock.now += seconds
            self.pool.launch(self.queue)
            for trial, result in self.pool.finished():
                self.ended[trial.cell.overrides["seed"], trial.number] = result

    def trial(self, place: int = 0, number: int = 0) -> TrialPaths:
        """The folder of a trial of the cell in that place."""
        return trial_of(self.sweep, self.plan.cells[place], number)

    def finish(self, *places: int, number: int = 0) -> None:
        """Let trials of these cells have their results, as their jobs would write them."""
        for place in places:
            write_trial(self.trial(place, number), self.plan.cells[place], number)

    def verdicts(self) -> dict[str, str]:
        """The verdicts of the first trials that have ended, by seed."""
        return {seed: str(result["verdict"]) for (seed, number), result in self.ended.items() if number == 0}

    def again(self, plan: Plan | None = None, **more: Any) -> Driver:
        """The next command on this folder."""
        own = {"retries": self.retries, "max_parallel": self.max_parallel, **more}
        return Driver(plan or self.plan, self.sweep, self.clock, **own)


def driver(plan: Plan, folder: Path, monkeypatch: pytest.MonkeyPatch, **more: Any) -> Driver:
    """A first command on a new folder, in a time of its own."""
    clock = Clock()
    monkeypatch.setattr(pool, "time", SimpleNamespace(monotonic=clock.monotonic))
    sweep = write_cells(folder, plan)
    sweep.jobs.mkdir(exist_ok=True)
    return Driver(plan, sweep, clock, **more)


def begin_attempt(trial: TrialPaths, name: str, **files: str) -> TrialPaths:
    """An attempt as a node begins it, with these files in it."""
    attempt = TrialPaths(trial.folder.with_name(f"{trial.folder.name}-attempt-{name}"))
    write_json(attempt.spec, {})
    for file, text in files.items():
        (attempt.folder / file).write_text(text)
    return attempt


def names(paths: Sequence[Path]) -> list[str]:
    """The names of files, in order."""
    return sorted(path.name for path in paths)


def on_path(folder: Path) -> str:
    """PATH with the programs of a cluster before all others."""
    return f"{folder}{os.pathsep}{os.environ['PATH']}"
