"""A rank's lines as they lie on disk, without their records parsed: equal bytes are equal records.

Of a sweep nearly everything is equal to what it is compared with. Bytes are compared at the speed of memory; only what
differs, or is asked for, is worth the parsing.
"""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from detsweep.capture import SCHEMA, Stream, from_line, from_rows
from detsweep.paths import FileError

# As `to_line` writes them; inside a name in a line the quotation marks would have backslashes before them.
_AFTER_HEAD = b',"block_pre":'
_RECORDS = b',"records":'
# Lines are long: of a large model with every operator observed megabytes.
_BUFFER = 1 << 20
_AT_ONCE = 1 << 24


@dataclass(frozen=True)
class Line:
    """One run of one step as a rank wrote it down.

    `head`: the keys that stand before the recipe's lists of digests; `rest`: the JSON text from these on, with the
    records at its end.
    """

    path: Path
    number: int
    head: Mapping[str, Any]
    rest: bytes

    @property
    def place(self) -> tuple[int, str]:
        """Step and run."""
        return self.head["step"], self.head["run"]

    @property
    def checksum(self) -> str:
        return str(self.head["checksum"])

    @property
    def records(self) -> bytes:
        """The JSON text of its records; without any, none of a list."""
        begin = self.rest.rfind(_RECORDS)
        return self.rest[begin + len(_RECORDS) : -1] if begin >= 0 else b""

    def equals(self, other: Line) -> bool:
        """Whether both have the same records, byte for byte, by the same checksum."""
        return self.head["checksum"] == other.head["checksum"] and self.rest == other.rest

    def stream(self) -> Stream:
        """The line as its records. Raises FileError, naming file and line, when they are torn."""
        try:
            return from_rows(self.head, self.rows())
        except (ValueError, KeyError, TypeError) as error:
            raise self.unreadable(error) from None

    def rows(self) -> list[list[Any]]:
        """The records as they are written. Raises FileError, naming file and line, when they are torn."""
        try:
            rows = json.loads(self.records)
            if not isinstance(rows, list):
                raise TypeError(f"records are {type(rows).__name__}")
        except (ValueError, TypeError) as error:
            raise self.unreadable(error) from None
        return rows

    def unreadable(self, error: Exception) -> FileError:
        """What is wrong with this line, for whoever reads the message."""
        return FileError(f"{self.path} line {self.number} cannot be read: {error}")


@contextmanager
def collecting_nothing() -> Iterator[None]:
    """Python's search for cycles, put off: parsing makes lists by the million, none of them in a cycle.

    It would go through all of them again and again, and take as long as the parsing itself.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def read_lines(path: Path) -> Iterator[Line]:
    """The lines of one rank's file, in order, one in memory at a time.

    Raises FileError, naming the file and the line, when it is missing, cut off or of another schema; what is torn
    inside of the records is found when they are parsed.
    """
    try:
        for number, text in enumerate(_texts(path), start=1):
            yield _line(path, number, text)
    except FileNotFoundError:
        raise FileError(f"{path} is missing") from None
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error}") from None


def _texts(path: Path) -> Iterator[bytes]:
    """The lines of a file without their ends; of a large one no more than one in memory at a time."""
    with path.open("rb", buffering=_BUFFER) as file:
        if os.fstat(file.fileno()).st_size <= _AT_ONCE:
            *lines, end = file.read().split(b"\n")
            yield from lines
            if end:
                raise FileError(f"{path} is cut off in line {len(lines) + 1}")
            return
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                raise FileError(f"{path} is cut off in line {number}")
            yield line[:-1]


def _line(path: Path, number: int, text: bytes) -> Line:
    end = text.find(_AFTER_HEAD)
    try:
        if end < 0 or not text.endswith(b"]}"):
            return _foreign(path, number, text)
        head = json.loads(text[:end] + b"}")
        if head.get("schema") != SCHEMA:
            raise ValueError(f"schema {head.get('schema')!r}, this version reads schema {SCHEMA}")
        if {"rank", "step", "run", "checksum", "nonfinite"} - head.keys():
            raise ValueError("rank, step, run, checksum or nonfinite is missing")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FileError(f"{path} line {number} cannot be read: {error}") from None
    return Line(path, number, head, text[end:])


def _foreign(path: Path, number: int, text: bytes) -> Line:
    """A line that is not written as this version does: of the LLM determinism recipe, which has no records.

    Its checksums stand for records in the order of execution: input and output of each block, logits, loss.
    """
    payload = json.loads(text)
    if not isinstance(payload, dict) or "schema" in payload or not {"rank", "step", "run"} <= payload.keys():
        from_line(text.decode())
        raise ValueError("its keys are not in the order in which they are written")
    pre, post = payload["block_pre"], payload["block_post"]
    rows = [
        ["block_" + which, f"blocks.{block}", block, "", [], digest, "forward"]
        for block, pair in enumerate(zip(pre, post, strict=True))
        for which, digest in zip(("pre", "post"), pair, strict=True)
    ]
    ends = (("logits", "output_bits"), ("loss", "loss_bits"), ("global", "global_bits"))
    rows += [[site, site, None, "", [], payload[key], "forward"] for site, key in ends if payload.get(key) is not None]
    head = {**{key: payload[key] for key in ("rank", "step", "run")}, "checksum": "bitsum", "nonfinite": {}}
    return Line(path, number, head, _RECORDS + json.dumps(rows).encode() + b"}")
