"""A sweep through the faults of a real cluster: the right verdict, nothing lost, nothing run twice, and it is said.

What waits runs side by side: a class of faults is one fixture, in which several sweeps are on several nodes.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import detsweep as package
from detsweep.failures import position
from tests.cluster import accounted, ask, cluster, jobs_of, needs_cluster
from tests.running import Driver, eventually

pytestmark = [pytest.mark.slurm, needs_cluster]
# Long enough to be hit in its middle, and cheap: ranks that do nothing take no processor from the others.
LONG = ("steps=600", "model.num_layers=1", "world.nproc_per_node=1")
SLURM = ("launch=slurm", "launch.ask_s=2", "launch.cpus_per_node=4")
Start = Callable[..., Driver]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Start a sweep on the cluster; what is left of it at the end is cancelled."""
    drivers: list[Driver] = []

    def begin(*words: str, folder: Path | None = None) -> Driver:
        driver = Driver(folder or tmp_path_factory.mktemp("faults") / "runs")
        drivers.append(driver)
        driver.start(*words, *SLURM)
        return driver

    yield begin
    for driver in drivers:
        driver.kill()
        if left := jobs_of(driver.folder):
            subprocess.run(["scancel", *left], check=False)


def _computing(driver: Driver) -> dict[int, int]:
    """Pids of ranks that are in the middle of a trial, by rank; waits for one at least."""

    def look() -> dict[int, int] | None:
        assert driver.process.poll() is None, driver.process.communicate()[0]
        paths = driver.folder.glob("cells/*/trial0-attempt-*/rank*.progress")
        places = {int(path.name[4:7]): position(path) for path in paths}
        return {rank: place.pid for rank, place in places.items() if place is not None and place.run > 0} or None

    return eventually(look)


def _only(driver: Driver) -> dict[str, Any]:
    (result,) = driver.results()
    return result


def _node(driver: Driver) -> str:
    (job,) = [job for job, state in jobs_of(driver.folder).items() if state == "RUNNING"]
    return ask("squeue", "-h", "-j", job, "-o", "%N")[0]


def _over(driver: Driver, patience_s: float = 150.0) -> int:
    driver.out, _ = driver.process.communicate(timeout=patience_s)
    return driver.process.returncode


# --- nodes that fail --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def crashed(start: Start) -> dict[str, Driver]:
    """Three sweeps on nodes that lose their power at one time: one is requeued, one submitted again, one is not."""
    how = {
        "requeued": ("seed=1",),
        "again": ("seed=2", "launch.requeue=false", "launch.retries=2"),
        "lost": ("seed=3", "launch.requeue=false", "launch.retries=0"),
    }
    drivers = {name: start(*LONG, *words) for name, words in how.items()}
    for driver in drivers.values():
        _computing(driver)
    nodes = {name: _node(driver) for name, driver in drivers.items()}
    try:
        for node in nodes.values():
            cluster("node", "crash", node)
        eventually(lambda: True if "NODE_FAIL" in {job.state for job in accounted(drivers["lost"].folder)} else None)
        # Back only when Slurm knows that they were gone, as a node that takes a while to boot.
        eventually(
            lambda: True if sum("down" in line for line in ask("sinfo", "-h", "-N", "-p", "main")) == 3 else None
        )
    finally:
        for node in nodes.values():
            cluster("node", "start", node)
    for driver in drivers.values():
        _over(driver)
    return drivers


def test_a_trial_whose_node_fails_is_begun_anew_by_slurm_and_its_first_records_stay_apart(
    crashed: dict[str, Driver],
) -> None:
    driver = crashed["requeued"]
    assert driver.process.returncode == 0, driver.out
    result = _only(driver)
    assert (result["verdict"], result["requeues"], result["retries"]) == ("pass", 1, 0)
    # The same job twice, and no other.
    assert sorted(job.state for job in accounted(driver.folder)) == ["COMPLETED", "NODE_FAIL"]
    (first,) = driver.folder.glob("cells/*/superseded/*/rank000.jsonl")
    (second,) = driver.folder.glob("cells/*/trial0/rank000.jsonl")
    assert first.stat().st_size < second.stat().st_size
    assert "1 requeue" in (driver.folder / "matrix.md").read_text()


def test_without_requeue_it_is_submitted_again_and_that_is_counted(crashed: dict[str, Driver]) -> None:
    driver = crashed["again"]
    assert driver.process.returncode == 0, driver.out
    assert (_only(driver)["verdict"], _only(driver)["retries"], _only(driver)["requeues"]) == ("pass", 1, 0)
    assert sorted(job.state for job in accounted(driver.folder)) == ["COMPLETED", "NODE_FAIL"]
    assert "submitted again (1 of 2)" in driver.out
    assert "1 retry" in (driver.folder / "matrix.md").read_text()


def test_with_no_retry_left_the_table_says_that_a_node_failed(crashed: dict[str, Driver]) -> None:
    driver = crashed["lost"]
    assert driver.process.returncode == 3, driver.out
    assert _only(driver)["verdict"] == "error"
    assert _only(driver)["error"].startswith("a node failed (job ")
    assert [job.state for job in accounted(driver.folder)] == ["NODE_FAIL"]


