"""What an earlier command has left with Slurm is found again by the next: nothing is submitted twice, nothing lost."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from submitit.core.utils import DelayedSubmission

from detsweep.dispatch import FolderBusyError, run_trials
from detsweep.dispatch.slurm import Earlier, under_way
from detsweep.dispatch.slurm.asking import AwayError
from detsweep.dispatch.slurm.node import SlurmLaunch, run_on_node
from detsweep.paths import SweepPaths, read_json, write_json
from tests.dispatch.slurm.commands import AWAY, Cluster, Driver, driver
from tests.support import plan_of

COMMON = ["launch=slurm"]


def _plan(*seeds: int, common: list[str] | None = None) -> Any:
    return plan_of(*([f"seed={seed}"] for seed in seeds), common=common or COMMON)


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Driver:
    """A command over two cells that has submitted them."""
    made = driver(_plan(0, 1), tmp_path / "runs", monkeypatch)
    made.step()
    return made


def _forget_the_id(sweep: Driver) -> None:
    """As a driver leaves its files that died between the return of sbatch and the note of it."""
    path = sweep.sweep.array(1)
    write_json(path, {**read_json(path), "job": None})
    for pickled in sweep.sweep.jobs.glob("101*_submitted.pkl"):
        pickled.unlink()


def test_a_folder_without_arrays_asks_nobody(tmp_path: Path, cluster: Cluster) -> None:
    earlier = Earlier(SweepPaths(tmp_path))
    assert (earlier.arrays, list(earlier.jobs()), under_way(SweepPaths(tmp_path))) == ([], [], "")
    assert cluster.calls == []


def test_the_next_command_goes_on_with_what_is_with_slurm_and_submits_nothing(sweep: Driver, cluster: Cluster) -> None:
    cluster.become("RUNNING", "101_0")
    later = sweep.again()
    assert (len(later.queue), len(later.pool.running)) == (0, 2)
    later.finish(0, 1)
    later.step()
    assert later.verdicts() == {"0": "pass", "1": "pass"}
    assert len(cluster.submitted()) == 1


def test_what_ended_while_nobody_watched_has_its_result(sweep: Driver, cluster: Cluster) -> None:
    sweep.finish(0)
    cluster.become("COMPLETED", "101_0")
    cluster.become("NODE_FAIL", "101_1")
    later = sweep.again()
    # One has its result, the other is launched again, as every trial without one.
    assert [trial.cell.overrides["seed"] for trial in later.queue] == ["1"]
    later.step()
    assert list(cluster.jobs) == ["101_0", "101_1", "102"]
    assert read_json(later.sweep.array(2))["members"] == [[later.plan.cells[1].id, 0, 0]]


def test_how_often_a_trial_was_given_again_is_remembered(sweep: Driver, cluster: Cluster) -> None:
    cluster.become("NODE_FAIL", "101_0")
    sweep.step(2)
    later = sweep.again()
    assert Earlier(sweep.sweep).job_of(sweep.plan.cells[0].id, 0) is not None
    cluster.become("NODE_FAIL", "102")
    later.step(4)
    assert (later.verdicts(), later.ended["0", 0]["retries"]) == ({"0": "error"}, 1)
    assert len(cluster.submitted()) == 2


def test_an_array_whose_id_was_never_written_is_found_by_its_name(sweep: Driver, cluster: Cluster) -> None:
    _forget_the_id(sweep)
    later = sweep.again()
    assert (len(later.queue), len(later.pool.running)) == (0, 2)
    assert read_json(sweep.sweep.array(1))["job"] == "101"
    # What the jobs read when they begin is there, as the driver that died had meant it.
    for place in range(2):
        delayed = DelayedSubmission.load(sweep.sweep.jobs / f"101_{place}_submitted.pkl")
        assert delayed.function is run_on_node
        assert delayed.args == (SlurmLaunch(str(sweep.trial(place).folder), 30.0, 0),)
        assert (delayed._timeout_min, delayed._timeout_countdown) == (35, 0)


def test_what_is_there_to_be_read_is_not_written_again(sweep: Driver, cluster: Cluster) -> None:
    _forget_the_id(sweep)
    own = sweep.sweep.jobs / "101_0_submitted.pkl"
    own.write_bytes(pickle.dumps("mine"))
    sweep.again()
    assert own.read_bytes() == pickle.dumps("mine")
    assert (sweep.sweep.jobs / "101_1_submitted.pkl").exists()


def test_an_array_that_only_accounting_remembers_is_found_there(sweep: Driver, cluster: Cluster) -> None:
    _forget_the_id(sweep)
    sweep.finish(0)
    cluster.become("COMPLETED", known=False)
    later = sweep.again()
    assert read_json(sweep.sweep.array(1))["job"] == "101"
    assert [trial.cell.overrides["seed"] for trial in later.queue] == ["1"]


@pytest.mark.parametrize("accounting", [True, False], ids=["asked", "away"])
def test_an_array_that_never_arrived_is_submitted_anew(sweep: Driver, cluster: Cluster, accounting: bool) -> None:
    _forget_the_id(sweep)
    cluster.forget()
    cluster.set(no_accounting=not accounting)
    later = sweep.again()
    assert len(later.queue) == 2
    later.step()
    assert list(cluster.jobs) == ["102_0", "102_1"]
    assert [path.name for path in sweep.sweep.arrays()] == ["array00001.json"]


def test_a_submission_without_an_answer_that_arrived_is_not_made_twice(
    tmp_path: Path, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = driver(_plan(0, 1), tmp_path / "runs", monkeypatch)
    cluster.set(silent=True)
    sweep.step()
    assert (len(sweep.queue), len(cluster.jobs)) == (2, 2)
    sweep.step(2)
    assert (len(sweep.queue), list(cluster.jobs), len(cluster.submitted())) == (0, ["101_0", "101_1"], 1)
    assert read_json(sweep.sweep.array(1))["job"] == "101"
    assert len(list(sweep.sweep.jobs.glob("101_*_submitted.pkl"))) == 2
    assert "it is tried again" in capsys.readouterr().err
    sweep.finish(0, 1)
    sweep.step()
    assert sweep.verdicts() == {"0": "pass", "1": "pass"}
    sweep.pool.clear()
    assert [path.name for path in sweep.sweep.jobs.iterdir()] == ["cluster.json"]


def test_nor_is_it_where_meanwhile_a_trial_is_to_be_given_again(
    sweep: Driver, cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    # Its array arrives without an answer, and then a trial of the one before loses its node.
    later = sweep.again(_plan(0, 1, 2))
    cluster.set(silent=True)
    later.pool.launch(later.queue)
    cluster.become("NODE_FAIL", "101_0")
    for _ in range(8):
        later.clock.now += 16
        later.pool.finished()
    later.step(3)
    assert list(cluster.jobs) == ["101_0", "101_1", "102", "103"]
    assert (len(later.queue), len(later.pool.running)) == (0, 3)


def test_a_submission_without_an_answer_that_is_stopped_leaves_no_job(
    tmp_path: Path, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = driver(_plan(0, 1), tmp_path / "runs", monkeypatch)
    cluster.set(silent=True)
    sweep.step()
    sweep.clock.now += 2
    assert sweep.pool.stop(kill=False)
    assert {one["state"] for one in cluster.jobs.values()} == {"CANCELLED"}


def test_what_an_answerless_array_takes_of_the_width_nobody_else_gets(
    tmp_path: Path, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(["seed=0"], ["seed=1"], ["seed=2", "launch.memory_gb=9"], common=COMMON)
    sweep = driver(plan, tmp_path / "runs", monkeypatch, max_parallel=2)
    cluster.set(silent=True)
    sweep.step(3)
    assert "--dependency=afterany:101" in cluster.submitted()[1]["text"]


def test_jobs_of_cells_that_the_next_command_does_not_have_count_all_the_same(sweep: Driver, cluster: Cluster) -> None:
    cluster.become("RUNNING", "101_0")
    other = sweep.again(_plan(7, 8), max_parallel=2)
    other.step()
    assert "--dependency=afterany:101" in cluster.submitted()[1]["text"]
    # Nor are they cancelled with it, or cleared away from under them.
    other.finish(0, 1)
    other.step()
    other.pool.clear()
    assert [path.name for path in sweep.sweep.arrays()] == ["array00001.json"]
    assert len(list(sweep.sweep.jobs.glob("101_*_submitted.pkl"))) == 2


def test_when_they_are_over_nothing_waits_for_them(sweep: Driver, cluster: Cluster) -> None:
    plan = plan_of(["seed=7"], ["seed=8", "launch.memory_gb=9"], common=COMMON)
    other = sweep.again(plan, max_parallel=2)
    last = other.queue.pop()
    other.step()
    cluster.become("COMPLETED", "101_0", "101_1")
    other.step()
    other.queue.append(last)
    other.step()
    assert "afterany:101" in cluster.submitted()[1]["text"]
    assert "afterany" not in cluster.submitted()[2]["text"]


def test_a_controller_that_is_away_is_said_to_be(sweep: Driver, cluster: Cluster) -> None:
    cluster.set(down=AWAY)
    with pytest.raises(AwayError):
        Earlier(sweep.sweep)
    assert under_way(sweep.sweep).startswith("perhaps 2 trials (it cannot be asked: squeue: Unable to contact")


def test_a_folder_with_jobs_is_not_taken_over_on_this_machine(sweep: Driver, cluster: Cluster) -> None:
    assert under_way(sweep.sweep) == "2 jobs (101_[0-1])"
    before = read_json(sweep.sweep.sweep)
    with pytest.raises(FolderBusyError, match=r"Slurm still has 2 jobs \(101_\[0-1\]\) of .*launch=slurm, or cancel"):
        run_trials(_plan(0, 1, common=["trials=1"]), sweep.sweep, [])
    assert read_json(sweep.sweep.sweep) == before


def test_jobs_that_are_over_keep_nobody_out(sweep: Driver, cluster: Cluster) -> None:
    cluster.become("CANCELLED", "101_0", "101_1")
    assert under_way(sweep.sweep) == ""
    sweep.finish(0, 1)
    before = cluster.count()
    assert under_way(sweep.sweep) == ""
    assert cluster.count() == before


def test_the_last_job_of_a_trial_is_what_counts(sweep: Driver, cluster: Cluster) -> None:
    cluster.become("NODE_FAIL", "101_0")
    sweep.step(2)
    cluster.become("RUNNING", "101_0")
    earlier = Earlier(sweep.sweep)
    job = earlier.job_of(sweep.plan.cells[0].id, 0)
    assert job is not None
    assert (job.id, job.retry, job.alive) == ("102", 1, True)
    assert [(array.number, count) for array, count in earlier.living()] == [(1, 1), (2, 1)]
    assert earlier.job_of(sweep.plan.cells[0].id, 1) is None
