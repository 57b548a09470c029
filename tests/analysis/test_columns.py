"""Columns and their dtypes, which do not depend on what a sweep holds."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from detsweep import load
from detsweep.analysis.columns import FRAMES, axis, conformed, described, ordered
from tests.support import BLOCK_0_POST, plan_of, trial_of, write_cells, write_failure, write_trial


@pytest.fixture(scope="module")
def sweeps(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A sweep in which nothing was reached, a clean one, and one with all kinds of trials."""
    folders = [tmp_path_factory.mktemp(name) for name in ("waiting", "clean", "mixed")]
    for place, folder in enumerate(folders):
        plan = plan_of(["seed=1"], ["seed=2"], ["seed=3"])
        sweep = write_cells(folder, plan)
        for cell in plan.cells[:2] if place == 1 else plan.cells[:1] if place else ():
            differs = {1: {(0, 2): BLOCK_0_POST}} if place == 2 else None
            write_trial(trial_of(sweep, cell), cell, differs=differs)
        if place == 2:
            write_failure(trial_of(sweep, plan.cells[1]), plan.cells[1], error_ranks=[1], log_tail=["x"])
    return folders


@pytest.mark.parametrize("frame", ["trials", "divergences", "effects", "timings", "environment", "problems"])
def test_a_frame_has_the_same_columns_and_dtypes_in_every_sweep(sweeps: list[Path], frame: str) -> None:
    found = [getattr(load(folder), frame) for folder in sweeps]
    assert len({tuple(one.columns) for one in found}) == 1
    assert len({tuple(map(str, one.dtypes)) for one in found}) == 1
    known = [column.name for column in FRAMES[frame]]
    assert [name for name in found[0].columns if name != "seed"] == known


def test_verdicts_are_ordered_and_have_every_word(sweeps: list[Path]) -> None:
    verdicts = load(sweeps[2]).trials["verdict"]
    assert verdicts.cat.ordered
    assert list(verdicts.sort_values()) == ["diverged", "error", "none"]


def test_every_column_is_explained() -> None:
    for frame, columns in FRAMES.items():
        shown = described(frame)
        assert list(shown.index) == [column.name for column in columns]
        assert all(len(meaning) > 3 for meaning in shown["meaning"])
    with pytest.raises(KeyError, match="no frame 'trial'; frames: trials, divergences"):
        described("trial")


@pytest.mark.parametrize(
    ("values", "dtype", "expected"),
    [
        ([4, 1], "Int64", [4, 1]),
        ([4, ""], "Int64", [4, None]),
        ([1.5, 2], "Float64", [1.5, 2.0]),
        ([True, False], "boolean", [True, False]),
        (["fp16", "bf16"], "category", ["fp16", "bf16"]),
        # The command line's word of what another version does not know.
        ([1, "2"], "Int64", [1, 2]),
        (["null", 1], "category", ["null", "1"]),
        ([True, 1], "category", ["True", "1"]),
    ],
    ids=str,
)
def test_an_axis_is_numbers_where_all_of_it_is_and_else_words_in_the_sweeps_order(
    values: list[object], dtype: str, expected: list[object]
) -> None:
    shown = axis(pd.Series(values, dtype=object))
    assert str(shown.dtype) == dtype
    assert [None if pd.isna(value) else value for value in shown] == expected
    if dtype == "category":
        assert list(shown.cat.categories) == expected


def test_words_that_are_not_known_stand_after_those_that_are() -> None:
    shown = ordered(pd.Series(["new", "b", None]), ("a", "b"))
    assert list(shown.cat.categories) == ["a", "b", "new"]
    assert shown.isna().tolist() == [False, False, True]


def test_columns_that_are_not_described_stay() -> None:
    frame = pd.DataFrame({"trial": [1, None], "mine": ["x", "y"]})
    shown = conformed(frame, FRAMES["trials"])
    assert str(shown["trial"].dtype) == "Int64"
    assert list(shown["mine"]) == ["x", "y"]
