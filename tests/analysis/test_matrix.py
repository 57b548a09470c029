"""The matrix: the worst verdict stands for several, rates count only trials that say something, no field is lost."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from detsweep import Sweep, load
from detsweep.analysis.celltable import cell_table
from detsweep.analysis.verdicts import WORST_FIRST, worst
from detsweep.analysis.words import describe_first, describe_place
from detsweep.bounds import upper_bound
from detsweep.capture import SITES, Record
from detsweep.paths import TrialPaths, read_json, write_json
from detsweep.plan import Cell, Plan
from detsweep.results import VERDICTS
from tests.support import (
    BLOCK_0_POST,
    BLOCK_1_POST,
    INPUT,
    LOSS,
    plan_of,
    record,
    trial_of,
    write_cells,
    write_failure,
    write_recorded,
    write_trial,
)


def _sweep(folder: Path) -> Sweep:
    """dtype x experts with three trials each; (bf16, 4) is missing, (fp16, 4) diverges in one of three."""
    plan = plan_of(
        ["dtype=fp16", "experts=1"],
        ["dtype=fp16", "experts=4"],
        ["dtype=bf16", "experts=1"],
        common=["trials=3", "runs=3"],
    )
    sweep = write_cells(folder, plan)
    for number, milliseconds in enumerate((1.0, 9.0, 2.0)):
        write_trial(trial_of(sweep, plan.cells[0], number), plan.cells[0], number, milliseconds=milliseconds)
    for number in range(2):
        differs = {1: {(0, 3): BLOCK_1_POST}} if number else {}
        write_trial(trial_of(sweep, plan.cells[1], number), plan.cells[1], number, differs=differs)
    write_failure(trial_of(sweep, plan.cells[1], 2), plan.cells[1], 2, error="rank 0: ValueError")
    write_trial(trial_of(sweep, plan.cells[2], 0), plan.cells[2], 0)
    return load(folder)


def test_a_row_for_each_cell(tmp_path: Path) -> None:
    table = cell_table(_sweep(tmp_path))
    shown = table[["dtype", "experts", "verdict", "diverged", "errors", "replays", "first", "ranks"]]
    assert shown.to_numpy().tolist() == [
        ["fp16", 1, "pass", "0/3", 0, "0/6", "", ""],
        ["fp16", 4, "diverged", "1/2", 1, "1/4", "block_post of block 1, rank 1, step 0 r3", "1"],
        ["bf16", 1, "none", "0/1", 0, "0/2", "", ""],
    ]


def test_bounds_are_for_cells_in_which_nothing_diverged(tmp_path: Path) -> None:
    bounds = list(cell_table(_sweep(tmp_path))["upper_bound"])
    assert bounds[0] == pytest.approx(1 - 0.05 ** (1 / 6))
    assert pd.isna(bounds[1])
    assert bounds[2] == pytest.approx(1 - 0.05 ** (1 / 2))


def test_an_invalid_trial_counts_in_no_rate_and_has_no_bound(tmp_path: Path) -> None:
    plan = plan_of(["seed=1"], ["seed=2"], ["seed=3"], common=["trials=2", "runs=3"])
    sweep = write_cells(tmp_path, plan)
    lost = {0: ["A should be 1, is unset"]}
    for cell in plan.cells:
        write_trial(trial_of(sweep, cell, 0), cell, 0, lost=lost, milliseconds=99.0)
    # One cell with invalid trials alone, one with a trial that passed beside it, one with a trial that diverged.
    write_trial(trial_of(sweep, plan.cells[0], 1), plan.cells[0], 1, lost=lost, differs={0: {(0, 2): INPUT}})
    write_trial(trial_of(sweep, plan.cells[1], 1), plan.cells[1], 1)
    write_trial(trial_of(sweep, plan.cells[2], 1), plan.cells[2], 1, differs={0: {(0, 2): INPUT}})
    table = cell_table(load(tmp_path))
    assert table[["verdict", "diverged", "errors", "replays"]].to_numpy().tolist() == [
        ["invalid", "0/0", 2, "0/0"],
        ["invalid", "0/1", 1, "0/2"],
        ["diverged", "1/1", 1, "1/2"],
    ]
    bounds = list(table["upper_bound"])
    assert pd.isna(bounds[0])
    assert bounds[1] == pytest.approx(1 - 0.05 ** (1 / 2))
    assert pd.isna(bounds[2])
    assert list(table["step_ms"].fillna(0.0)) == [0.0, 3.0, 3.0]


def test_a_trial_that_does_not_say_whether_it_repeats_has_no_bound(tmp_path: Path) -> None:
    plan = plan_of(["seed=1"], ["seed=2"])
    sweep = write_cells(tmp_path, plan)
    write_failure(trial_of(sweep, plan.cells[0]), plan.cells[0], verdict="timeout")
    table = cell_table(load(tmp_path))
    assert list(table["diverged"]) == list(table["replays"]) == ["0/0", "0/0"]
    assert table["upper_bound"].isna().all()


def test_ranks_are_all_that_diverged_and_the_first_divergence_names_its_own(tmp_path: Path) -> None:
    plan = plan_of(["seed=1"], common=["trials=3", "world.nproc_per_node=3"])
    sweep = write_cells(tmp_path, plan)
    for number, differs in enumerate(({2: {(0, 2): LOSS}}, {}, {0: {(0, 2): BLOCK_0_POST}, 1: {(0, 2): BLOCK_0_POST}})):
        write_trial(trial_of(sweep, plan.cells[0], number), plan.cells[0], number, differs=differs)
    (row,) = cell_table(load(tmp_path)).to_dict("records")
    assert row["ranks"] == "0, 1, 2"
    assert row["first"] == "loss, rank 2, step 0 r2 (+1 other)"


@pytest.mark.parametrize(
    ("trials", "first"),
    [
        (({0: {(0, 2): INPUT}}, {0: {(0, 2): INPUT}}, {}), "input input_ids, rank 0, step 0 r2"),
        (({0: {(0, 2): INPUT}}, {1: {(0, 2): INPUT}}, {}), "input input_ids, rank 0, step 0 r2 (+1 other)"),
        (({0: {(0, 2): INPUT}}, {1: {(0, 2): INPUT}}, {0: {(0, 2): LOSS}}),
         "input input_ids, rank 0, step 0 r2 (+2 other)"),
        (({0: {(0, 2): INPUT}, 1: {(0, 2): INPUT}}, {}, {}), "input input_ids, ranks 0, 1, step 0 r2"),
    ],
    ids=["the same", "another rank", "three places", "two ranks"],
)  # fmt: skip
def test_other_places_are_counted_once(tmp_path: Path, trials: tuple[Any, ...], first: str) -> None:
    plan = plan_of(["seed=1"], common=["trials=3"])
    sweep = write_cells(tmp_path, plan)
    for number, differs in enumerate(trials):
        write_trial(trial_of(sweep, plan.cells[0], number), plan.cells[0], number, differs=differs)
    assert list(cell_table(load(tmp_path))["first"]) == [first]


def test_an_error_without_a_log_has_an_empty_end_of_it(tmp_path: Path) -> None:
    plan = plan_of(["seed=1"], ["seed=2"])
    sweep = write_cells(tmp_path, plan)
    write_failure(trial_of(sweep, plan.cells[0]), plan.cells[0], log_tail=["last"])
    write_failure(trial_of(sweep, plan.cells[1]), plan.cells[1])
    assert list(cell_table(load(tmp_path))["log_tail"]) == ["last", ""]


def test_times_are_medians_over_trials(tmp_path: Path) -> None:
    table = cell_table(_sweep(tmp_path))
    assert list(table["step_ms"]) == [2.0, 3.0, 3.0]
    assert list(table["plain_step_ms"]) == [2.0, 2.0, 2.0]


def test_faults_and_mitigations_are_shown_where_there_are_any(tmp_path: Path) -> None:
    write_cells(tmp_path / "plain", plan_of(["seed=1"], ["seed=2"]))
    assert not {"fault", "mitigation"} & set(cell_table(load(tmp_path / "plain")).columns)
    plan = plan_of(["seed=1"], ["seed=2"], common=["fault=bit_flip", "mitigation=[recipe]"])
    write_cells(tmp_path / "both", plan)
    table = cell_table(load(tmp_path / "both"))
    assert list(table["fault"]) == ["bit_flip"] * 2
    assert list(table["mitigation"]) == ["recipe"] * 2


def test_a_sweep_of_one_cell_is_named_by_its_slug(tmp_path: Path) -> None:
    write_cells(tmp_path, plan_of(["dtype=fp16"]))
    table = cell_table(load(tmp_path))
    assert table.columns[0] == "slug"
    assert list(table["slug"]) == ["dtype-fp16"]


def test_a_broken_cell_has_its_row_in_the_table(tmp_path: Path) -> None:
    plan = plan_of(["seed=1"], ["seed=2"], ["seed=3"])
    sweep = write_cells(tmp_path, plan)
    sweep.cell(plan.cells[1].slug, plan.cells[1].id).cell.write_text("{")
    table = cell_table(load(tmp_path))
    assert sorted(table["verdict"]) == ["error", "none", "none"]


def test_a_sweep_in_which_every_cell_is_broken_still_has_a_table(tmp_path: Path) -> None:
    plan = plan_of(["seed=1"])
    sweep = write_cells(tmp_path, plan)
    sweep.cell(plan.cells[0].slug, plan.cells[0].id).cell.write_text("{")
    assert list(cell_table(load(tmp_path))["verdict"]) == ["error"]


# --- pivot -----------------------------------------------------------------------------------------------------------


def _plain(table: pd.DataFrame) -> dict[object, dict[object, object]]:
    """A pivot's values by row and column name; fields without a trial are left out."""
    columns: list[Any] = table.columns.to_list()
    names = [column[-1] if isinstance(column, tuple) else column for column in columns]
    index: list[Any] = table.index.to_list()
    return {
        (row[0] if isinstance(row, tuple) and len(row) == 1 else row): {
            name: value for name, value in zip(names, values, strict=True) if not pd.isna(value)
        }
        for row, values in zip(index, table.to_numpy().tolist(), strict=True)
    }


