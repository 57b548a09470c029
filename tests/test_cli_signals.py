"""A stop leaves no process and loses nothing; the same command again does only the rest."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

import detsweep as package
from tests.conftest import run_detsweep
from tests.running import Driver, eventually, gone, parent, processes_of

SIGNALS = [
    (signal.SIGINT, True),
    (signal.SIGINT, False),
    (signal.SIGTERM, True),
    (signal.SIGTERM, False),
    (signal.SIGHUP, True),
]


def second_trial_runs(driver: Driver, *sweep: str) -> None:
    driver.start(*sweep)
    eventually(lambda: list(driver.folder.glob("cells/*/trial0/result.json")) or None)
    driver.ranks_in_a_run(2)


def kept(folder: Path) -> dict[Path, bytes]:
    (result,) = folder.glob("cells/*/trial0/result.json")
    return {path: path.read_bytes() for path in result.parent.iterdir() if path.is_file()}


@pytest.mark.parametrize(("number", "group"), SIGNALS)
def test_a_signal_ends_the_sweep_and_every_process(
    detsweep_folder: Driver, number: signal.Signals, group: bool
) -> None:
    driver = detsweep_folder
    second_trial_runs(driver, "-m", "steps=1,1000000,2")
    before = kept(driver.folder)
    (os.killpg if group else os.kill)(driver.process.pid, number)
    assert driver.wait() == 130
    gone(driver.seen)
    assert {path: path.read_bytes() for path in before} == before
    assert "1 pass, 2 not reached" in driver.out
    assert "to go on: python -m detsweep -m steps=1,1000000,2 folder=" in driver.out
    assert "Traceback" not in driver.out
    assert (driver.folder / "matrix.md").exists()


def test_what_competes_with_a_step_ends_with_it(detsweep_folder: Driver) -> None:
    driver = detsweep_folder
    driver.start("-m", "stress=contention", "steps=1,1000000")
    eventually(lambda: list(driver.folder.glob("cells/*/trial0/result.json")) or None)
    ranks = driver.ranks_in_a_run(2)
    # The first trial is over: these are the competitors of the second alone, one of each rank.
    competing = {pid for pid in processes_of(driver.folder) if parent(pid) in ranks.values()}
    assert len(competing) == 2
    # One rank dies as hard as can be, the other one is asked to end.
    os.kill(ranks[1], signal.SIGKILL)
    assert driver.wait() == 3
    gone(driver.seen | competing)
    assert processes_of(driver.folder) == set()


def test_after_the_drivers_death_nothing_is_left_and_the_same_command_does_the_rest(detsweep_folder: Driver) -> None:
    driver = detsweep_folder
    sweep = ("-m", "seed=1,2,3", "steps=30")
    second_trial_runs(driver, *sweep)
    before = kept(driver.folder)
    refused = run_detsweep(driver.folder, *sweep)
    assert refused.code == 2
    assert refused.err == f"detsweep: another detsweep works on {driver.folder}\n"
    driver.process.kill()
    # At once, while the orphaned trial may still be ending.
    again = run_detsweep(driver.folder, *sweep)
    gone(driver.seen)
    assert again.code == 0, again.out + again.err
    assert "1 of 3 trials have a result already" in again.out
    assert {path: path.read_bytes() for path in before} == before
    assert list(package.load(driver.folder).trials["verdict"]) == ["pass"] * 3
    # What the interrupted attempt wrote is kept apart from the new one's records.
    assert len(list(driver.folder.glob("cells/*/superseded/trial0-1"))) == 1
