"""What a tracker is told of each cell: the same numbers as the matrix has."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from scipy import stats

from detsweep.analysis import load, write_report
from detsweep.analysis.tracking.runs import Tracked, TrackedRun, tracked
from detsweep.bounds import upper_bound
from tests.support import BLOCK_0_POST, plan_of, trial_of, write_cells, write_failure, write_trial


def _tracked(folder: Path) -> Tracked:
    sweep = load(folder)
    write_report(sweep)
    return tracked(sweep)


def _one(folder: Path, *overrides: str, diverged: bool = False, **more: float) -> TrackedRun:
    """The run of a sweep with one cell."""
    plan = plan_of(overrides)
    sweep = write_cells(folder, plan)
    differs = {1: {(0, 2): BLOCK_0_POST, (2, 2): BLOCK_0_POST}} if diverged else None
    write_trial(trial_of(sweep, plan.cells[0]), plan.cells[0], differs=differs, **more)
    (run,) = _tracked(folder).runs
    return run


def test_a_clean_cell_has_its_counts_its_bound_and_its_step_time(tmp_path: Path) -> None:
    run = _one(tmp_path / "a", "steps=20", milliseconds=4.0, plain_milliseconds=3.0)
    assert run.name == "steps=20"
    assert run.params == {"steps": "20"}
    assert run.metrics == {
        "trials": 1, "valid_trials": 1, "diverged_trials": 0, "errors": 0, "replays": 20, "diverged": 0, "rate": 0,
        "bound": pytest.approx(upper_bound(20)), "step_ms": 3.0, "observed_step_ms": 4.0,
    }  # fmt: skip
    assert run.tags["verdict"] == "pass"
    assert not {"first", "first_site", "cause", "error"} & run.tags.keys()


def test_a_diverged_cell_has_its_rate_its_first_site_and_its_cause(tmp_path: Path) -> None:
    run = _one(tmp_path / "a", "steps=20", "fault=bit_flip", diverged=True)
    assert (run.metrics["rate"], run.metrics["diverged"], run.metrics["diverged_trials"]) == (0.1, 2, 1)
    # That 2 of 20 or fewer are seen has a probability of 5% at the bound.
    assert stats.binom.cdf(2, 20, run.metrics["bound"]) == pytest.approx(0.05)
    assert (run.tags["verdict"], run.tags["first_site"], run.tags["cause"]) == ("diverged", "block_post", "compute")
    assert run.tags["first"] == "block_post of block 0, rank 1, step 0 r2"
    assert run.tags["fault"] == "bit_flip"


def test_a_cell_in_which_every_replay_diverged_is_bounded_by_1(tmp_path: Path) -> None:
    plan = plan_of(["seed=1"])
    sweep = write_cells(tmp_path / "a", plan)
    write_trial(trial_of(sweep, plan.cells[0]), plan.cells[0], differs={0: {(0, 2): BLOCK_0_POST}})
    (run,) = _tracked(tmp_path / "a").runs
    assert (run.metrics["rate"], run.metrics["bound"]) == (1.0, 1.0)


def test_what_a_mitigation_costs_is_a_ratio_with_its_spread(tmp_path: Path) -> None:
    plan = plan_of(["mitigation=none"], ["mitigation=[cpu_1thread]"], common=["trials=3"])
    sweep = write_cells(tmp_path / "a", plan)
    for cell, milliseconds in zip(plan.cells, (2.0, 3.0), strict=True):
        for number in range(3):
            write_trial(trial_of(sweep, cell, number), cell, number, plain_milliseconds=[milliseconds] * 4)
    plain, cured = _tracked(tmp_path / "a").runs
    assert "cost_ratio" not in plain.metrics
    assert cured.metrics["cost_ratio"] == pytest.approx(1.5)
    assert cured.metrics["cost_low"] <= 1.5 <= cured.metrics["cost_high"]
    assert cured.params == {"mitigation": "cpu_1thread"}


def test_a_cell_without_a_verdict_has_its_error_and_no_rate(tmp_path: Path) -> None:
    plan = plan_of(["seed=1"], ["seed=2"])
    sweep = write_cells(tmp_path / "a", plan)
    write_failure(trial_of(sweep, plan.cells[0]), plan.cells[0], error="rank 1 was killed by SIGKILL")
    failed, unreached = _tracked(tmp_path / "a").runs
    assert (failed.tags["verdict"], failed.tags["error"]) == ("error", "rank 1 was killed by SIGKILL")
    assert (failed.metrics["errors"], failed.metrics["replays"]) == (1, 0)
    assert not {"rate", "bound", "step_ms"} & failed.metrics.keys()
    assert (unreached.tags["verdict"], unreached.metrics["errors"]) == ("none", 0)


def test_a_key_is_the_same_each_time_and_wherever_the_folder_is_and_another_for_another_sweep(tmp_path: Path) -> None:
    keys = []
    for name in ("a", "b"):
        plan = plan_of(["seed=1"], ["seed=2"])
        write_cells(tmp_path / name, plan)
        keys.append([run.key for run in _tracked(tmp_path / name).runs])
    assert len({*keys[0], *keys[1]}) == 4
    shutil.move(tmp_path / "a", tmp_path / "moved")
    assert [run.key for run in _tracked(tmp_path / "moved").runs] == keys[0]


def test_a_cell_whose_own_file_is_broken_is_no_run(tmp_path: Path) -> None:
    plan = plan_of(["seed=1"], ["seed=2"])
    sweep = write_cells(tmp_path / "a", plan)
    sweep.cell(plan.cells[0].slug, plan.cells[0].id).cell.write_text("{")
    assert [run.params for run in _tracked(tmp_path / "a").runs] == [{"seed": "2"}]