def test_the_last_axis_stands_across(tmp_path: Path) -> None:
    assert _plain(_sweep(tmp_path).matrix()) == {"fp16": {1: "pass", 4: "diverged"}, "bf16": {1: "none"}}


def test_axes_can_be_turned(tmp_path: Path) -> None:
    table = _sweep(tmp_path).matrix(rows="experts", columns="dtype")
    assert _plain(table) == {1: {"fp16": "pass", "bf16": "none"}, 4: {"fp16": "diverged"}}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("rate", {"fp16": {1: "0/3", 4: "1/2"}, "bf16": {1: "0/1"}}),
        ("step_ms", {"fp16": {1: 2.0, 4: 3.0}, "bf16": {1: 3.0}}),
        ("first_name", {"fp16": {1: "", 4: "blocks.1"}, "bf16": {1: ""}}),
        ("error", {"fp16": {1: "", 4: "rank 0: ValueError"}, "bf16": {1: ""}}),
    ],
)
def test_any_column_can_fill_the_fields(tmp_path: Path, value: str, expected: dict[object, object]) -> None:
    assert _plain(_sweep(tmp_path).matrix(rows="dtype", columns="experts", value=value)) == expected


def test_rows_alone_put_the_trials_of_other_axes_together(tmp_path: Path) -> None:
    table = _sweep(tmp_path).matrix(rows="dtype", columns=[], value="rate")
    assert _plain(table) == {"fp16": {"rate": "1/5"}, "bf16": {"rate": "0/1"}}


