"""Searches as they are typed: the smallest set of mitigations that cures, and the settings that a divergence takes.

The pair that cures the packaged control is known; the race is really there, so its launches are not counted.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import detsweep as package
from tests.conftest import Ran, Run, clean_environment, run_detsweep
from tests.running import Driver, eventually, gone, processes_of

# One rank starts sooner than two, and five comparisons that all differ are enough: a clean set takes one launch.
CONTROL = ("case=cured_by_a_pair", "world.nproc_per_node=1", "search.verify=1")
PAIR = ("nccl_gdr_flush", "rccl_gdr_plain_flush")
CANDIDATES = (PAIR[0], "seeded", PAIR[1], "no_compile")
FOR_PAIR = ("search=minimal", *CONTROL, f"search.candidates=[{','.join(CANDIDATES)}]")

# Of few words many tokens are the same, and threads race for the same rows: nearly every comparison differs. wrap=root
# has nothing to do with it.
RACE = (
    "case=indexed_embedding",
    "world.nproc_per_node=1",
    "model.vocab_size=64",
    "model.num_layers=1",
    "wrap=root",
    "steps=5",
    "search.verify=1",
    "search.max_trials=40",
)
RACERS = (
    "seeded",
    "torch_det",
    "no_compile",
    "cpu_1thread",
    "inductor_det",
    "sdpa_math",
    "mkl_compatible",
    "torch_det_nofill",
    "aten_avx2",
    "no_dynamic_threads",
    "fp32_highest",
    "tf32_not_forced",
)
ONE_THREAD = {"cpu_1thread", "omp_1thread", "mkl_1thread", "torch_1thread"}


@dataclass(frozen=True)
class Search:
    """A command that has ended, and what its folder held then: search.json, and every trial that was launched."""

    ran: Ran
    found: dict[str, Any]
    trials: dict[Path, tuple[int, bytes]]

    @property
    def path(self) -> list[tuple[list[str], str]]:
        return [(one["members"], one["came_to"]) for one in self.found["path"]]

    @property
    def sets(self) -> list[str]:
        """The numbered lines that were printed on the way."""
        return [line for line in self.ran.out.splitlines() if line[:3].strip().isdigit() and line[3:5] == ". "]


def search_in(folder: Path, *arguments: str) -> Search:
    return as_it_is(run_detsweep(folder, *arguments))


def as_it_is(ran: Ran) -> Search:
    path = ran.folder / "search.json"
    return Search(ran, json.loads(path.read_text()) if path.exists() else {}, launched(ran.folder))


def launched(folder: Path) -> dict[Path, tuple[int, bytes]]:
    """Of every trial when its launch was last written down, and what was."""
    return {
        path.parent: (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.glob("cells/*/trial*/job.json")
    }


# --- a cure that is known --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> Search:
    """The search for the pair, stopped by Ctrl-C while its fourth set or a later one runs."""
    driver = Driver(tmp_path_factory.mktemp("pair") / "runs")
    try:
        driver.start(*FOR_PAIR)
        tried = partial(_tried, driver.folder / "search.json", 3)
        eventually(tried, patience_s=180)
        running = processes_of(driver.folder)
        os.killpg(driver.process.pid, signal.SIGINT)
        code = driver.wait()
        if running:
            gone(running)
    finally:
        driver.kill()
    return as_it_is(Ran(driver.folder, code, driver.out, ""))


def _tried(state: Path, count: int) -> bool | None:
    return True if state.exists() and len(json.loads(state.read_text())["path"]) >= count else None


@pytest.fixture(scope="module")
def pair(interrupted: Search) -> Search:
    """The same command again, to its end."""
    return search_in(interrupted.ran.folder, *FOR_PAIR)


@pytest.fixture(scope="module")
def analysed(pair: Search) -> Ran:
    """The folder of the search, read once more by the command that only reads."""
    done = subprocess.run(
        [sys.executable, "-m", "detsweep.analysis", str(pair.ran.folder)],
        cwd=pair.ran.folder.parent,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return Ran(pair.ran.folder, done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="module")
def again(pair: Search, analysed: Ran) -> Search:
    return search_in(pair.ran.folder, *FOR_PAIR)


@pytest.fixture(scope="module")
def without(again: Search) -> Search:
    """Without half of the pair among the candidates."""
    return search_in(again.ran.folder, "search=minimal", *CONTROL, "search.candidates=[seeded,nccl_gdr_flush]")


@pytest.fixture(scope="module")
def cured(without: Search) -> Search:
    """The search for a cure of a cell that has it."""
    words = (f"mitigation=[{','.join(PAIR)}]", "search.candidates=[seeded]", "search.max_trials=2")
    return search_in(without.ran.folder, "search=minimal", *CONTROL, *words)


def test_a_search_that_is_stopped_keeps_what_it_has(interrupted: Search) -> None:
    assert interrupted.ran.code == 130
    assert "Traceback" not in interrupted.ran.out
    assert interrupted.found["state"] == "running"
    assert interrupted.found["answer"] is None
    tried = len(interrupted.found["path"])
    assert tried >= 3
    assert f"search=minimal: not at its end; {tried} sets tried so far" in interrupted.ran.out
    assert "to go on: python -m detsweep search=minimal case=cured_by_a_pair" in interrupted.ran.out
    assert len(interrupted.sets) == tried


def test_the_pair_that_cures_is_found_where_the_search_goes_on(interrupted: Search, pair: Search) -> None:
    assert pair.ran.code == 0, pair.ran.out + pair.ran.err
    assert pair.found["answer"] == list(PAIR)
    assert (pair.found["state"], pair.found["found"], pair.found["verified"]) == ("done", True, True)
    assert pair.path[: len(interrupted.path)] == interrupted.path
    # What had come to something was not launched again; one trial may have been stopped.
    unchanged = [trial for trial, written in interrupted.trials.items() if pair.trials[trial] == written]
    assert len(unchanged) >= interrupted.found["launches"] >= len(interrupted.trials) - 1


def test_every_set_is_told_and_kept_with_what_it_came_to(pair: Search) -> None:
    for number, (line, (members, came_to)) in enumerate(zip(pair.sets, pair.path, strict=True), 1):
        assert line.startswith(f"{number:3}. {came_to}")
        assert f": {', '.join(members) or 'nothing'}  [" in line
        # Both of the pair, and neither alone.
        assert came_to == ("clean" if set(members) >= set(PAIR) else "diverged")
    assert pair.found["items"] == list(CANDIDATES)
    assert pair.path[:2] == [([], "diverged"), (list(CANDIDATES), "clean")]
    assert len({frozenset(members) for members, _ in pair.path}) == len(pair.path)
    # Each of the pair is searched for, and each candidate tried alone.
    assert len(pair.path) <= 15


def test_launches_are_those_on_disk(pair: Search) -> None:
    assert pair.found["launches"] == len(pair.trials)
    of = {one["cell"]: one["evidence"] for one in pair.found["path"]}
    counted = dict.fromkeys(of, 0)
    for trial in pair.trials:
        counted[trial.parent.name.rpartition("-")[2]] += 1
    assert counted == {cell: evidence["launches"] for cell, evidence in of.items()}
    # One launch for each set; more of the cell itself, and of the answer, which must stand fresh ones.
    assert counted.pop(pair.found["answer_cell"]) > 1
    assert counted.pop(pair.found["baseline_cell"]) > 1
    assert set(counted.values()) == {1}


def test_the_answer_is_told_with_what_it_rests_on(pair: Search) -> None:
    lines = [line for line in pair.ran.out.splitlines() if line.startswith("search=minimal: ")]
    smallest, verified, *needed, effort, bound, cost = lines
    assert smallest == "search=minimal: smallest set that cures: nccl_gdr_flush, rccl_gdr_plain_flush"
    # The cell itself diverged in six launches out of six, so four clean ones are enough.
    assert verified == "search=minimal: verified: 0/20 diverged in 4 launches, without it 30/30 in 6 of 6"
    assert needed == [
        "search=minimal: needed: nccl_gdr_flush; with rccl_gdr_plain_flush alone: diverged, 5/5",
        "search=minimal: needed: rccl_gdr_plain_flush; with nccl_gdr_flush alone: diverged, 5/5",
    ]
    tried = f"{len(pair.path)} sets of {len(CANDIDATES)} mitigations tried in {pair.found['launches']} launches"
    assert effort == f"search=minimal: {tried}"
    assert bound == "search=minimal: with it the rate is below 13.9% per replay (95% confidence)"
    assert cost.startswith("search=minimal: its cost: ")
    assert "look closer" not in pair.ran.out


def test_the_matrix_has_a_row_for_every_set(pair: Search) -> None:
    verdicts = {"clean": "✓ pass", "diverged": "✗ diverged"}
    rows = {line.split()[0]: line for line in pair.ran.out.splitlines() if " bit_flip " in line}
    markdown = (pair.ran.folder / "matrix.md").read_text()
    for members, came_to in pair.path:
        name = "+".join(sorted(members)) or "none"
        assert verdicts[came_to] in rows[name]
        assert f"| {name} | {verdicts[came_to]} |" in markdown
    assert len(rows) == len(pair.path)
    assert "- search=minimal: smallest set that cures: nccl_gdr_flush, rccl_gdr_plain_flush" in markdown


def test_the_folder_alone_tells_the_same(pair: Search, analysed: Ran) -> None:
    assert analysed.code == pair.ran.code == 0
    assert analysed.out.rstrip() in pair.ran.out
    assert "search=minimal: smallest set that cures: nccl_gdr_flush, rccl_gdr_plain_flush" in analysed.out
    assert package.load(pair.ran.folder).search is not None


def test_the_same_command_again_starts_nothing_and_goes_the_same_way(pair: Search, again: Search) -> None:
    assert again.ran.code == 0, again.ran.out + again.ran.err
    assert again.trials == pair.trials
    assert again.found == pair.found
    assert again.sets == pair.sets


def test_without_a_cure_among_the_candidates_that_is_the_answer(again: Search, without: Search) -> None:
    assert without.ran.code == 1, without.ran.out + without.ran.err
    line = "search=minimal: neither all that go together of these 2 mitigations nor any of them alone cures it"
    assert line in without.ran.out
    assert (without.found["found"], without.found["verified"], without.found["answer"]) == (False, True, [])
    assert without.path == [
        ([], "diverged"),
        (["seeded", "nccl_gdr_flush"], "diverged"),
        (["seeded"], "diverged"),
        (["nccl_gdr_flush"], "diverged"),
    ]
    # The search before has tried all of them on its way.
    assert without.trials == again.trials


def test_a_cell_that_does_not_diverge_has_nothing_to_cure(without: Search, cured: Search) -> None:
    assert cured.ran.code == 3, cured.ran.out + cured.ran.err
    line = "search=minimal: without a mitigation the cell does not diverge here: 0/10 in 2 launches"
    assert line in cured.ran.out
    assert (cured.found["found"], cured.found["verified"]) == (False, False)
    assert cured.path == [([], "clean")]
    assert cured.trials == without.trials


# --- a race that nobody put in ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def race(detsweep: Run) -> Search:
    return as_it_is(detsweep("search=minimal", *RACE, f"search.candidates=[{','.join(RACERS)}]"))


def test_a_race_is_cured_by_one_mitigation_that_is_known_to(race: Search) -> None:
    assert race.ran.code == 0, race.ran.out + race.ran.err
    (cure,) = race.found["answer"]
    assert cure in {"torch_det", "torch_det_nofill", *ONE_THREAD}
    assert race.found["items"] == list(RACERS)
    assert len(race.path) <= 19
    # The two contradict each other: no set has both.
    assert not any({"torch_det", "torch_det_nofill"} <= set(members) for members, _ in race.path)
    assert f"search=minimal: smallest set that cures: {cure}" in race.ran.out


# --- what is wrong is said at once -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("-m", "search=minimal", "seed=1,2"), "search=minimal: takes one cell, the command line has 2"),
        (
            ("search=minimal", "search.candidates=[seeded,torch_dat]"),
            "search.candidates=torch_dat: no such mitigation; did you mean torch_det?; valid: ",
        ),
        (
            ("search=minimal", "device=cpu", "search.candidates=[nccl_ring]"),
            "search.candidates=nccl_ring: none of them has a place here (cpu)",
        ),
        (("search=minimal", "drill=true"), "drill=true: does not go with search=minimal"),
        (
            ("search=culprit", "launch.fail_fast=true"),
            "launch.fail_fast=true: does not go with search=culprit, in which sets diverge on the way",
        ),
        (("search=culprit", "search.confidence=1"), "search.confidence=1.0: must be at most 0.999999"),
        (("search=smallest",), "search=smallest: no such option; valid: culprit, minimal, none"),
    ],
)
def test_what_cannot_be_searched_is_one_line_and_starts_nothing(
    tmp_path: Path, arguments: tuple[str, ...], line: str
) -> None:
    ran = run_detsweep(tmp_path / "runs", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"detsweep: {line}")
    assert ran.err.count("\n") == 1
    assert not ran.folder.exists()


def test_a_dry_run_says_what_would_be_searched_and_starts_nothing(tmp_path: Path) -> None:
    ran = run_detsweep(
        tmp_path / "runs", "search=minimal", "device=cpu", "search.candidates=[seeded,nccl_ring]", "dry_run=true"
    )
    assert ran.code == 0, ran.out + ran.err
    assert ran.out.endswith("search=minimal: from this cell on, over seeded\n")
    assert "detsweep: note: left out, without a place on cpu: nccl_ring\n" in ran.err
    assert not ran.folder.exists()
