"""Reading a recording back, each byte checked before anybody computes with it."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import xxhash

from detsweep.paths import RankRecordingPaths, RecordingPaths, read_json, write_json
from detsweep.recording.calls import FORMAT, VERSION, Call, RecordingError, Side, StepHeader, hexadecimal


@dataclass(frozen=True)
class Step:
    """One recorded step of a rank."""

    paths: RankRecordingPaths
    header: StepHeader
    calls: tuple[Call, ...]
    complete: bool
    payload_bytes: int
    records: str | None

    @property
    def number(self) -> int:
        return self.header.step

    @cached_property
    def _payload(self) -> memoryview:
        path = self.paths.payload(self.number)
        try:
            data = path.read_bytes()
        except OSError as error:
            raise RecordingError(f"{path} cannot be read: {error.strerror}") from None
        if len(data) != self.payload_bytes:
            raise RecordingError(f"{path} has {len(data)} bytes, {self.payload_bytes} were written")
        return memoryview(data)

    def bytes_of(self, call: Call, side: Side) -> bytes | memoryview:
        """The bytes of a tensor of a call.

        Raises RecordingError, naming file and call, where they are not kept, cut off, or not those that were written.
        """
        if side.offset is None or side.stored is None:
            raise RecordingError(
                f"{self.paths.log(self.number)}: no bytes of call {call.seq} ({call.name}) were kept: "
                f"it was recorded with record.payload={self.header.payload}"
            )
        raw = self._payload[side.offset : side.offset + side.stored]
        if hexadecimal(xxhash.xxh3_64_intdigest(raw)) != side.xxh3:
            raise RecordingError(
                f"{self.paths.payload(self.number)}: bytes {side.offset} to {side.offset + side.stored} are not those "
                f"that were written, of call {call.seq} ({call.name})"
            )
        return zlib.decompress(raw) if self.header.compress == "zlib" else raw

    def check(self) -> None:
        """Read every byte of the step. Raises RecordingError for the first that is not as it was written."""
        for call in self.calls:
            for side in (*call.inputs, *call.outputs):
                if side.offset is not None:
                    self.bytes_of(call, side)
        self.check_snapshot()

    def check_snapshot(self) -> None:
        """Raises RecordingError where the step's snapshot is gone, or not what was written."""
        if self.header.snapshot is None:
            return
        path = self.paths.snapshot(self.number)
        if not path.exists():
            raise RecordingError(f"{path} is missing")
        if (found := file_digest(path)) != self.header.snapshot:
            raise RecordingError(f"{path} is not what was written: xxh3 {found}, was {self.header.snapshot}")


@dataclass(frozen=True)
class RankRecording:
    """The recording of one rank: what `recording.json` says of it, and its steps, read when they are asked for."""

    paths: RankRecordingPaths
    rank: int
    about: Mapping[str, Any]

    @cached_property
    def numbers(self) -> tuple[int, ...]:
        """The steps that are on disk, in order."""
        return tuple(self.paths.logs())

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """The steps at which a replay can begin: they have a snapshot."""
        return tuple(step for step in self.paths.snapshots() if step in self.numbers)

    def step(self, number: int) -> Step:
        """One step. Raises RecordingError where it is not there, cut off, damaged or of another format."""
        if number not in self.numbers:
            there = ranges(self.numbers)
            raise RecordingError(f"step {number} is not in the recording of rank {self.rank}: it has {there}")
        return read_step(self.paths, self.rank, number)

    def window(self, first: int | None, last: int | None) -> range:
        """The steps to replay so that `first` to `last` are among them: from the newest snapshot before them on.

        Raises RecordingError where the recording does not have them.
        """
        if not self.numbers:
            raise RecordingError(f"{self.paths.folder} has no steps")
        first = (self.starts or self.numbers)[0] if first is None else first
        last = self.numbers[-1] if last is None else last
        for number in (first, last):
            if number not in self.numbers:
                there = ranges(self.numbers)
                raise RecordingError(f"step {number} is not in the recording of rank {self.rank}: it has {there}")
        if last < first:
            raise RecordingError(f"steps {first} to {last}: the last comes before the first")
        start = max((step for step in self.starts if step <= first), default=None)
        if start is None:
            there = ranges(self.starts)
            raise RecordingError(f"rank {self.rank} has no snapshot at or before step {first}: it has {there}")
        if missing := [number for number in range(start, last + 1) if number not in self.numbers]:
            raise RecordingError(
                f"the recording of rank {self.rank} has no step {missing[0]}, which comes before step {last}"
            )
        return range(start, last + 1)