def test_several_axes_can_stand_on_one_side(tmp_path: Path) -> None:
    table = _sweep(tmp_path).matrix(rows=["dtype", "experts"], columns="trial")
    assert table.shape == (3, 3)
    assert table.to_numpy().tolist()[1] == ["pass", "diverged", "error"]
    assert list(table.index) == [("fp16", 1), ("fp16", 4), ("bf16", 1)]


def test_a_sweep_without_axes_is_one_field(tmp_path: Path) -> None:
    write_cells(tmp_path, plan_of(["seed=1"]))
    table = load(tmp_path).matrix()
    assert table.to_numpy().tolist() == [["none"]]


def test_a_missing_value_on_an_axis_drops_no_row(tmp_path: Path) -> None:
    common = ["fault=bit_flip", "world.nproc_per_node=2"]
    points = [["seed=1", "fault.rank=null"], ["seed=1", "fault.rank=1"], ["seed=2", "fault.rank=null"]]
    write_cells(tmp_path, plan_of(*points, common=common))
    sweep = load(tmp_path)
    assert sweep.axes == ("seed", "fault.rank")
    assert len(sweep.matrix(rows=["seed", "fault.rank"], columns=[])) == 3
    assert int(sweep.matrix().notna().to_numpy().sum()) == 3


def test_any_key_of_the_configuration_can_stand_on_either_side(tmp_path: Path) -> None:
    sweep = _sweep(tmp_path)
    assert _plain(sweep.matrix(rows="model", columns="dtype.reduce")) == {"tiny": {"bf16": "none", "fp16": "diverged"}}
    assert _plain(sweep.matrix(rows="dtype", columns=[], value="model.num_layers")) == {
        "fp16": {"model.num_layers": 4},
        "bf16": {"model.num_layers": 4},
    }
    assert "model" not in sweep.trials


