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
PHASES = ("before", "forward", "backward", "recompute", "optimizer", "after")
"""Parts of a step; `recompute` is a forward that activation checkpointing runs again during backward."""


@dataclass(frozen=True)
class Record:
    """One fingerprint: where, what, and 64 bits of digest (a loss: its own raw bits).

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

    def to_list(self) -> list[Any]:
        row = [self.site, self.name, self.block, self.dtype, self.shape, self.digest, self.phase]
        return row if self.inputs is None else [*row, self.inputs]


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

    Digests are integers of up to 64 bits; a reader that keeps numbers as doubles compares their upper 53 bits.
    """
    loss, output = stream.digests("loss"), stream.digests("logits")
    payload: dict[str, Any] = {
        "schema": SCHEMA,
        "rank": stream.rank,
        "world_size": world_size,
        "step": stream.step,
        "run": stream.run,
        "checksum": stream.checksum,
        "loss_bits": loss[0] if loss else None,
        "output_bits": output[0] if output else None,
        "global_bits": next(iter(stream.digests("global")), None),
        "order_bits": stream.order_bits(),
        "nonfinite": dict(stream.nonfinite),
        "block_pre": stream.digests("block_pre"),
        "block_post": stream.digests("block_post"),
        "grads": {r.name: r.digest for r in stream.records if r.site == "grad"},
        "params": {r.name: r.digest for r in stream.records if r.site == "param" and r.phase == "after"},
        "records": [record.to_list() for record in stream.records],
    }
    return json.dumps(payload, separators=(",", ":"))


def from_line(text: str) -> Stream:
    """The stream that `to_line` wrote. Raises ValueError when the line is torn or of another schema."""
    payload = json.loads(text)
    if not isinstance(payload, dict) or payload.get("schema") != SCHEMA:
        found = payload.get("schema") if isinstance(payload, dict) else None
        raise ValueError(f"schema {found!r}, this version reads schema {SCHEMA}")
    records = tuple(_record(seq, row) for seq, row in enumerate(payload["records"]))
    return Stream(payload["rank"], payload["step"], payload["run"], payload["checksum"], records, payload["nonfinite"])


def _record(seq: int, row: list[Any]) -> Record:
    site, name, block, dtype, shape, digest, phase, *inputs = row
    return Record(seq, site, name, block, dtype, tuple(shape), digest, phase, *inputs)


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
