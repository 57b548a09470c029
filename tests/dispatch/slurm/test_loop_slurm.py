"""The sweep's loop over a cluster: it waits for results, leaves when it is told to, and cancels when it is stopped."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from detsweep.dispatch import run_trials
from detsweep.dispatch.slurm import pool
from detsweep.dispatch.slurm import submission as submitting
from detsweep.nodes import ClusterError
from detsweep.paths import SweepPaths, TrialPaths, read_json
from detsweep.plan import Plan
from tests.dispatch.slurm.commands import Cluster
from tests.running import eventually
from tests.support import INPUT, plan_of, trial_of, write_trial

COMMON = ["launch=slurm", "launch.ask_s=1"]


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SweepPaths:
    """A new folder, in which results are looked for soon."""
    monkeypatch.setattr(pool, "_LOOK_S", 0.05)
    made = SweepPaths(tmp_path / "runs")
    made.jobs.mkdir(parents=True)
    return made


def _plan(*common: str) -> Plan:
    return plan_of(["seed=0"], ["seed=1"], common=[*COMMON, *common])


def _once(cluster: Cluster, act: Callable[[], None], *, asked: int = 0) -> threading.Thread:
    """Do something as soon as both jobs are there and the queue was asked for so often, while the loop runs."""

    def run() -> None:
        eventually(lambda: (len(cluster.jobs) == 2 and cluster.count()["squeue"] >= asked) or None, 20)
        act()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_the_loop_returns_when_every_trial_has_its_result(
    sweep: SweepPaths, cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = _plan()

    def end() -> None:
        for cell in plan.cells:
            write_trial(trial_of(sweep, cell), cell)

    thread = _once(cluster, end)
    assert run_trials(plan, sweep, [])
    thread.join()
    # What a trial took is what it says of itself, not how long it waited for a node.
    assert "[2/2] seed=1: pass in 1.5 s" in capsys.readouterr().out
    assert sweep.arrays() == []
    assert cluster.count()["scancel"] == 0


def test_trials_that_may_not_be_needed_are_submitted_in_rounds_as_wide_as_the_sweep_may_be(
    sweep: SweepPaths, cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = _plan("trials=4", "launch.max_parallel=2", "stop_after.divergences=1")

    def end() -> None:
        """Each round ends whole; the first cell diverges at once."""
        done: set[TrialPaths] = set()
        while len(done) < 5:
            eventually(lambda: len(cluster.jobs) > len(done) or None, 20)
            waiting = [(cell, n) for n in range(4) for cell in plan.cells if trial_of(sweep, cell, n).spec.exists()]
            for cell, number in waiting:
                trial = trial_of(sweep, cell, number)
                if not trial.result.exists():
                    differs = {0: {(0, 2): INPUT}} if cell == plan.cells[0] else {}
                    write_trial(trial, cell, number, differs=differs)
                    done.add(trial)

    thread = threading.Thread(target=end)
    thread.start()
    assert run_trials(plan, sweep, [])
    thread.join()
    # Both cells once; then the one that is not done, two at a time, and the last one.
    assert sorted(cluster.jobs) == ["101_0", "101_1", "102_0", "102_1", "103"]
    assert [len(list(paths.trials())) for paths in sweep.all_cells()] == [1, 4]
    assert "seed=0: stopped after 1 of 4 trials: 1 diverged" in capsys.readouterr().out


def test_a_sweep_that_is_left_alone_returns_at_once_and_cancels_nothing(sweep: SweepPaths, cluster: Cluster) -> None:
    assert run_trials(_plan("launch.detach=true"), sweep, ["-m"])
    assert len(cluster.jobs) == 2
    assert cluster.count()["scancel"] == 0
    assert read_json(sweep.array(1))["job"] == "101"
    assert len(list(sweep.jobs.glob("*_submitted.pkl"))) == 2


def test_whoever_comes_back_waits_for_what_was_left(
    sweep: SweepPaths, cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    run_trials(_plan("launch.detach=true"), sweep, [])
    plan = _plan()
    write_trial(trial_of(sweep, plan.cells[0]), plan.cells[0])

    def end() -> None:
        write_trial(trial_of(sweep, plan.cells[1]), plan.cells[1])

    thread = _once(cluster, end, asked=2)
    assert run_trials(plan, sweep, [])
    thread.join()
    assert "1 are under way since an earlier command" in capsys.readouterr().out
    assert len(cluster.submitted()) == 1


@pytest.mark.parametrize("common", [(), ("launch.detach=true",)], ids=["watched", "to be left alone"])
def test_a_stop_cancels_what_was_submitted(sweep: SweepPaths, cluster: Cluster, common: tuple[str, ...]) -> None:
    if common:
        # Stopped while the controller is away: nothing is with it yet.
        cluster.set(down="Unable to contact slurm controller (connect failure)")
        (cluster.folder / "squeue").write_text("#!/bin/sh\n")
        (cluster.folder / "scontrol").write_text("#!/bin/sh\n")
        timer = threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGTERM))
        timer.start()
        assert not run_trials(_plan(*common), sweep, [])
        timer.join()
        assert cluster.jobs == {}
        return
    thread = _once(cluster, lambda: os.kill(os.getpid(), signal.SIGTERM))
    assert not run_trials(_plan(), sweep, [])
    thread.join()
    assert {one["state"] for one in cluster.jobs.values()} == {"CANCELLED"}
    assert cluster.cancelled() == ["101_[0-1]"]


def test_the_first_that_is_no_pass_ends_the_rest(sweep: SweepPaths, cluster: Cluster) -> None:
    plan = _plan("launch.fail_fast=true")

    def end() -> None:
        write_trial(trial_of(sweep, plan.cells[0]), plan.cells[0], differs={0: {(0, 2): 3}})

    thread = _once(cluster, end)
    assert run_trials(plan, sweep, [])
    thread.join()
    assert cluster.cancelled() == ["101_[1]"]


def test_what_slurm_refuses_starts_nothing(sweep: SweepPaths, cluster: Cluster) -> None:
    cluster.set(refused="Invalid qos specification")
    with pytest.raises(ClusterError, match="Invalid qos specification"):
        run_trials(_plan(), sweep, [])
    assert not sweep.sweep.exists()
    assert submitting.name_of(sweep)