def test_a_cell_that_is_gone_keeps_its_row_under_any_key(tmp_path: Path) -> None:
    plan = plan_of(["seed=1"], ["seed=2"])
    sweep = write_cells(tmp_path, plan)
    shutil.rmtree(sweep.cell(plan.cells[0].slug, plan.cells[0].id).folder)
    loaded = load(tmp_path)
    # The axis has one value left, and the row of the cell that is gone has none.
    assert _plain(loaded.matrix(rows="model")) == {"tiny": {"verdict": "none"}, "": {"verdict": "error"}}


def test_a_name_that_is_no_column_is_refused_with_the_ones_there_are(tmp_path: Path) -> None:
    sweep = _sweep(tmp_path)
    for arguments in ({"rows": "typo"}, {"columns": "typo"}, {"value": "typo"}):
        with pytest.raises(
            KeyError, match=r"no column and no configuration key 'typo'; columns: dtype, experts, cell, .*, rate"
        ):
            sweep.matrix(**arguments)


# --- small parts -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verdicts", list(permutations(["pass", "diverged", "error"])), ids="-".join)
def test_a_divergence_hides_behind_nothing(verdicts: tuple[str, ...]) -> None:
    assert worst(verdicts) == "diverged"


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        (["pass", "error"], "error"),
        (["pass", "timeout"], "timeout"),
        (["pass", "invalid"], "invalid"),
        (["pass", "none"], "none"),
        (["pass", "unsupported"], "pass"),
        (["unsupported"], "unsupported"),
    ],
)
def test_a_pass_hides_nothing(verdicts: list[str], expected: str) -> None:
    assert worst(verdicts) == expected


def test_every_verdict_has_its_place_among_the_worst() -> None:
    assert set(WORST_FIRST) == {*VERDICTS, "none"}


@pytest.mark.parametrize(
    ("replays", "bound"), [(0, 1.0), (1, 0.95), (51, 0.057), (59, 0.0495), (1000, 0.00299)], ids=str
)
def test_the_upper_bound_is_that_of_zero_events(replays: int, bound: float) -> None:
    assert upper_bound(replays) == pytest.approx(bound, rel=0.01)


def test_at_the_bound_nothing_would_be_seen_once_in_twenty() -> None:
    assert (1 - upper_bound(51)) ** 51 == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("place", "words"),
    [
        (BLOCK_1_POST, "block_post of block 1, rank 0, step 0 r2"),
        (INPUT, "input input_ids, rank 0, step 0 r2"),
        (LOSS, "loss, rank 0, step 0 r2"),
        (LOSS + 1, "grad blocks.1.ffn.up.weight, rank 0, step 0 r2"),
    ],
)
def test_a_divergence_is_told_in_a_few_words(tmp_path: Path, place: int, words: str) -> None:
    plan = plan_of(["seed=1"])
    sweep = write_cells(tmp_path, plan)
    write_trial(trial_of(sweep, plan.cells[0]), plan.cells[0], differs={0: {(0, 2): place}})
    assert describe_first(load(tmp_path).trials.iloc[0]) == words


def _on_nodes(folder: Path, *nodes: str, ranks: Sequence[int], **more: int) -> Sweep:
    """A sweep of one trial of four ranks that ran on these nodes; some ranks diverged."""
    plan = plan_of(["seed=1"], common=["world.nproc_per_node=4"])
    sweep = write_cells(folder, plan)
    trial = trial_of(sweep, plan.cells[0])
    result = write_trial(trial, plan.cells[0], differs={rank: {(0, 2): BLOCK_0_POST} for rank in ranks})
    write_json(trial.result, {**result, "nodes": list(nodes), **more})
    return load(folder)


