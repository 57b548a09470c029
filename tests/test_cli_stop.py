"""Cells that stop early, as they are typed: after a divergence, at a bound, and not again with the next command."""

from __future__ import annotations

import subprocess
import sys

import pytest

import detsweep as package
from tests.conftest import Ran, Run, clean_environment, run_detsweep

# Ten clean replays say: below 26%.
WORDS = ("-m", "fault=none,bit_flip", "fault.rank=1", "trials=4", "steps=6", "world.threads_per_rank=1")
RULE = ("stop_after.divergences=1", "stop_after.bound=0.27")


@pytest.fixture(scope="module")
def stopped(detsweep: Run) -> Ran:
    return detsweep(*WORDS, *RULE)


def _launched(ran: Ran) -> dict[str, list[int]]:
    """The trials of each cell that were launched, by its fault."""
    trials = package.load(ran.folder).trials
    return {str(fault): list(group["trial"]) for fault, group in trials.groupby("fault", sort=False)}


def test_each_cell_is_launched_as_often_as_its_answer_takes(stopped: Ran) -> None:
    assert stopped.code == 1, stopped.out + stopped.err
    assert _launched(stopped) == {"none": [0, 1], "bit_flip": [0]}
    folders = sorted(path.name for cell in stopped.cells().values() for path in cell.glob("trial*"))
    assert folders == ["trial0", "trial0", "trial1"]


def test_the_table_and_the_summary_say_which_stopped_and_why(stopped: Ran) -> None:
    rows = {word: line for line in stopped.out.splitlines() for word in ("✓ pass", "✗ diverged") if word in line}
    assert "after 2 of 4 trials: 0 of 12 replays diverged" in rows["✓ pass"]
    assert "after 1 of 4 trials: 1 diverged" in rows["✗ diverged"]
    assert "stop_after: 2 cells stopped early, which spared 5 of 8 trials" in stopped.out


def test_status_knows_that_nothing_is_to_come(stopped: Ran) -> None:
    command = [sys.executable, "-m", "detsweep.status", str(stopped.folder)]
    done = subprocess.run(command, capture_output=True, text=True, env=clean_environment(), check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "; stopped after 1 of 4 trials: 1 diverged" in done.stdout
    assert done.stdout.splitlines()[-1] == "3 of 3 trials of 2 cells have a result"


def test_the_same_command_launches_nothing_again(stopped: Ran) -> None:
    before = {path: path.stat().st_mtime_ns for path in stopped.folder.rglob("result.json")}
    again = run_detsweep(stopped.folder, *WORDS, *RULE)
    assert again.code == stopped.code
    assert not [line for line in again.out.splitlines() if line.startswith("[")]
    assert {path: path.stat().st_mtime_ns for path in stopped.folder.rglob("result.json")} == before


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("stop_after.divergences=0",), "stop_after.divergences=0: must be at least 1"),
        (("trials=2", "stop_after.divergences=3"), "no cell can reach it with trials=2"),
        (("stop_after.bound=2",), "stop_after.bound=2.0: must be at most 0.999999"),
        (("stop_after.bound=much",), "stop_after.bound"),
        (("stop_after.divergence=1",), "stop_after.divergence"),
        (("search=minimal", "stop_after.divergences=1"), "does not go with search=minimal"),
    ],
    ids=str,
)
def test_a_wrong_rule_is_one_line_and_nothing_starts(detsweep: Run, words: tuple[str, ...], line: str) -> None:
    ran = detsweep(*words)
    assert (ran.code, ran.out) == (2, "")
    (said,) = [one for one in ran.err.splitlines() if "note:" not in one]
    assert said.startswith("detsweep: ")
    assert line in said
