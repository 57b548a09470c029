"""Writing: every byte where its line says, the last steps only, and no claim of what there was no room for."""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
import xxhash

from detsweep.paths import RankRecordingPaths, RecordingPaths, write_json
from detsweep.recording import Call, FullError, Side, StepHeader, Stored, Writer, open_rank
from detsweep.recording.calls import COLLECTIVE, FORMAT, VERSION

PIECES = (b"a" * 100, b"", b"bcd" * 50, b"a" * 100, random.Random(0).randbytes(999), b"a" * 100)


@pytest.fixture
def recording(tmp_path: Path) -> RecordingPaths:
    paths = RecordingPaths(tmp_path / "recording")
    write_json(paths.about, {"format": FORMAT, "version": VERSION, "world_size": 1})
    return paths


@pytest.fixture
def paths(recording: RecordingPaths) -> RankRecordingPaths:
    return recording.rank(0)


def _header(step: int, *, compress: str = "none", snapshot: str | None = None, checksum: str = "xxh3") -> StepHeader:
    return StepHeader(0, step, checksum, "outputs", compress, snapshot)


def _call(*stored: Stored, seq: int = 0) -> Call:
    outputs = tuple(Side("uint8", (one.size,), 5, one.offset, one.size, one.xxh3) for one in stored)
    return Call(seq, COLLECTIVE, "c10d.allreduce_", "x", "forward", "g", (0,), "sum", False, {}, (), outputs)


def _snapshot(writer: Writer, paths: RankRecordingPaths, step: int, size: int = 10) -> None:
    paths.snapshot(step).write_bytes(bytes(size))
    writer.snapshot(step, size)


def _step(writer: Writer, step: int, pieces: Sequence[bytes] = PIECES, *, compress: str = "none") -> list[Stored]:
    writer.begin(step)
    stored = [writer.store(piece) for piece in pieces]
    writer.end(_header(step, compress=compress), [_call(*stored)])
    return stored


def _on_disk(paths: RankRecordingPaths) -> list[str]:
    return sorted(path.name for path in paths.folder.iterdir())


# --- bytes -----------------------------------------------------------------------------------------------------------


def test_bytes_lie_one_after_the_other(paths: RankRecordingPaths) -> None:
    writer = Writer(paths)
    stored = _step(writer, 4)
    assert [one.offset for one in stored] == [0, 100, 100, 250, 350, 1349]
    assert [one.size for one in stored] == [len(piece) for piece in PIECES]
    assert [one.xxh3 for one in stored] == [xxhash.xxh3_64_hexdigest(piece) for piece in PIECES]
    assert paths.payload(4).read_bytes() == b"".join(PIECES)
    assert writer.written == {"payload": 1449, "log": paths.log(4).stat().st_size, "snapshot": 0}


def test_what_comes_twice_in_a_step_is_stored_once_where_that_is_asked_for(paths: RankRecordingPaths) -> None:
    writer = Writer(paths, compress="repeats")
    stored = _step(writer, 0, compress="repeats")
    assert stored[0] == stored[3] == stored[5]
    assert paths.payload(0).read_bytes() == b"".join([PIECES[0], PIECES[2], PIECES[4]])
    # Another step has a file of its own.
    _step(writer, 1, PIECES[:1], compress="repeats")
    assert paths.payload(1).read_bytes() == PIECES[0]
    assert writer.written["payload"] == 1249 + 100


def test_compressed_bytes_are_those_of_zlib_and_stored_once(paths: RankRecordingPaths) -> None:
    stored = _step(Writer(paths, compress="zlib"), 0, compress="zlib")
    assert stored[0] == stored[3] == stored[5]
    raw = paths.payload(0).read_bytes()
    pieces = [raw[one.offset : one.offset + one.size] for one in stored]
    assert [zlib.decompress(piece) for piece in pieces] == list(PIECES)
    assert [one.xxh3 for one in stored] == [xxhash.xxh3_64_hexdigest(piece) for piece in pieces]
    assert (stored[0].size < 100, len(raw)) == (True, sum(one.size for one in {*stored}))