def open_rank(recording: RecordingPaths, rank: int) -> RankRecording:
    """The recording of a rank.

    Raises RecordingError where there is none, where it is of another format, or where the rank does not exist.
    """
    about = about_of(recording)
    if not 0 <= rank < about["world_size"]:
        raise RecordingError(f"rank {rank} does not exist: the recording is of ranks 0 to {about['world_size'] - 1}")
    paths = recording.rank(rank)
    if not paths.folder.is_dir():
        raise RecordingError(f"{paths.folder} is missing: rank {rank} of {about['world_size']} has no recording")
    return RankRecording(paths, rank, about)


def write_about(recording: RecordingPaths, about: Mapping[str, Any]) -> None:
    """Write recording.json, with a digest of its own content."""
    write_json(recording.about, {**about, "xxh3": _content(about)})


def about_of(recording: RecordingPaths) -> dict[str, Any]:
    """The content of recording.json. Raises RecordingError where it is missing, damaged or of another format."""
    if not recording.about.exists():
        raise RecordingError(f"{recording.about} is missing: there is no recording here (mode=record makes one)")
    about = read_json(recording.about)
    _check_format(about, str(recording.about))
    if not isinstance(about.get("world_size"), int):
        raise RecordingError(f"{recording.about} has no world_size")
    if about.get("xxh3", _content(about)) != _content(about):
        raise RecordingError(f"{recording.about} is not what was written: its content has another digest than it says")
    return about


def _content(about: Mapping[str, Any]) -> str:
    rest = {key: value for key, value in about.items() if key != "xxh3"}
    return hexadecimal(xxhash.xxh3_64_intdigest(json.dumps(rest, sort_keys=True).encode()))


def _check_format(payload: Mapping[str, Any], where: str) -> None:
    if payload.get("format") != FORMAT:
        raise RecordingError(f"{where} is no recording: format {payload.get('format')!r}, not {FORMAT!r}")
    if payload.get("version") != VERSION:
        raise RecordingError(f"{where} is version {payload.get('version')!r} of {FORMAT}, this program reads {VERSION}")


def read_step(paths: RankRecordingPaths, rank: int, number: int) -> Step:
    """Read and check the log of a step; its payload is read when it is asked for."""
    path = paths.log(number)
    try:
        text = path.read_bytes()
    except OSError as error:
        raise RecordingError(f"{path} cannot be read: {error.strerror}") from None
    lines = text.splitlines(keepends=True)
    if not lines or not lines[-1].endswith(b"\n") or not lines[-1].startswith(b'{"end":'):
        raise RecordingError(f"{path} is cut off in line {max(len(lines), 1)}")
    payloads = [_parsed(line, f"{path} line {number}") for number, line in enumerate(lines, start=1)]
    _check_format(payloads[0], str(path))
    head, end = payloads[0], payloads[-1]
    try:
        if end["lines_xxh3"] != hexadecimal(xxhash.xxh3_64_intdigest(b"".join(lines[:-1]))):
            raise RecordingError(f"{path} is not what was written: its lines have another digest than its end says")
        if end["calls"] != len(lines) - 2:
            raise RecordingError(f"{path} has {len(lines) - 2} calls, {end['calls']} were written")
        header = StepHeader.from_json(head)
        calls = tuple(Call.from_json(payload) for payload in payloads[1:-1])
        complete, size, records = bool(end["complete"]), int(end["payload_bytes"]), end["records_xxh3"]
    except (KeyError, TypeError, ValueError) as error:
        raise RecordingError(f"{path} is not a step of a recording: {error!r}") from None
    if (header.rank, header.step) != (rank, number):
        raise RecordingError(f"{path} is of rank {header.rank}, step {header.step}")
    return Step(paths, header, calls, complete, size, records)


def _parsed(line: bytes, where: str) -> dict[str, Any]:
    try:
        payload = json.loads(line)
    except ValueError as error:
        raise RecordingError(f"{where} cannot be read: {error}") from None
    if not isinstance(payload, dict):
        raise RecordingError(f"{where} is no object")
    return payload


def file_digest(path: Path) -> str:
    """XXH3 of a file's bytes, 16 hexadecimal digits."""
    digest = xxhash.xxh3_64()
    with path.open("rb") as file:
        while piece := file.read(1 << 22):
            digest.update(piece)
    return hexadecimal(digest.intdigest())


def ranges(numbers: tuple[int, ...]) -> str:
    """Numbers in words: `0 to 4, 10`; `none`."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(f"{a} to {b}" if a != b else str(a) for a, b in parts) or "none"
