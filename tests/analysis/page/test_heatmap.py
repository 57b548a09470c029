"""The heat map: what it counts is what comparing the streams finds, and large trials show what differs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pandas as pd
import pytest

from detsweep import load
from detsweep.analysis.page.divergence import parted
from detsweep.analysis.page.heatmap import RANKS_SHOWN, Heat, heat, heat_grid
from detsweep.analysis.page.known import known
from detsweep.analysis.page.pairs import pairs
from tests.support import (
    BLOCK_0_POST,
    LOSS,
    SEQUENCE,
    full_stream,
    plan_of,
    record,
    stream_of,
    trial_of,
    write_cells,
    write_trial,
)


def test_it_counts_the_records_that_differ_in_each_block(tmp_path: Path) -> None:
    plan = plan_of(["seed=1"], common=["steps=2", "runs=3"])
    trial = trial_of(write_cells(tmp_path, plan), plan.cells[0])
    write_trial(trial, plan.cells[0], differs={0: {(1, 3): LOSS}, 1: {(0, 2): BLOCK_0_POST, (1, 3): LOSS}})
    sweep = load(tmp_path)
    counted = heat(pairs(parted(known(sweep), plan.cells[0].id, 0, trial), "r1"))
    frame = sweep.differing()
    blocks = [None if block is pd.NA else int(block) for block in frame["block"]]
    expected = Counter(zip(frame["rank"], blocks, strict=True))
    assert dict(counted.differing) == dict(expected)
    assert counted.comparisons == 3
    assert counted.compared[1, None] == 2 * sum(block is None for _, _, block in SEQUENCE)


def test_a_record_that_one_stream_does_not_have_counts_once() -> None:
    full = [record("input", "x"), record("block_post", "blocks.0", 5, block=0), record("loss", "loss")]
    found = heat({(0, 0, "r2"): (stream_of(full), stream_of([full[0], full[2]], run="r2"))})
    assert dict(found.differing) == {(0, 0): 1}


def test_fields_hold_numbers_and_the_first_place_says_so() -> None:
    grid = heat_grid(
        Heat({(1, 0): 3, (1, None): 1}, {(1, 0): 6, (1, None): 1}, 1), range(2), 2, first=(1, 0), against="r1"
    )
    assert grid.columns == ("rank", "in no block", "block 0", "block 1", "all")
    assert [[field.text for field in row] for row in grid.rows] == [
        ["rank 0", "0", "0", "0", "0"],
        ["rank 1", "1", "3 first", "0", "4 of 7"],
    ]
    assert [field.style for field in grid.rows[1]] == ["", "s9", "s5 first", "", "sum"]


@pytest.mark.parametrize("differing", [3, RANKS_SHOWN + 6])
def test_of_many_ranks_those_that_differ_have_a_row(differing: int) -> None:
    ranks = 1024
    found = Heat({(rank, 0): 1 for rank in range(differing)}, {(rank, 0): 2 for rank in range(differing)}, differing)
    grid = heat_grid(found, range(ranks), 1, first=(0, 0), against="what most ranks have")
    assert len(grid.rows) == min(differing, RANKS_SHOWN)
    assert f"{ranks - differing} of {ranks} ranks do not differ, and have no row." in grid.note
    assert ("6 more differ and have no row either: 64, 65, 66, 67, 68, 69." in grid.note) == (differing > RANKS_SHOWN)


def test_up_to_64_ranks_all_have_one() -> None:
    grid = heat_grid(Heat({(3, 0): 1}, {(3, 0): 2}, 1), range(RANKS_SHOWN), 1, first=(3, 0), against="r1")
    assert len(grid.rows) == RANKS_SHOWN
    assert "have no row" not in grid.note


def test_equal_streams_have_nothing_to_count() -> None:
    assert dict(heat({(0, 0, "r2"): (full_stream(0, 0, 1), full_stream(0, 0, 2))}).differing) == {}
