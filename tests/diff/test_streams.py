"""What differs in the records of two trials: of each rank where first, why, and how many records of which sites."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from detsweep.capture import Record, write_streams
from detsweep.diff.sides import CellSide, FolderTrial, Side
from detsweep.diff.streams import Streams, compare_streams
from detsweep.golden.file import GoldenTrial
from detsweep.golden.saving import golden_cells
from detsweep.paths import CellPaths, TrialPaths
from detsweep.plan import Cell
from tests.comparing import write_environments
from tests.support import one_cell, record, stream_of, write_recorded

STEP = (
    record("input", "input_ids", phase="before"),
    record("block_post", "blocks.0", block=0),
    record("loss", "loss"),
    record("grad", "w", phase="backward"),
)
GROUP = "c10d._reduce_scatter_base_ #1 group default_pg in blocks.0"
Differ = Callable[[int, int, int], Sequence[str]]


def _side(folder: Path, cell: Cell, differ: Differ = lambda *_: (), **more: Any) -> CellSide:
    """A cell with one trial; `differ` says of a rank, step and run which sites have digests as in no other trial."""
    steps = more.pop("steps", STEP)
    other = 1000 + ord(folder.name[0])

    def records(rank: int, step: int, run: int) -> list[Record]:
        sites = differ(rank, step, run)
        return [replace(one, digest=other if one.site in sites else 100 * step + rank) for one in steps]

    trial = CellPaths(folder / f"x-{cell.id}").trial(0)
    result = write_recorded(trial, cell, records=records, **more)
    write_environments(trial, cell.world_size)
    return CellSide(cell.id, cell.slug, cell.overrides, cell.config, {0: FolderTrial(0, trial, result)})


def _compared(one: CellSide, other: CellSide) -> Streams:
    ranks = range(min(one.world_size, other.world_size))
    return compare_streams(one.trials[0], other.trials[0], (one, other), ranks)


def _paths(side: CellSide) -> TrialPaths:
    trial = side.trials[0]
    assert isinstance(trial, FolderTrial)
    return trial.paths


def _places(streams: Streams) -> list[tuple[Any, ...]]:
    return [(d.rank, d.step, d.run, d.site, d.kind, d.cause) for d in streams.first]


def test_a_trial_with_itself_is_equal_in_all_its_records(tmp_path: Path) -> None:
    side = _side(tmp_path, one_cell("steps=3", "world.nproc_per_node=4"))
    streams = _compared(side, side)
    assert (streams.first, streams.differing, streams.unread, streams.alone) == ((), {}, {}, (0, 0))
    assert (streams.ranks, streams.runs, streams.records) == ((0, 1, 2, 3), 6, 4 * 6 * 4)


def test_of_each_rank_the_first_place_is_told_and_all_that_differ_are_counted(tmp_path: Path) -> None:
    cell = one_cell("steps=3")

    def differ(rank: int, step: int, run: int) -> Sequence[str]:
        if rank == 0:
            return ("loss", "grad") if step == 2 else ()
        return ("block_post", "loss") if (step, run) == (1, 2) else ()

    streams = _compared(_side(tmp_path / "a", cell), _side(tmp_path / "b", cell, differ))
    assert _places(streams) == [
        (0, 2, "r1", "loss", "value", "compute"),
        (1, 1, "r2", "block_post", "value", "compute"),
    ]
    assert streams.differing == {0: {"loss": 2, "grad": 2}, 1: {"block_post": 1, "loss": 1}}
    assert (streams.loss, streams.records) == (3, 2 * 6 * 4)


@pytest.mark.parametrize(("site", "cause"), [("input", "input"), ("block_post", "compute"), ("grad", None)])
def test_the_cause_is_attributed_as_within_a_trial(tmp_path: Path, site: str, cause: str | None) -> None:
    cell = one_cell()
    streams = _compared(_side(tmp_path / "a", cell), _side(tmp_path / "b", cell, lambda *_: (site,)))
    assert [d.cause for d in streams.first] == [cause] * 2


def test_what_a_rank_received_is_upstream_and_names_the_rank_that_began(tmp_path: Path) -> None:
    steps = (
        STEP[1],
        record("collective_in", GROUP, phase="backward"),
        record("collective_out", GROUP, phase="backward"),
    )
    cell = one_cell("observe=collective")

    def differ(rank: int, step: int, run: int) -> Sequence[str]:
        return ("block_post", "collective_in", "collective_out") if rank == 0 else ("collective_out",)

    more: dict[str, Any] = {"steps": steps, "groups": {"default_pg": [0, 1]}}
    streams = _compared(_side(tmp_path / "a", cell, **more), _side(tmp_path / "b", cell, differ, **more))
    assert [(d.rank, d.site, d.cause, d.origin) for d in streams.first] == [
        (0, "block_post", "compute", None),
        (1, "collective_out", "upstream", 0),
    ]


def test_records_that_only_one_program_has_are_no_difference(tmp_path: Path) -> None:
    one = _side(tmp_path / "a", one_cell("seed=1"))
    more = (STEP[1], record("module", "m", 5), STEP[0], *STEP[2:])
    streams = _compared(one, _side(tmp_path / "b", one_cell("seed=2"), steps=more))
    assert streams.first == ()
    # In two trials of one configuration they are.
    streams = _compared(one, _side(tmp_path / "c", one_cell("seed=1"), steps=more))
    assert {d.kind for d in streams.first} == {"sequence"}


def test_programs_that_do_the_same_in_the_same_order_have_collectives_in_common(tmp_path: Path) -> None:
    steps = (STEP[1], record("collective_out", GROUP, phase="backward"))
    one = _side(tmp_path / "a", one_cell("observe=collective", "seed=1"), steps=steps)
    other = _side(tmp_path / "b", one_cell("observe=collective", "seed=2"), lambda *_: ("collective_out",), steps=steps)
    assert {(d.site, d.cause) for d in _compared(one, other).first} == {("collective_out", "collective")}


def test_only_steps_runs_and_ranks_that_both_have_are_compared(tmp_path: Path) -> None:
    one = _side(tmp_path / "a", one_cell("steps=2", "runs=3"))
    other = _side(tmp_path / "b", one_cell("steps=3", "world.nproc_per_node=4"), lambda *_: ("loss",))
    streams = _compared(one, other)
    assert (streams.ranks, streams.runs, streams.alone) == ((0, 1), 4, (2, 2))
    assert [d.rank for d in streams.first] == [0, 1]


def test_records_that_cannot_be_read_are_named_and_the_other_ranks_compared(tmp_path: Path) -> None:
    cell = one_cell("world.nproc_per_node=4")
    one, other = _side(tmp_path / "a", cell), _side(tmp_path / "b", cell, lambda *_: ("grad",))
    torn, gone = _paths(one).records(2), _paths(other).records(0)
    torn.write_text(torn.read_text()[:-5])
    gone.unlink()
    streams = _compared(one, other)
    assert streams.unread == {f"{torn} is cut off in line 2": (2,), f"{gone} is missing": (0,)}
    assert [d.rank for d in streams.first] == [1, 3]


@pytest.mark.parametrize("equal", [True, False])
def test_a_line_that_is_torn_inside_costs_that_line_alone_even_where_both_are_torn_alike(
    tmp_path: Path, equal: bool
) -> None:
    cell = one_cell()
    sides = [_side(tmp_path / name, cell) for name in "ab"]
    for side in sides[: 2 if equal else 1]:
        path = _paths(side).records(1)
        path.write_text(path.read_text().replace('"records":[[', '"records":[[[', 1))
    streams = _compared(*sides)
    (line,) = streams.unread
    assert "rank001.jsonl: step 0 r1 cannot be read" in line
    assert (streams.first, streams.ranks, streams.records) == ((), (0, 1), 3 * 4)


def test_digests_of_another_algorithm_are_refused_with_the_reason(tmp_path: Path) -> None:
    cell = one_cell()
    one, other = _side(tmp_path / "a", cell), _side(tmp_path / "b", cell)
    for rank in range(2):
        path = _paths(other).records(rank)
        path.unlink()
        streams = [stream_of(list(STEP), rank=rank, run=run) for run in ("r1", "r2")]
        write_streams(path, [replace(one, checksum="bitsum") for one in streams], world_size=2)
    streams = _compared(one, other)
    assert streams.unread == {"records are not compared: checksum xxh3 cannot be compared with bitsum": (0, 1)}
    assert streams.first == ()


def _pinned(side: CellSide) -> CellSide:
    (content,), _ = golden_cells(Side("x", "cell", (side,)))
    trials: Mapping[int, Any] = {0: GoldenTrial(0, "golden", content)}
    return replace(side, trials=trials)


@pytest.mark.parametrize("first", [True, False])
def test_every_run_is_held_against_the_one_that_is_pinned(tmp_path: Path, first: bool) -> None:
    cell = one_cell("steps=2", "runs=3")
    pinned = _pinned(_side(tmp_path / "a", cell))

    def third(rank: int, step: int, run: int) -> Sequence[str]:
        return ("grad",) if run == 3 else ()

    other = _side(tmp_path / "b", cell, third)
    streams = _compared(pinned, other) if first else _compared(other, pinned)
    assert [(d.rank, d.step, d.run, d.site) for d in streams.first] == [(0, 0, "r3", "grad"), (1, 0, "r3", "grad")]
    assert (streams.runs, streams.alone, streams.differing) == (6, (0, 0), {0: {"grad": 2}, 1: {"grad": 2}})
