"""Trials with Slurm: a result ends them, and where there is none, what Slurm says of their jobs, twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from detsweep.nodes import ClusterError
from detsweep.paths import CellPaths, read_json, write_json
from tests.dispatch.slurm.commands import ASK_S, AWAY, Cluster, Driver, begin_attempt, driver
from tests.support import plan_of

SLURM = ["launch=slurm"]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A command over so many cells on a new folder."""

    def make(cells: int = 2, *common: str, **more: Any) -> Driver:
        plan = plan_of(*([f"seed={seed}"] for seed in range(cells)), common=[*SLURM, *common])
        return driver(plan, tmp_path / "runs", monkeypatch, **more)

    return make


def test_all_trials_are_one_array_whose_id_is_on_disk(
    make: Any, cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = make(3, "trials=2")
    assert sorted(sweep.pool.launch(sweep.queue), key=str) != []
    assert not sweep.queue
    assert list(cluster.jobs) == [f"101_{index}" for index in range(6)]
    content = read_json(sweep.sweep.array(1))
    ids = [cell.id for cell in sweep.plan.cells]
    assert (content["job"], content["lanes"]) == ("101", [0, 1, 2, 3, 4, 5])
    assert content["members"] == [[cell, number, 0] for number in range(2) for cell in ids]
    assert content["name"].startswith(read_json(sweep.sweep.cluster)["name"] + "-1.")
    assert "with Slurm: 6 trials, 101_[0-5]" in capsys.readouterr().out
    assert len(sweep.pool.running) == 6


def test_the_array_is_on_disk_before_slurm_has_it(
    make: Any, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = make()
    program = cluster.folder / "sbatch"
    seen = tmp_path / "seen.json"
    program.write_text(f"#!/bin/sh\ncat {sweep.sweep.array(1)} >{seen}\necho Submitted batch job 7\n")
    sweep.pool.launch(sweep.queue)
    assert (read_json(seen)["job"], read_json(sweep.sweep.array(1))["job"]) == (None, "7")


def test_cells_that_ask_for_other_resources_are_another_array(make: Any, tmp_path: Path) -> None:
    sweep = make(3)
    cells = sweep.plan.cells
    for trial in sweep.queue:
        if trial.cell is cells[1]:
            trial.cell.config["launch"]["memory_gb"] = 4.0
    sweep.pool.launch(sweep.queue)
    members = [[member[0] for member in read_json(path)["members"]] for path in sweep.sweep.arrays()]
    assert members == [[cells[0].id, cells[2].id], [cells[1].id]]


def test_a_trial_ends_with_its_result_and_nobody_is_asked_for_it(make: Any, cluster: Cluster) -> None:
    sweep = make()
    sweep.step()
    cluster.become("RUNNING")
    before = cluster.count()
    sweep.finish(1)
    sweep.step(seconds=1)
    assert sweep.verdicts() == {"1": "pass"}
    assert cluster.count() == before
    assert [trial.cell.overrides["seed"] for trial in sweep.pool.running] == ["0"]


def test_slurm_is_asked_as_seldom_as_is_said_and_accounting_never_while_the_controller_knows(
    make: Any, cluster: Cluster
) -> None:
    sweep = make()
    sweep.step()
    cluster.become("RUNNING")
    before = cluster.count()
    sweep.step(times=1200, seconds=0.5)
    counted = cluster.count() - before
    assert counted["squeue"] <= 600 / ASK_S + 1
    assert set(counted) == {"squeue"}


def test_accounting_is_asked_only_for_what_the_controller_has_forgotten(make: Any, cluster: Cluster) -> None:
    sweep = make(3)
    sweep.step()
    cluster.become("CANCELLED", "101_1", known=False)
    sweep.step(5)
    assert sweep.verdicts() == {"1": "error"}
    assert "cancelled, not by this sweep" in sweep.ended["1", 0]["error"]
    assert cluster.count()["sacct"] == 1


def test_a_node_that_failed_is_no_end_where_slurm_starts_the_job_anew(make: Any, cluster: Cluster) -> None:
    sweep = make()
    sweep.step()
    for _ in range(3):
        cluster.become("RUNNING")
        sweep.step()
        cluster.become("NODE_FAIL", "101_0", nodes="node1")
        sweep.step()
        cluster.become("PENDING", "101_0")
        sweep.step(2)
    assert sweep.verdicts() == {}
    assert len(cluster.submitted()) == 1
    sweep.finish(0, 1)
    sweep.step()
    assert sweep.verdicts() == {"0": "pass", "1": "pass"}


def test_a_trial_that_infrastructure_has_cost_is_submitted_again_so_often_and_no_more(
    make: Any, cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = make(retries=2)
    sweep.step()
    begin_attempt(sweep.trial(0), "101_0.0", **{"rank000.jsonl": "half"})
    cluster.become("NODE_FAIL", "101_0", nodes="node1")
    sweep.step(2)
    assert list(cluster.jobs) == ["101_0", "101_1", "102"]
    assert read_json(sweep.sweep.array(2))["members"] == [[sweep.plan.cells[0].id, 0, 1]]
    # What was begun is kept, and not where the next one works.
    folder = CellPaths(sweep.trial(0).folder.parent)
    assert folder.attempts(0) == []
    assert (folder.folder / "superseded" / "trial0-1" / "rank000.jsonl").read_text() == "half"
    assert "seed=0 trial 0: a node failed (job 101_0 on node1): submitted again (1 of 2)" in capsys.readouterr().err
    cluster.become("BOOT_FAIL", "102")
    sweep.step(2)
    cluster.become("LAUNCH_FAILED", "103")
    sweep.step(4)
    assert list(cluster.jobs) == ["101_0", "101_1", "102", "103"]
    result = sweep.ended["0", 0]
    assert (result["verdict"], result["retries"]) == ("error", 2)
    assert "could not launch job 103" in result["error"]
    assert read_json(sweep.trial(0).result) == result
    assert [trial.cell.overrides["seed"] for trial in sweep.pool.running] == ["1"]


def test_a_trial_that_is_given_again_may_end_well(make: Any, cluster: Cluster) -> None:
    sweep = make()
    sweep.step()
    cluster.become("NODE_FAIL", "101_1")
    sweep.step(2)
    sweep.finish(1)
    sweep.step()
    assert sweep.verdicts() == {"1": "pass"}


@pytest.mark.parametrize(
    ("state", "verdict", "said"),
    [
        ("CANCELLED", "error", "cancelled, not by this sweep (job 101_0 on node1)"),
        ("TIMEOUT", "timeout", "ended by Slurm's own time limit"),
        ("OUT_OF_MEMORY", "error", "launch.memory_gb=N asks for more"),
        ("FAILED", "error", "ended as FAILED"),
        ("COMPLETED", "error", "ended as COMPLETED"),
    ],
)
def test_an_end_that_is_the_trials_own_is_not_tried_again(
    make: Any, cluster: Cluster, state: str, verdict: str, said: str
) -> None:
    sweep = make()
    sweep.step()
    cluster.become(state, "101_0", nodes="node1", code="0:9")
    sweep.step(4)
    assert (sweep.verdicts(), len(cluster.submitted())) == ({"0": verdict}, 1)
    assert said in sweep.ended["0", 0]["error"]
    assert sweep.ended["0", 0]["retries"] == 0


def test_a_job_that_nobody_knows_is_lost(make: Any, cluster: Cluster) -> None:
    sweep = make(retries=0)
    sweep.step()
    cluster.forget("101_0")
    sweep.step(3)
    assert sweep.verdicts() == {"0": "error"}
    error = sweep.ended["0", 0]["error"]
    assert error == "Slurm knows nothing of job 101_0 any more, and it left no result"


def test_without_accounting_what_the_controller_has_forgotten_is_lost_too(
    make: Any, cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = make(retries=0)
    cluster.set(no_accounting=True)
    sweep.step()
    cluster.become("COMPLETED", "101_0", known=False)
    sweep.step(3)
    assert "knows nothing of job 101_0" in sweep.ended["0", 0]["error"]
    assert "accounting cannot be asked (sacct: Slurm accounting storage is disabled)" in capsys.readouterr().err


def test_what_a_lost_trials_job_printed_is_shown(make: Any, cluster: Cluster) -> None:
    sweep = make()
    sweep.step()
    sweep.sweep.job_log("101_0").write_text("starting\nno module named detsweep\n")
    cluster.become("FAILED", "101_0", "101_1")
    sweep.step(2)
    assert sweep.ended["0", 0]["log_tail"] == ["starting", "no module named detsweep"]
    assert "do the nodes share" not in sweep.ended["0", 0]["error"]
    assert f"(nor a log: do the nodes share {sweep.sweep.folder}?)" in sweep.ended["1", 0]["error"]


def test_a_result_that_is_just_being_published_is_the_trials(make: Any, cluster: Cluster) -> None:
    sweep = make()
    sweep.step()
    cluster.become("COMPLETED", "101_0")
    sweep.step()
    # The attempt has claimed the trial, and its node died while it moved its files.
    trial = sweep.trial(0)
    content = {"schema": 1, "cell": sweep.plan.cells[0].id, "trial": 0, "verdict": "diverged"}
    sweep.finish(1)
    content["schema"] = read_json(sweep.trial(1).result)["schema"]
    attempt = begin_attempt(trial, "101_0.0")
    write_json(attempt.result, content)
    trial.claim.write_text(attempt.folder.name)
    sweep.step(2)
    assert sweep.verdicts() == {"0": "diverged", "1": "pass"}


def test_while_the_controller_is_away_what_runs_goes_on_and_one_line_says_so(
    make: Any, cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = make()
    sweep.step()
    cluster.set(down=AWAY)
    cluster.become("CANCELLED", "101_0")
    sweep.step(5)
    assert sweep.verdicts() == {}
    sweep.finish(1)
    sweep.step()
    assert sweep.verdicts() == {"1": "pass"}
    cluster.set(down="")
    cluster.become("RUNNING")
    sweep.step(3)
    assert sweep.verdicts() == {"1": "pass"}
    said = [line for line in capsys.readouterr().err.splitlines() if "answer" in line]
    assert len(said) == 2
    assert said[0].startswith("detsweep: Slurm does not answer (squeue: ")
    assert said[1] == "detsweep: Slurm answers again"


def test_what_cannot_be_submitted_for_now_is_submitted_later(make: Any, cluster: Cluster) -> None:
    sweep = make()
    cluster.set(down=AWAY)
    sweep.step(times=20, seconds=1)
    assert (len(sweep.queue), cluster.jobs) == (2, {})
    # Not at every look.
    assert cluster.count()["sbatch"] <= 3
    cluster.set(down="")
    sweep.step()
    assert (len(sweep.queue), list(cluster.jobs)) == (0, ["101_0", "101_1"])


def test_what_slurm_refuses_is_an_error_in_its_words(
    make: Any, cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = make()
    cluster.set(refused="Invalid account or account/partition combination specified")
    sweep.step(2)
    assert sweep.verdicts() == {"0": "error", "1": "error"}
    assert "sbatch: Batch job submission failed: Invalid account" in sweep.ended["0", 0]["error"]
    assert not sweep.pool.running
    assert "with Slurm" not in capsys.readouterr().out


def test_a_controller_that_is_away_at_first_is_told_and_nothing_starts(make: Any, cluster: Cluster) -> None:
    cluster.set(down=AWAY)
    with pytest.raises(ClusterError, match=r"Slurm does not answer .*; nothing was started"):
        make()


def test_a_stop_cancels_the_jobs_of_this_pool_and_no_others(make: Any, cluster: Cluster) -> None:
    sweep = make(4)
    other = {"name": "other", "state": "RUNNING", "nodes": "a", "detail": "", "code": "0:0", "known": True}
    cluster.set(jobs={"55": other, "100_0": other})
    sweep.step()
    cluster.become("RUNNING", "101_0", "101_1", "101_2", "101_3")
    sweep.finish(2)
    sweep.step(seconds=1)
    while not sweep.pool.stop(kill=False):
        sweep.clock.now += 1
    assert cluster.cancelled() == ["101_[0-1,3]"]
    assert {job: one["state"] for job, one in cluster.jobs.items()} == {
        "55": "RUNNING", "100_0": "RUNNING", "101_0": "CANCELLED", "101_1": "CANCELLED", "101_2": "RUNNING",
        "101_3": "CANCELLED",
    }  # fmt: skip
    assert cluster.count()["scancel"] == 1


def test_a_stop_waits_until_the_jobs_are_gone_and_says_how_to_end_what_is_left(make: Any, cluster: Cluster) -> None:
    sweep = make()
    sweep.step()
    (cluster.folder / "scancel").write_text("#!/bin/sh\n")
    for _ in range(5):
        sweep.clock.now += 2
        assert not sweep.pool.stop(kill=False)
    assert sweep.pool.describe_left() == "scancel 101_[0-1]"
    cluster.become("CANCELLED")
    sweep.clock.now += 2
    assert sweep.pool.stop(kill=True)


def test_a_stop_while_the_controller_is_away_cancels_when_it_answers_and_asks_no_more_than_once_a_second(
    make: Any, cluster: Cluster
) -> None:
    sweep = make()
    sweep.step()
    cluster.set(down=AWAY)
    before = cluster.count().total()
    for _ in range(40):
        sweep.clock.now += 0.05
        assert not sweep.pool.stop(kill=False)
    assert cluster.count().total() - before <= 3
    cluster.set(down="")
    sweep.clock.now += 2
    assert sweep.pool.stop(kill=False)
    assert cluster.cancelled()[-1] == "101_[0-1]"


def test_a_stop_with_nothing_under_way_asks_nobody(make: Any, cluster: Cluster) -> None:
    sweep = make()
    before = cluster.count()
    assert sweep.pool.stop(kill=False)
    assert cluster.count() == before


def test_what_is_over_leaves_no_files_behind(make: Any, cluster: Cluster) -> None:
    sweep = make()
    sweep.step()
    for job in ("101_0", "101_1"):
        sweep.sweep.job_log(job).write_text("said\n")
    sweep.finish(0)
    cluster.become("FAILED", "101_1")
    sweep.step(3)
    assert sweep.verdicts() == {"0": "pass", "1": "error"}
    sweep.pool.clear()
    # Of a trial without a verdict about repeating, what its job printed is all there is.
    assert sorted(path.name for path in sweep.sweep.jobs.iterdir()) == ["101_1_0_log.out", "cluster.json"]
