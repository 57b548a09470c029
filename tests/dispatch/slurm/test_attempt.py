"""One attempt becomes its trial, whole, whoever else tries, and whoever dies while it does."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from detsweep.dispatch.slurm import attempt as attempts
from detsweep.dispatch.slurm.attempt import claim_for_driver, newest, publish, recover
from detsweep.paths import CellPaths, TrialPaths, read_json, write_json
from tests.dispatch.slurm.commands import begin_attempt, names

FILES = ("rank000.jsonl", "rank001.jsonl", "job.json", "environment-rank000.json")
RACER = """
import sys
from pathlib import Path
from detsweep.dispatch.slurm.attempt import publish
from detsweep.paths import TrialPaths
print("ready", flush=True)
sys.stdin.readline()
print(publish(TrialPaths(Path(sys.argv[1])), TrialPaths(Path(sys.argv[2]))))
"""


@pytest.fixture
def trial(tmp_path: Path) -> TrialPaths:
    """A trial as the driver writes it, before any job has begun."""
    made = CellPaths(tmp_path / "seed-1-0123456789").trial(0)
    write_json(made.spec, {"trial": 0})
    return made


def _ended(trial: TrialPaths, name: str) -> TrialPaths:
    """An attempt that is through; each of its files says whose it is."""
    made = begin_attempt(trial, name, **dict.fromkeys(FILES, name))
    made.logs.mkdir()
    (made.logs / "rank000.log").write_text(name)
    write_json(made.result, {"of": name})
    return made


def _owners(trial: TrialPaths) -> set[str]:
    """The attempts of which a trial has files."""
    files = [*(trial.folder / name for name in FILES), trial.logs / "rank000.log"]
    return {path.read_text() for path in files if path.exists()} | {read_json(trial.result)["of"]}


def test_an_attempt_that_is_through_becomes_the_trial_with_all_its_files(trial: TrialPaths) -> None:
    one = _ended(trial, "7.0")
    assert publish(one, trial)
    assert _owners(trial) == {"7.0"}
    assert read_json(trial.spec) == {"trial": 0}
    assert names(list(trial.folder.iterdir())) == sorted([".claimed", *FILES, "log", "result.json", "spec.json"])
    assert not one.folder.exists()


def test_an_attempt_without_a_result_does_not(trial: TrialPaths) -> None:
    one = begin_attempt(trial, "7.0", **{"rank000.jsonl": "half"})
    assert not publish(one, trial)
    assert names(list(trial.folder.iterdir())) == ["spec.json"]


def test_the_second_to_come_changes_nothing(trial: TrialPaths) -> None:
    first, second = _ended(trial, "7.0"), _ended(trial, "7.1")
    assert [publish(first, trial), publish(second, trial)] == [True, False]
    assert _owners(trial) == {"7.0"}
    assert _owners(second) == {"7.1"}


def test_the_result_comes_last(trial: TrialPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    moved = []
    rename = Path.rename

    def noted(path: Path, target: Path) -> Path:
        moved.append(path.name)
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", noted)
    publish(_ended(trial, "7.0"), trial)
    assert moved[-1] == "result.json"
    assert len(moved) == len(FILES) + 2


def test_of_many_threads_that_race_one_wins_and_its_files_are_the_trials(tmp_path: Path) -> None:
    for race in range(20):
        trial = CellPaths(tmp_path / f"seed-{race}-0123456789").trial(0)
        write_json(trial.spec, {})
        own = [_ended(trial, f"7.{number}") for number in range(6)]
        barrier, won = threading.Barrier(len(own)), []

        def run(one: TrialPaths, barrier: threading.Barrier, trial: TrialPaths, won: list[str]) -> None:
            barrier.wait()
            if publish(one, trial):
                won.append(one.folder.name.rpartition("-")[2])

        threads = [threading.Thread(target=run, args=(one, barrier, trial, won)) for one in own]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1
        assert _owners(trial) == set(won)


def test_of_processes_that_race_one_wins(trial: TrialPaths) -> None:
    own = [_ended(trial, f"7.{number}") for number in range(4)]
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, str(one.folder), str(trial.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for one in own
    ]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    said = [racer.communicate("\n", timeout=60)[0].strip() for racer in racers]
    assert sorted(said) == ["False"] * 3 + ["True"]
    assert _owners(trial) == {f"7.{said.index('True')}"}


@pytest.mark.parametrize("moves", range(len(FILES) + 2))
def test_what_died_half_way_is_finished_by_whoever_comes_next(
    trial: TrialPaths, monkeypatch: pytest.MonkeyPatch, moves: int
) -> None:
    one, other = _ended(trial, "7.0"), _ended(trial, "7.1")
    rename, left = Path.rename, [moves]

    def dies(path: Path, target: Path) -> Path:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        return rename(path, target)

    with monkeypatch.context() as broken:
        broken.setattr(Path, "rename", dies)
        with pytest.raises(KeyboardInterrupt):
            publish(one, trial)
    assert not trial.result.exists()
    assert not publish(other, trial)
    recover(trial)
    assert _owners(trial) == {"7.0"}
    assert all((trial.folder / name).exists() for name in FILES)
    recover(trial)
    assert _owners(trial) == {"7.0"}


def test_a_claim_of_nothing_is_taken_back(trial: TrialPaths) -> None:
    trial.claim.write_text("trial0-attempt-7.0")
    one = _ended(trial, "7.1")
    assert not publish(one, trial)
    recover(trial)
    assert publish(one, trial)


def test_there_is_nothing_to_recover_in_most_trials(trial: TrialPaths) -> None:
    recover(trial)
    assert names(list(trial.folder.iterdir())) == ["spec.json"]


def test_two_that_finish_the_same_lose_no_file_and_keep_the_claim(
    trial: TrialPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One that recovers comes between the publisher's last look and its result.
    one, late = _ended(trial, "7.0"), _ended(trial, "7.1")
    exists = Path.exists

    def slow(path: Path) -> bool:
        found = exists(path)
        if path == trial.result and not found and exists(one.result):
            with monkeypatch.context() as quick:
                quick.setattr(Path, "exists", exists)
                assert publish(one, trial)
        return found

    with monkeypatch.context() as patched:
        trial.claim.write_text(one.folder.name)
        patched.setattr(Path, "exists", slow)
        recover(trial)
    assert _owners(trial) == {"7.0"}
    assert not publish(late, trial)
    assert _owners(trial) == {"7.0"}


def test_what_the_driver_has_given_up_no_attempt_takes_back(trial: TrialPaths) -> None:
    one = _ended(trial, "7.0")
    assert claim_for_driver(trial)
    assert not publish(one, trial)
    assert claim_for_driver(trial)
    assert not trial.result.exists()


def test_what_an_attempt_has_claimed_the_driver_does_not_give_up(trial: TrialPaths) -> None:
    one = _ended(trial, "7.0")
    publish(one, trial)
    assert not claim_for_driver(trial)
    trial.claim.unlink()
    trial.result.unlink()
    trial.claim.write_text("trial0-attempt-7.0")
    assert not claim_for_driver(trial)


def test_a_superseded_attempt_whose_processes_live_on_never_becomes_the_trial(trial: TrialPaths) -> None:
    old = begin_attempt(trial, "7.0", **{"rank000.jsonl": "half"})
    cell = CellPaths(trial.folder.parent)
    kept = cell.attempt(0, "7.1")
    cell.set_attempts_aside(0, keep=kept)
    new = _ended(trial, "7.1")
    # On a node that Slurm lost sight of it goes on: what it writes lies where its folder was.
    (cell.folder / "superseded" / "trial0-1" / "rank001.jsonl").write_text("late")
    write_json(old.node(0), {"returncode": 1})
    write_json(old.result, {"of": "7.0"})
    assert not publish(old, trial)
    assert publish(new, trial)
    assert _owners(trial) == {"7.1"}
    assert not publish(old, trial)
    assert _owners(trial) == {"7.1"}


def test_a_later_writer_of_an_old_attempt_changes_no_file_of_the_trial(trial: TrialPaths) -> None:
    old = _ended(trial, "7.0")
    with (old.folder / "rank000.jsonl").open("a") as late:
        cell = CellPaths(trial.folder.parent)
        cell.set_attempts_aside(0, keep=cell.attempt(0, "7.1"))
        new = _ended(trial, "7.1")
        assert publish(new, trial)
        late.write("more")
    assert _owners(trial) == {"7.1"}


def test_the_newest_attempt_is_the_one_that_was_begun_last(trial: TrialPaths) -> None:
    assert newest(trial, 0) is None
    made = [begin_attempt(trial, name) for name in ("9.0", "10.0", "10.1")]
    for age, one in enumerate(made):
        os.utime(one.folder, (1000 + age, 1000 + age))
    assert newest(trial, 0) == made[-1]
    assert newest(trial, 1) is None


def test_a_claim_leaves_no_file_of_its_own(trial: TrialPaths) -> None:
    assert attempts.claim_for_driver(trial)
    assert names(list(trial.folder.iterdir())) == [".claimed", "spec.json"]
