"""Rates of cells: exact intervals per replay and per launch, what stopped early, and the words of both."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from detsweep import Sweep, load
from detsweep.analysis import exit_code, write_report
from detsweep.analysis.celltable import cell_table
from detsweep.analysis.rates import percent, rate_words, rates, with_rates_in_words
from detsweep.analysis.report import summary
from detsweep.bounds import interval, interval_until, upper_bound
from detsweep.chances import chances
from detsweep.crosstrial import settled
from detsweep.results import read_result
from tests.support import INPUT, LOSS, plan_of, trial_of, write_cells, write_failure, write_trial

ERROR = -1


def _sweep(folder: Path, *cells: tuple[int, ...], common: tuple[str, ...] = ()) -> Sweep:
    """Cells of trials in which so many of 10 replays differ, or that failed."""
    most = max(len(trials) for trials in cells)
    own = () if any(word.startswith("trials=") for word in common) else (f"trials={most}",)
    plan = plan_of(*([f"seed={number}"] for number, _ in enumerate(cells)), common=["steps=10", *own, *common])
    sweep = write_cells(folder, plan)
    for cell, trials in zip(plan.cells, cells, strict=True):
        for number, count in enumerate(trials):
            trial = trial_of(sweep, cell, number)
            if count == ERROR:
                write_failure(trial, cell, number)
            else:
                write_trial(trial, cell, number, differs={0: {(step, 2): INPUT for step in range(count)}})
    return load(folder)


def _row(table: pd.DataFrame, place: int = 0) -> dict[str, Any]:
    return {str(key): value for key, value in table.iloc[place].to_dict().items()}


def test_the_rate_is_that_of_the_replays_of_valid_trials_with_its_exact_interval(tmp_path: Path) -> None:
    row = _row(cell_table(_sweep(tmp_path, (3, 0, ERROR, 4))))
    assert (row["diverged"], row["errors"], row["replays"]) == ("2/3", 1, "7/30")
    assert row["rate"] == pytest.approx(7 / 30)
    assert (row["rate_low"], row["rate_high"]) == pytest.approx(interval(7, 30))
    assert row["launch_rate"] == pytest.approx(2 / 3)
    assert (row["launch_rate_low"], row["launch_rate_high"]) == pytest.approx(interval(2, 3))


def test_three_errors_of_ten_leave_seven_valid(tmp_path: Path) -> None:
    sweep = _sweep(tmp_path, (0, ERROR, 0, 0, ERROR, 0, 0, ERROR, 0, 0))
    row = _row(cell_table(sweep))
    assert (row["diverged"], row["errors"], row["replays"]) == ("0/7", 3, "0/70")
    assert row["upper_bound"] == pytest.approx(upper_bound(70))
    assert row["launch_upper_bound"] == pytest.approx(upper_bound(7))
    assert "3 of 10 trials count in no rate: 3 error" in summary(sweep)


def test_of_one_launch_there_is_no_rate_of_launches(tmp_path: Path) -> None:
    assert not [name for name in cell_table(_sweep(tmp_path, (3,), (0,))).columns if name.startswith("launch")]


def test_what_has_no_valid_trial_has_no_rate(tmp_path: Path) -> None:
    row = _row(cell_table(_sweep(tmp_path, (ERROR, ERROR))))
    assert all(pd.isna(row[name]) for name in ("rate", "rate_low", "rate_high", "upper_bound"))


def test_a_broken_cell_has_no_rate_and_the_others_have_theirs(tmp_path: Path) -> None:
    sweep = _sweep(tmp_path, (3,), (4,))
    folder = next(path for path in tmp_path.glob("cells/seed-0*"))
    (folder / "cell.json").write_text("{")
    assert sorted(cell_table(load(sweep.folder))["rate"].fillna(-1)) == [-1, 0.4]


def test_steps_of_a_trajectory_after_the_first_that_differs_are_no_chances(tmp_path: Path) -> None:
    plan = plan_of(["seed=1"], common=["mode=train", "steps=10", "runs=4", "trials=2"])
    (cell,) = plan.cells
    sweep = write_cells(tmp_path, plan)
    differs = {0: {(step, 2): LOSS for step in range(3, 10)}, 1: {(5, 2): LOSS, (0, 4): LOSS}}
    for number, own in enumerate((differs, {})):
        write_trial(trial_of(sweep, cell, number), cell, number, differs=own)
    row = _row(cell_table(load(tmp_path)))
    # Of the first launch 4, 10 and 1 steps, of the second all 30.
    assert row["rate"] == pytest.approx(2 / 45)
    assert (row["rate_low"], row["rate_high"]) == pytest.approx(interval(2, 45))


@pytest.mark.parametrize(
    "overrides",
    [["mode=replay"], ["mode=relaunch"], ["mode=relaunch", "runs=1"], ["mode=train"], ["mode=lockstep"]],
    ids=str,
)
def test_frames_and_results_count_the_same(tmp_path: Path, overrides: list[str]) -> None:
    plan = plan_of(["seed=1"], common=[*overrides, "steps=4", "trials=4"])
    (cell,) = plan.cells
    sweep = write_cells(tmp_path, plan)
    last = int(cell.config["runs"])
    for number in (0, 1, 3):
        differs = {0: {(2, last): LOSS, (3, last): LOSS}, 1: {(1, last): LOSS}} if number == 1 else {}
        write_trial(trial_of(sweep, cell, number), cell, number, differs=differs)
    found = {n: (t, r) for n, t in sweep.all_cells()[0].trials() if (r := read_result(t)) is not None}
    assert rates(load(tmp_path))[cell.id].seen == chances(settled(found, cell.config), cell.config)


# --- stopped early ---------------------------------------------------------------------------------------------------


def test_what_a_stopped_cell_did_without_is_no_row_and_costs_no_exit_code(tmp_path: Path) -> None:
    sweep = _sweep(
        tmp_path, (0, 3, 0, 5), (0,) * 6, common=("trials=20", "stop_after.divergences=2", "stop_after.bound=0.05")
    )
    assert list(sweep.trials["trial"]) == [*range(4), *range(6)]
    assert exit_code(sweep) == 1
    table = cell_table(sweep)
    assert list(table["stopped"]) == [
        "after 4 of 20 trials: 2 diverged",
        "after 6 of 20 trials: 0 of 60 replays diverged",
    ]
    assert list(table["verdict"]) == ["diverged", "pass"]
    assert "stop_after: 2 cells stopped early, which spared 30 of 40 trials" in summary(sweep)


def test_a_clean_cell_that_stopped_has_passed(tmp_path: Path) -> None:
    sweep = _sweep(tmp_path, (0,) * 6, common=("trials=20", "stop_after.bound=0.05"))
    assert exit_code(sweep) == 0
    write_report(sweep)
    assert "after 6 of 20 trials: 0 of 60 replays diverged" in (tmp_path / "matrix.md").read_text()


def test_a_cell_that_has_no_answer_yet_waits_for_all_its_trials(tmp_path: Path) -> None:
    sweep = _sweep(tmp_path, (0, 3), common=("trials=5", "stop_after.divergences=2"))
    assert list(sweep.trials["verdict"]) == ["pass", "diverged", "none", "none", "none"]
    assert "stopped" not in cell_table(sweep)
    assert exit_code(sweep) == 1
    assert exit_code(_sweep(tmp_path / "clean", (0,), common=("trials=5", "stop_after.bound=0.01"))) == 3


def test_a_folder_that_was_made_for_a_trial_that_is_not_needed_makes_no_row(tmp_path: Path) -> None:
    _sweep(tmp_path, (3,), common=("trials=3", "stop_after.divergences=1"))
    (cell,) = plan_of(["seed=0"], common=["steps=10", "trials=3", "stop_after.divergences=1"]).cells
    folder = next(tmp_path.glob("cells/*"))
    (folder / "trial1").mkdir()
    (folder / "trial1" / "spec.json").write_text("{}")
    assert list(load(tmp_path).trials["trial"]) == [0]
    assert cell.id in folder.name


@pytest.mark.parametrize(
    ("trials", "exact"),
    [
        ((0, 3, 0, 5), True),
        ((0, 3, 5, 0), False),
        ((3, 5, 5), False),
        ((0, ERROR, 3, ERROR, 5), True),
        ((0, 3, 0), False),
    ],
    ids=str,
)
def test_launches_up_to_the_divergence_that_ended_them_are_negative_binomial(
    tmp_path: Path, trials: tuple[int, ...], exact: bool
) -> None:
    row = _row(cell_table(_sweep(tmp_path, trials, common=("trials=20", "stop_after.divergences=2"))))
    valid = [count for count in trials if count != ERROR]
    counts = sum(count > 0 for count in valid), len(valid)
    expected = (interval_until if exact else interval)(*counts)
    assert (row["launch_rate_low"], row["launch_rate_high"]) == pytest.approx(expected)


# --- words -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seen", "of", "words"),
    [
        (17, 50, "34% (21-49%)"),
        (1, 1, "100% (2.5-100%)"),
        (1, 200, "0.5% (0.013-2.8%)"),
        (999, 1000, "99.9% (99-99.997%)"),
        (0, 20, ""),
        (40, 40, "100% (91-100%)"),
    ],
)
def test_a_rate_is_a_few_words(seen: int, of: int, words: str) -> None:
    assert rate_words(seen / of, *interval(seen, of)) == words


def test_what_is_not_all_is_not_said_to_be_all_nor_nothing_what_is_not() -> None:
    for value in (1e-9, 1e-5, 0.0004, 0.004, 0.0996, 0.996, 0.9996, 0.99999, 1 - 1e-9):
        assert percent(value) not in ("0%", "100%", "0.0%", "100.0%")
    assert (percent(0), percent(1), percent(1 / 3)) == ("0%", "100%", "33%")


def test_for_people_a_rate_is_one_column_and_a_clean_cell_has_its_bound(tmp_path: Path) -> None:
    shown = with_rates_in_words(cell_table(_sweep(tmp_path, (5, 6, 6), (0, 0, 0))))
    assert list(shown["rate"]) == ["57% (37-75%)", ""]
    assert list(shown["launch_rate"]) == ["100% (29-100%)", "< 63.2%"]
    assert not [name for name in shown.columns if name.endswith(("_low", "_high")) or name.startswith("p_")]
    assert math.isclose(upper_bound(3), 0.632, abs_tol=5e-4)
