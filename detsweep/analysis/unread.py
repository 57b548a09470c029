"""Files of a sweep that could not be read, are cut off or are not its own: every one of them by name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from detsweep import results
from detsweep.analysis.cells import read_cells
from detsweep.paths import FileError, SweepPaths, TrialPaths, foreign, read_json

SAID = 3


def unread(folder: Path) -> list[str]:
    """A line for each such file of a sweep, with its path relative to the sweep's folder.

    Records are looked at no further than whether their last line is whole: all of each is read where it is needed.
    """
    sweep = SweepPaths(folder)
    cells, broken = read_cells(sweep)
    lines = [one.error for one in broken]
    for paths in cells:
        for _, trial in paths.trials():
            lines += _trial(trial)
    lines += _json(sweep.search)
    lines += [f"{path}: {why}" for path, why in foreign(folder)]
    return list(dict.fromkeys(line.replace(f"{folder}/", "") for line in lines))


def unread_lines(folder: Path) -> Iterator[str]:
    """The same for a terminal: the first of them, and how many more there are."""
    lines = unread(folder)
    yield from (f"not read: {line}" for line in lines[:SAID])
    if len(lines) > SAID:
        yield f"not read: {len(lines) - SAID} more, all named in matrix.md and matrix.html"


def _trial(trial: TrialPaths) -> Iterator[str]:
    result = results.read_result(trial)
    if result is not None and "cell" not in result:
        # Only what read_result itself makes of a file that it cannot read has no cell.
        yield str(result["error"])
    for path in sorted(trial.folder.glob("*.json")):
        if path != trial.result:
            yield from _json(path)
    if result is not None and result["verdict"] in results.SETTLED:
        # Of a trial that failed, or runs, the end may well be missing.
        yield from (line for path in sorted(trial.folder.glob("rank*.jsonl")) for line in _cut_off(path))


def _json(path: Path) -> Iterator[str]:
    if path.exists():
        try:
            read_json(path)
        except FileError as error:
            yield str(error)


def _cut_off(path: Path) -> Iterator[str]:
    with path.open("rb") as file:
        size = path.stat().st_size
        file.seek(max(0, size - 1))
        if size and file.read() != b"\n":
            yield f"{path} is cut off in its last line"
