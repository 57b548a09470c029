"""The three arms: deterministic algorithms off, with fresh memory filled and without; what they tell together."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from pathlib import Path

import pytest

from detsweep import Sweep, load
from detsweep.analysis.arms import arm_lines
from detsweep.analysis.report import summary
from tests.support import BLOCK_0_POST, plan_of, trial_of, write_cells, write_failure, write_trial

OFF, FILLED, UNFILLED = "mitigation=[none]", "mitigation=[torch_det]", "mitigation=[torch_det_nofill]"
READS = "clean only while fresh memory is filled: something reads memory that nobody has written"
RACES = "cured by deterministic algorithms, with and without filling fresh memory: an operator that races"
NOT_CURED = "not cured by deterministic algorithms"
FILL_RACES = "diverges only while fresh memory is filled: the fill itself races"
SAID = {
    ("diverged", "pass", "diverged"): READS,
    ("error", "pass", "diverged"): READS,
    ("diverged", "pass", "pass"): RACES,
    ("pass", "diverged", "diverged"): NOT_CURED,
    ("error", "diverged", "diverged"): NOT_CURED,
    ("diverged", "diverged", "diverged"): NOT_CURED,
    ("pass", "diverged", "pass"): FILL_RACES,
    ("error", "diverged", "pass"): FILL_RACES,
}
"""What is said of the verdicts of the three arms, in their order; of all others nothing is."""


def _sweep(folder: Path, verdicts: Mapping[tuple[str, ...], str]) -> Sweep:
    """A sweep whose cells, by their overrides, came to these verdicts; several of them are of one launch each."""
    trials = max(len(one.split()) for one in verdicts.values())
    plan = plan_of(*verdicts, common=[f"trials={trials}", "mitigation_force=true"])
    sweep = write_cells(folder, plan)
    for cell, words in zip(plan.cells, verdicts.values(), strict=True):
        for number, verdict in enumerate(words.split()):
            trial = trial_of(sweep, cell, number)
            if verdict == "error":
                write_failure(trial, cell, number)
            else:
                write_trial(trial, cell, number, differs={1: {(0, 2): BLOCK_0_POST}} if verdict == "diverged" else {})
    return load(folder)


def _lines(folder: Path, off: str, filled: str, unfilled: str, *more: str) -> list[str]:
    arms = {OFF: off, FILLED: filled, UNFILLED: unfilled}
    return list(arm_lines(_sweep(folder, {(arm, "seed=7", *more): verdict for arm, verdict in arms.items()})))


@pytest.mark.parametrize("verdicts", list(product(("pass", "diverged", "error"), repeat=3)), ids="-".join)
def test_the_three_verdicts_together_say_what_was_cured(tmp_path: Path, verdicts: tuple[str, str, str]) -> None:
    expected = [f"seed=7: {SAID[verdicts]}"] if verdicts in SAID else []
    assert _lines(tmp_path, *verdicts) == expected


@pytest.mark.parametrize("missing", [OFF, FILLED, UNFILLED])
def test_without_one_of_the_arms_nothing_is_said(tmp_path: Path, missing: str) -> None:
    arms = {OFF: "diverged", FILLED: "pass", UNFILLED: "diverged"}
    found = _sweep(tmp_path, {(arm,): verdict for arm, verdict in arms.items() if arm != missing})
    assert list(arm_lines(found)) == []


@pytest.mark.parametrize(
    ("off", "filled", "unfilled", "said"),
    [
        ("pass diverged", "pass pass", "diverged pass", READS),
        ("pass diverged", "pass pass", "pass pass", RACES),
        ("pass diverged", "pass diverged", "diverged pass", NOT_CURED),
        ("pass diverged", "pass error", "diverged pass", None),
    ],
)
def test_one_launch_that_diverged_is_enough_and_one_that_failed_says_nothing(
    tmp_path: Path, off: str, filled: str, unfilled: str, said: str | None
) -> None:
    assert _lines(tmp_path, off, filled, unfilled) == ([] if said is None else [f"seed=7: {said}"])


@pytest.mark.parametrize("order", [("pass", "diverged"), ("diverged", "pass")], ids="-".join)
def test_of_two_cells_in_one_arm_the_worst_counts(tmp_path: Path, order: tuple[str, str]) -> None:
    cells = {(OFF,): "diverged", (FILLED,): order[0], ("mitigation=[torch_strict]",): order[1], (UNFILLED,): "diverged"}
    assert list(arm_lines(_sweep(tmp_path, cells))) == [f"tiny: {NOT_CURED}"]


def test_every_cell_has_a_line_of_its_own(tmp_path: Path) -> None:
    verdicts = {
        "dtype=bf16": ("diverged", "pass", "pass"),
        "dtype=fp16": ("diverged", "pass", "diverged"),
        "dtype=fp32": ("pass", "pass", "pass"),
    }
    cells = {
        (arm, dtype): one
        for dtype, own in verdicts.items()
        for arm, one in zip((OFF, FILLED, UNFILLED), own, strict=True)
    }
    assert list(arm_lines(_sweep(tmp_path, cells))) == [f"dtype=bf16: {RACES}", f"dtype=fp16: {READS}"]


def test_arms_of_cells_that_differ_otherwise_too_are_not_taken_together(tmp_path: Path) -> None:
    cells = {(OFF, "seed=1"): "diverged", (FILLED, "seed=1"): "pass", (UNFILLED, "seed=2"): "diverged"}
    assert list(arm_lines(_sweep(tmp_path, cells))) == []


@pytest.mark.parametrize(
    "third",
    [
        ("mitigation=[torch_det_nofill,no_compile]",),
        ("mitigation=[torch_det_nofill]", "+env.A=1"),
        ("mitigation=[torch_det_nofill,cudnn_det]",),
        # What only warns leaves operators that have no deterministic form as they are.
        ("mitigation=[torch_warn]",),
    ],
    ids=str,
)
def test_what_sets_more_than_the_arms_differ_in_is_none_of_them(tmp_path: Path, third: tuple[str, ...]) -> None:
    cells = {(OFF,): "diverged", (FILLED,): "pass", third: "diverged"}
    assert list(arm_lines(_sweep(tmp_path, cells))) == []


def test_a_cell_that_nothing_tells_from_others_goes_by_its_model(tmp_path: Path) -> None:
    cells = {(OFF,): "diverged", (FILLED,): "pass", (UNFILLED,): "diverged"}
    assert list(arm_lines(_sweep(tmp_path, cells))) == [f"tiny: {READS}"]


def test_it_is_a_line_of_the_summary(tmp_path: Path) -> None:
    cells = {(OFF,): "diverged", (FILLED,): "pass", (UNFILLED,): "diverged"}
    assert f"tiny: {READS}" in summary(_sweep(tmp_path, cells))