@pytest.mark.parametrize(
    ("nodes", "ranks", "words"),
    [
        (("n1", "n2"), [2], "rank 2 (n2)"),
        (("n1", "n2"), [2, 3], "ranks 2, 3 (n2)"),
        (("n1", "n2"), [0, 3], "ranks 0, 3 (n1, n2)"),
        (("n1",), [2], "rank 2"),
    ],
)
def test_a_divergence_in_a_trial_of_several_nodes_names_the_node(
    tmp_path: Path, nodes: tuple[str, ...], ranks: list[int], words: str
) -> None:
    first = cell_table(_on_nodes(tmp_path, *nodes, ranks=ranks))["first"].iloc[0]
    assert first == f"block_post of block 0, {words}, step 0 r2"


@pytest.mark.parametrize(
    ("again", "anew", "words"),
    [(1, 0, "1 retry"), (2, 0, "2 retries"), (0, 1, "1 requeue"), (1, 2, "1 retry, 2 requeues")],
)
def test_what_was_submitted_or_started_again_says_how_often(tmp_path: Path, again: int, anew: int, words: str) -> None:
    table = cell_table(_on_nodes(tmp_path, "n1", ranks=[], retries=again, requeues=anew))
    assert list(table["retries"]) == [words]


def test_without_retries_there_is_no_column_of_them(tmp_path: Path) -> None:
    assert "retries" not in cell_table(_on_nodes(tmp_path, "n1", ranks=[], retries=0, requeues=0))


def test_a_grid_with_holes_has_every_value_in_its_own_field(tmp_path: Path) -> None:
    points = [(1, 0), (2, 0), (2, 1), (3, 2), (1, 2)]
    plan = plan_of(*([f"seed={seed}", f"warmup={warmup}"] for seed, warmup in points))
    sweep = write_cells(tmp_path, plan)
    for cell, (seed, warmup) in zip(plan.cells, points, strict=True):
        write_trial(trial_of(sweep, cell), cell, milliseconds=float(10 * seed + warmup))
    wide = load(tmp_path).matrix(rows="seed", columns="warmup", value="step_ms")
    assert list(wide.index) == [1, 2, 3]
    columns: list[Any] = wide.columns.to_list()
    assert columns == [0, 1, 2]
    for row in wide.index:
        for column in columns:
            found = wide.loc[row, column]
            assert pd.isna(found) if (row, column) not in points else found == 10 * row + column


def test_cells_that_no_key_tells_apart_are_told_apart_by_their_id(tmp_path: Path) -> None:
    plan = plan_of(["seed=1"], ["seed=2"])
    sweep = write_cells(tmp_path, plan)
    for cell in plan.cells:
        write_trial(trial_of(sweep, cell), cell)
        content = read_json(sweep.cell(cell.slug, cell.id).cell)
        write_json(sweep.cell(cell.slug, cell.id).cell, {**content, "overrides": {}})
    loaded = load(tmp_path)
    assert loaded.axes == ("cell",)
    assert sorted(cell_table(loaded)["cell"]) == sorted(cell.id for cell in plan.cells)


# --- places, in words ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "words"),
    [
        (("rng", "torch", "before"), "rng torch (before)"),
        (("rng", "blocks.1", "recompute"), "rng blocks.1 (recompute)"),
        (("input", "input_ids", "before"), "input input_ids"),
        (("param", "norm.weight", "after"), "param norm.weight (after)"),
        (("buffer", "b", "before"), "buffer b (before)"),
        (("optim", "w.exp_avg", "after"), "optim w.exp_avg (after)"),
        (("block_pre", "blocks.1", "forward"), "block_pre of block 1"),
        (("block_post", "blocks.1", "recompute"), "block_post of block 1"),
        (("block_grad_out", "blocks.1", "backward"), "block_grad_out of block 1"),
        (("block_grad_in", "blocks.1", "backward"), "block_grad_in of block 1"),
        (("module", "blocks.1.ffn", "forward"), "module blocks.1.ffn (forward)"),
        (("module_grad_out", "blocks.1.ffn", "backward"), "module_grad_out blocks.1.ffn"),
        (("module_grad_in", "blocks.1.ffn", "backward"), "module_grad_in blocks.1.ffn"),
        (("op", "aten.mm in blocks.1", "backward"), "op aten.mm in blocks.1 (backward)"),
        (("collective_in", "c #1 group g in root", "backward"), "collective_in c #1 group g in root (backward)"),
        (("collective_out", "c #1 group g in root", "forward"), "collective_out c #1 group g in root (forward)"),
        (("logits", "logits", "forward"), "logits"),
        (("loss", "loss", "forward"), "loss"),
        (("global", "global", "forward"), "global"),
        (("grad", "norm.weight", "backward"), "grad norm.weight"),
        (("norm", "norm", "optimizer"), "norm"),
    ],
    ids=str,
)
@pytest.mark.parametrize(
    ("kind", "before"),
    [
        ("value", ""),
        (None, ""),
        ("inputs", "inputs differs at "),
        ("layout", "layout differs at "),
        ("sequence", "sequence differs at "),
    ],
    ids=str,
)
def test_a_place_is_told_by_what_its_site_does_not_say(
    place: tuple[str, str, str], words: str, kind: str | None, before: str
) -> None:
    record = dict(zip(("site", "name", "phase"), place, strict=True))
    assert describe_place({**record, "kind": kind, "block": 1}) == before + words


