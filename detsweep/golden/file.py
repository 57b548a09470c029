"""A golden file: one JSON object, plain or gzipped, with a checksum over its content; written whole or not at all."""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from detsweep.capture import SCHEMA as RECORDS_SCHEMA
from detsweep.capture import Stream, from_line
from detsweep.diff.lines import KeptLines, Lines
from detsweep.diff.sides import CellSide, Side
from detsweep.paths import FileError, write_bytes

FORMAT, SCHEMA = "detsweep golden", 1
KIND = "golden file"
_MAGIC = b"\x1f\x8b"
_OF_A_CELL = {"id", "slug", "overrides", "config", "trial", "replays", "groups", "environments", "ranks"}


class GoldenError(FileError):
    """A golden file that is damaged, foreign, or not what it is asked for; the message names it and says why."""


@dataclass(frozen=True)
class GoldenTrial:
    """What a golden file has of a cell: the first run of each step, for every run of every trial to equal."""

    number: int
    source: str
    content: Mapping[str, Any]
    pinned: bool = True

    @property
    def result(self) -> Mapping[str, Any]:
        groups = enumerate(self.content["groups"])
        return {
            "verdict": "pass",
            "replays": self.content["replays"],
            "diverged_replays": 0,
            "ranks": [{"rank": rank, "groups": own, "divergences": []} for rank, own in groups],
        }

    def lines(self, rank: int) -> Lines:
        own = self.content["ranks"]
        return KeptLines(self.source, [_stream(rank, step) for step in own[rank]], world_size=len(own))

    def environment(self, rank: int) -> Mapping[str, Any]:
        found = (one["facts"] for one in self.content["environments"] if rank in one["ranks"])
        facts: Mapping[str, Any] = next(found)
        return facts

    def job(self) -> Mapping[str, Any]:
        return {}


def step_content(stream: Stream) -> dict[str, Any]:
    """What a golden file keeps of a step of a rank."""
    return {
        "step": stream.step,
        "checksum": stream.checksum,
        "nonfinite": dict(stream.nonfinite),
        "records": [record.to_list(stream.checksum) for record in stream.records],
    }


def _stream(rank: int, step: Mapping[str, Any]) -> Stream:
    return from_line(json.dumps({**step, "schema": RECORDS_SCHEMA, "rank": rank, "run": "r1"}))


def write_golden(path: Path, cells: Sequence[Mapping[str, Any]]) -> None:
    """Write a golden file, gzipped where its name ends in .gz; the same cells always give the same bytes."""
    content = {"cells": list(cells)}
    whole = {"format": FORMAT, "schema": SCHEMA, "sha256": _checksum(content), "content": content}
    data = _canonical(whole) + b"\n"
    write_bytes(path, gzip.compress(data, mtime=0) if path.name.endswith(".gz") else data)


def read_golden(path: Path) -> list[Mapping[str, Any]]:
    """The cells of a golden file. Raises GoldenError, naming it, where it is damaged or of another version."""
    try:
        data = path.read_bytes()
        whole = json.loads(gzip.decompress(data) if data.startswith(_MAGIC) else data)
    except OSError as error:
        raise GoldenError(f"{path} cannot be read: {error.strerror or error}") from None
    except (ValueError, EOFError, zlib.error) as error:
        raise GoldenError(f"{path} is no golden file, or a damaged one: {error}") from None
    if not isinstance(whole, dict) or whole.get("format") != FORMAT:
        raise GoldenError(f"{path} is no golden file")
    if whole.get("schema") != SCHEMA:
        raise GoldenError(f"{path} is a golden file of schema {whole.get('schema')!r}, this version reads {SCHEMA}")
    content = whole.get("content")
    if not isinstance(content, dict) or whole.get("sha256") != _checksum(content):
        raise GoldenError(f"{path} is damaged: its content does not have the checksum that stands in it")
    cells = content.get("cells")
    if not isinstance(cells, list) or not cells or any(_OF_A_CELL - cell.keys() for cell in cells):
        raise GoldenError(f"{path} lacks what a golden file of schema {SCHEMA} has")
    return cells


def golden_side(path: Path) -> Side:
    """A golden file as one of two that are compared. Raises GoldenError as `read_golden` does."""
    cells = [
        CellSide(one["id"], one["slug"], one["overrides"], one["config"], {one["trial"]: trial})
        for one in read_golden(path)
        for trial in (GoldenTrial(one["trial"], str(path), one),)
    ]
    return Side(str(path), KIND, tuple(cells))


def _checksum(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(_canonical(content)).hexdigest()


def _canonical(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
