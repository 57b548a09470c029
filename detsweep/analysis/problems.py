"""Files of a sweep that are missing, torn, changed or not detsweep's: each is named, whatever it costs a trial."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from detsweep.capture import SCHEMA
from detsweep.captured import read_lines
from detsweep.paths import FileError, SweepPaths, TrialPaths, file_hash, read_json

if TYPE_CHECKING:
    from detsweep.analysis.frames import TrialFiles


@dataclass(frozen=True)
class Problem:
    """What is wrong with a file, which is given relative to the sweep's folder."""

    file: str
    cell: str | None
    trial: int | None
    problem: str

    @classmethod
    def of(cls, error: str, folder: Path, cell: str | None = None, trial: int | None = None) -> Problem:
        """What a FileError says: it begins with the file's path."""
        path, _, problem = error.partition(" ")
        own = path.removeprefix(f"{folder}/") if path.startswith("/") else "?"
        return cls(own, cell, trial, problem if own != "?" else error)

    def __str__(self) -> str:
        return f"{self.file} {self.problem}"


def found(
    folder: Path, files: Mapping[tuple[str, int], TrialFiles], unread: Sequence[Problem], *, records: bool
) -> list[Problem]:
    """All that is wrong, each file once: cells that could not be read first, then trial by trial.

    `records`: whether these are read too, each line of every rank, and held against what was written.
    """
    listed = [*unread, *_strays(folder)]
    for (cell, number), own in files.items():
        if own.unreadable is not None:
            listed.append(Problem.of(own.unreadable, folder, cell, number))
        listed += [Problem.of(error, folder, cell, number) for error in _of_trial(own, records=records)]
    return list({one.file: one for one in reversed(listed)}.values())[::-1]


def _strays(folder: Path) -> Iterator[Problem]:
    """What lies among the cells and is none."""
    for path in sorted((SweepPaths(folder).folder / "cells").glob("*")):
        if not path.is_dir():
            yield Problem(str(path.relative_to(folder)), None, None, "is no file of a sweep")


def _of_trial(own: TrialFiles, *, records: bool) -> Iterator[str]:
    paths = own.paths
    if paths.spec.exists():
        yield from _json(paths.spec)
    if paths.job.exists():
        # What launched the trial writes it for people, in no schema.
        yield from _json(paths.job, schema=None)
    if own.complete:
        for rank in range(own.ranks):
            yield from _json(paths.environment(rank))
            yield from _json(paths.rank_result(rank))
    if records:
        yield from _records(own)
    yield from _foreign(paths, own.ranks)


def _json(path: Path, schema: int | None = SCHEMA) -> Iterator[str]:
    try:
        found = read_json(path).get("schema")
        if schema is not None and found != schema:
            yield f"{path} has schema {found!r}, this version reads {schema}"
    except FileError as error:
        yield str(error)


def _records(own: TrialFiles) -> Iterator[str]:
    try:
        written = read_json(own.paths.result).get("hashes") or {}
    except FileError:
        written = {}
    for rank in range(own.ranks):
        path = own.paths.records(rank)
        if not own.complete and not path.exists():
            continue
        try:
            if written.get(path.name) not in (None, file_hash(path)):
                yield f"{path} is not what was written: its xxh3_128 is {file_hash(path)}"
            else:
                for line in read_lines(path):
                    line.rows()
        except FileError as error:
            yield str(error)


def _foreign(paths: TrialPaths, ranks: int) -> Iterator[str]:
    """Files of ranks that the trial does not have, and what detsweep writes under no such name."""
    if not paths.folder.is_dir():
        return
    for path in sorted(paths.folder.iterdir()):
        rank = re.fullmatch(r"(?:environment-)?rank(\d+)(?:\.jsonl|\.json|\.result\.json|\.progress)", path.name)
        if rank is not None and int(rank[1]) >= ranks:
            yield f"{path} is of a rank that the trial does not have: it has {ranks}"
        elif rank is None and not paths.knows(path):
            yield f"{path} is no file of detsweep"
