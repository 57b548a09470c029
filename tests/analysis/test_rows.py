"""Rows of the frames: each column from the file that it comes from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from detsweep.analysis.against import BASELINE_COLUMNS, baseline_row
from detsweep.analysis.cells import Broken
from detsweep.analysis.rows import (
    DIVERGENCE_COLUMNS,
    EFFECT_COLUMNS,
    TRIAL_COLUMNS,
    broken_row,
    clean_counts,
    described,
    divergence_rows,
    effect_rows,
    effect_words,
    fault_rows,
    read_trials,
    trial_row,
)
from detsweep.capture import Record
from detsweep.paths import CellPaths, TrialPaths
from detsweep.plan import Cell
from tests.support import (
    BLOCK_0_POST,
    BLOCK_1_POST,
    INPUT,
    LOSS,
    as_planned,
    as_written,
    one_cell,
    record,
    write_failure,
    write_recorded,
    write_trial,
)

TRIAL = TrialPaths(Path("/runs/cells/a-1/trial3"))


def _written(folder: Path, cell: Cell, number: int = 0, **more: Any) -> tuple[TrialPaths, dict[str, Any]]:
    trial = CellPaths(folder / f"{cell.slug}-{cell.id}").trial(number)
    return trial, write_trial(trial, cell, number, **more)


# --- trials ----------------------------------------------------------------------------------------------------------


def test_a_cell_is_described_by_its_axes_and_what_it_is() -> None:
    cell = one_cell("dtype=fp16", "mitigation=[recipe]", "fault=bit_flip", "fault.rank=null", "mode=train")
    assert described(cell.to_json(), ("dtype", "fault.rank", "experiment")) == {
        "dtype": "fp16",
        "fault.rank": "null",
        "experiment": "",
        "cell": cell.id,
        "slug": cell.slug,
        "mitigation": "recipe",
        "fault": "bit_flip",
        "mode": "train",
    }


def test_a_trial_that_diverged_has_every_column(tmp_path: Path) -> None:
    cell = one_cell("runs=3")
    trial, result = _written(tmp_path, cell, differs={0: {(0, 3): INPUT}, 1: {(0, 2): BLOCK_1_POST, (0, 3): INPUT}})
    assert trial_row(0, trial, result) == {
        "trial": 0,
        "verdict": "diverged",
        "effect": "",
        "diverged_ranks": (0, 1),
        "first_site": "block_post",
        "first_block": 1,
        "first_name": "blocks.1",
        "first_phase": "forward",
        "first_kind": "value",
        "first_step": 0,
        "first_run": "r2",
        "first_reference": "r1",
        "first_ranks": (1,),
        "cause": "compute",
        "closer": "op",
        "loss": "2/2",
        "replays": 2,
        "diverged_replays": 2,
        "error": None,
        "error_ranks": (),
        "notes": (),
        "log": None,
        "log_tail": None,
        "step_ms": 3.0,
        "plain_step_ms": 2.0,
        "seconds": 1.5,
        "first_nodes": (),
        "nodes": (),
        "retries": None,
        "requeues": None,
        "folder": str(trial.folder),
    }
    common = {"cell", "slug", "mitigation", "fault", "mode", "clean_comparisons", "false_alarms"}
    assert common | set(trial_row(0, trial, result)) == set(TRIAL_COLUMNS)


def test_a_trial_that_failed_has_its_error_and_its_log_and_no_more() -> None:
    failed = {"verdict": "error", "error": "x", "error_ranks": [1], "log": "log/a.log", "log_tail": ["one", "two"]}
    row = trial_row(3, TRIAL, {**failed, "seconds": 2.0})
    said = {"trial": 3, "verdict": "error", "error": "x", "error_ranks": (1,), "log": f"{TRIAL.folder}/log/a.log",
            "log_tail": "one\ntwo", "seconds": 2.0, "folder": str(TRIAL.folder)}  # fmt: skip
    assert {key: value for key, value in row.items() if value not in (None, (), "")} == said


@pytest.mark.parametrize(
    ("nodes", "first", "of_divergences"),
    [(["a", "b"], ("a", "b"), ["a", "b"]), (["a"], ("a",), ["a", "a"]), ([], (), [None, None])],
    ids=str,
)
def test_what_ran_on_nodes_names_those_of_the_ranks_that_diverged(
    tmp_path: Path, nodes: list[str], first: tuple[str, ...], of_divergences: list[str | None]
) -> None:
    cell = one_cell("world.nproc_per_node=4")
    _, result = _written(tmp_path, cell, differs={1: {(0, 2): INPUT}, 2: {(0, 2): INPUT}})
    result = {**result, "nodes": nodes, "retries": 1, "requeues": 2}
    row = trial_row(0, TRIAL, result)
    assert (row["nodes"], row["first_nodes"], row["retries"], row["requeues"]) == (tuple(nodes), first, 1, 2)
    rows = divergence_rows(cell.to_json(), 0, result, shown_as=cell.id)
    assert [one["node"] for one in rows] == of_divergences


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (None, None),
        ({"differs": 0, "of": 0}, None),
        ({"differs": 0, "of": 2}, "0/2"),
        ({"differs": 3, "of": 11}, "3/11"),
        ({"differs": 1, "of": 2, "steps_later": 0}, "at once"),
        ({"differs": 1, "of": 5, "steps_later": 4}, "4 steps later"),
        ({"differs": 0, "of": 5, "steps_later": None}, "never"),
    ],
    ids=str,
)
def test_how_far_the_loss_tells_is_said_in_words(loss: dict[str, Any] | None, words: str | None) -> None:
    assert trial_row(0, TRIAL, {"verdict": "diverged", "loss": loss})["loss"] == words


@pytest.mark.parametrize(
    ("mode", "words"), [("replay", "1/2"), ("train", "1 step later")], ids=["in runs", "in a trajectory"]
)
def test_the_loss_of_a_trial_is_that_of_its_records(tmp_path: Path, mode: str, words: str) -> None:
    cell = one_cell(f"mode={mode}", "steps=2")
    # The gradient differs in the first step, from the loss on in the second.
    _, result = _written(tmp_path, cell, differs={0: {(0, 2): LOSS + 1, (1, 2): LOSS}})
    assert trial_row(0, TRIAL, result)["loss"] == words


def test_the_ranks_at_the_first_place_are_those_of_its_step_run_and_record(tmp_path: Path) -> None:
    cell = one_cell("world.nproc_per_node=4", "runs=3")
    differs = {
        0: {(0, 2): BLOCK_0_POST},
        1: {(0, 2): BLOCK_1_POST, (0, 3): BLOCK_0_POST},
        3: {(0, 2): BLOCK_0_POST, (0, 3): INPUT},
    }
    row = trial_row(0, TRIAL, _written(tmp_path, cell, differs=differs)[1])
    assert (row["first_ranks"], row["diverged_ranks"]) == ((0, 3), (0, 1, 3))


def test_notes_are_those_of_the_ranks(tmp_path: Path) -> None:
    cell = one_cell()
    trial = CellPaths(tmp_path / f"x-{cell.id}").trial(0)
    result = write_recorded(trial, cell, records=lambda *_: [record("loss", "loss")], nonfinite={"loss": 1})
    lines = tuple(f"rank {rank}: 1 values of loss are not finite, step 0 r1" for rank in range(2))
    assert trial_row(0, trial, result)["notes"] == lines


def test_every_trial_that_is_asked_for_or_there_is_read(tmp_path: Path) -> None:
    cell = one_cell("trials=2")
    paths = CellPaths(tmp_path / f"{cell.slug}-{cell.id}")
    write_trial(paths.trial(1), cell, 1)
    write_trial(paths.trial(5), cell, 5)
    found = read_trials(paths, cell.to_json())
    assert {number: result["verdict"] for number, (_, result) in found.items()} == {0: "none", 1: "pass", 5: "pass"}
    assert [folder.folder.name for folder, _ in found.values()] == ["trial0", "trial1", "trial5"]


def _launches(folder: Path, cell: Cell, *different: int) -> CellPaths:
    """Launches of a cell, each of which repeats itself; those that are named are not like the others."""
    paths = CellPaths(folder / f"{cell.slug}-{cell.id}")
    for number in range(cell.trials):

        def records(rank: int, step: int, run: int, number: int = number) -> list[Record]:
            digest = 7 if number in different and rank == 1 else 1
            return [record("input", "input_ids"), record("block_post", "blocks.0", digest, block=0)]

        write_recorded(paths.trial(number), cell, number, records=records)
    return paths


def test_launches_of_mode_relaunch_are_read_as_they_compare(tmp_path: Path) -> None:
    cell = one_cell("mode=relaunch", "trials=3")
    found = read_trials(_launches(tmp_path, cell, 2), cell.to_json())
    rows = [trial_row(number, *trial) for number, trial in found.items()]
    assert [row["verdict"] for row in rows] == ["pass", "pass", "diverged"]
    assert [row["replays"] for row in rows] == [1, 3, 3]
    assert (rows[2]["first_reference"], rows[2]["first_ranks"], rows[2]["diverged_replays"]) == ("trial0", (1,), 2)


# --- faults and divergences ------------------------------------------------------------------------------------------


def test_faults_have_rows_only_where_a_trial_came_to_a_verdict(tmp_path: Path) -> None:
    cell = one_cell("fault=bit_flip", "runs=3")
    _, result = _written(tmp_path, cell, injected=as_planned(cell), differs={0: {(0, 2): BLOCK_0_POST}})
    (row,) = fault_rows(cell.to_json(), 4, result)
    assert (row["cell"], row["trial"], row["kind"], row["placed"]) == (cell.id, 4, "bit_flip", True)
    assert clean_counts(cell.to_json(), result) == {"clean_comparisons": 2, "false_alarms": 0}
    for verdict in ("error", "timeout", "invalid", "unsupported", "none"):
        assert fault_rows(cell.to_json(), 4, {**result, "verdict": verdict}) == []
        assert set(clean_counts(cell.to_json(), {**result, "verdict": verdict}).values()) == {None}


def test_divergences_are_of_the_cell_they_are_shown_as_at_the_level_they_were_seen(tmp_path: Path) -> None:
    cell = one_cell("fault=bit_flip", "observe=op")
    _, result = _written(tmp_path, cell, differs={1: {(0, 2): BLOCK_1_POST}})
    (row,) = divergence_rows(cell.to_json(), 2, result, shown_as="another")
    assert (row["cell"], row["trial"], row["fault"], row["level"]) == ("another", 2, "bit_flip", "op")
    assert (row["rank"], row["site"], row["reference"], row["cause"]) == (1, "block_post", "r1", "memory")
    assert set(row) == set(DIVERGENCE_COLUMNS)
    assert list(divergence_rows(cell.to_json(), 2, {"verdict": "error"}, shown_as="another")) == []


def test_a_cell_that_cannot_be_read_is_one_trial_with_its_error() -> None:
    row = broken_row(Broken("0f", Path("/runs/cells/a-0f"), "torn"), ("dtype", "mitigation"))
    assert {key: value for key, value in row.items() if value not in (None, ())} == {
        "dtype": "", "mitigation": "", "fault": "", "mode": "", "cell": "0f", "slug": "a-0f", "trial": 0,
        "verdict": "error", "effect": "", "error": "torn", "folder": "/runs/cells/a-0f",
    }  # fmt: skip


# --- effects ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statuses", "words"),
    [
        ((), ""),
        (("inert",), "inert"),
        (("set", "set"), "2 set"),
        (("inert", "effective", "lost", "inert"), "1 effective, 2 inert, 1 lost"),
    ],
    ids=str,
)
def test_of_several_mitigations_it_is_said_how_many_came_to_what(statuses: tuple[str, ...], words: str) -> None:
    effects = {f"m{number}": {"status": status, "settings": {}} for number, status in enumerate(statuses)}
    assert effect_words({"effects": effects}) == words
    assert trial_row(0, TRIAL, {"verdict": "pass", "effects": effects})["effect"] == words


@pytest.mark.parametrize("result", [{}, {"effects": None}], ids=str)
def test_a_result_without_effects_has_no_word_and_no_row(result: dict[str, Any]) -> None:
    assert effect_words(result) == ""
    assert list(effect_rows(one_cell().to_json(), 0, result)) == []


def test_each_setting_of_each_mitigation_has_a_row(tmp_path: Path) -> None:
    cell = one_cell("mitigation=[recipe]")
    _, result = _written(tmp_path, cell, 2, effects={"recipe": {"A": "set", "B": "inert"}, "env": {"C": "lost"}})
    rows = list(effect_rows(cell.to_json(), 2, result))
    assert all(tuple(row) == EFFECT_COLUMNS for row in rows)
    assert [tuple(row.values()) for row in rows] == [
        (cell.id, 2, "recipe", "A", "set", "A is set"),
        (cell.id, 2, "recipe", "B", "inert", "B is inert"),
        (cell.id, 2, "env", "C", "lost", "C is lost"),
    ]


# --- baselines -------------------------------------------------------------------------------------------------------


def _pair(folder: Path, *, missing: str = "", differs: Any = None) -> dict[str, Any]:
    """The row of a cell against its baseline; `missing` is the one without a result."""
    cells = {"own": one_cell("seed=1"), "baseline": one_cell("seed=2")}
    found = {}
    for name, cell in cells.items():
        paths = CellPaths(folder / f"{cell.slug}-{cell.id}")
        if name == missing:
            write_failure(paths.trial(0), cell)
        else:
            write_trial(paths.trial(0), cell, differs=differs if name == "own" else None)
        found[name] = read_trials(paths, cell.to_json())
    row = baseline_row(cells["own"].to_json(), found["own"], cells["baseline"].to_json(), found["baseline"])
    assert (row["cell"], row["baseline"]) == (cells["own"].id, cells["baseline"].id)
    assert set(row) <= set(BASELINE_COLUMNS)
    return row


def test_a_cell_that_is_like_its_baseline_has_a_row_that_says_so(tmp_path: Path) -> None:
    row = _pair(tmp_path)
    assert (row["equal"], row["compared"], row["differing"], row["loss_equal"]) == (True, 2, 0, True)
    assert "site" not in row
    assert row["repeats"] is True


@pytest.mark.parametrize("whose", ["own", "baseline"])
@pytest.mark.parametrize("number", [0, 1])
def test_a_baseline_row_says_whether_both_repeat(tmp_path: Path, whose: str, number: int) -> None:
    cells = {"own": one_cell("seed=1", "trials=2"), "baseline": one_cell("seed=2", "trials=2")}
    found = {}
    for name, cell in cells.items():
        paths = CellPaths(tmp_path / f"{cell.slug}-{cell.id}")
        for trial in (0, 1):
            differs = {1: {(0, 2): BLOCK_1_POST}} if (name, trial) == (whose, number) else None
            write_trial(paths.trial(trial), cell, trial, differs=differs)
        found[name] = read_trials(paths, cell.to_json())
    row = baseline_row(cells["own"].to_json(), found["own"], cells["baseline"].to_json(), found["baseline"])
    # Only the first trials are compared; whether a cell repeats all of its trials tell.
    assert (row["repeats"], row["equal"]) == (False, number == 1)


def test_a_cell_that_differs_in_all_runs_repeats(tmp_path: Path) -> None:
    cells = [one_cell("seed=1"), one_cell("seed=2")]
    found = []
    for digest, cell in enumerate(cells):
        paths = CellPaths(tmp_path / f"{cell.slug}-{cell.id}")
        same = [record("loss", "loss", digest)]
        write_recorded(paths.trial(0), cell, records=lambda *_, same=same: same)
        found.append(read_trials(paths, cell.to_json()))
    row = baseline_row(cells[0].to_json(), found[0], cells[1].to_json(), found[1])
    assert (row["repeats"], row["equal"], row["differing"]) == (True, False, 2)


def test_a_cell_that_is_not_like_its_baseline_has_the_first_place(tmp_path: Path) -> None:
    row = _pair(tmp_path, differs={1: {(0, 2): BLOCK_1_POST}, 0: {(0, 2): LOSS + 1}})
    assert (row["equal"], row["compared"], row["differing"], row["loss_equal"]) == (False, 2, 1, False)
    place = {key: row[key] for key in ("site", "block", "name", "phase", "kind", "cause", "rank", "step")}
    assert place == {"site": "block_post", "block": 1, "name": "blocks.1", "phase": "forward", "kind": "value",
                     "cause": "compute", "rank": 1, "step": 0}  # fmt: skip


def test_where_the_loss_is_the_same_only_the_place_differs(tmp_path: Path) -> None:
    row = _pair(tmp_path, differs={0: {(0, 2): LOSS + 1}})
    assert (row["equal"], row["loss_equal"]) == (False, True)


@pytest.mark.parametrize(
    ("missing", "error"), [("own", "no result"), ("baseline", "its baseline has no result")], ids=str
)
def test_without_a_result_there_is_nothing_to_compare(tmp_path: Path, missing: str, error: str) -> None:
    row = _pair(tmp_path, missing=missing)
    assert row["error"] == error
    assert "equal" not in row
    assert "repeats" not in row


def test_records_that_cannot_be_compared_are_said(tmp_path: Path) -> None:
    cells = [one_cell("seed=1"), one_cell("seed=2")]
    found = []
    for cell in cells:
        paths = CellPaths(tmp_path / f"{cell.slug}-{cell.id}")
        write_trial(paths.trial(0), cell)
        path = paths.trial(0).records(0)
        if cell is cells[1]:
            path.write_text(path.read_text().replace('"checksum":"xxh3"', '"checksum":"blob"'))
            as_written(paths.trial(0))
        found.append(read_trials(paths, cell.to_json()))
    row = baseline_row(cells[0].to_json(), found[0], cells[1].to_json(), found[1])
    assert row["error"] == "checksum blob cannot be compared with xxh3"
    path = found[1][0][0].records(0)
    path.write_text("x" + path.read_text()[1:])
    row = baseline_row(cells[0].to_json(), found[0], cells[1].to_json(), found[1])
    assert row["error"].startswith(f"{path} is not what was written: ")