def test_every_site_has_its_words() -> None:
    for site in SITES:
        place = {"site": site, "name": "n", "phase": "backward", "kind": "value", "block": 3}
        assert describe_place(place) in (f"{site} of block 3", f"{site} n", f"{site} n (backward)")


def _launched(folder: Path, *digests: int, common: tuple[str, ...] = ()) -> Sweep:
    """A sweep of one cell of mode relaunch whose launches each repeat themselves, with these digests on rank 1."""
    plan = plan_of(["seed=1"], common=["mode=relaunch", f"trials={len(digests)}", *common])
    sweep = write_cells(folder, plan)
    for number, digest in enumerate(digests):

        def records(rank: int, step: int, run: int, digest: int = digest) -> list[Record]:
            return [record("block_post", "blocks.0", digest if rank else 1, block=0), record("loss", "loss")]

        write_recorded(trial_of(sweep, plan.cells[0], number), plan.cells[0], number, records=records)
    return load(folder)


def test_what_differs_from_another_launch_is_told_with_it(tmp_path: Path) -> None:
    (row,) = cell_table(_launched(tmp_path, 1, 1, 2)).to_dict("records")
    assert row["first"] == "block_post of block 0, rank 1, step 0 r1 against trial 0"
    assert (row["verdict"], row["diverged"], row["replays"]) == ("diverged", "1/3", "2/7")
    assert (row["cause"], row["loss"], row["ranks"]) == ("compute", "0/2", "1")


def test_the_table_has_the_causes_and_what_the_loss_tells(tmp_path: Path) -> None:
    plan = plan_of(["seed=1"], ["seed=2"], ["seed=3"], ["seed=4"], common=["trials=2"])
    sweep = write_cells(tmp_path, plan)
    found: dict[int, list[Any]] = {
        0: [{}, {}],
        1: [{}, {(0, 2): INPUT}],
        # At this level it is open why a gradient differs.
        2: [{(0, 2): LOSS + 1}, {(0, 2): LOSS}],
        3: [{}, {(0, 2): LOSS}],
    }
    for cell in plan.cells:
        for number, differs in enumerate(found[cell.config["seed"] - 1]):
            write_trial(trial_of(sweep, cell, number), cell, number, differs={0: differs})
    table = cell_table(load(tmp_path))
    assert list(table["cause"]) == ["", "input", "", "compute"]
    assert list(table["loss"]) == ["", "1/1", "0/1, 1/1", "1/1"]


@pytest.mark.parametrize("beside", [[], ["mode=replay"]], ids=["alone", "beside a cell with a cause"])
def test_ranks_that_no_majority_tells_apart_have_no_cause(tmp_path: Path, beside: list[str]) -> None:
    plan = plan_of(["mode=lockstep"], *([beside] if beside else []))
    sweep = write_cells(tmp_path, plan)
    for cell in plan.cells:
        records = [record("block_post", "blocks.0", block=0)]

        def different(rank: int, step: int, run: int, records: list[Record] = records) -> list[Record]:
            return [replace(one, digest=10 * rank + (run if rank == 0 else 0)) for one in records]

        write_recorded(trial_of(sweep, cell), cell, records=different)
    row = cell_table(load(tmp_path)).iloc[0]
    assert (row["verdict"], row["cause"]) == ("diverged", "")
    assert row["first"] == "block_post of block 0, ranks 0, 1, step 0 r1"


