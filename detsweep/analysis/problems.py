"""Files of a sweep that are missing, torn, changed or not detsweep's: each is named, whatever it costs a trial."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from detsweep.capture import SCHEMA
from detsweep.captured import read_lines
from detsweep.paths import FileError, SweepPaths, foreign, read_json
from detsweep.results import check_records

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
    def of(cls, error: str, base: Path, root: Path, cell: str | None = None, trial: int | None = None) -> Problem:
        """What a FileError says of one of detsweep's own files in `base`, whose names have no spaces.

        The error begins with the file's path, of which what is above `base` may be called anything.
        """
        if error.startswith(f"{base}/"):
            name, _, problem = error.removeprefix(f"{base}/").partition(" ")
            return cls.at(base / name, problem, root, cell, trial)
        return cls.at(base, error.removeprefix(f"{base} "), root, cell, trial)

    @classmethod
    def at(cls, path: Path, problem: str, root: Path, cell: str | None = None, trial: int | None = None) -> Problem:
        """What is wrong with a file that is known by its path."""
        return cls(str(path.relative_to(root) if path.is_relative_to(root) else path), cell, trial, problem)

    def __str__(self) -> str:
        return f"{self.file} {self.problem}"


def found(
    folder: Path,
    roots: Sequence[Path],
    files: Mapping[tuple[str, int], TrialFiles],
    unread: Sequence[Problem],
    *,
    records: bool,
) -> list[Problem]:
    """All that is wrong, each file once: cells that could not be read first, then trial by trial, then what is foreign.

    Paths are given relative to `folder`; `roots` are those of the sweeps in it. `records`: whether these are read too,
    each line of every rank, and held against what was written.
    """
    listed = list(unread)
    for (cell, number), own in files.items():
        base = own.paths.folder
        if own.unreadable is not None:
            listed.append(Problem.of(own.unreadable, base, folder, cell, number))
        listed += [Problem.of(error, base, folder, cell, number) for error in _of_trial(own, records=records)]
        listed += [Problem.at(path, why, folder, cell, number) for path, why in _of_no_rank(own)]
    for root in roots:
        search = SweepPaths(root).search
        listed += [Problem.of(error, root, folder) for error in _json(search, schema=None, must=False)]
        if SweepPaths(root).all_cells():
            listed += [Problem.at(path, why, folder, *_owner(path, files)) for path, why in foreign(root)]
    return list({one.file: one for one in reversed(listed)}.values())[::-1]


def _owner(path: Path, files: Mapping[tuple[str, int], TrialFiles]) -> tuple[str | None, int | None]:
    """The cell and the number of the trial in whose folder a file lies."""
    owners = (place for place, own in files.items() if own.paths.folder == path.parent)
    return next(owners, (None, None))


def _of_trial(own: TrialFiles, *, records: bool) -> Iterator[str]:
    paths = own.paths
    if not own.judged:
        # It may still run, and its files be written.
        return
    yield from _json(paths.spec, must=False)
    # What launched the trial writes it for people, in no schema.
    yield from _json(paths.job, schema=None, must=False)
    if own.complete and not own.alone:
        for rank in range(own.ranks):
            yield from _json(paths.environment(rank))
            yield from _json(paths.rank_result(rank))
    if records:
        yield from _records(own)


def _json(path: Path, schema: int | None = SCHEMA, *, must: bool = True) -> Iterator[str]:
    if not must and not path.exists():
        return
    try:
        found = read_json(path).get("schema")
        if schema is not None and found != schema:
            yield f"{path} has schema {found!r}, this version reads {schema}"
    except FileError as error:
        yield str(error)


def _records(own: TrialFiles) -> Iterator[str]:
    try:
        check_records(own.paths, {} if own.alone else read_json(own.paths.result))
    except FileError as error:
        yield str(error)
    for rank in range(own.ranks):
        path = own.paths.records(rank)
        if not own.complete and not path.exists():
            continue
        try:
            for line in read_lines(path):
                line.rows()
        except FileError as error:
            yield str(error)


def _of_no_rank(own: TrialFiles) -> Iterator[tuple[Path, str]]:
    """Files of ranks that the trial does not have."""
    for path in sorted(own.paths.folder.glob("*rank*")):
        rank = re.fullmatch(r"(?:environment-)?rank(\d+)(?:\.jsonl|\.json|\.result\.json|\.progress)", path.name)
        if rank is not None and int(rank[1]) >= own.ranks:
            yield path, f"is of a rank that the trial does not have: it has {own.ranks}"
