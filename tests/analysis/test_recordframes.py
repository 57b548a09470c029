"""Records as columns: all of them, or what is asked for, with the dtypes that are documented."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from detsweep import load
from detsweep.analysis.columns import RECORDS
from detsweep.analysis.frames import Sweep
from detsweep.capture import SITES, read_streams
from detsweep.paths import FileError
from tests.support import BLOCK_0_POST, SEQUENCE, plan_of, record, trial_of, write_cells, write_recorded, write_trial


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    folder = tmp_path_factory.mktemp("sweep")
    plan = plan_of(["seed=1"], ["seed=2"], common=["trials=2", "steps=2", "runs=11"])
    paths = write_cells(folder, plan)
    for cell in plan.cells:
        for number in range(2):
            differs = {1: {(1, 10): BLOCK_0_POST}}
            write_trial(trial_of(paths, cell, number), cell, number, differs=differs if number else None)
    return load(folder)


def test_every_record_of_every_line_is_a_row(sweep: Sweep) -> None:
    frame = sweep.records()
    assert list(frame.columns) == [column.name for column in RECORDS]
    assert len(frame) == 2 * 2 * 2 * 2 * 11 * len(SEQUENCE)
    cell = sweep.trials["cell"].iloc[2]
    path = sweep.files[cell, 1].paths.records(1)
    expected = [
        (stream.step, stream.run, r.seq, r.site, r.name, r.phase, r.hexadecimal("xxh3"))
        for stream in read_streams(path)
        for r in stream.records
    ]
    own = frame[(frame["cell"] == cell) & (frame["trial"] == 1) & (frame["rank"] == 1)]
    shown = own[["step", "run", "seq", "site", "name", "phase", "digest"]]
    assert list(shown.itertuples(index=False, name=None)) == expected


@pytest.mark.parametrize(
    ("asked", "query"),
    [
        ({"rank": 1}, "rank == 1"),
        ({"step": [0, 1]}, "step < 2"),
        ({"run": "r10"}, "run == 'r10'"),
        ({"run": ["r1", "r11"]}, "run in ('r1', 'r11')"),
        ({"site": "block_post"}, "site == 'block_post'"),
        ({"site": ["loss", "grad"], "step": 1}, "site in ('loss', 'grad') and step == 1"),
        ({"block": 1, "rank": 0}, "block == 1 and rank == 0"),
        ({"name": "logits"}, "name == 'logits'"),
        ({"phase": "after", "trial": 0}, "phase == 'after' and trial == 0"),
        ({"rank": 7}, "rank == 7"),
        ({"trial": [1], "run": "r2"}, "trial == 1 and run == 'r2'"),
    ],
    ids=str,
)
def test_what_is_asked_for_is_what_a_query_of_all_gives(sweep: Sweep, asked: dict[str, Any], query: str) -> None:
    found, expected = sweep.records(**asked), sweep.records().query(query).reset_index(drop=True)
    assert found.astype(object).equals(expected.astype(object))
    assert len(found) > 0 or asked == {"rank": 7}


def test_a_frame_has_the_same_dtypes_whether_or_not_it_has_rows(sweep: Sweep) -> None:
    full, empty = sweep.records(), sweep.records(rank=9)
    assert len(empty) == 0
    kinds = [type(dtype) for dtype in full.dtypes]
    assert kinds == [type(dtype) for dtype in empty.dtypes]
    for frame in (full, empty):
        assert list(frame["site"].cat.categories) == list(SITES)
        assert frame["site"].cat.ordered
        assert frame["run"].cat.ordered
    # As words r10 would come before r2.
    assert list(full["run"].cat.categories) == [f"r{run}" for run in range(1, 12)]
    assert str(full["block"].dtype) == "Int64"


def test_batches_are_the_records_trial_by_trial(sweep: Sweep) -> None:
    batches = list(sweep.record_batches(run="r1"))
    assert len(batches) == 4
    stacked = pd.concat([batch.astype(object) for batch in batches], ignore_index=True)
    assert stacked.equals(sweep.records(run="r1").astype(object))


def test_digests_of_every_kind_are_as_they_were_written(tmp_path: Path) -> None:
    (cell,) = (plan := plan_of(["seed=1"])).cells
    rows = [
        record("grad", "negative", -2, shape=()),
        record("grad", "large", (1 << 64) - 1, shape=(0, 3)),
        record("op", "with inputs", 17, inputs=3),
        record("loss", "loss", 5),
    ]
    write_recorded(trial_of(write_cells(tmp_path, plan), cell), cell, records=lambda *_: rows)
    frame = load(tmp_path).records(rank=0, run="r2")
    assert list(frame["digest"]) == ["f" * 15 + "e", "f" * 16, f"{17:016x}", f"{5:016x}"]
    assert list(frame["shape"]) == ["scalar", "0x3", "2x3", "2x3"]


def test_a_torn_record_is_named_and_the_others_can_be_read(tmp_path: Path) -> None:
    plan = plan_of(["seed=1"], ["seed=2"])
    paths = write_cells(tmp_path, plan)
    for cell in plan.cells:
        write_trial(trial_of(paths, cell), cell)
    broken = trial_of(paths, plan.cells[0]).records(1)
    broken.write_text(broken.read_text().replace('"loss",null', '"loss",nul!'))
    sweep = load(tmp_path)
    with pytest.raises(FileError, match=f"{broken} line 1 cannot be read"):
        sweep.records()
    assert len(sweep.records(cell=plan.cells[1].id)) == 4 * len(SEQUENCE)
    assert len(sweep.records(cell=plan.cells[0].id, rank=0)) == 2 * len(SEQUENCE)


def test_a_trial_without_a_result_is_read_where_it_is_named(tmp_path: Path) -> None:
    (cell,) = (plan := plan_of(["seed=1"])).cells
    trial = trial_of(write_cells(tmp_path, plan), cell)
    write_trial(trial, cell)
    trial.result.unlink()
    sweep = load(tmp_path)
    assert len(sweep.records()) == 0
    assert len(sweep.records(trial=0)) == 4 * len(SEQUENCE)
