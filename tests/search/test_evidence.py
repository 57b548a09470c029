"""What the launches of a cell say about it: comparisons and divergences of those that came to a verdict."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from detsweep.crosstrial import settled
from detsweep.paths import SweepPaths
from detsweep.results import read_result, refused, unsupported
from detsweep.search.evidence import Evidence, evidence
from tests.search.launching import finished
from tests.support import BLOCK_0_POST, LOSS, one_cell, trial_of, write_failure, write_trial


def counted(launches: tuple[int, int], comparisons: tuple[int, int], *, reference: int = 0) -> Evidence:
    """Evidence of (all, diverged) launches and comparisons; `reference`: launches that others are held against."""
    (launched, bad), (compared, diverged) = launches, comparisons
    return Evidence(launched, compared, diverged, None, diverged_launches=bad, compared_launches=launched - reference)


@pytest.mark.parametrize(
    ("overrides", "differ", "compared"),
    [
        (("steps=10",), 0, 10),
        (("steps=10",), 4, 10),
        (("steps=10", "runs=3"), 11, 20),
        # A trajectory that differs once differs from there on: its steps are no chances of their own.
        (("mode=train", "steps=10", "runs=4"), 0, 3),
        (("mode=train", "steps=10", "runs=4"), 2, 3),
        (("mode=resume", "steps=10"), 0, 1),
        (("mode=resume", "steps=10"), 1, 1),
    ],
)
def test_comparisons_are_those_of_the_mode(overrides: tuple[str, ...], differ: int, compared: int) -> None:
    result = finished(*overrides, differ=differ)
    found = counted((1, int(differ > 0)), (compared, differ))
    assert evidence({0: result}, one_cell(*overrides).config) == found


def test_launches_add_up() -> None:
    cell = one_cell("steps=10")
    results = {number: finished("steps=10", differ=number) for number in range(4)}
    assert evidence(results, cell.config) == counted((4, 3), (40, 6))
    assert evidence(results, cell.config).rate == "6/40"
    assert evidence({}, cell.config) == Evidence(0, 0, 0, None)


def test_a_run_in_which_several_ranks_differ_is_one_divergence(tmp_path: Path) -> None:
    cell = one_cell("steps=10")
    differs = {0: {(3, 2): BLOCK_0_POST, (4, 2): LOSS}, 1: {(3, 2): BLOCK_0_POST}}
    result = write_trial(trial_of(SweepPaths(tmp_path), cell), cell, differs=differs)
    assert evidence({0: result}, cell.config).rate == "2/10"
    trained = one_cell("mode=train", "steps=3", "runs=3")
    differs = {rank: {(step, 3): BLOCK_0_POST for step in range(3)} for rank in range(2)}
    result = write_trial(trial_of(SweepPaths(tmp_path), trained), trained, differs=differs)
    assert evidence({0: result}, trained.config).rate == "1/2"


def test_launches_without_a_verdict_are_no_comparisons_and_the_first_error_is_kept(tmp_path: Path) -> None:
    cell = one_cell("steps=10")
    trials = [trial_of(SweepPaths(tmp_path), cell, number) for number in range(4)]
    write_failure(trials[1], cell, 1, error="rank 1: ValueError: x")
    write_failure(trials[2], cell, 2, verdict="timeout", error="still running after 1 min")
    results = {0: finished("steps=10", differ=1), 3: write_trial(trials[3], cell, 3, lost={0: ["A is unset"]})}
    results |= {number: found for number in (1, 2) if (found := read_result(trials[number])) is not None}
    found = evidence(dict(sorted(results.items())), cell.config)
    assert found == replace(counted((1, 1), (10, 1)), error="rank 1: ValueError: x")
    assert evidence({3: results[3]}, cell.config) == Evidence(0, 0, 0, "not in force: rank 0: A is unset")


def test_what_was_not_started_is_an_error_too() -> None:
    cell = one_cell("steps=10")
    assert evidence({0: unsupported(cell.spec(0), "for amd")}, cell.config) == Evidence(0, 0, 0, "for amd")
    result = refused(cell.spec(0), ["rank 0: A is unset"])
    error = "refused, required and not in force: rank 0: A is unset"
    assert evidence({0: result}, cell.config) == Evidence(0, 0, 0, error)
    assert evidence({0: {"verdict": "timeout"}}, cell.config).error == "timeout"


def _relaunched(folder: Path, *differs: int, runs: int) -> list[Evidence]:
    """What the first, the first two, ... launches say, of which so many runs differ from the first launch's."""
    cell = one_cell("mode=relaunch", "steps=10", f"runs={runs}", "trials=2")
    written = {}
    for number, differ in enumerate(differs):
        trial = trial_of(SweepPaths(folder), cell, number)
        # The last run of each step: without a second one in a launch that is one with the first launch's only.
        struck = {(step, runs): BLOCK_0_POST for step in range(differ)}
        written[number] = (trial, write_trial(trial, cell, number, differs={1: struck}))
    first = [{n: written[n] for n in range(count)} for count in range(1, len(differs) + 1)]
    return [evidence(settled(trials, cell.config), cell.config) for trials in first]


def test_launches_that_are_compared_with_the_first_one_count_from_the_second_on(tmp_path: Path) -> None:
    assert _relaunched(tmp_path, 0, 0, 3, runs=1) == [
        counted((1, 0), (0, 0), reference=1),
        counted((2, 0), (10, 0), reference=1),
        counted((3, 1), (20, 3), reference=1),
    ]


def test_a_first_launch_that_differs_from_itself_counts_too(tmp_path: Path) -> None:
    # In itself a launch of two runs has ten comparisons, and with the first launch twenty.
    one, two = _relaunched(tmp_path, 4, 4, runs=2)
    assert one == counted((1, 1), (10, 4))
    assert (two.launches, two.compared_launches, two.diverged_launches) == (2, 2, 2)
    assert two.compared == 40


def test_whether_anything_has_read_the_mitigations_is_known(tmp_path: Path) -> None:
    cell = one_cell("steps=10", "mitigation=[seeded]")
    result = finished("steps=10", differ=0)

    def inert(*statuses: str) -> bool:
        effects = {f"mitigation {place}": {"status": status, "settings": {}} for place, status in enumerate(statuses)}
        return evidence({0: {**result, "effects": effects}}, cell.config).inert

    assert inert("inert")
    assert inert("inert", "inert")
    assert not inert("inert", "effective")
    assert not inert()
    # Of a launch that came to nothing it is not known.
    assert not evidence({0: {"verdict": "error", "effects": {"a": {"status": "inert"}}}}, cell.config).inert