@pytest.mark.parametrize("compress", ["none", "repeats", "zlib"])
def test_what_is_read_back_is_what_was_stored(recording: RecordingPaths, compress: str) -> None:
    _step(Writer(recording.rank(0), compress=compress), 2, compress=compress)
    step = open_rank(recording, 0).step(2)
    (call,) = step.calls
    assert [bytes(step.bytes_of(call, side)) for side in call.outputs] == list(PIECES)
    step.check()


def test_a_view_of_memory_is_stored_as_its_bytes_are_now(paths: RankRecordingPaths) -> None:
    writer, memory = Writer(paths), bytearray(b"before")
    writer.begin(0)
    writer.store(memoryview(memory))
    memory[:] = b"after!"
    writer.end(_header(0), [])
    assert paths.payload(0).read_bytes() == b"before"


def test_digests_of_sha256_are_written_as_digits(recording: RecordingPaths) -> None:
    writer = Writer(recording.rank(0))
    writer.begin(0)
    digest = (1 << 255) + 3
    call = Call(0, COLLECTIVE, "o", "n", "", "", (), None, None, {}, (Side("int8", (), digest),), ())
    writer.end(_header(0, checksum="sha256"), [call])
    assert f'"{digest:064x}"'.encode() in recording.rank(0).log(0).read_bytes()
    assert open_rank(recording, 0).step(0).calls == (call,)


def test_until_a_step_has_ended_there_is_no_log_of_it(recording: RecordingPaths) -> None:
    writer = Writer(recording.rank(0))
    writer.begin(0)
    writer.store(PIECES[0])
    assert open_rank(recording, 0).numbers == ()
    writer.end(_header(0), [], complete=False)
    assert open_rank(recording, 0).step(0).complete is False


# --- the last steps only ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("keep", [1, 2, 4])
def test_on_disk_is_what_a_replay_of_the_last_steps_needs_and_no_more(
    recording: RecordingPaths, keep: int, every: int
) -> None:
    paths = recording.rank(0)
    writer = Writer(paths, keep=keep)
    for step in range(5, 17):
        if (step - 5) % every == 0:
            _snapshot(writer, paths, step)
        _step(writer, step)
        wanted = max(step - keep + 1, 5)
        start = max(number for number in range(5, wanted + 1) if (number - 5) % every == 0)
        needed = range(start, step + 1)
        snapshots = [number for number in needed if (number - 5) % every == 0]
        assert _on_disk(paths) == sorted(
            [path(number).name for number in needed for path in (paths.log, paths.payload)]
            + [paths.snapshot(number).name for number in snapshots]
        )
        assert open_rank(recording, 0).window(wanted, None) == needed


def test_without_keep_everything_stays(paths: RankRecordingPaths) -> None:
    writer = Writer(paths)
    for step in range(4):
        _step(writer, step)
    assert paths.logs() == [0, 1, 2, 3]


def test_a_recording_that_nobody_needs_is_gone_at_once(paths: RankRecordingPaths) -> None:
    writer = Writer(paths, keep=2)
    _step(writer, 0)
    writer.drop_all()
    writer.drop_all()
    assert not paths.folder.exists()


# --- no room ---------------------------------------------------------------------------------------------------------


def _limited(paths: RankRecordingPaths, what: str) -> Callable[[], object]:
    """Write steps 0 and 1, of which the second reaches the limit with this kind of what is written."""
    first = 1449 + 634
    limit = {"payload": first + 1000, "log": first + 1449 + 100, "snapshot": first + 20}[what]
    writer = Writer(paths, limit=limit)

    def second() -> None:
        try:
            if what == "snapshot":
                _snapshot(writer, paths, 1, 1000)
            _step(writer, 1)
        except FullError:
            writer.abandon(1)
            raise

    _step(writer, 0)
    return second


@pytest.mark.parametrize("what", ["payload", "log", "snapshot"])
def test_at_its_limit_a_recording_ends_with_the_last_whole_step(recording: RecordingPaths, what: str) -> None:
    second = _limited(recording.rank(0), what)
    with pytest.raises(FullError, match=r"^record.max_gb is reached: 0.000 GB in step 1$"):
        second()
    assert _on_disk(recording.rank(0)) == ["step000000.bin", "step000000.jsonl"]
    open_rank(recording, 0).step(0).check()


