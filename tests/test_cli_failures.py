"""A rank that fails costs its own cell only, and the table says which rank, how, and what its log ends with."""

from __future__ import annotations

import json
import os
import signal

import pytest

import detsweep as package
from tests.conftest import Ran, Run, run_detsweep
from tests.running import Driver, gone


@pytest.fixture(scope="module")
def failed(detsweep: Run) -> Ran:
    return detsweep("-m", "fault=rank_failure,none", "fault.how=kill,raise", "fault.rank=1")


def test_other_cells_complete_and_the_exit_code_is_3(failed: Ran) -> None:
    assert failed.code == 3
    verdicts = {slug: result["verdict"] for slug, result in failed.results().items()}
    assert verdicts == {
        "fault-rank_failure_fault.how-kill_fault.rank-1": "error",
        "fault-rank_failure_fault.how-raise_fault.rank-1": "error",
        # Without a fault, how it would fail makes no difference: one cell, not two.
        "fault-none_fault.how-kill_fault.rank-1": "pass",
    }
    assert "1 of 4 cells are the same as another" in failed.out


def test_a_killed_rank_is_named_with_its_signal_and_where_it_was(failed: Ran) -> None:
    result = failed.results()["fault-rank_failure_fault.how-kill_fault.rank-1"]
    assert result["error"] == "rank 1 was killed by SIGKILL, as the kernel does when memory runs out (in r1 of step 0)"
    assert result["error_ranks"] == [1]
    assert "rank 1: exit code -9 (SIGKILL)" in "\n".join(result["log_tail"])


def test_an_exception_is_quoted_with_the_end_of_its_ranks_log(failed: Ran) -> None:
    result = failed.results()["fault-rank_failure_fault.how-raise_fault.rank-1"]
    assert result["error"].startswith("rank 1: RuntimeError: fault=rank_failure fault.how=raise")
    assert result["log"] == "log/rank001.log"
    assert result["log_tail"][-1].startswith("RuntimeError: fault=rank_failure")
    for text in (failed.out, (failed.folder / "matrix.md").read_text()):
        assert result["error"] in text
        assert result["log_tail"][-1] in text


def test_rows_of_failed_trials_have_no_rate(failed: Ran) -> None:
    trials = package.load(failed.folder).trials
    errors = trials[trials["verdict"] == "error"]
    assert len(errors) == 2
    assert errors["replays"].isna().all()
    assert errors["error_ranks"].tolist() == [(1,), (1,)]


def test_errors_are_tried_again_unless_told_otherwise_and_nothing_is_lost(failed: Ran) -> None:
    arguments = ("-m", "fault=rank_failure,none", "fault.how=kill,raise", "fault.rank=1")
    kept = run_detsweep(failed.folder, *arguments, "launch.rerun=none")
    assert (kept.code, "3 of 3 trials have a result already" in kept.out) == (3, True)
    again = run_detsweep(failed.folder, *arguments)
    assert (again.code, "1 of 3 trials have a result already" in again.out) == (3, True)
    cell = again.cells()["fault-rank_failure_fault.how-kill_fault.rank-1"]
    assert json.loads((cell / "superseded" / "trial0-1" / "result.json").read_text())["verdict"] == "error"


def test_a_silent_exit_and_memory_that_runs_out(detsweep: Run) -> None:
    ran = detsweep("-m", "fault=rank_failure", "fault.how=exit,oom", "fault.rank=1")
    errors = {slug: result["error"] for slug, result in ran.results().items()}
    assert errors["fault-rank_failure_fault.how-exit_fault.rank-1"] == "rank 1 left with exit code 7 and no result"
    assert "rank 1: RuntimeError:" in errors["fault-rank_failure_fault.how-oom_fault.rank-1"]
    assert "Cannot allocate memory" in errors["fault-rank_failure_fault.how-oom_fault.rank-1"]


def test_a_rank_that_hangs_is_told_from_the_one_that_waits_for_it(detsweep: Run) -> None:
    ran = detsweep("-m", "fault=rank_failure,none", "fault.how=hang", "fault.rank=1", "launch.timeout_min=0.25")
    assert ran.code == 3
    hung = ran.results()["fault-rank_failure_fault.how-hang_fault.rank-1"]
    assert (hung["verdict"], hung["error_ranks"]) == ("timeout", [1])
    assert hung["error"].startswith("no end after 0.25 min: rank 1 stopped in r1 of step 0, at fail (faults.py:")
    assert any("faults.py" in line for line in hung["log_tail"])
    assert ran.results()["fault-none_fault.how-hang_fault.rank-1"]["verdict"] == "pass"


def test_a_rank_killed_from_outside_costs_its_cell_alone(detsweep_folder: Driver) -> None:
    driver = detsweep_folder
    driver.start("-m", "steps=1000000,1")
    ranks = driver.ranks_in_a_run(2)
    os.kill(ranks[1], signal.SIGKILL)
    assert driver.wait() == 3
    first, second = driver.results()
    assert first["error"].startswith("rank 1 was killed by SIGKILL")
    assert second["verdict"] == "pass"
    gone(driver.seen)


def test_a_launcher_killed_from_outside_takes_its_ranks_along(detsweep_folder: Driver) -> None:
    driver = detsweep_folder
    driver.start("-m", "steps=1000000,1")
    driver.ranks_in_a_run(2)
    os.kill(driver.job()["task_pid"], signal.SIGKILL)
    assert driver.wait() == 3
    first, second = driver.results()
    assert first["error"].startswith("the trial's launcher process ended without a result")
    assert second["verdict"] == "pass"
    gone(driver.seen)


def test_a_trial_outlives_the_process_that_only_watches_it_and_keeps_its_slot(detsweep_folder: Driver) -> None:
    driver = detsweep_folder
    driver.start("-m", "steps=40,1")
    driver.ranks_in_a_run(2)
    # submitit's controller: the job's id is its pid.
    os.kill(int(driver.job()["job_id"]), signal.SIGKILL)
    assert driver.wait() == 0, driver.out
    first, second = driver.jobs()
    assert [result["verdict"] for result in driver.results()] == ["pass", "pass"]
    assert first["ended"] <= second["started"]
    gone(driver.seen)


def test_a_reader_that_leaves_does_not_cost_the_sweep(detsweep_folder: Driver) -> None:
    driver = detsweep_folder
    driver.start("-m", "seed=1,2", "world.nproc_per_node=1")
    assert driver.process.stdout is not None
    assert driver.process.stdout.readline().startswith("[1/2]")
    driver.process.stdout.close()
    assert driver.process.wait(60) == 0
    assert [result["verdict"] for result in driver.results()] == ["pass", "pass"]


def test_fail_fast_starts_no_further_trial(detsweep: Run) -> None:
    ran = detsweep("-m", "seed=1,2,3", "fault=rank_failure", "launch.fail_fast=true")
    assert ran.code == 3
    assert len(ran.results()) == 1
    assert list(package.load(ran.folder).trials["verdict"]) == ["error", "none", "none"]
