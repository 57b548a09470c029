"""Where each cell of a sweep stands: on disk, on this machine, and with Slurm; with a cluster of a test's own."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from detsweep import status
from detsweep.locks import hold
from detsweep.paths import read_json, write_json
from tests.dispatch.slurm.commands import AWAY, Cluster, Driver, begin_attempt, driver, on_path
from tests.support import BLOCK_0_POST, plan_of, trial_of, write_cells, write_failure, write_trial

Show = Any


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster(tmp_path / "slurm")
    monkeypatch.setenv("PATH", on_path(made.folder))
    return made


@pytest.fixture
def show(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Show:
    """The command: its exit code, the lines that it prints, and what it says on stderr."""

    def show(folder: Path, *words: str) -> tuple[int, list[str], str]:
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["status", str(folder), *words])
        code = status.main()
        said = capsys.readouterr()
        return code, said.out.splitlines(), said.err

    return show


@pytest.fixture
def sweep(tmp_path: Path, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Driver:
    """A command over six cells that has submitted them, 101_0 to 101_5."""
    plan = plan_of(*([f"seed={seed}"] for seed in range(6)), common=["launch=slurm"])
    made = driver(plan, tmp_path / "runs", monkeypatch)
    made.step()
    return made


def test_each_cell_says_where_it_stands(sweep: Driver, cluster: Cluster, show: Show) -> None:
    sweep.finish(0)
    write_failure(sweep.trial(1), sweep.plan.cells[1], error="a node failed")
    cluster.become("RUNNING", "101_2", nodes="node4")
    attempt = begin_attempt(sweep.trial(2), "101_2.0")
    for rank, step in enumerate((3, 2)):
        attempt.progress(rank).write_text(f"7\t{step}\t1\t0\tstep {step}, run 1, block 0\n")
    cluster.become("PENDING", "101_3", detail="Resources")
    cluster.become("FAILED", "101_4", nodes="node1")
    cluster.forget("101_5")
    code, lines, said = show(sweep.sweep.folder)
    assert (code, said) == (status.UNFINISHED, "")
    assert lines == [
        "seed=0: pass (1.5 s)",
        "seed=1: error (a node failed)",
        "seed=2: running (on node4, job 101_2, step 2, run 1, block 0)",
        "seed=3: queued (job 101_3: Resources)",
        "seed=4: lost (job 101_4 is over, failed, and left no result)",
        "seed=5: lost (job 101_5 is over, and left no result)",
        "",
        "2 of 6 trials of 6 cells have a result, 1 running, 1 queued, 2 lost",
        f"to wait for them and see the matrix: python -m detsweep.status {sweep.sweep.folder} --follow",
    ]


def test_a_sweep_that_is_through_leaves_with_0_and_asks_nobody_to_wait(
    sweep: Driver, cluster: Cluster, show: Show
) -> None:
    sweep.finish(*range(6))
    code, lines, _ = show(sweep.sweep.folder)
    assert (code, lines[-1]) == (0, "6 of 6 trials of 6 cells have a result")


def test_trials_of_one_cell_are_counted(
    tmp_path: Path, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, show: Show
) -> None:
    sweep = driver(plan_of(["seed=0"], common=["launch=slurm", "trials=4"]), tmp_path / "runs", monkeypatch)
    sweep.step()
    sweep.finish(0, number=3)
    cluster.become("RUNNING", "101_1", nodes="node2")
    _, lines, _ = show(sweep.sweep.folder)
    assert lines[0] == "seed=0: 1 running, 2 queued, 1 pass (trial 1: on node2, job 101_1)"


def test_what_was_never_launched_and_what_died_here_are_told_apart(tmp_path: Path, show: Show) -> None:
    plan = plan_of(["seed=0"], ["seed=1"], ["seed=2"])
    sweep = write_cells(tmp_path / "runs", plan)
    for cell in plan.cells[1:]:
        write_json(trial_of(sweep, cell).job, {"state": "running"})
    handles = hold([sweep.trial_lock(plan.cells[2].id, 0)])
    code, lines, _ = show(sweep.folder)
    os.close(handles[0])
    assert (code, lines[:3]) == (
        status.UNFINISHED,
        [
            "seed=0: not launched",
            "seed=1: lost (its processes are gone, and left no result)",
            "seed=2: running (on this machine)",
        ],
    )


def test_while_slurm_is_away_what_it_has_is_not_guessed(sweep: Driver, cluster: Cluster, show: Show) -> None:
    sweep.finish(0)
    cluster.set(down=AWAY)
    code, lines, said = show(sweep.sweep.folder)
    assert code == status.UNFINISHED
    assert "Slurm cannot be asked (squeue: Unable to contact" in said
    assert lines[:2] == ["seed=0: pass (1.5 s)", "seed=1: not known (Slurm cannot be asked)"]
    assert not any("--follow" in line for line in lines)


def test_to_cancel_is_for_the_jobs_of_this_sweep_alone(sweep: Driver, cluster: Cluster, show: Show) -> None:
    other = {"name": "other", "state": "RUNNING", "nodes": "a", "detail": "", "code": "0:0", "known": True}
    cluster.set(jobs={**cluster.jobs, "99": other})
    cluster.become("COMPLETED", "101_0")
    assert show(sweep.sweep.folder, "--cancel")[:2] == (0, ["cancelled: 101_[1-5]"])
    assert cluster.cancelled() == ["101_[1-5]"]
    assert show(sweep.sweep.folder, "--cancel")[:2] == (0, ["nothing of this sweep is with Slurm"])
    assert cluster.count()["scancel"] == 1


def test_what_cannot_be_cancelled_now_is_not_said_to_be_gone(sweep: Driver, cluster: Cluster, show: Show) -> None:
    cluster.set(down=AWAY)
    code, lines, said = show(sweep.sweep.folder, "--cancel")
    assert (code, lines) == (2, [])
    assert "Slurm cannot be asked" in said
    cluster.set(down="")
    (cluster.folder / "scancel").write_text(f"#!/bin/sh\necho 'scancel: error: {AWAY}' >&2\nexit 1\n")
    code, lines, said = show(sweep.sweep.folder, "--cancel")
    assert (code, lines, said) == (2, [], f"detsweep: scancel: {AWAY}\n")


@pytest.mark.parametrize("words", [[], ["--cancel"], ["--follow"]], ids=str)
def test_a_folder_without_a_sweep_is_named(tmp_path: Path, show: Show, words: list[str]) -> None:
    code, lines, said = show(tmp_path, *words)
    assert (code, lines, said) == (2, [], f"detsweep: {tmp_path}: no sweep here (no sweep.json)\n")


def test_a_torn_file_of_a_sweep_is_named(sweep: Driver, show: Show) -> None:
    sweep.sweep.array(1).write_text("{")
    code, _, said = show(sweep.sweep.folder)
    assert code == 2
    assert str(sweep.sweep.array(1)) in said


def test_both_at_once_are_one_line(tmp_path: Path, show: Show, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        show(tmp_path, "--cancel", "--follow")
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_to_follow_gives_the_last_command_again_where_it_was_given(
    sweep: Driver, show: Show, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    given: list[Any] = []

    def main() -> int:
        given.append((sys.argv, Path.cwd()))
        return 1

    monkeypatch.setattr("detsweep.app.main", main)
    content = read_json(sweep.sweep.sweep)
    words = ["-m", "seed=1,2", "launch=slurm", "launch.detach=true", "folder=elsewhere"]
    write_json(
        sweep.sweep.sweep, {**content, "sessions": [{}, {**content["sessions"][0], "arguments": words, "cwd": "/"}]}
    )
    monkeypatch.chdir(tmp_path)
    assert show(sweep.sweep.folder, "--follow")[0] == 1
    assert given == [(["detsweep", "-m", "seed=1,2", "launch=slurm", f"folder={sweep.sweep.folder}"], Path("/"))]


@pytest.mark.parametrize("content", ["{}", '{"sessions": []}', '{"sessions": [7]}'])
def test_a_sweep_without_a_command_to_give_again_is_one_line(
    sweep: Driver, cluster: Cluster, show: Show, content: str
) -> None:
    sweep.sweep.sweep.write_text(content)
    code, lines, said = show(sweep.sweep.folder, "--follow")
    assert (code, lines) == (status.NO_SWEEP, [])
    assert said.splitlines() == [f"detsweep: {sweep.sweep.sweep} has no command that could be given again"]


def test_a_cell_that_stopped_early_is_through_and_says_why(tmp_path: Path, show: Show) -> None:
    plan = plan_of(["seed=1"], ["seed=2"], common=["trials=4", "stop_after.divergences=2"])
    sweep = write_cells(tmp_path, plan)
    for number in range(3):
        differs = {0: {(0, 2): BLOCK_0_POST}} if number else {}
        write_trial(trial_of(sweep, plan.cells[0], number), plan.cells[0], number, differs=differs)
    # Killed while it ran beside the one that decided: nobody waits for it.
    write_json(trial_of(sweep, plan.cells[0], 3).job, {"state": "running"})
    for number in range(4):
        write_trial(trial_of(sweep, plan.cells[1], number), plan.cells[1], number)
    code, lines, _ = show(tmp_path)
    assert code == 0
    assert lines == [
        "seed=1: 1 pass, 2 diverged; stopped after 3 of 4 trials: 2 diverged",
        "seed=2: 4 pass",
        "",
        "7 of 7 trials of 2 cells have a result",
    ]


def test_a_cell_that_has_no_answer_yet_waits_for_its_trials(tmp_path: Path, show: Show) -> None:
    plan = plan_of(["seed=1"], common=["trials=4", "stop_after.divergences=2"])
    sweep = write_cells(tmp_path, plan)
    write_trial(trial_of(sweep, plan.cells[0]), plan.cells[0], differs={0: {(0, 2): BLOCK_0_POST}})
    code, lines, _ = show(tmp_path)
    assert (code, lines[0]) == (status.UNFINISHED, "seed=1: 3 not launched, 1 diverged")
