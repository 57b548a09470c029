"""A rank's lines with their records unparsed: the same streams, and the same errors."""

from __future__ import annotations

import gc
import json
from dataclasses import replace
from pathlib import Path

import pytest

from detsweep.capture import read_streams, to_line, write_streams
from detsweep.captured import collecting_nothing, read_lines
from detsweep.paths import FileError
from tests.support import full_stream, record, stream_of


def test_lines_are_the_streams_that_were_written(tmp_path: Path) -> None:
    path = tmp_path / "rank000.jsonl"
    nasty = stream_of([record("grad", 'a,"records":[1],"block_pre":\\ü', 7), record("op", "b", 3, inputs=4)])
    streams = [full_stream(0, 0, 1), replace(full_stream(0, 0, 2), nonfinite={"loss": 1}), nasty]
    write_streams(path, streams, world_size=2)
    assert [line.stream() for line in read_lines(path)] == streams == read_streams(path)
    assert [line.place for line in read_lines(path)] == [(0, "r1"), (0, "r2"), (0, "r1")]


def test_equal_bytes_are_equal_records_and_others_are_not(tmp_path: Path) -> None:
    path = tmp_path / "rank000.jsonl"
    clean, again, apart = (full_stream(0, 0, run, differs_from=at) for run, at in ((1, None), (2, None), (3, 5)))
    other = replace(again, checksum="mixed")
    write_streams(path, [clean, again, apart, other], world_size=2)
    first, second, third, fourth = read_lines(path)
    assert second.equals(first)
    assert not third.equals(first)
    # The same digits by another checksum say nothing.
    assert not fourth.equals(first)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{}\n", "line 2 cannot be read: schema None"),
        ('{"schema": 1, "rank": 0}\n', "line 2 cannot be read: schema 1"),
        ("not json\n", "line 2 cannot be read: "),
        ("\n", "line 2 cannot be read: "),
        ('{"schema":2,"rank":0', "is cut off in line 2"),
        ('{"schema":2,"block_pre":[],"records":[]}\n', "line 2 cannot be read: rank, step, run, checksum or nonfinite"),
        ('{"schema":9,"rank":0,"block_pre":[],"records":[]}\n', "line 2 cannot be read: schema 9"),
    ],
)
def test_a_line_that_is_torn_or_foreign_is_named(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "rank000.jsonl"
    write_streams(path, [full_stream(0, 0, 1)], world_size=2)
    path.write_text(path.read_text() + text)
    with pytest.raises(FileError, match=f"{path} {reason}"):
        list(read_lines(path))


def test_records_that_are_torn_are_named_when_they_are_parsed(tmp_path: Path) -> None:
    path = tmp_path / "rank000.jsonl"
    line = to_line(full_stream(0, 0, 1), world_size=2)
    path.write_text(line.replace('["loss","loss"', '["loss",loss"') + "\n")
    (torn,) = read_lines(path)
    for parse in (torn.rows, torn.stream):
        with pytest.raises(FileError, match=f"{path} line 1 cannot be read"):
            parse()


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"rank000\.jsonl is missing"):
        list(read_lines(tmp_path / "rank000.jsonl"))


def test_the_recipes_own_lines_are_records_in_the_order_of_execution(tmp_path: Path) -> None:
    path = tmp_path / "rank007.jsonl"
    keys = {"rank": 7, "step": 0, "run": "r1", "loss_bits": 5, "output_bits": -6}
    path.write_text(json.dumps({**keys, "block_pre": [1, 2], "block_post": [3, -4]}) + "\n")
    (line,) = read_lines(path)
    stream = line.stream()
    assert [(one.site, one.name, one.block, one.digest) for one in stream.records] == [
        ("block_pre", "blocks.0", 0, 1),
        ("block_post", "blocks.0", 0, 3),
        ("block_pre", "blocks.1", 1, 2),
        ("block_post", "blocks.1", 1, -4),
        ("logits", "logits", None, -6),
        ("loss", "loss", None, 5),
    ]
    assert (stream.rank, stream.checksum) == (7, "bitsum")


def test_the_collector_is_as_it_was_afterwards() -> None:
    assert gc.isenabled()
    with pytest.raises(FileError), collecting_nothing():
        list(read_lines(Path("nowhere")))
    assert gc.isenabled()
    with collecting_nothing():
        assert not gc.isenabled()
        with collecting_nothing():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


def test_large_files_are_read_line_by_line_and_say_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rank000.jsonl"
    streams = [full_stream(0, step, run) for step in range(3) for run in (1, 2)]
    write_streams(path, streams, world_size=2)
    monkeypatch.setattr("detsweep.captured._AT_ONCE", 10)
    assert [line.stream() for line in read_lines(path)] == streams
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(FileError, match=f"{path} is cut off in line 6"):
        list(read_lines(path))