# --- ranks, elements, preemption, time --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def struck(start: Start) -> dict[str, Driver]:
    """A rank that is killed, an element that is cancelled, a job that is preempted, and one out of Slurm's time."""
    hangs = ("model.num_layers=1", "world.nproc_per_node=1", "fault=rank_failure", "fault.how=hang")
    timed = start(*hangs, "launch.nodelist=node4", "launch.retries=3")
    _computing(timed)
    (job,) = jobs_of(timed.folder)
    # Slurm looks at limits every half a minute; a trial's own would come first if it were not changed.
    subprocess.run(["scontrol", "update", f"JobId={job}", "TimeLimit=1"], check=True)

    killed = start("steps=600", "model.num_layers=1", "world.nodes=2", "world.nproc_per_node=1")
    ranks = _computing(killed)
    eventually(lambda: True if len(_computing(killed)) == 2 else None)
    os.kill(max(_computing(killed).items())[1], signal.SIGKILL)
    _over(killed)
    assert ranks

    preempted = start(*LONG, "launch.nodelist=node3")
    _computing(preempted)
    urgent = ask("sbatch", "--parsable", "-p", "high", "-w", "node3", "-c", "4", "-o", "/dev/null", "--wrap", "true")[0]
    cancelled = start("-m", "seed=1,2", *LONG, "launch.exclude='node3,node4'", "launch.retries=3")
    eventually(lambda: True if list(jobs_of(cancelled.folder).values()) == ["RUNNING"] * 2 else None)
    _computing(cancelled)
    subprocess.run(["scancel", sorted(jobs_of(cancelled.folder))[0]], check=True)
    for driver in (cancelled, preempted, timed):
        _over(driver)
    assert urgent.isdigit()
    return {"killed": killed, "preempted": preempted, "cancelled": cancelled, "timed": timed}


def test_a_rank_that_is_killed_on_another_node_is_named_with_its_node(struck: dict[str, Driver]) -> None:
    assert struck["killed"].process.returncode == 3
    result = _only(struck["killed"])
    assert (result["verdict"], result["error_ranks"]) == ("error", [1])
    assert result["error"].startswith("rank 1 was killed by SIGKILL")
    assert result["error"].endswith(("(rank 1 on node2)", "(rank 1 on node3)"))


def test_a_preempted_trial_is_begun_anew(struck: dict[str, Driver]) -> None:
    assert struck["preempted"].process.returncode == 0, struck["preempted"].out
    assert (_only(struck["preempted"])["verdict"], _only(struck["preempted"])["requeues"]) == ("pass", 1)
    assert sorted(job.state for job in accounted(struck["preempted"].folder)) == ["COMPLETED", "PREEMPTED"]


def test_an_element_that_somebody_cancels_is_an_error_that_says_so_and_is_not_run_again(
    struck: dict[str, Driver],
) -> None:
    driver = struck["cancelled"]
    assert driver.process.returncode == 3, driver.out
    first, second = driver.results()
    assert first["error"].startswith("cancelled, not by this sweep (job ")
    assert second["verdict"] == "pass"
    assert sorted(job.state for job in accounted(driver.folder)) == ["CANCELLED", "COMPLETED"]


def test_the_end_of_slurms_own_time_is_a_timeout(struck: dict[str, Driver]) -> None:
    assert struck["timed"].process.returncode == 3
    assert _only(struck["timed"])["verdict"] == "timeout"
    assert "ended by Slurm's own time limit" in _only(struck["timed"])["error"]


# --- the controller, accounting, the driver ---------------------------------------------------------------------------


def test_a_controller_that_is_away_is_waited_for(start: Start) -> None:
    driver = start("-m", "seed=1,2", *LONG, "launch.max_parallel=1")
    _computing(driver)
    cluster("daemon", "stop", "slurmctld")
    try:
        time.sleep(20)
    finally:
        cluster("daemon", "start", "slurmctld")
    assert _over(driver) == 0, driver.out
    assert "Slurm does not answer" in driver.out
    assert "Slurm answers again" in driver.out
    assert [job.state for job in accounted(driver.folder)] == ["COMPLETED"] * 2


def test_without_accounting_what_is_cancelled_is_still_noticed(start: Start) -> None:
    cluster("daemon", "stop", "slurmdbd")
    try:
        driver = start("-m", "seed=1,2", *LONG)
        eventually(lambda: True if list(jobs_of(driver.folder).values()) == ["RUNNING"] * 2 else None)
        subprocess.run(["scancel", sorted(jobs_of(driver.folder))[1]], check=True)
        assert _over(driver) == 3, driver.out
    finally:
        cluster("daemon", "start", "slurmdbd")
    assert [result["verdict"] for result in driver.results()] == ["pass", "error"]


def test_after_the_drivers_death_the_same_command_waits_for_what_runs_and_submits_the_rest(start: Start) -> None:
    words = ("-m", "seed=1,2,3", *LONG, "launch.max_parallel=1")
    driver = start(*words)
    _computing(driver)
    driver.process.kill()
    driver.process.wait()
    again = start(*words, "fault=none", folder=driver.folder)
    assert _over(again) == 0, again.out
    assert "under way since an earlier command" in again.out
    assert [job.state for job in accounted(driver.folder)] == ["COMPLETED"] * 3
    assert list(package.load(driver.folder).trials["verdict"]) == ["pass"] * 3


def test_ctrl_c_cancels_the_sweeps_own_jobs_and_no_other(start: Start) -> None:
    other = ask("sbatch", "--parsable", "-p", "main", "-o", "/dev/null", "--wrap", "sleep 300")[0]
    try:
        driver = start("-m", "seed=1,2,3", *LONG, "launch.max_parallel=1")
        _computing(driver)
        os.killpg(driver.process.pid, signal.SIGINT)
        assert _over(driver) == 130, driver.out
        assert "3 not reached" in driver.out
        assert "Traceback" not in driver.out
        assert set(jobs_of(driver.folder).values()) == {"CANCELLED"}
        assert ask("squeue", "-h", "-j", other, "-o", "%T") == ["RUNNING"]
    finally:
        subprocess.run(["scancel", other], check=True)
    # The same command again does what was not done.
    assert driver.results() == []
