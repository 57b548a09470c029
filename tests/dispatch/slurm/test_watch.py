"""What does not go as it should with jobs that have not ended: too many of them, and those that never begin."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from detsweep.dispatch.slurm import arrays
from detsweep.paths import read_json
from tests.dispatch.slurm.commands import Cluster, Driver, driver
from tests.support import plan_of


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A command over so many cells on a new folder."""

    def make(cells: int, *common: str, **more: Any) -> Driver:
        plan = plan_of(*([f"seed={seed}"] for seed in range(cells)), common=["launch=slurm", *common])
        return driver(plan, tmp_path / "runs", monkeypatch, **more)

    return make


def test_a_sweep_larger_than_what_a_user_may_submit_goes_in_pieces(
    make: Any, cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.set(limit=4)
    sweep = make(11)
    for _ in range(40):
        sweep.step()
        living = [job for job, one in cluster.jobs.items() if one["state"] == "PENDING"]
        assert len(living) <= 4
        # Those that are with Slurm end, all at once.
        for trial in list(sweep.pool.running):
            sweep.finish(int(trial.cell.overrides["seed"]))
        cluster.become("COMPLETED")
    assert sweep.verdicts() == {str(seed): "pass" for seed in range(11)}
    # No trial was submitted twice, and no array of one follows another for ever.
    assert len(cluster.jobs) == 11
    assert len(cluster.submitted()) < 16
    err = capsys.readouterr().err
    assert err.count("QOSMaxSubmitJobPerUserLimit: the rest is submitted as others end") == 1
    assert len(err.splitlines()) == 1


def test_why_a_job_does_not_begin_is_said_once(make: Any, cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = make(3)
    sweep.step(3)
    assert capsys.readouterr().err == ""
    cluster.become("PENDING", "101_0", "101_1", detail="JobHeldAdmin")
    sweep.step(3)
    assert capsys.readouterr().err == "detsweep: Slurm does not start 101_[0-1]: JobHeldAdmin; still waiting\n"


def test_a_trial_whose_own_node_is_down_is_a_row_and_not_waited_for(make: Any, cluster: Cluster) -> None:
    cluster.set(sinfo="main*|node7|idle|none")
    sweep = make(2, "world.node=node7")
    sweep.step(2)
    cluster.become("PENDING", detail="ReqNodeNotAvail, UnavailableNodes:node7")
    sweep.step(3)
    # The node is up: it was reserved, say, and comes back.
    assert sweep.verdicts() == {}
    cluster.set(sinfo="main*|node7|down*|Not responding")
    sweep.step()
    assert sweep.verdicts() == {}
    sweep.step()
    assert sweep.verdicts() == {"0": "error", "1": "error"}
    assert sweep.ended["0", 0]["error"].startswith("node node7 is down (Not responding): job 101_0 waited for it")
    assert sorted(cluster.cancelled()) == ["101_[0]", "101_[1]"]
    assert sweep.pool.running == []


def test_an_sbatch_that_is_killed_when_its_job_has_arrived_is_no_refusal(make: Any, cluster: Cluster) -> None:
    cluster.set(silent="killed")
    sweep = make(2)
    sweep.step()
    assert sweep.verdicts() == {}
    sweep.step(2)
    assert len(cluster.submitted()) == 1
    sweep.finish(0, 1)
    sweep.step()
    assert sweep.verdicts() == {"0": "pass", "1": "pass"}


def test_a_refusal_leaves_no_array_behind(make: Any, cluster: Cluster) -> None:
    sweep = make(2)
    cluster.set(refused="Invalid qos specification")
    sweep.step()
    assert sweep.verdicts() == {"0": "error", "1": "error"}
    assert list(arrays.read_arrays(sweep.sweep)) == []


def test_no_two_arrays_of_a_sweep_have_one_name(make: Any, cluster: Cluster) -> None:
    sweep = make(1)
    sweep.step()
    first = read_json(sweep.sweep.array(1))["name"]
    sweep.finish(0)
    sweep.step()
    sweep.pool.clear()
    sweep.trial().result.unlink()
    again = sweep.again()
    again.step()
    assert read_json(again.sweep.array(1))["name"] != first


def test_a_job_that_slurm_has_forgotten_keeps_no_other_from_being_cancelled(make: Any, cluster: Cluster) -> None:
    sweep = make(3)
    sweep.step()
    cluster.become("RUNNING")
    cluster.forget("101_1")
    sweep.pool.stop(kill=False)
    assert {one["state"] for one in cluster.jobs.values()} == {"CANCELLED"}
    sweep.clock.now += 2
    assert sweep.pool.stop(kill=False)


def test_a_trial_whose_attempt_died_while_it_published_is_not_submitted_again(make: Any, cluster: Cluster) -> None:
    sweep = make(1)
    sweep.step()
    cluster.become("NODE_FAIL", nodes="node1")
    # An attempt has the claim and has died, or is just moving its files.
    attempt = sweep.trial().folder.with_name("trial0-attempt-101.0")
    attempt.mkdir()
    (attempt / "result.json").write_text("{}")
    sweep.trial().claim.write_text(attempt.name)
    sweep.step(3)
    assert len(cluster.submitted()) == 1
