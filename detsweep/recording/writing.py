"""Writing a recording, step by step: never a log that claims what is not there, whatever ends it."""

from __future__ import annotations

import shutil
import zlib
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import xxhash

from detsweep.paths import RankRecordingPaths, write_bytes
from detsweep.recording.calls import Call, StepHeader, end_line, hexadecimal


class FullError(Exception):
    """The recording has come to an end of space: its own limit, or the disk's. The message says which."""


@dataclass(frozen=True)
class Stored:
    """Where bytes are in a step's payload file, how many there, and their digest as stored."""

    offset: int
    size: int
    xxh3: str


@dataclass
class _Open:
    """The step that is being written."""

    number: int
    payload: IO[bytes]
    size: int
    seen: dict[tuple[int, int], Stored]


class Writer:
    """Writes the recording of one rank; keeps the last `keep` steps only, where that is asked for.

    `limit` is the most bytes that the rank's recording may have on disk. `written` counts what was ever written, by
    kind. Raises FullError where there is no room, and leaves no half-written step behind.
    """

    def __init__(
        self, paths: RankRecordingPaths, *, compress: str = "none", keep: int | None = None, limit: int | None = None
    ) -> None:
        self._paths = paths
        self._compress = compress
        self._keep = keep
        self._limit = limit
        self._step: _Open | None = None
        self._steps: dict[int, int] = {}
        self.written = {"payload": 0, "log": 0, "snapshot": 0}
        paths.folder.mkdir(parents=True, exist_ok=True)

    def begin(self, step: int) -> None:
        """Begin a step."""
        assert self._step is None
        with self._room(step):
            self._step = _Open(step, self._paths.payload(step).open("wb", buffering=1 << 20), 0, {})

    def store(self, data: bytes | memoryview, digest: int | None = None) -> Stored:
        """Append bytes to the open step's payload; what comes twice is stored once, where that is asked for.

        `digest`: their XXH3, where it is known.
        """
        assert self._step is not None
        step = self._step
        key = (xxhash.xxh3_64_intdigest(data) if digest is None else digest, len(data))
        if self._compress != "none" and key in step.seen:
            return step.seen[key]
        raw = zlib.compress(data, 1) if self._compress == "zlib" else data
        digest = xxhash.xxh3_64_intdigest(raw) if self._compress == "zlib" else key[0]
        self._count("payload", len(raw), step.number)
        with self._room(step.number):
            step.payload.write(raw)
        stored = step.seen[key] = Stored(step.size, len(raw), hexadecimal(digest))
        step.size += len(raw)
        return stored

    def end(
        self, header: StepHeader, calls: Iterable[Call], *, complete: bool = True, records: str | None = None
    ) -> None:
        """End the open step, and with it the oldest that need not be kept any more.

        `records`: the digest of its fingerprints.
        """
        assert self._step is not None
        step = self._step
        lines = [header.to_line(), *(call.to_line(strong=header.checksum == "sha256") for call in calls)]
        text = b"".join(lines)
        text += end_line(text, calls=len(lines) - 1, payload_bytes=step.size, complete=complete, records=records)
        self._count("log", len(text), step.number)
        with self._room(step.number):
            step.payload.close()
            self._step = None
            write_bytes(self._paths.log(step.number), text)
        if self._keep is not None:
            self.drop_before(step.number - self._keep + 1)

    def snapshot(self, step: int, size: int) -> None:
        """A snapshot of `size` bytes has been written for a step."""
        self._count("snapshot", size, step)

    def abandon(self, step: int) -> None:
        """Take back a step that could not be written to its end, and its snapshot."""
        if self._step is not None:
            # Closing writes what is still buffered, which may be what there is no room for.
            with suppress(OSError):
                self._step.payload.close()
            self._step = None
        # A file system that has become read-only refuses this too. What stays there has no log, and is no step.
        with suppress(OSError):
            self._remove(step)

    def drop_before(self, first: int) -> None:
        """Remove steps that nobody can need who wants to replay from `first` on: they start at a snapshot."""
        snapshots = [step for step in self._paths.snapshots() if step <= first]
        start = max(snapshots, default=first)
        for step in sorted({*self._paths.logs(), *self._paths.snapshots()}):
            if step < start:
                self._remove(step)

    def drop_all(self) -> None:
        """Nothing happened for which this recording would be kept."""
        if self._paths.folder.exists():
            shutil.rmtree(self._paths.folder)

    def _remove(self, step: int) -> None:
        self._steps.pop(step, None)
        # The log first: without it a step is none.
        for path in (self._paths.log(step), self._paths.payload(step), self._paths.snapshot(step)):
            path.unlink(missing_ok=True)

    def _count(self, kind: str, size: int, step: int) -> None:
        total = sum(self._steps.values()) + size
        if self._limit is not None and total > self._limit:
            raise FullError(f"record.max_gb is reached: {total / 1e9:.3f} GB in step {step}")
        self._steps[step] = self._steps.get(step, 0) + size
        self.written[kind] += size

    def _room(self, step: int) -> _Room:
        return _Room(self._paths.folder, step)


class _Room:
    """Turns the file system's refusals into FullError."""

    def __init__(self, folder: Path, step: int) -> None:
        self._folder = folder
        self._step = step

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError):
            raise FullError(f"{self._folder} cannot be written in step {self._step}: {error.strerror}") from error
