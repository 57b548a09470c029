"""A trial inside its job: the real launches, in an environment as Slurm makes it, on one node and on two."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from detsweep import results
from detsweep.dispatch.slurm import node as node_module
from detsweep.dispatch.slurm.node import SlurmLaunch, Task, _overruled, _Part
from detsweep.dispatch.torchrun import ALONE
from detsweep.environment import NODE_VARIABLE
from detsweep.paths import CellPaths, TrialPaths, read_json, write_json
from tests.conftest import clean_environment
from tests.dispatch.slurm.commands import Cluster, begin_attempt, names, on_path
from tests.running import eventually
from tests.support import one_cell

SMALL = ("model.num_layers=1", "warmup=0", "launch=slurm", "+env.MY_FLAG=cell")
RUN = """
import sys
from detsweep.dispatch.slurm.node import SlurmLaunch, run_on_node
print(run_on_node(SlurmLaunch(sys.argv[1], 5.0, 1)))
"""


def _trial(folder: Path, *overrides: str) -> TrialPaths:
    cell = one_cell(*SMALL, *overrides)
    trial = CellPaths(folder / f"{cell.slug}-{cell.id}").trial(0)
    write_json(trial.spec, cell.spec(0))
    return trial


def _variables(hosts: str, number: int, restart: int, path: str) -> dict[str, str]:
    """What Slurm and submitit say to a task."""
    own = {
        "SUBMITIT_EXECUTOR": "slurm", "SLURM_JOB_ID": "103", "SLURM_ARRAY_JOB_ID": "101", "SLURM_ARRAY_TASK_ID": "1",
        "SLURM_JOB_NODELIST": hosts, "SLURM_JOB_NUM_NODES": str(hosts.count(",") + 1), "SLURM_NODEID": str(number),
        "SLURM_PROCID": str(number), "SLURM_LOCALID": "0", "SLURM_RESTART_COUNT": str(restart),
        "SLURMD_NODENAME": hosts.split(",")[number], "SLURM_NTASKS": str(hosts.count(",") + 1), "PATH": path,
    }  # fmt: skip
    return {**clean_environment(), "OMP_NUM_THREADS": "64", "MY_FLAG": "shell", "NCCL_ALGO": "Tree", **own}


def _start(
    trial: TrialPaths, path: str, hosts: str = "node7", number: int = 0, restart: int = 0
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", RUN, str(trial.folder)],
        env=_variables(hosts, number, restart, path),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@dataclass(frozen=True)
class Ended:
    """A trial whose job was begun a second time, what it printed, and what a third start said after its end."""

    trial: TrialPaths
    said: str
    again: str
    unchanged: bool

    @property
    def result(self) -> dict[str, Any]:
        return read_json(self.trial.result)


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """One launch of two ranks, after a first start of the same job that a node has cost."""
    folder = tmp_path_factory.mktemp("node")
    path = on_path(Cluster(folder / "slurm").folder)
    trial = _trial(folder)
    begin_attempt(trial, "101_1.0", **{"rank000.jsonl": "half"})
    said, _ = _start(trial, path, restart=1).communicate(timeout=120)
    before = {path: path.stat().st_mtime_ns for path in trial.folder.rglob("*")}
    again, _ = _start(trial, path, restart=2).communicate(timeout=60)
    after = {path: path.stat().st_mtime_ns for path in trial.folder.rglob("*")}
    return Ended(trial, said, again, before == after)


def test_a_trial_runs_to_its_verdict_and_its_files_are_the_trials(ended: Ended) -> None:
    assert ended.said.splitlines()[-1] == "pass"
    assert results.read_result(ended.trial) == ended.result
    assert ended.result["verdict"] == "pass"
    found = names(list(ended.trial.folder.iterdir()))
    assert found == [
        ".claimed", "environment-rank000.json", "environment-rank001.json", "job.json", "log", "node000.json",
        "rank000.jsonl", "rank000.result.json", "rank001.jsonl", "rank001.result.json", "result.json", "spec.json",
    ]  # fmt: skip
    assert CellPaths(ended.trial.folder.parent).attempts(0) == []


def test_a_result_says_on_which_nodes_and_after_how_many_starts(ended: Ended) -> None:
    assert (ended.result["nodes"], ended.result["retries"], ended.result["requeues"]) == (["node7"], 1, 1)
    assert ended.result["started"] > 0


def test_what_an_earlier_start_left_is_kept_aside(ended: Ended) -> None:
    aside = ended.trial.folder.parent / "superseded" / "trial0-1"
    assert (aside / "rank000.jsonl").read_text() == "half"


def test_a_job_that_is_begun_again_after_the_end_does_nothing(ended: Ended) -> None:
    assert (ended.again.splitlines()[-1], ended.unchanged) == ("None", True)


def test_the_job_says_where_it_ran_and_in_which_environment(ended: Ended) -> None:
    job = read_json(ended.trial.job)
    assert (job["launcher"], job["job_id"], job["state"], job["restarts"]) == ("slurm", "101_1", "done", 1)
    assert job["nodes"] == [{"node": 0, "name": "node7", "ranks": [0, 1]}]
    assert job["meeting"] is None
    assert job["environment_set"]["MY_FLAG"] == "cell"
    assert job["environment_removed"]["NCCL_ALGO"] == "Tree"
    assert not any(name.startswith(("SLURM", "SUBMITIT")) for name in job["environment_removed"])


def test_what_came_with_the_jobs_environment_and_is_overruled_is_noted(ended: Ended) -> None:
    assert "MY_FLAG=shell came with the job's environment and is overruled: cell (node7)" in ended.result["notes"]
    assert read_json(ended.trial.node(0))["name"] == "node7"


def test_ranks_know_their_node_and_nothing_of_slurm(ended: Ended) -> None:
    text = ended.trial.environment(0).read_text()
    assert "node7" in text
    assert "SLURM_" not in text
    assert NODE_VARIABLE == "DETSWEEP_NODE"


def test_two_nodes_meet_and_the_first_gives_the_result(tmp_path: Path, cluster: Cluster) -> None:
    trial = _trial(tmp_path, "world.nodes=2", "world.nproc_per_node=1")
    hosts = "localhost,localhost"
    tasks = [_start(trial, os.environ["PATH"], hosts, number) for number in (1, 0)]
    said = [task.communicate(timeout=120)[0].splitlines()[-1] for task in tasks]
    assert said == ["None", "pass"]
    result, job = results.read_result(trial), read_json(trial.job)
    assert result is not None
    assert (result["verdict"], result["nodes"], len(result["ranks"])) == ("pass", ["localhost", "localhost"], 2)
    assert [place["ranks"] for place in job["nodes"]] == [[0], [1]]
    assert (job["meeting"]["address"], len(job["meeting"]["ports"])) == ("localhost", 1)
    assert [read_json(trial.node(number))["returncode"] for number in range(2)] == [0, 0]
    assert {path.name for path in trial.logs.glob("torchrun*")} == {"torchrun.log", "torchrun-node001.log"}


def test_a_stopped_job_leaves_only_when_slurm_has_it_for_ended_and_without_a_result(
    tmp_path: Path, cluster: Cluster
) -> None:
    trial = _trial(tmp_path)
    cluster.set(jobs={"103": {"name": "n", "state": "RUNNING", "nodes": "a", "detail": "", "known": True}})
    task = _start(trial, os.environ["PATH"])
    attempt = TrialPaths(trial.folder.with_name("trial0-attempt-101_1.0"))
    try:
        eventually(lambda: attempt.job.exists() or None)
        # Slurm's warning before its time limit, or a preemption, to submitit's task.
        task.send_signal(signal.SIGUSR2)
        eventually(lambda: cluster.count()["squeue"] or None)
        assert task.poll() is None
        assert read_json(attempt.node(0))["stopped"]
        cluster.become("PENDING", "103")
        said, _ = task.communicate(timeout=30)
    finally:
        task.kill()
        task.communicate()
    assert said.splitlines()[-1] == "None"
    assert not trial.result.exists()
    assert not attempt.result.exists()


# --- one part, without a launch --------------------------------------------------------------------------------------


def _part(folder: Path, *overrides: str, **config: Any) -> _Part:
    trial = _trial(folder, *overrides)
    spec = read_json(trial.spec)
    spec["config"] = {**spec["config"], **config}
    task = Task("101_1", "103", 0, 0, "node7", ("node7", "node8")[: spec["config"]["world"]["nodes"]])
    place = replace(ALONE, nodes=len(task.hosts), address="node7", ports=(15_000,)) if len(task.hosts) > 1 else ALONE
    return _Part(SlurmLaunch(str(trial.folder), 5.0, 0), task, begin_attempt(trial, "1.0"), spec, place, Event())


def test_what_is_required_and_not_in_force_is_refused_before_any_launch(tmp_path: Path) -> None:
    part = _part(tmp_path)
    required = {"env": {"NEVER_SET": "1"}, "torch": {}}
    result = replace(part, spec={**part.spec, "required": required}).run()
    assert result is not None
    assert result["verdict"] == "invalid"
    assert "NEVER_SET" in result["error"]
    assert not part.attempt.logs.exists()


@pytest.mark.parametrize(
    ("given", "asked", "expected"),
    [
        (("0", "1", "2"), (2, None), (("0", "1"), None)),
        (("4", "5"), (2, None), (("4", "5"), None)),
        (("0",), (2, None), ((), "node node7 gives the job 1 GPUs, the trial needs 2")),
        (("0", "1", "2"), (1, 2), (("2",), None)),
        (("0", "1"), (1, 2), ((), "node node7 gives the job 2 GPUs, the trial needs GPU 2")),
        ((), (1, None), ((), "node node7 gives the job 0 GPUs, the trial needs 1")),
    ],
)
def test_ranks_get_the_gpus_of_their_job_and_too_few_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: Any, asked: Any, expected: Any
) -> None:
    monkeypatch.setattr(node_module, "visible_gpus", lambda: given)
    part = _part(tmp_path, f"world.nproc_per_node={asked[0]}", device="cuda")
    part.spec["config"]["world"]["gpu"] = asked[1]
    assert part._gpus() == expected
    part.spec["config"]["device"] = "cpu"
    assert part._gpus() == ((), None)


def _said(**more: Any) -> dict[str, Any]:
    own = {"returncode": 0, "timed_out": False, "seconds": 1.0, "error": None, "name": "node7"}
    return {**own, "environment_overruled": {}, "environment_set": {}, **more}


def test_a_node_that_left_no_word_makes_the_trial_an_error(tmp_path: Path) -> None:
    part = _part(tmp_path, "world.nodes=2")
    result = part._merged({0: _said()})
    assert (result["verdict"], result["error"]) == ("error", "node node8 left no word of its end")


def test_the_limit_that_ended_one_node_ended_the_trial(tmp_path: Path) -> None:
    part = _part(tmp_path, "world.nodes=2")
    result = part._merged({0: _said(seconds=7.0), 1: _said(timed_out=True, returncode=1, seconds=9.5)})
    assert (result["verdict"], result["seconds"]) == ("timeout", 9.5)


def test_what_is_wrong_on_any_node_is_said(tmp_path: Path) -> None:
    part = _part(tmp_path, "world.nodes=2")
    both = {0: _said(error="no GPUs"), 1: _said(error="no GPUs", name="node8")}
    assert part._merged(both)["error"] == "no GPUs"


def test_ranks_that_failed_are_named_with_their_nodes(tmp_path: Path) -> None:
    part = _part(tmp_path, "world.nodes=2")
    result: Mapping[str, Any] = {"error": "rank 3 exited with 7", "error_ranks": [0, 3]}
    assert part._placed(result) == {"error": "rank 3 exited with 7 (rank 0 on node7, rank 3 on node8)"}
    assert part._placed({"error": "x", "error_ranks": []}) == {}


def test_what_is_overruled_on_several_nodes_is_one_note() -> None:
    one = _said(environment_overruled={"A": "1", "B": "2"}, environment_set={"A": "9"})
    other = _said(name="node8", environment_overruled={"A": "1"}, environment_set={"A": "9"})
    assert list(_overruled({0: one, 1: other})) == [
        "A=1 came with the job's environment and is overruled: 9 (node7, node8)",
        "B=2 came with the job's environment and is overruled: unset (node7)",
    ]
