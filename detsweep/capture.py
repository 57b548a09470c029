"""What a rank saw, and the lines in which it is kept: one JSON line per (run, step) in rank<NNN>.jsonl."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import xxhash

from detsweep.paths import FileError

SCHEMA = 2

LEVELS = ("off", "block", "module", "collective", "op")
"""How much of a step is observed. `module` and `collective` each add to `block`; `op` has all that the others have."""
SITES = (
    "rng",
    "input",
    "param",
    "buffer",
    "optim",
    "block_pre",
    "block_post",
    "module",
    "op",
    "collective_in",
    "collective_out",
    "logits",
    "loss",
    "global",
    "block_grad_out",
    "block_grad_in",
    "module_grad_out",
    "module_grad_in",
    "grad",
    "norm",
)
RAW_SITES = ("loss", "global")
"""Sites whose records have bits of their own in place of a fingerprint, whatever the checksum."""
PHASES = ("before", "forward", "backward", "recompute", "optimizer", "after")
"""Parts of a step; `recompute` is a forward that activation checkpointing runs again during backward."""


@dataclass(frozen=True)
class Record:
    """One fingerprint: where, what, and 64 bits of digest, of sha256 256 (a loss: its own raw bits).

    `shape` is that of the rank's own shard, `block` is None outside the repeated blocks. `inputs` is the digest of
    what an operator read, None where a record has none of its own. `name` tells a record from the others of its site
    and phase; where one comes several times in a run (micro-batches), their order does.
    """

    seq: int
    site: str
    name: str
    block: int | None
    dtype: str
    shape: tuple[int, ...]
    digest: int
    phase: str = "forward"
    inputs: int | None = None

    def hexadecimal(self, checksum: str) -> str:
        """The digest in 16 hex digits, or in the 64 that sha256sum prints; `checksum` is that of its stream."""
        return _digits(self.digest) if self._strong(checksum) else f"{self.digest & (1 << 64) - 1:016x}"

    def written(self, checksum: str) -> int | str:
        """The digest as `to_line` writes it; `checksum` is that of its stream."""
        return _digits(self.digest) if self._strong(checksum) else self.digest

    def to_list(self, checksum: str) -> list[Any]:
        row = [self.site, self.name, self.block, self.dtype, self.shape, self.written(checksum), self.phase]
        if self.inputs is None:
            return row
        return [*row, _digits(self.inputs) if self._strong(checksum) else self.inputs]

    def _strong(self, checksum: str) -> bool:
        return checksum == "sha256" and self.site not in RAW_SITES


@dataclass(frozen=True)
class Stream:
    """The records of one rank in one run of one step, in the order in which they happened.

    `nonfinite`: how many infinities and NaN the loss and each gradient had, where there were any.
    """

    rank: int
    step: int
    run: str
    checksum: str
    records: tuple[Record, ...]
    nonfinite: Mapping[str, int] = field(default_factory=dict)

    def digests(self, site: str) -> list[int]:
        return [record.digest for record in self.records if record.site == site]

    def order_bits(self) -> int:
        """64-bit digest of the sequence of sites and names alone: the same payloads in another order differ here."""
        return xxhash.xxh3_64_intdigest("\n".join(f"{r.site}\t{r.name}\t{r.phase}" for r in self.records).encode())


def to_line(stream: Stream, *, world_size: int) -> str:
    """One line of JSON: the recipe's own keys first, then `records`, which holds everything once in order.

    Digests are integers of up to 64 bits; a reader that keeps numbers as doubles compares their upper 53 bits. Those of
    sha256 are strings of 64 hex digits, as sha256sum and hashlib print them, which every reader compares whole. Of any
    checksum the loss's raw bits, `global_bits` and `order_bits` are integers.
    """

    def digests(site: str) -> list[int | str]:
        return [record.written(stream.checksum) for record in stream.records if record.site == site]

    payload: dict[str, Any] = {
        "schema": SCHEMA,
        "rank": stream.rank,
        "world_size": world_size,
        "step": stream.step,
        "run": stream.run,
        "checksum": stream.checksum,
        "loss_bits": next(iter(digests("loss")), None),
        "output_bits": next(iter(digests("logits")), None),
        "global_bits": next(iter(digests("global")), None),
        "order_bits": stream.order_bits(),
        "nonfinite": dict(stream.nonfinite),
        "block_pre": digests("block_pre"),
        "block_post": digests("block_post"),
        "grads": {r.name: r.written(stream.checksum) for r in stream.records if r.site == "grad"},
        "params": {
            r.name: r.written(stream.checksum) for r in stream.records if r.site == "param" and r.phase == "after"
        },
        "records": [record.to_list(stream.checksum) for record in stream.records],
    }
    return json.dumps(payload, separators=(",", ":"))


def from_line(text: str) -> Stream:
    """The stream that `to_line` wrote. Raises ValueError when the line is torn or of another schema."""
    payload = json.loads(text)
    if not isinstance(payload, dict) or payload.get("schema") != SCHEMA:
        found = payload.get("schema") if isinstance(payload, dict) else None
        raise ValueError(f"schema {found!r}, this version reads schema {SCHEMA}")
    return from_rows(payload, payload["records"])


def from_rows(head: Mapping[str, Any], rows: Iterable[list[Any]]) -> Stream:
    """The stream of a line of which the records have been read: its other keys, and the rows of its records."""
    records = tuple(_record(seq, row) for seq, row in enumerate(rows))
    return Stream(head["rank"], head["step"], head["run"], head["checksum"], records, head["nonfinite"])


def _record(seq: int, row: list[Any]) -> Record:
    site, name, block, dtype, shape, digest, phase, *inputs = row
    return Record(seq, site, name, block, dtype, tuple(shape), _read(digest), phase, *map(_read, inputs))


def _digits(digest: int) -> str:
    return f"{digest:064x}"


def _read(digest: int | str) -> int:
    """A digest as `to_line` wrote it."""
    if isinstance(digest, int):
        return digest
    if len(digest) != 64:
        raise ValueError(f"digest of {len(digest)} digits, not 64")
    return int.from_bytes(bytes.fromhex(digest), "big")


def read_streams(path: Path) -> list[Stream]:
    """All streams of one rank's file, in the order of the file.

    Raises FileError, naming the file and the line, when it is missing, torn or of another schema.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise FileError(f"{path} is missing") from None
    except (OSError, ValueError) as error:
        raise FileError(f"{path} cannot be read: {error}") from None
    if text and not text.endswith("\n"):
        raise FileError(f"{path} is cut off in line {text.count(chr(10)) + 1}")
    streams = []
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            streams.append(from_line(line))
        except (ValueError, KeyError, TypeError) as error:
            raise FileError(f"{path} line {number} cannot be read: {error}") from None
    return streams


def write_streams(path: Path, streams: Iterable[Stream], *, world_size: int) -> None:
    """Append streams to a rank's file. A line that was cut off by the rank's death is told by its missing end."""
    with path.open("ab", buffering=0) as file:
        for stream in streams:
            file.write(to_line(stream, world_size=world_size).encode() + b"\n")
