"""Reading back: every byte checked, and for whatever is missing or damaged one line that names the file."""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from detsweep.paths import FileError, RankRecordingPaths, RecordingPaths, write_json
from detsweep.recording import Call, RecordingError, Side, StepHeader, Writer, open_rank
from detsweep.recording.calls import COLLECTIVE, DATA, FORMAT, VERSION
from detsweep.recording.reading import file_digest, ranges

CONTENTS = (b"first" * 9, random.Random(1).randbytes(64), b"")


def _write(
    recording: RecordingPaths,
    steps: Sequence[int] = (0,),
    *,
    snapshots: Sequence[int] = (0,),
    compress: str = "none",
    payload: str = "outputs",
    rank: int = 0,
) -> None:
    paths = recording.rank(rank)
    writer = Writer(paths, compress=compress)
    for step in steps:
        digest = None
        if step in snapshots:
            paths.snapshot(step).write_bytes(b"state" * step + b"end")
            digest = file_digest(paths.snapshot(step))
        writer.begin(step)
        calls = []
        for seq, content in enumerate(CONTENTS):
            stored = writer.store(content)
            kept = (stored.offset, stored.size, stored.xxh3) if payload != "digest" else (None, None, None)
            sides = (Side("uint8", (len(content),), seq, *kept),)
            inputs = (Side("uint8", (1,), 9),)
            calls.append(
                Call(
                    seq, DATA if seq == 0 else COLLECTIVE, "o", f"call {seq}", "", "", (), None, None, {}, inputs, sides
                )
            )
        writer.end(StepHeader(rank, step, "xxh3", payload, compress, digest), calls)


@pytest.fixture
def recording(tmp_path: Path) -> RecordingPaths:
    paths = RecordingPaths(tmp_path / "recording")
    write_json(paths.about, {"format": FORMAT, "version": VERSION, "world_size": 2})
    return paths


@pytest.fixture
def paths(recording: RecordingPaths) -> RankRecordingPaths:
    _write(recording)
    return recording.rank(0)


def _check(recording: RecordingPaths, number: int = 0) -> None:
    open_rank(recording, 0).step(number).check()


def _refused(call: Callable[[], object]) -> str:
    with pytest.raises(RecordingError) as raised:
        call()
    line = str(raised.value)
    assert "\n" not in line
    return line


def _again(path: Path, change: Callable[[bytes], bytes]) -> None:
    path.write_bytes(change(path.read_bytes()))


def _flipped(path: Path, place: int, bit: int) -> None:
    def flip(data: bytes) -> bytes:
        return data[:place] + bytes([data[place] ^ (1 << bit)]) + data[place + 1 :]

    _again(path, flip)


# --- what is as it was written ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("compress", ["none", "repeats", "zlib"])
def test_a_step_has_what_was_written(recording: RecordingPaths, compress: str) -> None:
    _write(recording, [3], snapshots=[3], compress=compress)
    step = open_rank(recording, 0).step(3)
    step.check()
    assert (step.number, step.complete, step.header.rank, step.header.compress) == (3, True, 0, compress)
    assert step.payload_bytes == recording.rank(0).payload(3).stat().st_size
    assert [(call.seq, call.kind, call.name) for call in step.calls] == [
        (0, "data", "call 0"),
        (1, "collective", "call 1"),
        (2, "collective", "call 2"),
    ]
    assert [bytes(step.bytes_of(call, call.outputs[0])) for call in step.calls] == list(CONTENTS)


def test_what_recording_json_says_is_at_hand(recording: RecordingPaths) -> None:
    _write(recording)
    opened = open_rank(recording, 0)
    assert (opened.rank, opened.about["world_size"], opened.paths) == (0, 2, recording.rank(0))


def test_steps_and_starts_are_in_order(recording: RecordingPaths) -> None:
    _write(recording, [2, 10, 1, 3], snapshots=[10, 2])
    # A snapshot whose step was never finished is no start.
    recording.rank(0).snapshot(11).write_bytes(b"x")
    opened = open_rank(recording, 0)
    assert (opened.numbers, opened.starts) == ((1, 2, 3, 10), (2, 10))


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ((None, None), range(1, 8)),
        ((1, 1), range(1, 2)),
        ((3, 3), range(1, 4)),
        ((4, 5), range(4, 6)),
        ((None, 2), range(1, 3)),
        ((6, None), range(4, 8)),
        ((4, None), range(4, 8)),
    ],
)
def test_a_replay_begins_at_the_newest_snapshot(
    recording: RecordingPaths, asked: tuple[int | None, int | None], expected: range
) -> None:
    _write(recording, range(8), snapshots=[1, 4])
    assert open_rank(recording, 0).window(*asked) == expected


@pytest.mark.parametrize(
    ("numbers", "words"),
    [((), "none"), ((4,), "4"), ((0, 1, 2), "0 to 2"), ((0, 1, 3, 5, 6, 7, 10), "0 to 1, 3, 5 to 7, 10")],
)
def test_numbers_in_words(numbers: tuple[int, ...], words: str) -> None:
    assert ranges(numbers) == words


