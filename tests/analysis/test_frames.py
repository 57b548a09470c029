"""From a folder to frames: a row for every trial, whatever became of it."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from detsweep import load
from detsweep.analysis import exit_code
from detsweep.analysis.against import BASELINE_COLUMNS
from detsweep.analysis.costs import COST_COLUMNS
from detsweep.analysis.frames import DIFFERING_COLUMNS, Drill
from detsweep.analysis.injected import INJECTION_COLUMNS
from detsweep.analysis.rows import DIVERGENCE_COLUMNS, EFFECT_COLUMNS, TRIAL_COLUMNS
from detsweep.baselines import value_of
from detsweep.capture import Record, read_streams, write_streams
from detsweep.paths import FileError, SweepPaths, TrialPaths, read_json, write_json
from detsweep.plan import Cell, Plan
from tests.support import (
    BLOCK_0_POST,
    BLOCK_1_POST,
    INPUT,
    LOSS,
    SEQUENCE,
    as_planned,
    as_written,
    one_cell,
    plan_of,
    record,
    struck,
    trial_of,
    write_cells,
    write_failure,
    write_recorded,
    write_trial,
)


def _sweep(folder: Path) -> tuple[SweepPaths, Plan]:
    """A sweep of two axes: one trial of each verdict that a run can come to, one not reached, one unsupported."""
    plan = plan_of(
        ["dtype=fp16", "experts=1"],
        ["dtype=fp16", "experts=4"],
        ["dtype=bf16", "experts=1"],
        ["dtype=bf16", "experts=4"],
        common=["trials=2"],
    )
    sweep = write_cells(folder, plan)
    write_trial(trial_of(sweep, plan.cells[0], 0), plan.cells[0], 0)
    write_trial(trial_of(sweep, plan.cells[0], 1), plan.cells[0], 1)
    differs = {0: {(0, 2): BLOCK_1_POST}, 1: {(0, 2): BLOCK_0_POST}}
    write_trial(trial_of(sweep, plan.cells[1], 0), plan.cells[1], 0, differs=differs)
    write_trial(trial_of(sweep, plan.cells[1], 1), plan.cells[1], 1)
    write_trial(trial_of(sweep, plan.cells[2], 0), plan.cells[2], 0, lost={0: ["A should be 1, is unset"]})
    _failed(trial_of(sweep, plan.cells[2], 1), plan.cells[2], 1, "timeout")
    _failed(trial_of(sweep, plan.cells[3], 0), plan.cells[3], 0, "error")
    return sweep, plan


def _failed(trial: TrialPaths, cell: Cell, number: int, verdict: str) -> None:
    fields = {"seconds": 2.0, "error_ranks": [1], "log": "log/rank001.log", "log_tail": ["last line", "very last line"]}
    write_failure(trial, cell, number, verdict=verdict, error="rank 1 was killed by SIGKILL", **fields)


def test_every_trial_has_a_row_with_its_verdict(tmp_path: Path) -> None:
    _, plan = _sweep(tmp_path)
    trials = load(tmp_path).trials
    rows = list(zip(trials["cell"], trials["trial"], trials["verdict"].astype(str), strict=True))
    ids = [cell.id for cell in plan.cells]
    assert rows == [
        (ids[0], 0, "pass"),
        (ids[0], 1, "pass"),
        (ids[1], 0, "diverged"),
        (ids[1], 1, "pass"),
        (ids[2], 0, "invalid"),
        (ids[2], 1, "timeout"),
        (ids[3], 0, "error"),
        (ids[3], 1, "none"),
    ]


def test_axes_are_the_keys_that_differ_and_come_first(tmp_path: Path) -> None:
    _sweep(tmp_path)
    sweep = load(tmp_path)
    assert sweep.axes == ("dtype", "experts")
    assert list(sweep.trials.columns) == ["dtype", "experts", *TRIAL_COLUMNS]
    assert list(sweep.trials["dtype"]) == ["fp16"] * 4 + ["bf16"] * 4
    assert list(sweep.trials["experts"]) == [1, 1, 4, 4] * 2


def test_a_diverged_trial_says_where_it_first_did(tmp_path: Path) -> None:
    _sweep(tmp_path)
    row = load(tmp_path).trials.iloc[2]
    assert (row["first_site"], row["first_block"], row["first_name"]) == ("block_post", 0, "blocks.0")
    assert (row["first_step"], row["first_run"], row["first_ranks"]) == (0, "r2", (1,))
    assert (row["diverged_ranks"], row["replays"], row["diverged_replays"]) == ((0, 1), 1, 1)
    assert (row["step_ms"], row["plain_step_ms"], row["seconds"]) == (3.0, 2.0, 1.5)


def test_ranks_that_first_diverge_at_the_same_place_are_named_together(tmp_path: Path) -> None:
    plan = plan_of(["seed=1"], common=["world.nproc_per_node=3", "runs=3"])
    sweep = write_cells(tmp_path, plan)
    differs = {0: {(0, 2): INPUT}, 1: {(0, 2): INPUT + 1, (0, 3): INPUT}, 2: {(0, 2): INPUT}}
    write_trial(trial_of(sweep, plan.cells[0]), plan.cells[0], differs=differs)
    assert load(tmp_path).trials.iloc[0]["first_ranks"] == (0, 2)


def test_a_failed_trial_has_its_error_and_the_end_of_its_log(tmp_path: Path) -> None:
    sweep, plan = _sweep(tmp_path)
    row = load(tmp_path).trials.iloc[6]
    folder = trial_of(sweep, plan.cells[3], 0).folder
    assert (row["error"], row["error_ranks"]) == ("rank 1 was killed by SIGKILL", (1,))
    assert (row["log"], row["log_tail"]) == (str(folder / "log/rank001.log"), "last line\nvery last line")
    assert row["folder"] == str(folder)
    assert pd.isna(row["replays"])
    assert pd.isna(row["step_ms"])


def test_a_lost_setting_is_the_error_of_an_invalid_trial(tmp_path: Path) -> None:
    _sweep(tmp_path)
    assert load(tmp_path).trials.iloc[4]["error"] == "not in force: rank 0: A should be 1, is unset"


def test_divergences_have_a_row_for_each_rank_and_run(tmp_path: Path) -> None:
    plan = plan_of(["seed=1", "fault=bit_flip"], ["seed=2", "fault=none"], common=["runs=3", "trials=2"])
    sweep = write_cells(tmp_path, plan)
    differs = {0: {(0, 2): INPUT, (0, 3): BLOCK_1_POST}, 1: {(0, 3): BLOCK_0_POST}}
    write_trial(trial_of(sweep, plan.cells[0], 1), plan.cells[0], 1, differs=differs)
    write_trial(trial_of(sweep, plan.cells[1]), plan.cells[1])
    divergences = load(tmp_path).divergences
    assert tuple(divergences.columns) == DIVERGENCE_COLUMNS
    columns = ["trial", "rank", "run", "site", "block", "kind", "cause", "fault"]
    assert divergences[columns].astype(object).where(divergences[columns].notna(), None).to_numpy().tolist() == [
        [1, 0, "r2", "input", None, "value", "input", "bit_flip"],
        [1, 0, "r3", "block_post", 1, "value", "compute", "bit_flip"],
        [1, 1, "r3", "block_post", 0, "value", "compute", "bit_flip"],
    ]
    assert set(divergences["cell"]) == {plan.cells[0].id}


def test_without_a_divergence_the_frame_still_has_its_columns(tmp_path: Path) -> None:
    write_cells(tmp_path, plan_of(["seed=1"]))
    sweep = load(tmp_path)
    assert tuple(sweep.divergences.columns) == DIVERGENCE_COLUMNS
    assert len(sweep.divergences) == 0
    assert sweep.divergences["block"].dtype == "Int64"


# --- no row is lost --------------------------------------------------------------------------------------------------


def test_a_sweep_that_has_only_been_planned_has_all_its_trials(tmp_path: Path) -> None:
    write_cells(tmp_path, plan_of(["seed=1"], ["seed=2"], common=["trials=3"]))
    trials = load(tmp_path).trials
    assert list(trials["trial"]) == [0, 1, 2] * 2
    assert set(trials["verdict"]) == {"none"}


def test_trials_beyond_those_asked_for_are_shown(tmp_path: Path) -> None:
    plan = plan_of(["seed=1"])
    sweep = write_cells(tmp_path, plan)
    write_trial(trial_of(sweep, plan.cells[0], 4), plan.cells[0], 4)
    trials = load(tmp_path).trials
    assert list(zip(trials["trial"], trials["verdict"], strict=True)) == [(0, "none"), (4, "pass")]


def test_superseded_attempts_are_not_shown(tmp_path: Path) -> None:
    plan = plan_of(["seed=1"])
    sweep = write_cells(tmp_path, plan)
    write_trial(trial_of(sweep, plan.cells[0]), plan.cells[0], differs={0: {(0, 2): INPUT}})
    sweep.cell(plan.cells[0].slug, plan.cells[0].id).set_aside(0)
    write_trial(trial_of(sweep, plan.cells[0]), plan.cells[0])
    loaded = load(tmp_path)
    assert list(loaded.trials["verdict"]) == ["pass"]
    assert len(loaded.divergences) == 0


def test_an_axis_that_a_cell_does_not_have_loses_no_row(tmp_path: Path) -> None:
    write_cells(tmp_path, plan_of(["+env.A='1'"], ["+env.A='2'"], []))
    sweep = load(tmp_path)
    assert sweep.axes == ("env.A",)
    assert list(sweep.trials["env.A"]) == ["1", "2", ""]
    assert len(sweep.matrix(rows="env.A")) == 3


def test_a_key_missing_in_a_cell_of_another_version_loses_no_row(tmp_path: Path) -> None:
    plan = plan_of(["warmup=0"], ["warmup=1"], ["warmup=2"])
    sweep = write_cells(tmp_path, plan)
    paths = sweep.cell(plan.cells[1].slug, plan.cells[1].id)
    content = read_json(paths.cell)
    del content["config"]["warmup"]
    write_json(paths.cell, content)
    loaded = load(tmp_path)
    # What the configuration does not say, the command line does.
    assert list(loaded.trials["warmup"]) == [0, 1, 2]
    assert len(loaded.matrix(rows="warmup")) == 3


@pytest.mark.parametrize("damage", ["torn", "missing", "no id", "foreign schema", "no config", "no slug"])
def test_a_broken_cell_is_an_error_that_names_its_file_and_costs_no_other(tmp_path: Path, damage: str) -> None:
    plan = plan_of(["seed=1"], ["seed=2"])
    sweep = write_cells(tmp_path, plan)
    for cell in plan.cells:
        write_trial(trial_of(sweep, cell), cell)
    path = sweep.cell(plan.cells[0].slug, plan.cells[0].id).cell
    if damage == "missing":
        path.unlink()
    elif damage == "torn":
        path.write_text(path.read_text()[:100])
    else:
        content = read_json(path)
        if damage == "foreign schema":
            content["schema"] = 99
        else:
            del content[damage.removeprefix("no ")]
        write_json(path, content)
    trials = load(tmp_path).trials
    verdicts = dict(zip(trials["cell"], trials["verdict"], strict=True))
    assert verdicts == {plan.cells[0].id: "error", plan.cells[1].id: "pass"}
    (error,) = trials[trials["verdict"] == "error"]["error"]
    assert str(path) in error


@pytest.mark.parametrize(
    "damage",
    ["torn", "foreign schema", "another cell", "another trial", "wrong type", "truncated records", "missing records",
     "missing result of a rank"],
)  # fmt: skip
def test_a_broken_trial_is_an_error_that_names_its_file_and_costs_no_other(tmp_path: Path, damage: str) -> None:
    plan = plan_of(["seed=1"], ["seed=2"])
    sweep = write_cells(tmp_path, plan)
    for cell in plan.cells:
        write_trial(trial_of(sweep, cell), cell)
    trial = trial_of(sweep, plan.cells[0])
    named = trial.result
    changes: dict[str, dict[str, object]] = {
        "foreign schema": {"schema": 99},
        "another cell": {"cell": plan.cells[1].id},
        "another trial": {"trial": 1},
        "wrong type": {"ranks": "all"},
    }
    if damage == "torn":
        trial.result.write_text(trial.result.read_text()[:-20])
    elif damage in changes:
        write_json(trial.result, {**read_json(trial.result), **changes[damage]})
    elif damage == "missing result of a rank":
        named = trial.rank_result(1)
        named.unlink()
    else:
        named = trial.records(1)
        named.unlink() if damage == "missing records" else named.write_text(named.read_text()[:-20])
    trials = load(tmp_path).trials
    assert list(trials["verdict"]) == ["error", "pass"]
    assert str(named) in trials.iloc[0]["error"]


def test_a_folder_without_a_sweep_is_refused(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(FileNotFoundError, match="no sweep here"):
            load(folder)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, " is missing"),
        ("", " cannot be read: "),
        ('{"schema": 1, "cells": ["a"', " cannot be read: "),
        ("[]", " holds list, not a JSON object"),
        ("{}", " lists no cells"),
        ('{"cells": 3}', " lists no cells"),
    ],
    ids=["missing", "empty", "torn", "a list", "no cells", "a number"],
)
def test_a_sweep_json_that_cannot_be_read_is_named_and_costs_no_cell(
    tmp_path: Path, text: str | None, reason: str
) -> None:
    sweep, plan = _sweep(tmp_path)
    sweep.sweep.unlink() if text is None else sweep.sweep.write_text(text)
    trials = load(tmp_path).trials
    assert set(trials["cell"]) == {*(cell.id for cell in plan.cells), "sweep.json"}
    (error,) = trials[trials["cell"] == "sweep.json"]["error"]
    assert error.startswith(f"{sweep.sweep}{reason}")
    assert len(trials) == 9


def test_a_cell_that_sweep_json_lists_and_whose_folder_is_gone_is_an_error(tmp_path: Path) -> None:
    plan = plan_of(["seed=1"], ["seed=2"], ["seed=3"])
    sweep = write_cells(tmp_path, plan)
    for cell in plan.cells:
        write_trial(trial_of(sweep, cell), cell)
    lost = plan.cells[1]
    shutil.rmtree(sweep.cell(lost.slug, lost.id).folder)
    loaded = load(tmp_path)
    assert list(loaded.trials["cell"]) == [plan.cells[0].id, plan.cells[2].id, lost.id]
    row = loaded.trials.iloc[2]
    assert (row["verdict"], row["mitigation"], row["fault"]) == ("error", "", "")
    assert row["error"] == f"{tmp_path}/cells/*-{lost.id} is missing, and sweep.json lists it"
    # What the other cells say on an axis is as it was: seeds are whole numbers.
    assert list(loaded.trials["seed"].fillna(-1)) == [1, 3, -1]
    assert set(loaded.configs) == {plan.cells[0].id, plan.cells[2].id}
    assert exit_code(loaded) == 3


def test_a_sweep_all_of_whose_cells_are_gone_has_a_row_for_each(tmp_path: Path) -> None:
    plan = plan_of(["seed=1"], ["seed=2"])
    sweep = write_cells(tmp_path, plan)
    shutil.rmtree(tmp_path / "cells")
    loaded = load(tmp_path)
    assert set(loaded.trials["cell"]) == {cell.id for cell in plan.cells}
    assert set(loaded.trials["verdict"]) == {"error"}
    assert exit_code(loaded) == 3
    assert sweep.sweep.exists()


def test_a_trial_of_a_broken_cell_has_the_columns_of_any_other(tmp_path: Path) -> None:
    plan = plan_of(["seed=1"], ["seed=2"], ["seed=3"])
    sweep = write_cells(tmp_path, plan)
    paths = sweep.cell(plan.cells[1].slug, plan.cells[1].id)
    paths.cell.write_text("{")
    row = load(tmp_path).trials.iloc[2]
    assert (row["cell"], row["slug"], row["trial"]) == (plan.cells[1].id, paths.folder.name, 0)
    assert pd.isna(row["seed"])
    assert (row["diverged_ranks"], row["first_ranks"], row["error_ranks"]) == ((), (), ())
    assert row["folder"] == str(paths.folder)
    assert all(pd.isna(row[column]) for column in ("log", "log_tail", "replays", "step_ms", "first_site"))


# --- axes ------------------------------------------------------------------------------------------------------------


def test_a_key_that_is_the_same_everywhere_is_no_axis(tmp_path: Path) -> None:
    write_cells(tmp_path, plan_of(["dtype=fp16", "seed=1"], ["dtype=fp16", "seed=2"]))
    assert load(tmp_path).axes == ("seed",)


def test_a_single_cell_has_no_axes(tmp_path: Path) -> None:
    write_cells(tmp_path, plan_of(["dtype=fp16", "seed=1"]))
    assert load(tmp_path).axes == ()


@pytest.mark.parametrize(
    ("points", "axis", "values"),
    [
        ((["model=tiny"], ["model=small"]), "model", ["tiny", "small"]),
        ((["mitigation=[none]"], ["mitigation=[recipe,none]"]), "mitigation", ["none", "none+recipe"]),
        ((["fault=none"], ["fault=bit_flip"]), "fault", ["none", "bit_flip"]),
        ((["observe=block"], ["observe=off"]), "observe", ["block", "off"]),
        ((["model.num_layers=2"], ["model.num_layers=3"]), "model.num_layers", [2, 3]),
        ((["keep_env=[]"], ["keep_env=[HOME,PATH]"]), "keep_env", ["", "HOME,PATH"]),
        ((["fault=bit_flip", "fault.rank=null"], ["fault=bit_flip", "fault.rank=1"]), "fault.rank", ["null", "1"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_axis_shows_the_words_of_the_command_line(
    tmp_path: Path, points: tuple[list[str], ...], axis: str, values: list[object]
) -> None:
    write_cells(tmp_path, plan_of(*points))
    sweep = load(tmp_path)
    assert sweep.axes == (axis,)
    shown = sweep.trials[axis].astype(object)
    assert shown.where(shown.notna(), None).tolist() == values
    assert len(sweep.matrix(rows=axis)) == 2


def test_where_there_is_no_fault_none_of_its_settings_has_a_value(tmp_path: Path) -> None:
    points = [[f"fault={kind}", f"fault.block={block}"] for kind in ("none", "bit_flip") for block in range(2)]
    write_cells(tmp_path / "two", plan_of(*points))
    sweep = load(tmp_path / "two")
    assert sweep.axes == ("fault", "fault.block")
    assert list(sweep.trials["fault.block"].fillna(-1)) == [-1, 0, 1]
    # One value where there is a fault, and none where there is not, tell nothing apart that `fault` does not.
    write_cells(tmp_path / "one", plan_of(["fault=none", "fault.block=1"], ["fault=bit_flip", "fault.block=1"]))
    assert load(tmp_path / "one").axes == ("fault",)


def test_a_column_of_the_trials_that_is_an_axis_is_there_once(tmp_path: Path) -> None:
    write_cells(tmp_path, plan_of(["mitigation=[none]"], ["mitigation=[recipe]"]))
    assert list(load(tmp_path).trials.columns).count("mitigation") == 1


def test_cells_stand_in_the_order_of_the_sweep(tmp_path: Path) -> None:
    write_cells(tmp_path, plan_of(["seed=30"], ["seed=4"], ["seed=100"]))
    assert list(load(tmp_path).trials["seed"]) == [30, 4, 100]


# --- records ---------------------------------------------------------------------------------------------------------


def test_records_have_a_row_for_each_fingerprint(tmp_path: Path) -> None:
    sweep, plan = _sweep(tmp_path)
    records = load(tmp_path).records(cell=plan.cells[1].id, trial=0, rank=1)
    assert len(records) == 2 * len(SEQUENCE)
    row = records.iloc[BLOCK_0_POST]
    assert (row["rank"], row["step"], row["run"], row["seq"]) == (1, 0, "r1", BLOCK_0_POST)
    assert (row["site"], row["block"], row["name"]) == ("block_post", 0, "blocks.0")
    assert (row["dtype"], row["shape"]) == ("bfloat16", "2x32x64")
    assert row["digest"] == f"{(1 << 63) + 1000 + BLOCK_0_POST:016x}"
    assert trial_of(sweep, plan.cells[1], 0).records(1).exists()


def test_records_can_be_narrowed_down(tmp_path: Path) -> None:
    _, plan = _sweep(tmp_path)
    sweep = load(tmp_path)
    in_one_rank = 2 * len(SEQUENCE)
    # Five trials of two ranks left records.
    assert len(sweep.records()) == 10 * in_one_rank
    assert len(sweep.records(cell=plan.cells[1].id)) == 4 * in_one_rank
    assert len(sweep.records(trial=1)) == 4 * in_one_rank
    assert set(sweep.records(rank=1)["rank"]) == {1}
    assert len(sweep.records(cell="nothing")) == 0


def test_a_negative_digest_is_shown_in_its_64_bits(tmp_path: Path) -> None:
    plan = plan_of(["seed=1"])
    sweep = write_cells(tmp_path, plan)
    trial = trial_of(sweep, plan.cells[0])
    write_trial(trial, plan.cells[0])
    text = trial.records(0).read_text()
    trial.records(0).write_text(text.replace(str((1 << 63) + INPUT), "-2"))
    assert load(tmp_path).records(rank=0).iloc[INPUT]["digest"] == "fffffffffffffffe"


def test_a_sha256_is_shown_in_64_digits_and_the_loss_beside_it_in_16(tmp_path: Path) -> None:
    plan = plan_of(["checksum=sha256"])
    sweep = write_cells(tmp_path, plan)
    trial = trial_of(sweep, plan.cells[0])
    write_trial(trial, plan.cells[0])
    for rank in (0, 1):
        streams = [replace(one, checksum="sha256") for one in read_streams(trial.records(rank))]
        trial.records(rank).unlink()
        write_streams(trial.records(rank), streams, world_size=2)
    digests = list(load(tmp_path).records(rank=1)["digest"])
    assert digests[INPUT] == f"{(1 << 63) + 1000 + INPUT:064x}"
    assert digests[LOSS] == f"{(1 << 63) + 1000 + LOSS:016x}"


def test_torn_records_raise_an_error_that_names_the_file(tmp_path: Path) -> None:
    sweep, plan = _sweep(tmp_path)
    path = trial_of(sweep, plan.cells[0], 0).records(0)
    path.write_text(path.read_text()[:-10])
    with pytest.raises(FileError, match=r"rank000\.jsonl is cut off in line 2"):
        load(tmp_path).records()


def test_records_that_must_be_there_and_are_not_raise_an_error_that_names_them(tmp_path: Path) -> None:
    sweep, plan = _sweep(tmp_path)
    trial_of(sweep, plan.cells[0], 0).records(1).unlink()
    loaded = load(tmp_path)
    with pytest.raises(FileError, match=r"trial0/rank001\.jsonl is missing"):
        loaded.records()
    # The arguments read around it.
    assert len(loaded.records(rank=0)) == 5 * 2 * len(SEQUENCE)
    assert len(loaded.records(cell=plan.cells[0].id, trial=1)) == 2 * 2 * len(SEQUENCE)


def test_of_a_trial_that_failed_the_records_that_are_there_are_read(tmp_path: Path) -> None:
    sweep, plan = _sweep(tmp_path)
    trial = trial_of(sweep, plan.cells[3], 0)
    trial.records(1).write_text(trial_of(sweep, plan.cells[0], 0).records(1).read_text())
    records = load(tmp_path).records(cell=plan.cells[3].id)
    assert (len(records), set(records["rank"])) == (2 * len(SEQUENCE), {1})


def test_a_trial_without_a_result_has_no_records_yet(tmp_path: Path) -> None:
    sweep, plan = _sweep(tmp_path)
    trial_of(sweep, plan.cells[0], 0).result.unlink()
    assert set(load(tmp_path).records(cell=plan.cells[0].id)["trial"]) == {1}


def test_configurations_are_there_by_the_cells_id(tmp_path: Path) -> None:
    plan = plan_of(["seed=1"], ["seed=2", "dtype=fp16"])
    write_cells(tmp_path, plan)
    configs = load(tmp_path).configs
    assert {cell: (config["seed"], config["dtype"]["name"]) for cell, config in configs.items()} == {
        plan.cells[0].id: (1, "bf16"),
        plan.cells[1].id: (2, "fp16"),
    }


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model", "tiny"),
        ("model.num_layers", 4),
        ("mitigation", "none+recipe"),
        ("fault", "bit_flip"),
        ("fault.rank", "null"),
        ("keep_env", "HOME,PATH"),
        ("env.A", "1"),
        ("env.B", ""),
        ("no.such.key", ""),
        ("seed.x", ""),
    ],
)
def test_a_key_has_its_value_in_the_words_of_the_command_line(key: str, value: object) -> None:
    cell = one_cell(
        "mitigation=[recipe,none]", "fault=bit_flip", "fault.rank=null", "keep_env=[HOME,PATH]", "+env.A='1'"
    )
    assert value_of(cell.config, key) == value


def test_a_positive_control_is_known_as_one(tmp_path: Path) -> None:
    write_cells(tmp_path / "a", plan_of(["fault=none"], common=["positive_control=true"]))
    write_cells(tmp_path / "b", plan_of(["fault=none"]))
    assert load(tmp_path / "a").positive_control
    assert not load(tmp_path / "b").positive_control
    assert one_cell("positive_control=true").id == one_cell().id


# --- differing -------------------------------------------------------------------------------------------------------


def test_every_record_that_differs_from_the_first_run_has_a_row(tmp_path: Path) -> None:
    _, plan = _sweep(tmp_path)
    differing = load(tmp_path).differing()
    assert tuple(differing.columns) == DIFFERING_COLUMNS
    # Of the one trial that diverged; rank 0 from block 1 on, rank 1 from block 0.
    assert set(zip(differing["cell"], differing["trial"], differing["run"], strict=True)) == {
        (plan.cells[1].id, 0, "r2")
    }
    found = {rank: list(group["seq"]) for rank, group in differing.groupby("rank")}
    assert found == {0: list(range(BLOCK_1_POST, len(SEQUENCE))), 1: list(range(BLOCK_0_POST, len(SEQUENCE)))}
    row = differing.iloc[0]
    assert (row["site"], row["block"], row["name"]) == ("block_post", 1, "blocks.1")
    assert (row["phase"], row["kind"], row["step"]) == ("forward", "value", 0)
    assert differing["block"].dtype == "Int64"


def test_differing_records_can_be_narrowed_down(tmp_path: Path) -> None:
    _, plan = _sweep(tmp_path)
    sweep = load(tmp_path)
    assert set(sweep.differing(rank=1)["rank"]) == {1}
    assert len(sweep.differing(cell=plan.cells[1].id, trial=0)) == len(sweep.differing())
    for nothing in (sweep.differing(trial=1), sweep.differing(cell=plan.cells[0].id)):
        assert (len(nothing), tuple(nothing.columns)) == (0, DIFFERING_COLUMNS)


def test_a_record_is_held_against_the_first_run_of_its_own_step(tmp_path: Path) -> None:
    plan = plan_of(["seed=1"], common=["mode=train", "steps=2", "runs=3"])
    sweep = write_cells(tmp_path, plan)
    last = len(SEQUENCE) - 1
    write_trial(trial_of(sweep, plan.cells[0]), plan.cells[0], differs={0: {(0, 3): last, (1, 3): last - 1}})
    differing = load(tmp_path).differing()
    assert list(zip(differing["step"], differing["run"], differing["seq"], strict=True)) == [
        (0, "r3", last),
        (1, "r3", last - 1),
        (1, "r3", last),
    ]


def test_differing_records_of_every_kind_are_told(tmp_path: Path) -> None:
    plan = plan_of(["observe=op"])
    first = [
        record("op", "mm", inputs=1),
        record("op", "add", inputs=1),
        record("grad", "w"),
        record("param", "w", phase="after"),
    ]
    other = [replace(first[0], inputs=2), replace(first[1], digest=2), replace(first[2], shape=(3,))]
    sweep = write_cells(tmp_path, plan)
    trial = trial_of(sweep, plan.cells[0])

    def records(rank: int, step: int, run: int) -> list[Record]:
        return other if (rank, run) == (0, 2) else first

    write_recorded(trial, plan.cells[0], records=records)
    differing = load(tmp_path).differing()
    assert list(zip(differing["name"], differing["kind"], strict=True)) == [
        ("mm", "inputs"),
        ("add", "value"),
        ("w", "layout"),
        ("w", "sequence"),
    ]


def test_torn_records_that_may_differ_raise_an_error_that_names_the_file(tmp_path: Path) -> None:
    sweep, plan = _sweep(tmp_path)
    path = trial_of(sweep, plan.cells[1], 0).records(1)
    path.write_text(path.read_text()[:-10])
    loaded = load(tmp_path)
    with pytest.raises(FileError, match=r"rank001\.jsonl is cut off in line 2"):
        loaded.differing()
    assert set(loaded.differing(rank=0)["rank"]) == {0}


# --- drills ----------------------------------------------------------------------------------------------------------


def _drilled(folder: Path) -> tuple[Cell, Cell]:
    """A cell that diverged, and the closer look at it, which found an operator on both ranks."""
    plan = plan_of(["seed=1"], ["seed=2"])
    own, closer = plan.cells[0], plan.cells[0].closer()
    assert closer is not None
    sweep = write_cells(folder, plan)
    write_json(sweep.cell(closer.slug, closer.id).cell, closer.to_json())
    write_trial(trial_of(sweep, own), own, differs={0: {(0, 2): BLOCK_0_POST}})
    write_trial(trial_of(sweep, plan.cells[1]), plan.cells[1])

    def records(rank: int, step: int, run: int) -> list[Record]:
        return [record("op", "aten.mm", 7 if run == 2 else 1, inputs=3)]

    write_recorded(trial_of(sweep, closer), closer, records=records)
    return own, closer


def test_a_closer_look_is_no_trial_and_no_axis_of_the_sweep(tmp_path: Path) -> None:
    own, closer = _drilled(tmp_path)
    sweep = load(tmp_path)
    assert sweep.axes == ("seed",)
    assert closer.id not in set(sweep.trials["cell"])
    assert set(sweep.drills) == {own.id}
    assert sweep.drills[own.id].verdict == "diverged"
    first = sweep.drills[own.id].first
    assert (first["first_site"], first["first_ranks"], first["cause"]) == ("op", (0, 1), "compute")


def test_divergences_of_a_closer_look_stand_under_the_cell_at_their_level(tmp_path: Path) -> None:
    own, _ = _drilled(tmp_path)
    divergences = load(tmp_path).divergences
    assert set(divergences["cell"]) == {own.id}
    assert list(zip(divergences["level"], divergences["rank"], divergences["site"], strict=True)) == [
        ("block", 0, "block_post"),
        ("op", 0, "op"),
        ("op", 1, "op"),
    ]


def test_records_of_a_closer_look_are_read_by_its_own_id(tmp_path: Path) -> None:
    own, closer = _drilled(tmp_path)
    sweep = load(tmp_path)
    assert set(sweep.records(cell=closer.id)["name"]) == {"aten.mm"}
    assert len(sweep.records(cell=closer.id)) == 2 * 2
    assert list(sweep.differing(cell=closer.id)["rank"]) == [0, 1]
    assert set(sweep.differing()["cell"]) == {own.id, closer.id}
    assert sweep.configs[closer.id]["observe"]["name"] == "op"
    assert sweep.overrides[closer.id] == {"seed": "1", "observe": "op"}


def test_a_closer_look_in_several_launches_is_as_good_as_its_worst(tmp_path: Path) -> None:
    plan = plan_of(["mode=relaunch", "trials=2"])
    own, closer = plan.cells[0], plan.cells[0].closer()
    assert closer is not None
    sweep = write_cells(tmp_path, plan)
    write_json(sweep.cell(closer.slug, closer.id).cell, closer.to_json())
    write_trial(trial_of(sweep, closer, 0), closer, 0)
    assert load(tmp_path).drills[own.id] == Drill("none", {})
    write_failure(trial_of(sweep, closer, 1), closer, 1)
    assert load(tmp_path).drills[own.id] == Drill("error", {}, "x")
    write_trial(trial_of(sweep, closer, 1), closer, 1)
    assert load(tmp_path).drills[own.id] == Drill("pass", {})


# --- faults and baselines --------------------------------------------------------------------------------------------


def test_faults_have_a_frame_of_their_own(tmp_path: Path) -> None:
    plan = plan_of(["fault=bit_flip", "fault.step=null"], ["fault=none"], common=["steps=2", "runs=3", "trials=2"])
    sweep = write_cells(tmp_path, plan)
    injected = {0: [struck("bit_flip", block=0)]}
    differs = {0: {(0, 2): BLOCK_0_POST}}
    write_trial(trial_of(sweep, plan.cells[0], 1), plan.cells[0], 1, injected=injected, differs=differs)
    write_failure(trial_of(sweep, plan.cells[0], 0), plan.cells[0], 0)
    write_trial(trial_of(sweep, plan.cells[1]), plan.cells[1])
    loaded = load(tmp_path)
    frame = loaded.injections
    assert tuple(frame.columns) == INJECTION_COLUMNS
    assert list(zip(frame["cell"], frame["trial"], frame["step"], strict=True)) == [
        (plan.cells[0].id, 1, 0),
        (plan.cells[0].id, 1, 1),
    ]
    # The second was planned and not put in: it is neither detected nor missed.
    assert list(frame["detected"].isna()) == list(frame["placed"].isna()) == [False, True]
    assert (str(frame["detected"].dtype), str(frame["block"].dtype)) == ("object", "Int64")
    assert (frame.iloc[0]["detected"], frame.iloc[0]["ranks"], frame.iloc[1]["ranks"]) == (True, (0,), ())
    # A trial that failed says nothing; each of the others made 4 comparisons of 2 ranks, of one of them with a fault.
    counted = loaded.trials[["clean_comparisons", "false_alarms"]]
    assert counted.fillna(-1).to_numpy().tolist() == [[-1, -1], [6, 0], [8, 0], [-1, -1]]
    assert set(counted.dtypes) == {pd.Int64Dtype()}


def test_a_fault_in_every_trial_is_detected_as_a_plain_truth(tmp_path: Path) -> None:
    plan = plan_of(["fault=bit_flip"])
    sweep = write_cells(tmp_path, plan)
    write_trial(trial_of(sweep, plan.cells[0]), plan.cells[0], injected=as_planned(plan.cells[0]))
    frame = load(tmp_path).injections
    assert (str(frame["detected"].dtype), str(frame["placed"].dtype)) == ("bool", "bool")
    assert (list(frame["detected"]), list(frame["run"])) == ([False], ["r2"])


def test_each_cell_but_the_baselines_is_compared_with_one(tmp_path: Path) -> None:
    points = [[f"dtype={dtype}", f"seed={seed}"] for seed in (1, 2) for dtype in ("bf16", "fp16", "fp32")]
    plan = plan_of(*points, common=["against=dtype:bf16"])
    sweep = write_cells(tmp_path, plan)
    cells = {(cell.config["dtype"]["name"], cell.config["seed"]): cell for cell in plan.cells}
    for (dtype, seed), cell in cells.items():
        if (dtype, seed) != ("bf16", 2):
            differs = {1: {(0, 2): BLOCK_1_POST}} if dtype == "fp32" else {}
            write_trial(trial_of(sweep, cell), cell, differs=differs)
    # Records that are as long as they were and can no longer be read.
    torn = trial_of(sweep, cells["fp32", 1]).records(0)
    torn.write_text("x" + torn.read_text()[1:])
    as_written(trial_of(sweep, cells["fp32", 1]))
    frame = load(tmp_path).baselines
    assert tuple(frame.columns) == BASELINE_COLUMNS
    names = {cell.id: name for name, cell in cells.items()}
    pairs = [(names[one], names[other]) for one, other in zip(frame["cell"], frame["baseline"], strict=True)]
    assert pairs == [((dtype, seed), ("bf16", seed)) for seed in (1, 2) for dtype in ("fp16", "fp32")]
    assert frame["equal"].iloc[0]
    assert frame["equal"].isna().tolist() == [False, True, True, True]
    assert frame["error"].iloc[1].startswith(f"{torn} line 1 cannot be read: ")
    assert list(frame["error"].iloc[2:]) == ["its baseline has no result"] * 2
    assert {str(frame[column].dtype) for column in ("block", "rank", "step")} == {"Int64"}


def test_a_fingerprint_of_another_algorithm_costs_one_comparison_and_no_frame(tmp_path: Path) -> None:
    plan = plan_of(["checksum=xxh3"], ["checksum=mixed"], common=["against=checksum:xxh3"])
    sweep = write_cells(tmp_path, plan)
    for cell in plan.cells:
        write_trial(trial_of(sweep, cell), cell)
    path = trial_of(sweep, plan.cells[1]).records(0)
    path.write_text(path.read_text().replace('"checksum":"xxh3"', '"checksum":"mixd"'))
    as_written(trial_of(sweep, plan.cells[1]))
    loaded = load(tmp_path)
    assert list(loaded.baselines["error"]) == ["checksum xxh3 cannot be compared with mixd"]
    assert list(loaded.trials["verdict"]) == ["pass", "pass"]


def test_without_faults_baselines_and_closer_looks_their_frames_are_empty(tmp_path: Path) -> None:
    write_cells(tmp_path, plan_of(["seed=1"]))
    sweep = load(tmp_path)
    assert (len(sweep.injections), tuple(sweep.injections.columns)) == (0, INJECTION_COLUMNS)
    assert (len(sweep.baselines), tuple(sweep.baselines.columns)) == (0, BASELINE_COLUMNS)
    assert sweep.drills == {}
    assert (len(sweep.records()), len(sweep.differing())) == (0, 0)
    assert sweep.overrides == {one_cell("seed=1").id: {"seed": "1"}}


# --- mitigations -----------------------------------------------------------------------------------------------------


def test_what_became_of_each_setting_has_a_frame_of_its_own(tmp_path: Path) -> None:
    plan = plan_of(["mitigation=[none]"], ["mitigation=[recipe]"], common=["trials=2"])
    sweep = write_cells(tmp_path, plan)
    write_trial(trial_of(sweep, plan.cells[0]), plan.cells[0])
    for number in range(2):
        effects = {"recipe": {"A": "effective", "B": "inert"}}
        write_trial(trial_of(sweep, plan.cells[1], number), plan.cells[1], number, effects=effects)
    frame = load(tmp_path).effects
    assert tuple(frame.columns) == EFFECT_COLUMNS
    assert set(frame["cell"]) == {plan.cells[1].id}
    assert frame[["trial", "setting", "status"]].to_numpy().tolist() == [
        [0, "A", "effective"],
        [0, "B", "inert"],
        [1, "A", "effective"],
        [1, "B", "inert"],
    ]


def test_of_a_sweep_without_mitigations_the_frames_are_empty(tmp_path: Path) -> None:
    plan = plan_of([])
    write_trial(trial_of(write_cells(tmp_path, plan), plan.cells[0]), plan.cells[0])
    loaded = load(tmp_path)
    assert (len(loaded.effects), tuple(loaded.effects.columns)) == (0, EFFECT_COLUMNS)
    assert (len(loaded.costs), tuple(loaded.costs.columns)) == (0, COST_COLUMNS)
    assert loaded.search is None