def test_the_limit_is_of_what_is_on_disk_and_not_of_what_ever_was(paths: RankRecordingPaths) -> None:
    writer = Writer(paths, keep=1, limit=6000)
    for step in range(20):
        _snapshot(writer, paths, step)
        _step(writer, step)
    assert writer.written["payload"] == 20 * 1449
    assert paths.logs() == [19]


def test_what_was_taken_back_does_not_count(paths: RankRecordingPaths) -> None:
    writer = Writer(paths, limit=3000)
    for _ in range(5):
        writer.begin(0)
        writer.store(bytes(1449))
        writer.abandon(0)
    _step(writer, 0)
    assert paths.logs() == [0]


@pytest.mark.parametrize("size", [10, 3 << 20], ids=["in the buffer", "beyond the buffer"])
def test_a_full_device_is_an_end_of_space(paths: RankRecordingPaths, size: int) -> None:
    writer = Writer(paths)
    _step(writer, 0)
    paths.payload(1).symlink_to("/dev/full")
    with pytest.raises(FullError, match=f"^{paths.folder} cannot be written in step 1: No space left on device$"):
        _step(writer, 1, [bytes(size)])
    writer.abandon(1)
    assert _on_disk(paths) == ["step000000.bin", "step000000.jsonl"]
    # Another step is written as if nothing had been.
    _step(writer, 2)
    assert paths.logs() == [0, 2]


@contextmanager
def _files_of_at_most(size: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.parametrize("pieces", [[bytes(5000)], [b"a"] * 200], ids=["payload", "log"])
def test_a_file_that_may_not_grow_is_an_end_of_space(paths: RankRecordingPaths, pieces: list[bytes]) -> None:
    writer = Writer(paths)
    with _files_of_at_most(2000):
        with pytest.raises(FullError, match=f"^{paths.folder} cannot be written in step 0: File too large$"):
            _step(writer, 0, pieces)
        writer.abandon(0)
    assert _on_disk(paths) == []


def test_a_folder_that_is_gone_is_an_end_of_space(paths: RankRecordingPaths) -> None:
    writer = Writer(paths)
    paths.folder.rmdir()
    with pytest.raises(FullError, match=r"cannot be written in step 0: No such file or directory$"):
        writer.begin(0)
    writer.abandon(0)


@contextmanager
def _mounted(folder: Path) -> Iterator[None]:
    """A file system of 64 KiB of its own; skips where this process may not mount one."""
    folder.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "detsweep", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False).returncode != 0:
        pytest.skip("may not mount a file system")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def _until_it_fails(writer: Writer, steps: Iterator[int]) -> None:
    for step in steps:
        try:
            _step(writer, step, [random.Random(step).randbytes(9000)])
        except FullError:
            writer.abandon(step)
            raise


def test_a_full_file_system_is_an_end_of_space_and_keeps_whole_steps(recording: RecordingPaths) -> None:
    paths = recording.rank(0)
    with _mounted(paths.folder):
        writer, steps = Writer(paths), iter(range(100))
        with pytest.raises(FullError, match=r"No space left on device$"):
            _until_it_fails(writer, steps)
        opened = open_rank(recording, 0)
        assert opened.numbers == tuple(range(next(steps) - 1))
        assert len(opened.numbers) > 2
        assert len(_on_disk(paths)) == 2 * len(opened.numbers)
        for number in opened.numbers:
            opened.step(number).check()


def test_a_file_system_that_has_become_read_only_is_an_end_of_space(recording: RecordingPaths) -> None:
    paths = recording.rank(0)
    with _mounted(paths.folder):
        writer = Writer(paths)
        _step(writer, 0)
        subprocess.run(["mount", "-o", "remount,ro", paths.folder], check=True)
        with pytest.raises(FullError, match=r"cannot be written in step 1: Read-only file system$"):
            writer.begin(1)
        writer.abandon(1)
        open_rank(recording, 0).step(0).check()