# --- closer looks ----------------------------------------------------------------------------------------------------


def _drilled(folder: Path, write: Callable[[TrialPaths, Cell], object]) -> pd.DataFrame:
    """The table of a cell that diverged and one that did not, where the closer look at the first left this."""
    plan = plan_of(["seed=1"], ["seed=2"])
    closer = plan.cells[0].closer()
    assert closer is not None
    sweep = write_cells(folder, Plan((*plan.cells, closer), (), 0))
    write_trial(trial_of(sweep, plan.cells[0]), plan.cells[0], differs={0: {(0, 2): BLOCK_0_POST}})
    write_trial(trial_of(sweep, plan.cells[1]), plan.cells[1])
    write(trial_of(sweep, closer), closer)
    return cell_table(load(folder))


def _operator(rank: int, step: int, run: int) -> list[Record]:
    name, digest = "aten.index_put in blocks.1.ffn", 7 if (rank, run) == (1, 2) else 1
    return [record("op", name, digest, inputs=3), record("loss", "loss", digest)]


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (
            lambda trial, cell: write_recorded(trial, cell, records=_operator),
            "compute: op aten.index_put in blocks.1.ffn (forward), rank 1, step 0 r2",
        ),
        (write_trial, "pass: it did not show again"),
        (write_failure, "error: x"),
        (lambda trial, cell: write_failure(trial, cell, verdict="timeout"), "timeout: x"),
        (lambda *_: None, "none yet"),
    ],
    ids=["found", "not again", "an error", "a timeout", "not yet"],
)
def test_a_closer_look_stands_beside_the_cell_and_is_no_row_of_its_own(
    tmp_path: Path, write: Callable[[TrialPaths, Cell], object], words: str
) -> None:
    table = _drilled(tmp_path, write)
    assert list(table["closer_look"]) == [words, ""]
    assert list(table["seed"]) == [1, 2]
    assert list(table["verdict"]) == ["diverged", "pass"]
    assert "observe" not in table


def test_without_a_closer_look_there_is_no_column_of_it(tmp_path: Path) -> None:
    assert "closer_look" not in cell_table(_sweep(tmp_path))


# --- baselines -------------------------------------------------------------------------------------------------------

BASELINE = ["baseline", "differs_from_baseline", "baseline_loss"]


def test_cells_stand_beside_what_they_are_compared_with(tmp_path: Path) -> None:
    points = [[f"dtype={dtype}", f"seed={seed}"] for dtype in ("bf16", "fp16") for seed in (1, 2)]
    plan = plan_of(*points, ["dtype=fp32", "seed=1"], common=["against=dtype:bf16"])
    sweep = write_cells(tmp_path, plan)
    found: list[Any] = [{}, {}, {}, {1: {(0, 1): BLOCK_0_POST, (0, 2): INPUT}}]
    for cell, differs in zip(plan.cells[:4], found, strict=True):
        # One seed's data are not another's: a cell is compared with the baseline of its own.
        write_trial(trial_of(sweep, cell), cell, differs=differs)
    table = cell_table(load(tmp_path))[["dtype", "seed", *BASELINE]]
    assert table.to_numpy().tolist() == [
        ["bf16", 1, "", "", ""],
        ["bf16", 2, "", "", ""],
        ["fp16", 1, "dtype=bf16 seed=1", "equal", "equal"],
        [
            "fp16",
            2,
            "dtype=bf16 seed=2",
            "compute: block_post of block 0, rank 1, step 0 (but one of the two does not repeat)",
            "differs",
        ],
        ["fp32", 1, "dtype=bf16 seed=1", "not compared: no result", ""],
    ]


CLEAN = ("", ())
REPEATED = ("block_post", (1, 2))
ONCE = ("block_post", (2,))
AT_BLOCK_0 = "compute: block_post of block 0, rank 0, step 0"
DOUBT = " (but one of the two does not repeat)"


