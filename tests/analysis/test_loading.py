"""What can be loaded: several sweeps, captures of the recipe, frames that were kept."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from detsweep import load
from detsweep.analysis import exit_code
from detsweep.analysis.celltable import cell_table
from detsweep.analysis.exports import export
from detsweep.analysis.frames import Sweep
from detsweep.analysis.report import summary
from detsweep.paths import FileError, write_json
from tests.support import BLOCK_0_POST, plan_of, trial_of, write_cells, write_failure, write_trial


def _sweep(folder: Path, *points: list[str], diverged: int | None = None) -> Sweep:
    plan = plan_of(*points)
    sweep = write_cells(folder, plan)
    for place, cell in enumerate(plan.cells):
        differs = {0: {(0, 2): BLOCK_0_POST}} if place == diverged else None
        write_trial(trial_of(sweep, cell), cell, differs=differs, plain_milliseconds=[2.0, 3.0])
    return load(folder)


# Several sweeps


def test_several_sweeps_are_one_with_the_sweep_as_an_axis(tmp_path: Path) -> None:
    points = (["dtype=bf16", "seed=1"], ["dtype=fp16", "seed=1"])
    one = _sweep(tmp_path / "monday", *points, diverged=1)
    two = _sweep(tmp_path / "tuesday", *points)
    both = load([tmp_path / "monday", tmp_path / "tuesday"])
    assert both.axes == ("sweep", "dtype")
    assert list(zip(both.trials["sweep"], both.trials["dtype"], both.trials["verdict"], strict=True)) == [
        ("monday", "bf16", "pass"),
        ("monday", "fp16", "diverged"),
        ("tuesday", "bf16", "pass"),
        ("tuesday", "fp16", "pass"),
    ]
    # The same cells in both, and each row knows its own.
    assert both.trials["cell"].nunique() == 4
    assert list(both.divergences["cell"]) == [f"monday:{one.trials['cell'].iloc[1]}"]
    assert len(both.records()) == len(one.records()) + len(two.records())
    grid = both.matrix(rows="sweep", columns="dtype")
    assert grid.to_dict("index") == {
        "monday": {"bf16": "pass", "fp16": "diverged"},
        "tuesday": {"bf16": "pass", "fp16": "pass"},
    }
    assert len(cell_table(both)) == 4
    assert exit_code(both) == 1


def test_an_axis_that_only_one_sweep_has_is_one_of_all(tmp_path: Path) -> None:
    _sweep(tmp_path / "one", ["steps=1"], ["steps=2"])
    _sweep(tmp_path / "two", ["steps=3"])
    both = load([tmp_path / "one", tmp_path / "two"])
    assert both.axes == ("sweep", "steps")
    assert list(both.trials["steps"]) == [1, 2, 3]


def test_sweeps_of_one_name_are_told_apart_by_more_of_their_paths(tmp_path: Path) -> None:
    for day in ("monday", "tuesday"):
        _sweep(tmp_path / day / "run", ["seed=1"])
    both = load([tmp_path / "monday" / "run", tmp_path / "tuesday" / "run"])
    assert list(both.trials["sweep"]) == ["monday/run", "tuesday/run"]


def test_the_dtypes_of_several_are_those_of_one(tmp_path: Path) -> None:
    one = _sweep(tmp_path / "one", ["dtype=bf16"], ["dtype=fp16"], diverged=0)
    _sweep(tmp_path / "two", ["dtype=fp32"], ["dtype=fp16"])
    both = load([tmp_path / "one", tmp_path / "two"])
    shared = [column for column in one.trials.columns if column not in one.axes]
    assert list(map(str, both.trials[shared].dtypes)) == list(map(str, one.trials[shared].dtypes))
    assert list(both.trials["dtype"].cat.categories) == ["bf16", "fp16", "fp32"]


def test_one_folder_in_a_list_is_that_sweep_and_none_is_refused(tmp_path: Path) -> None:
    one = _sweep(tmp_path, ["seed=1"])
    assert load([tmp_path]).trials.equals(one.trials)
    with pytest.raises(ValueError, match="no folder was given"):
        load([])


# Captures of the recipe


def _capture(folder: Path, *, differs: int | None = None, ranks: int = 2, runs: int = 2) -> None:
    folder.mkdir(parents=True)
    for rank in range(ranks):
        lines = []
        for run in range(1, runs + 1):
            post = [10 * rank + block for block in range(3)]
            if run == 2 and rank == 1 and differs is not None:
                post[differs:] = [value + 1 for value in post[differs:]]
            keys = {"rank": rank, "step": 0, "run": f"r{run}", "loss_bits": 12345, "output_bits": 67890}
            lines.append(json.dumps({**keys, "block_pre": [1, 2, 3], "block_post": post}))
        (folder / f"rank{rank:03d}.jsonl").write_text("\n".join(lines) + "\n")


def test_captures_of_the_recipe_are_judged_by_what_they_hold(tmp_path: Path) -> None:
    _capture(tmp_path / "baseline")
    _capture(tmp_path / "tf32", differs=1)
    sweep = load(tmp_path)
    assert sweep.axes == ("capture",)
    rows = sweep.trials[["capture", "verdict", "first_site", "first_block", "replays"]]
    assert [tuple(None if pd.isna(item) else item for item in row) for row in rows.itertuples(index=False)] == [
        ("baseline", "pass", None, None, 1),
        ("tf32", "diverged", "block_post", 1, 1),
    ]
    assert sweep.trials["diverged_ranks"].iloc[1] == (1,)
    records = sweep.records(cell="tf32", rank=1, run="r2", site="block_post")
    assert list(records["digest"]) == [f"{value:016x}" for value in (10, 12, 13)]
    assert len(sweep.differing(cell="tf32")) == 2
    assert exit_code(sweep) == 1


def test_a_folder_of_ranks_is_one_cell(tmp_path: Path) -> None:
    _capture(tmp_path / "capture", differs=0)
    sweep = load(tmp_path / "capture")
    assert list(sweep.trials["verdict"]) == ["diverged"]
    assert list(sweep.trials["cell"]) == ["capture"]


def test_captures_of_single_runs_compare_nothing(tmp_path: Path) -> None:
    _capture(tmp_path / "capture", runs=1)
    assert list(load(tmp_path / "capture").trials["verdict"]) == ["recorded"]


def test_captures_are_held_to_what_captures_are(tmp_path: Path) -> None:
    _capture(tmp_path / "run a", differs=1)
    _capture(tmp_path / "run b")
    sweep = load(tmp_path)
    # Nobody wrote results or environments, and nothing here can be run again with another level of observation.
    assert len(sweep.problems) == 0
    assert not any("look closer" in line for line in summary(sweep))
    for form in ("html", "md", "json", "csv"):
        text = export(sweep, form, tmp_path / f"report.{form}").read_text()
        assert "diverged" in text
        assert "python -m detsweep capture=" not in text
    (tmp_path / "run b" / "rank001.jsonl").write_text('{"rank": 1')
    assert [tuple(row) for row in load(tmp_path).problems[["file", "problem"]].to_numpy()] == [
        ("run b/rank001.jsonl", "is cut off in line 1")
    ]


def test_captures_are_looked_for_in_two_folders_and_not_in_whole_trees(tmp_path: Path) -> None:
    _capture(tmp_path / "a" / "b")
    _capture(tmp_path / "a" / "b" / "c")
    assert list(load(tmp_path).trials["cell"]) == ["a/b"]
    with pytest.raises(FileNotFoundError, match=r"no captures \(no rank\*\.jsonl\)"):
        load(tmp_path.parent / "nowhere")


def test_a_rank_that_is_missing_from_captures_is_named(tmp_path: Path) -> None:
    _capture(tmp_path / "whole")
    _capture(tmp_path / "gap", ranks=3)
    (tmp_path / "gap" / "rank001.jsonl").unlink()
    _capture(tmp_path / "short")
    path = tmp_path / "short" / "rank001.jsonl"
    path.write_text(path.read_text().splitlines(keepends=True)[0])
    _capture(tmp_path / "torn")
    (tmp_path / "torn" / "rank000.jsonl").write_text('{"rank": 0, "st')
    trials = load(tmp_path).trials.set_index("capture")
    assert dict(trials["verdict"].astype(str)) == {"whole": "pass", "gap": "error", "short": "error", "torn": "error"}
    assert str(tmp_path / "gap" / "rank001.jsonl") in trials.loc["gap", "error"]
    assert "ranks without all 1 steps with 2 runs each" in trials.loc["short", "error"]
    assert trials.loc["torn", "error"] == f"{tmp_path / 'torn' / 'rank000.jsonl'} is cut off in line 1"


# Frames that were kept


@pytest.fixture
def mixed(tmp_path: Path) -> Sweep:
    plan = plan_of(["dtype=bf16", "seed=1"], ["dtype=fp16", "seed=1"], ["dtype=fp32", "seed=2"])
    sweep = write_cells(tmp_path / "sweep", plan)
    write_trial(trial_of(sweep, plan.cells[0]), plan.cells[0], effects={"recipe": {"A": "inert"}})
    write_trial(trial_of(sweep, plan.cells[1]), plan.cells[1], differs={1: {(0, 2): BLOCK_0_POST}})
    write_failure(trial_of(sweep, plan.cells[2]), plan.cells[2], error_ranks=[1], log_tail=["a", "b"], error="x")
    return load(tmp_path / "sweep")


def test_frames_that_were_kept_are_those_of_the_sweep(tmp_path: Path, mixed: Sweep) -> None:
    kept = load(mixed.save(tmp_path / "frames"))
    assert kept.axes == mixed.axes
    for name in ("trials", "divergences", "injections", "baselines", "effects", "costs", "fleet", "timings",
                 "environment", "problems"):  # fmt: skip
        pd.testing.assert_frame_equal(getattr(kept, name), getattr(mixed, name), obj=name)
    assert cell_table(kept).astype(str).equals(cell_table(mixed).astype(str))
    assert kept.matrix(value="rate").equals(mixed.matrix(value="rate"))
    assert exit_code(kept) == exit_code(mixed)


def test_frames_alone_have_no_records_and_say_so(tmp_path: Path, mixed: Sweep) -> None:
    kept = load(mixed.save(tmp_path / "frames"))
    for read in (kept.records, kept.differing):
        with pytest.raises(FileError, match="holds frames alone, no records"):
            read()


def test_frames_without_rows_keep_their_dtypes(tmp_path: Path) -> None:
    clean = _sweep(tmp_path / "clean", ["seed=1"])
    kept = load(clean.save(tmp_path / "frames"))
    for name in ("trials", "divergences", "effects", "timings", "environment", "problems"):
        pd.testing.assert_frame_equal(getattr(kept, name), getattr(clean, name), obj=name)


def test_several_kept_frames_are_one_with_all_that_each_of_them_has(tmp_path: Path, mixed: Sweep) -> None:
    (mixed.folder / "cells" / "notes").touch()
    mixed.save(tmp_path / "one")
    _sweep(tmp_path / "sweep2", ["seed=9"]).save(tmp_path / "two")
    both = load([tmp_path / "one", tmp_path / "two"])
    assert len(both.trials) == 4
    assert list(both.problems["problem"]) == ["is no folder of a cell"]
    assert set(both.environment["cell"]) == {cell for cell in both.trials["cell"] if cell in set(both.timings["cell"])}
    for read in (both.records, both.differing):
        with pytest.raises(FileError, match="holds frames alone, no records"):
            read()


def test_records_can_be_kept_too(tmp_path: Path, mixed: Sweep) -> None:
    folder = mixed.save(tmp_path / "frames", records=True)
    records = pd.read_parquet(folder / "records.parquet")
    expected = mixed.records()
    assert list(records.columns) == list(expected.columns)
    assert records.astype(str).equals(expected.astype(str))


def test_a_folder_with_other_files_is_not_written_into(tmp_path: Path, mixed: Sweep) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("x")
    with pytest.raises(FileExistsError, match="holds other files than frames"):
        mixed.save(tmp_path / "full")
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["thesis.tex"]
    mixed.save(tmp_path / "frames")
    mixed.save(tmp_path / "frames")


@pytest.mark.parametrize("damage", ["schema", "torn", "missing"])
def test_frames_that_cannot_be_read_are_named(tmp_path: Path, mixed: Sweep, damage: str) -> None:
    folder = mixed.save(tmp_path / "frames")
    named = folder / "divergences.parquet"
    if damage == "schema":
        named = folder / "frames.json"
        write_json(named, {"schema": 99})
    elif damage == "torn":
        named.write_bytes(named.read_bytes()[:50])
    else:
        named.unlink()
    with pytest.raises(FileError, match=str(named)):
        load(folder)