# --- what is not there -----------------------------------------------------------------------------------------------


def test_a_folder_without_a_recording(tmp_path: Path) -> None:
    recording = RecordingPaths(tmp_path)
    line = _refused(lambda: open_rank(recording, 0))
    assert line == f"{recording.about} is missing: there is no recording here (mode=record makes one)"


@pytest.mark.parametrize("rank", [-1, 2, 100])
def test_a_rank_that_does_not_exist(recording: RecordingPaths, rank: int) -> None:
    line = _refused(lambda: open_rank(recording, rank))
    assert line == f"rank {rank} does not exist: the recording is of ranks 0 to 1"


def test_a_rank_without_a_folder(recording: RecordingPaths) -> None:
    _write(recording)
    line = _refused(lambda: open_rank(recording, 1))
    assert line == f"{recording.rank(1).folder} is missing: rank 1 of 2 has no recording"


def test_a_step_that_was_not_recorded(recording: RecordingPaths) -> None:
    _write(recording, [0, 1, 3])
    opened = open_rank(recording, 0)
    line = "step 2 is not in the recording of rank 0: it has 0 to 1, 3"
    assert _refused(lambda: opened.step(2)) == line
    assert _refused(lambda: opened.window(2, 3)) == line
    assert _refused(lambda: opened.window(0, 2)) == line


def test_a_rank_without_steps(recording: RecordingPaths) -> None:
    recording.rank(0).folder.mkdir()
    line = _refused(lambda: open_rank(recording, 0).window(None, None))
    assert line == f"{recording.rank(0).folder} has no steps"


def test_a_step_with_no_snapshot_before_it(recording: RecordingPaths) -> None:
    _write(recording, range(4), snapshots=[2])
    opened = open_rank(recording, 0)
    line = "rank 0 has no snapshot at or before step 1: it has 2"
    assert _refused(lambda: opened.window(1, 3)) == line


def test_a_hole_between_the_snapshot_and_what_is_asked_for(recording: RecordingPaths) -> None:
    _write(recording, [0, 1, 3, 4], snapshots=[0])
    opened = open_rank(recording, 0)
    assert _refused(lambda: opened.window(3, 4)) == "the recording of rank 0 has no step 2, which comes before step 4"
    assert _refused(lambda: opened.window(0, 4)) == "the recording of rank 0 has no step 2, which comes before step 4"


def test_steps_the_wrong_way_around(recording: RecordingPaths) -> None:
    _write(recording, range(3))
    assert _refused(lambda: open_rank(recording, 0).window(2, 1)) == "steps 2 to 1: the last comes before the first"


def test_a_payload_that_is_gone(recording: RecordingPaths, paths: RankRecordingPaths) -> None:
    paths.payload(0).unlink()
    assert _refused(lambda: _check(recording)) == f"{paths.payload(0)} cannot be read: No such file or directory"


def test_a_snapshot_that_is_gone(recording: RecordingPaths, paths: RankRecordingPaths) -> None:
    opened = open_rank(recording, 0)
    step = opened.step(0)
    paths.snapshot(0).unlink()
    assert _refused(step.check) == f"{paths.snapshot(0)} is missing"


def test_bytes_that_were_not_kept(recording: RecordingPaths) -> None:
    _write(recording, payload="digest")
    step = open_rank(recording, 0).step(0)
    step.check()
    line = _refused(lambda: step.bytes_of(step.calls[1], step.calls[1].outputs[0]))
    log = recording.rank(0).log(0)
    assert line == f"{log}: no bytes of call 1 (call 1) were kept: it was recorded with record.payload=digest"


# --- what is damaged -------------------------------------------------------------------------------------------------


def test_a_log_that_is_cut_off_anywhere(recording: RecordingPaths, paths: RankRecordingPaths) -> None:
    path = paths.log(0)
    whole = path.read_bytes()
    lines = {}
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        line = _refused(lambda: _check(recording))
        assert line.startswith(str(path)), (size, line)
        lines[size] = line
    assert lines[len(whole) - 1] == f"{path} is cut off in line 5"
    assert lines[whole.index(b"\n") + 5] == f"{path} is cut off in line 2"
    assert lines[0] == f"{path} is cut off in line 1"


@pytest.mark.parametrize("cut", [1, 50, 109])
def test_a_payload_that_is_cut_off(recording: RecordingPaths, paths: RankRecordingPaths, cut: int) -> None:
    _again(paths.payload(0), lambda data: data[:-cut])
    assert _refused(lambda: _check(recording)) == f"{paths.payload(0)} has {109 - cut} bytes, 109 were written"


@pytest.mark.parametrize("compress", ["none", "zlib"])
@pytest.mark.parametrize("bit", [0, 7])
def test_one_flipped_bit_anywhere_in_the_payload(recording: RecordingPaths, compress: str, bit: int) -> None:
    _write(recording, compress=compress)
    path = recording.rank(0).payload(0)
    calls = open_rank(recording, 0).step(0).calls
    for place in range(path.stat().st_size):
        _flipped(path, place, bit)
        line = _refused(lambda: _check(recording))
        (hit,) = (c for c in calls if (s := c.outputs[0]).stored and 0 <= place - (s.offset or 0) < s.stored)
        side = hit.outputs[0]
        assert line == (
            f"{path}: bytes {side.offset} to {(side.offset or 0) + (side.stored or 0)} are not those that were "
            f"written, of call {hit.seq} ({hit.name})"
        )
        _flipped(path, place, bit)
    _check(recording)


