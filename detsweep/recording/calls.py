"""The format of a recording: lines of JSON, one for each collective of a step on a rank, beside the bytes they name.

Of every step that is recorded a rank has, in its own folder:

- `step<NNNNNN>.jsonl`: a header, a line for each collective (and each batch of data) in the order in which they were
  issued, and a last line that counts the others and has their digest;
- `step<NNNNNN>.bin`: the payloads, raw bytes in row-major order, one after the other, where the lines say;
- `step<NNNNNN>.safetensors`: the state at the start of the step, of steps that have a snapshot.

Digests are the trial's own fingerprint; `xxh3` is that of the bytes as they are stored, 16 hexadecimal digits.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import xxhash

from detsweep.capture import Stream, to_line
from detsweep.paths import FileError

FORMAT = "detsweep-recording"
VERSION = 1
PAYLOADS = ("digest", "outputs", "all")
"""What is kept of the tensors of a collective beside digests: nothing, what it delivered, or what it was given too."""
COMPRESSIONS = ("none", "repeats", "zlib")
"""`repeats` stores what comes twice in a step once; `zlib` does that too and compresses what it stores."""
COLLECTIVE, DATA = "collective", "data"


class RecordingError(FileError):
    """A recording that is missing, damaged or does not fit; the message names the file and the place in it."""


@dataclass(frozen=True)
class Side:
    """One tensor that a collective read or wrote.

    `offset` and `stored` are where its bytes are in the step's payload file and how many there, None where they are not
    kept; `xxh3` is the digest of these bytes as stored.
    """

    dtype: str
    shape: tuple[int, ...]
    digest: int
    offset: int | None = None
    stored: int | None = None
    xxh3: str | None = None

    def to_json(self, *, strong: bool = False) -> list[Any]:
        """`strong`: the digest is a SHA-256, of which a reader gets the 64 digits that sha256sum prints."""
        row = [self.dtype, list(self.shape), f"{self.digest:064x}" if strong else self.digest]
        return row if self.offset is None else [*row, self.offset, self.stored, self.xxh3]

    @staticmethod
    def from_json(row: list[Any]) -> Side:
        dtype, shape, digest, *kept = row
        digest = int(digest, 16) if isinstance(digest, str) else digest
        return Side(dtype, tuple(shape), digest, *kept)


@dataclass(frozen=True)
class Call:
    """A collective as one rank issued it, or data that it was given (`kind`).

    `operator` is torch's (`c10d._allgather_base_`), `name` has its number in its group and the module in whose course
    it was issued, `arguments` what else it was called with: root, peer, tag, splits. `asynchronous` is None where the
    operator does not say.
    """

    seq: int
    kind: str
    operator: str
    name: str
    phase: str
    group: str
    ranks: tuple[int, ...]
    reduce: str | None
    asynchronous: bool | None
    arguments: Mapping[str, Any]
    inputs: tuple[Side, ...]
    outputs: tuple[Side, ...]

    def to_line(self, *, strong: bool = False) -> bytes:
        """One line of JSON. Keys that say nothing are left out. `strong`: see Side.to_json."""
        payload = {
            "seq": self.seq,
            "kind": self.kind,
            "op": self.operator,
            "name": self.name,
            "phase": self.phase,
            "group": self.group,
            "ranks": list(self.ranks),
            "reduce": self.reduce,
            "async": self.asynchronous,
            "args": dict(self.arguments),
            "in": [side.to_json(strong=strong) for side in self.inputs],
            "out": [side.to_json(strong=strong) for side in self.outputs],
        }
        kept = {key: value for key, value in payload.items() if value not in (None, {}, [], "")}
        return json.dumps(kept, separators=(",", ":")).encode() + b"\n"

    @staticmethod
    def from_json(payload: Mapping[str, Any]) -> Call:
        return Call(
            payload["seq"],
            payload["kind"],
            payload.get("op", ""),
            payload["name"],
            payload.get("phase", ""),
            payload.get("group", ""),
            tuple(payload.get("ranks", ())),
            payload.get("reduce"),
            payload.get("async"),
            payload.get("args", {}),
            tuple(Side.from_json(row) for row in payload.get("in", ())),
            tuple(Side.from_json(row) for row in payload.get("out", ())),
        )


@dataclass(frozen=True)
class StepHeader:
    """The first line of a step's log. `snapshot`: the digest of the state's file, None where the step has none."""

    rank: int
    step: int
    checksum: str
    payload: str
    compress: str
    snapshot: str | None = None
    version: int = VERSION
    extra: Mapping[str, Any] = field(default_factory=dict)

    def to_line(self) -> bytes:
        payload = {
            "format": FORMAT,
            "version": self.version,
            "rank": self.rank,
            "step": self.step,
            "checksum": self.checksum,
            "payload": self.payload,
            "compress": self.compress,
            "snapshot": self.snapshot,
            **self.extra,
        }
        return json.dumps(payload, separators=(",", ":")).encode() + b"\n"

    @staticmethod
    def from_json(payload: Mapping[str, Any]) -> StepHeader:
        known = {key: payload[key] for key in ("rank", "step", "checksum", "payload", "compress", "snapshot")}
        return StepHeader(**known, version=payload["version"])


def end_line(lines: bytes, *, calls: int, payload_bytes: int, complete: bool, records: str | None = None) -> bytes:
    """The last line of a step's log; `complete` is false where the step was broken off.

    `records`: see `records_digest`; None where the step has no fingerprints.
    """
    end = {
        "end": True,
        "calls": calls,
        "payload_bytes": payload_bytes,
        "complete": complete,
        "records_xxh3": records,
        "lines_xxh3": hexadecimal(xxhash.xxh3_64_intdigest(lines)),
    }
    return json.dumps(end, separators=(",", ":")).encode() + b"\n"


def records_digest(stream: Stream) -> str:
    """XXH3 of a step's fingerprints, as their line is written (with world_size 0): they lie in another file."""
    return hexadecimal(xxhash.xxh3_64_intdigest(to_line(stream, world_size=0).encode()))


def hexadecimal(digest: int) -> str:
    return f"{digest:016x}"