@pytest.mark.parametrize(
    ("own", "baseline", "words"),
    [
        ([CLEAN], [CLEAN], "equal"),
        ([REPEATED], [CLEAN], AT_BLOCK_0),
        ([CLEAN], [REPEATED], AT_BLOCK_0),
        ([ONCE], [CLEAN], AT_BLOCK_0 + DOUBT),
        ([CLEAN], [ONCE], AT_BLOCK_0 + DOUBT),
        ([REPEATED, ONCE], [CLEAN, CLEAN], AT_BLOCK_0 + DOUBT),
        ([REPEATED, CLEAN], [CLEAN, ONCE], AT_BLOCK_0 + DOUBT),
        ([CLEAN, ONCE], [CLEAN, CLEAN], "equal"),
        ([("grad", (1, 2))], [CLEAN], "grad w, rank 0, step 0"),
    ],
    ids=["equal", "both repeat", "both repeat, the baseline is other", "it does not", "its baseline does not",
         "another trial does not", "another trial of its baseline does not", "equal all the same", "the cause is open"],
)  # fmt: skip
def test_what_does_not_repeat_is_said_beside_where_it_differs(
    tmp_path: Path, own: list[Any], baseline: list[Any], words: str
) -> None:
    plan = plan_of(["dtype=bf16"], ["dtype=fp16"], common=["against=dtype:bf16", f"trials={len(own)}"])
    sweep = write_cells(tmp_path, plan)
    for cell, trials in zip(plan.cells, (baseline, own), strict=True):
        for number, differs in enumerate(trials):

            def records(rank: int, step: int, run: int, differs: Any = differs) -> list[Record]:
                site, runs = differs
                clean = [record("block_post", "blocks.0", block=0), record("grad", "w", phase="backward")]
                other = rank == 0 and run in runs
                return [replace(one, digest=7) if other and one.site == site else one for one in clean]

            write_recorded(trial_of(sweep, cell, number), cell, number, records=records)
    assert list(cell_table(load(tmp_path))["differs_from_baseline"]) == ["", words]


def test_what_has_no_baseline_is_not_compared_and_says_why(tmp_path: Path) -> None:
    plan = plan_of(["seed=1"], ["seed=2"], common=["against=seed:1"])
    sweep = write_cells(tmp_path, plan)
    for cell in plan.cells:
        write_trial(trial_of(sweep, cell), cell)
    shutil.rmtree(sweep.cell(plan.cells[0].slug, plan.cells[0].id).folder)
    table = cell_table(load(tmp_path))
    row = table[table["verdict"] == "pass"].iloc[0]
    # The baseline's folder is gone: nothing is left that has its value.
    assert row["differs_from_baseline"] == "not compared: against=seed:1: no cell of this sweep has seed=1; seed is: 2"
    assert (row["baseline"], row["baseline_loss"]) == ("", "")


def test_a_baseline_that_no_key_names_is_named_by_its_id(tmp_path: Path) -> None:
    plan = plan_of(["seed=1"], ["seed=2"], common=["against=seed:1"])
    sweep = write_cells(tmp_path, plan)
    for cell in plan.cells:
        write_trial(trial_of(sweep, cell), cell)
        content = read_json(sweep.cell(cell.slug, cell.id).cell)
        write_json(sweep.cell(cell.slug, cell.id).cell, {**content, "overrides": {}})
    table = cell_table(load(tmp_path)).set_index("cell")
    assert dict(table["baseline"]) == {plan.cells[0].id: "", plan.cells[1].id: plan.cells[0].id}


def test_without_a_baseline_there_is_no_column_of_one(tmp_path: Path) -> None:
    assert not set(BASELINE) & set(cell_table(_sweep(tmp_path)).columns)


# --- effects ---------------------------------------------------------------------------------------------------------


def test_a_cell_says_each_thing_that_its_mitigations_came_to_in_a_launch(tmp_path: Path) -> None:
    plan = plan_of(["mitigation=[none]"], ["mitigation=[recipe]"], common=["trials=3"])
    sweep = write_cells(tmp_path, plan)
    for number, status in enumerate(("set", "lost", "set")):
        write_trial(trial_of(sweep, plan.cells[0], number), plan.cells[0], number)
        effects = {"recipe": {"A": status}}
        write_trial(trial_of(sweep, plan.cells[1], number), plan.cells[1], number, effects=effects)
    assert list(cell_table(load(tmp_path))["effect"]) == ["", "set, lost"]


def test_without_mitigations_there_is_no_column_of_effects_and_none_of_costs(tmp_path: Path) -> None:
    assert not {"effect", "cost"} & set(cell_table(_sweep(tmp_path)).columns)
