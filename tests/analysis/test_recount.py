"""Judged anew from the records: the same as was judged when they were written, and more where nothing was."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from detsweep import load
from detsweep.analysis.rows import TRIAL_COLUMNS
from detsweep.capture import read_streams, write_streams
from detsweep.paths import file_hash, read_json, write_json
from detsweep.plan import Plan
from tests.support import BLOCK_0_POST, LOSS, plan_of, trial_of, write_cells, write_failure, write_trial

_TEXTS = [column for column in TRIAL_COLUMNS if column not in ("notes", "seconds")]


def _plan(*common: str) -> Plan:
    return plan_of(["seed=1"], ["seed=2"], common=["steps=2", "runs=3", *common])


@pytest.mark.parametrize("mode", ["replay", "lockstep", "train", "relaunch"])
def test_what_is_judged_anew_is_what_was_judged_then(tmp_path: Path, mode: str) -> None:
    plan = _plan(f"mode={mode}", *(["trials=2"] if mode == "relaunch" else []))
    sweep = write_cells(tmp_path, plan)
    for number in range(plan.cells[0].trials):
        write_trial(trial_of(sweep, plan.cells[0], number), plan.cells[0], number)
        differs = {1: {(1, 2): BLOCK_0_POST, (1, 3): LOSS}}
        write_trial(trial_of(sweep, plan.cells[1], number), plan.cells[1], number, differs=differs)
    before, after = load(tmp_path), load(tmp_path, recount=True)
    assert before.trials[_TEXTS].equals(after.trials[_TEXTS])
    assert before.divergences.equals(after.divergences)
    assert before.timings.equals(after.timings)
    assert not any(after.trials["notes"].map(lambda notes: any("result.json" in note for note in notes)))


def test_captures_without_a_result_are_judged_once_they_are_complete(tmp_path: Path) -> None:
    plan = _plan()
    sweep = write_cells(tmp_path, plan)
    for cell in plan.cells:
        write_trial(trial_of(sweep, cell), cell, differs={0: {(0, 2): BLOCK_0_POST}})
        trial_of(sweep, cell).result.unlink()
    records = trial_of(sweep, plan.cells[1]).records(1)
    records.write_text("".join(records.read_text().splitlines(keepends=True)[:4]))
    assert set(load(tmp_path).trials["verdict"]) == {"none"}
    trials = load(tmp_path, recount=True).trials
    # The other one may still be writing.
    assert list(trials["verdict"]) == ["diverged", "none"]
    assert trials["notes"].iloc[0] == ("judged from its records: it has no result.json",)
    assert trials["first_site"].iloc[0] == "block_post"


def test_records_that_say_something_else_than_the_result_are_told(tmp_path: Path) -> None:
    (cell,) = (plan := plan_of(["seed=1"])).cells
    trial = trial_of(write_cells(tmp_path, plan), cell)
    write_trial(trial, cell)
    streams = read_streams(trial.records(1))
    trial.records(1).unlink()
    first, second = streams
    changed = (*second.records[:-1], type(second.records[0])(**{**vars(second.records[-1]), "digest": 5}))
    write_streams(trial.records(1), [first, type(second)(**{**vars(second), "records": changed})], world_size=2)
    result = read_json(trial.result)
    result["files"][trial.records(1).name] = trial.records(1).stat().st_size
    result["hashes"][trial.records(1).name] = file_hash(trial.records(1))
    write_json(trial.result, result)
    assert list(load(tmp_path).trials["verdict"]) == ["pass"]
    (row,) = load(tmp_path, recount=True).trials.to_dict("records")
    assert row["verdict"] == "diverged"
    assert row["notes"][0] == "its records say verdict diverged, its result.json pass"
    assert row["diverged_ranks"] == (1,)


def test_a_line_that_is_torn_is_an_error_that_names_it(tmp_path: Path) -> None:
    plan = _plan()
    sweep = write_cells(tmp_path, plan)
    for cell in plan.cells:
        write_trial(trial_of(sweep, cell), cell)
        trial_of(sweep, cell).result.unlink()
    path = trial_of(sweep, plan.cells[0]).records(0)
    lines = path.read_text().splitlines()
    lines[2] = lines[2].replace('"schema":2', '"schema":3')
    path.write_text("\n".join(lines) + "\n")
    trials = load(tmp_path, recount=True).trials
    assert list(trials["verdict"]) == ["error", "pass"]
    assert trials["error"].iloc[0] == f"{path} line 3 cannot be read: schema 3, this version reads schema 2"


def test_runs_in_another_order_are_an_error(tmp_path: Path) -> None:
    (cell,) = (plan := plan_of(["steps=2"])).cells
    trial = trial_of(write_cells(tmp_path, plan), cell)
    write_trial(trial, cell)
    lines = trial.records(0).read_text().splitlines(keepends=True)
    trial.records(0).write_text("".join([lines[2], lines[3], lines[0], lines[1]]))
    trial.result.unlink()
    (error,) = load(tmp_path, recount=True).trials["error"]
    assert error == f"{trial.records(0)} holds runs that are not the 4 of rank 0"


def test_a_failed_trial_stays_failed(tmp_path: Path) -> None:
    (cell,) = (plan := plan_of(["seed=1"])).cells
    trial = trial_of(write_cells(tmp_path, plan), cell)
    write_trial(trial, cell)
    write_failure(trial, cell, verdict="timeout", error="no end after 30 minutes")
    (row,) = load(tmp_path, recount=True).trials.to_dict("records")
    assert (row["verdict"], row["error"]) == ("timeout", "no end after 30 minutes")


def test_what_ranks_measured_is_kept(tmp_path: Path) -> None:
    (cell,) = (plan := plan_of(["mitigation=[recipe]"])).cells
    trial = trial_of(write_cells(tmp_path, plan), cell)
    write_trial(trial, cell, effects={"recipe": {"A": "set"}}, plain_milliseconds=[2.0, 4.0], milliseconds=9.0)
    for result in (True, False):
        if not result:
            trial.result.unlink()
        sweep = load(tmp_path, recount=True)
        assert list(sweep.trials["plain_step_ms"]) == [3.0]
        assert list(sweep.effects["status"]) == ["set"]
        assert len(sweep.timings) == 6
    trial.rank_result(0).write_text(json.dumps({}))
    trial.rank_result(1).unlink()
    assert list(load(tmp_path, recount=True).trials["step_ms"].isna()) == [True]