@pytest.mark.parametrize("bit", [1, 5])
def test_one_flipped_bit_anywhere_in_the_log(recording: RecordingPaths, paths: RankRecordingPaths, bit: int) -> None:
    path = paths.log(0)
    for place in range(path.stat().st_size):
        _flipped(path, place, bit)
        line = _refused(lambda: _check(recording))
        # Another size of the payload than it has is found there.
        assert str(path) in line or line.startswith(f"{paths.payload(0)} has 109 bytes, "), (place, line)
        _flipped(path, place, bit)
    _check(recording)


def test_one_flipped_bit_anywhere_in_the_snapshot(recording: RecordingPaths, paths: RankRecordingPaths) -> None:
    path = paths.snapshot(0)
    was = file_digest(path)
    for place in range(path.stat().st_size):
        _flipped(path, place, place % 8)
        line = _refused(lambda: _check(recording))
        assert line == f"{path} is not what was written: xxh3 {file_digest(path)}, was {was}"
        _flipped(path, place, place % 8)


def test_a_line_that_is_gone(recording: RecordingPaths, paths: RankRecordingPaths) -> None:
    _again(paths.log(0), lambda data: b"".join(line for line in data.splitlines(True) if b'"call 1"' not in line))
    line = _refused(lambda: _check(recording))
    assert line == f"{paths.log(0)} is not what was written: its lines have another digest than its end says"


def test_a_digest_in_the_log_that_was_changed_and_still_reads_well(
    recording: RecordingPaths, paths: RankRecordingPaths
) -> None:
    _again(paths.log(0), lambda data: data.replace(b'["uint8",[1],9]', b'["uint8",[1],8]'))
    line = _refused(lambda: _check(recording))
    assert line == f"{paths.log(0)} is not what was written: its lines have another digest than its end says"


def test_the_log_of_another_step_or_rank(recording: RecordingPaths) -> None:
    _write(recording, [0, 1])
    _write(recording, [0], rank=1)
    mine, theirs = recording.rank(0), recording.rank(1)
    shutil.copy(mine.log(0), mine.log(1))
    assert _refused(lambda: _check(recording, 1)) == f"{mine.log(1)} is of rank 0, step 0"
    shutil.copy(theirs.log(0), mine.log(0))
    assert _refused(lambda: _check(recording, 0)) == f"{mine.log(0)} is of rank 1, step 0"


def _said(recording: RecordingPaths, **changes: Any) -> str:
    write_json(recording.about, {"format": FORMAT, "version": VERSION, "world_size": 2, **changes})
    return _refused(lambda: open_rank(recording, 0))


def test_a_recording_of_another_version_or_format(recording: RecordingPaths, paths: RankRecordingPaths) -> None:
    about = recording.about
    assert _said(recording, version=2) == f"{about} is version 2 of {FORMAT}, this program reads 1"
    assert _said(recording, version="1") == f"{about} is version '1' of {FORMAT}, this program reads 1"
    assert _said(recording, format="other") == f"{about} is no recording: format 'other', not {FORMAT!r}"
    assert _said(recording, world_size="two") == f"{about} has no world_size"


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"version": 2}, f"is version 2 of {FORMAT}, this program reads 1"),
        ({"format": "jsonl"}, f"is no recording: format 'jsonl', not {FORMAT!r}"),
    ],
)
def test_a_log_of_another_version_or_format(
    recording: RecordingPaths, paths: RankRecordingPaths, change: dict[str, Any], line: str
) -> None:
    def changed(data: bytes) -> bytes:
        head, rest = data.split(b"\n", 1)
        return json.dumps({**json.loads(head), **change}).encode() + b"\n" + rest

    _again(paths.log(0), changed)
    assert _refused(lambda: _check(recording)) == f"{paths.log(0)} {line}"


def test_what_is_no_json_at_all(recording: RecordingPaths, paths: RankRecordingPaths) -> None:
    recording.about.write_text("{")
    with pytest.raises(FileError, match=f"^{re.escape(str(recording.about))} cannot be read: "):
        open_rank(recording, 0)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (b"", "is cut off in line 1"),
        (b"[]\n", "is cut off in line 1"),
        (b'[1]\n{"end":true}\n', "line 1 is no object"),
        (b'{"end":true}\n', "is no recording: format None, not 'detsweep-recording'"),
        (b'{"format":"detsweep-recording","version":1}\n{"end":true}\n', "is not a step of a recording: KeyError("),
    ],
)
def test_a_file_that_is_no_log(recording: RecordingPaths, paths: RankRecordingPaths, text: bytes, line: str) -> None:
    paths.log(0).write_bytes(text)
    assert _refused(lambda: _check(recording)).startswith(f"{paths.log(0)} {line}")
