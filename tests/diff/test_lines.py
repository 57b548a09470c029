"""A rank's records found by step and run, without parsing what nobody asks for."""

from __future__ import annotations

from pathlib import Path

import pytest

from detsweep.capture import to_line, write_streams
from detsweep.diff.lines import FileLines, KeptLines
from detsweep.paths import FileError
from tests.support import full_stream

PLACES = [(0, 1), (0, 2), (1, 1), (1, 2)]


def _written(folder: Path, *, rank: int = 3, world_size: int = 8) -> Path:
    path = folder / "rank003.jsonl"
    write_streams(path, [full_stream(rank, *place) for place in PLACES], world_size=world_size)
    return path


def test_every_step_and_run_is_found_and_read_alone(tmp_path: Path) -> None:
    lines = FileLines(_written(tmp_path))
    assert lines.places == ((0, "r1"), (0, "r2"), (1, "r1"), (1, "r2"))
    for step, run in PLACES:
        assert lines.stream((step, f"r{run}")) == full_stream(3, step, run)
        assert lines.count((step, f"r{run}")) == 10


def test_the_content_says_nothing_of_the_run_and_of_how_many_ranks_there_are(tmp_path: Path) -> None:
    one = FileLines(_written(tmp_path))
    (tmp_path / "other").mkdir()
    other = FileLines(_written(tmp_path / "other", world_size=2))
    assert one.content((0, "r1")) == one.content((0, "r2")) == other.content((0, "r2"))
    assert one.content((0, "r1")) != one.content((1, "r1"))


def test_what_is_kept_in_memory_reads_as_the_file_does(tmp_path: Path) -> None:
    file = FileLines(_written(tmp_path))
    kept = KeptLines("golden", [full_stream(3, *place) for place in PLACES], world_size=8)
    assert kept.places == file.places
    for place in kept.places:
        assert kept.line(place) == file.line(place)
        assert (kept.content(place), kept.stream(place), kept.count(place)) == (
            file.content(place),
            file.stream(place),
            10,
        )


def test_a_file_that_is_missing_or_cut_off_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"rank003\.jsonl is missing"):
        FileLines(tmp_path / "rank003.jsonl")
    path = _written(tmp_path)
    path.write_text(path.read_text()[:-1])
    with pytest.raises(FileError, match=r"rank003\.jsonl is cut off in line 4"):
        FileLines(path)


def test_a_line_of_something_else_is_named_with_its_number(tmp_path: Path) -> None:
    path = _written(tmp_path)
    lines = path.read_text().splitlines()
    for wrong, said in (
        ("{}", "schema None"),
        ("nothing", "Expecting value"),
        (lines[2].replace('"schema":2', '"schema":1'), "schema 1"),
    ):
        path.write_text("\n".join([*lines[:2], wrong, ""]))
        with pytest.raises(FileError, match=rf"rank003\.jsonl line 3 cannot be read: {said}"):
            FileLines(path)


def test_a_line_with_its_keys_in_another_order_is_as_good(tmp_path: Path) -> None:
    path = tmp_path / "rank003.jsonl"
    line = to_line(full_stream(3, 0, 1), world_size=8)
    path.write_text('{"rank":3,' + line.removeprefix("{").replace('"rank":3,', "", 1) + "\n")
    assert FileLines(path).stream((0, "r1")) == full_stream(3, 0, 1)


def test_a_line_that_is_torn_inside_is_named_when_it_is_looked_into(tmp_path: Path) -> None:
    path = _written(tmp_path)
    path.write_text(path.read_text().replace('"records":[[', '"records":[[[', 1))
    lines = FileLines(path)
    for look in (lines.stream, lines.count):
        with pytest.raises(FileError, match=r"rank003\.jsonl: step 0 r1 cannot be read: "):
            look((0, "r1"))
    assert lines.stream((0, "r2")) == full_stream(3, 0, 2)
