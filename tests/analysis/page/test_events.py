"""The order of events: both streams side by side, with what only one of them has."""

from __future__ import annotations

from dataclasses import replace

from detsweep.analysis.page.events import AFTER, BEFORE, events
from detsweep.analysis.page.model import Grid
from detsweep.capture import Record, Stream
from detsweep.compare import NO_MAJORITY, compare
from tests.support import record, stream_of


def _window(reference: Stream, stream: Stream) -> Grid:
    first = compare(reference, stream).first
    assert first is not None
    return events(reference, stream, first.to_json(), titles=("r1", "r2"), caption="x")


def _rows(grid: Grid) -> list[list[str]]:
    return [[field.text for field in row] for row in grid.rows]


def _numbered(count: int) -> list[Record]:
    return [record("op", f"op{number}", number + 1, block=0) for number in range(count)]


def test_some_records_before_and_after_the_first_difference_with_both_digests() -> None:
    ours = _numbered(30)
    theirs = [replace(one, digest=one.digest + 0x100) if n >= 10 else one for n, one in enumerate(ours)]
    grid = _window(stream_of(ours), stream_of(theirs, run="r2"))
    rows = _rows(grid)
    assert [row[0] for row in rows] == [str(n) for n in range(10 - BEFORE, 10 + AFTER + 1)]
    assert rows[BEFORE] == ["10", "≠ differs first", "op", "op10", "0", "forward", f"{11:016x}", f"{11 + 0x100:016x}"]
    assert [row[1] for row in rows] == ["= equal"] * BEFORE + ["≠ differs first"] + ["≠ differs"] * AFTER
    assert grid.row_styles[BEFORE] == "differs first"
    assert grid.note == "Records 6 to 17 of 30."


def test_a_missing_record_stands_where_it_should_have_been() -> None:
    ours = _numbered(8)
    rows = _rows(_window(stream_of(ours), stream_of(ours[:3] + ours[4:], run="r2")))
    assert [row[1] for row in rows] == ["= equal"] * 3 + ["- missing here first"] + ["= equal"] * 4
    assert rows[3][3] == "op3"
    assert rows[3][6:] == [f"{4:016x}", ""]


def test_an_added_record_is_only_here() -> None:
    ours = _numbered(6)
    rows = _rows(_window(stream_of(ours), stream_of([*ours[:2], record("op", "extra", 99), *ours[2:]], run="r2")))
    assert [row[1] for row in rows] == ["= equal"] * 2 + ["+ only here first"] + ["= equal"] * 4
    assert rows[2][6:] == ["", f"{99:016x}"]


def test_records_in_another_order_are_all_there() -> None:
    ours = _numbered(6)
    rows = _rows(_window(stream_of(ours), stream_of([ours[0], ours[2], ours[1], *ours[3:]], run="r2")))
    assert sum("first" in row[1] for row in rows) == 1
    assert [row[3] for row in rows if row[7]] == ["op0", "op2", "op1", "op3", "op4", "op5"]
    assert [row[3] for row in rows if row[6]] == [f"op{n}" for n in range(6)]


def test_another_shape_and_other_inputs_are_told_apart() -> None:
    ours = [record("op", "a", 1, inputs=5), record("op", "b", 2, shape=(2, 3))]
    theirs = [record("op", "a", 1, inputs=6), record("op", "b", 2, shape=(3, 2))]
    rows = _rows(_window(stream_of(ours), stream_of(theirs, run="r2")))
    assert [row[1] for row in rows] == ["≠ inputs differ first", "≠ layout"]
    assert rows[1][6] == f"{2:016x} float32[2, 3]"


def test_a_vote_without_a_majority_shows_no_digest() -> None:
    ours = [replace(one, digest=NO_MAJORITY) for one in _numbered(2)]
    rows = _rows(_window(stream_of(ours, run="vote"), stream_of(_numbered(2))))
    assert rows[0][6:] == ["no majority", f"{1:016x}"]


def test_long_digests_are_cut_and_it_is_said() -> None:
    ours = [record("grad", "w", (1 << 255) + 7)]
    pair = [replace(stream_of(one), checksum="sha256") for one in (ours, [replace(ours[0], digest=9)])]
    grid = _window(*pair)
    assert _rows(grid)[0][6:] == ["8" + "0" * 15, "0" * 16]
    assert grid.note == "Records 0 to 0 of 1, digests cut to 16 of 64 digits."
