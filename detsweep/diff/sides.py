"""What is compared: the path that a user names, as cells and their trials."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from detsweep import results
from detsweep.capture import SCHEMA
from detsweep.crosstrial import settled
from detsweep.diff.lines import FileLines, Lines
from detsweep.paths import CellPaths, FileError, SweepPaths, TrialPaths, read_json

BUNDLES = (".tar.zst", ".tar.gz")
NO_VERDICT = "none"


class Trial(Protocol):
    """One launch, as far as it can be compared.

    `pinned`: it stands for every run of its cell's trials, and has only those facts of an environment that decide bits.
    """

    @property
    def number(self) -> int: ...
    @property
    def result(self) -> Mapping[str, Any]: ...
    @property
    def pinned(self) -> bool: ...

    def lines(self, rank: int) -> Lines:
        """A rank's records. Raises FileError where they are missing or torn."""
        ...

    def environment(self, rank: int) -> Mapping[str, Any]:
        """What a rank's environment file says. Raises FileError."""
        ...

    def job(self) -> Mapping[str, Any]:
        """How it was launched; empty where that is not known. Raises FileError where it cannot be read."""
        ...


@dataclass(frozen=True)
class FolderTrial:
    """A trial's folder."""

    number: int
    paths: TrialPaths
    result: Mapping[str, Any]
    pinned: bool = False

    def lines(self, rank: int) -> Lines:
        return FileLines(self.paths.records(rank))

    def environment(self, rank: int) -> Mapping[str, Any]:
        return read_json(self.paths.environment(rank))

    def job(self) -> Mapping[str, Any]:
        return read_json(self.paths.job) if self.paths.job.exists() else {}


@dataclass(frozen=True)
class CellSide:
    """A cell, with those of its trials that are compared."""

    id: str
    slug: str
    overrides: Mapping[str, str]
    config: Mapping[str, Any]
    trials: Mapping[int, Trial]

    @property
    def label(self) -> str:
        """The cell in the words of its command line."""
        return " ".join(f"{key}={value}" for key, value in self.overrides.items()) or self.slug or self.id

    @property
    def world_size(self) -> int:
        return int(self.config["world"]["nodes"]) * int(self.config["world"]["nproc_per_node"])


@dataclass(frozen=True)
class Side:
    """One of the two that are compared. `kind`: `trial`, `cell`, `sweep` or `golden file`.

    `unread`: what of it cannot be read at all, a line each.
    """

    name: str
    kind: str
    cells: tuple[CellSide, ...]
    unread: tuple[str, ...] = field(default=())

    @property
    def trials(self) -> int:
        return sum(len(cell.trials) for cell in self.cells)


class NotComparableError(Exception):
    """What the user named is nothing that can be compared; the message names it and says what can be."""


def opened(path: Path) -> Side:
    """The side that a path is; a bundle is unpacked for as long as this process lives.

    Raises NotComparableError where it is none, FileError where the one file that it is cannot be read.
    """
    if path.is_dir():
        return _folder(path, str(path))
    if not path.is_file():
        raise NotComparableError(f"{path}: no such folder or file")
    if path.name.endswith(BUNDLES):
        from detsweep import bundling

        return _folder(bundling.opened(path), str(path))
    from detsweep.golden import golden_side

    return golden_side(path)


def _folder(folder: Path, name: str) -> Side:
    folder = folder.absolute()
    trial, cell, sweep = TrialPaths(folder), CellPaths(folder), SweepPaths(folder)
    if cell.cell.exists():
        return Side(name, "cell", (_cell(cell, _read_cell(cell)),))
    if sweep.sweep.exists() or sweep.all_cells():
        return _sweep(sweep, name)
    if trial.spec.exists() or trial.result.exists():
        return Side(name, "trial", (_of_trial(trial),))
    raise NotComparableError(f"{name}: holds no trial, no cell and no sweep")


def _sweep(sweep: SweepPaths, name: str) -> Side:
    """A sweep's cells in the order in which they were asked for; closer looks at them are no cells of their own."""
    cells, unread = [], []
    for paths in sweep.all_cells():
        try:
            content = _read_cell(paths)
            if not content.get("drill_of"):
                cells.append(_cell(paths, content))
        except FileError as error:
            unread.append(str(error))
    try:
        order = {str(one): place for place, one in enumerate(read_json(sweep.sweep)["cells"])}
    except (FileError, KeyError, TypeError) as error:
        order = {}
        unread.append(str(error) if isinstance(error, FileError) else f"{sweep.sweep} lists no cells")
    known = {path.folder.name.rpartition("-")[2] for path in sweep.all_cells()}
    unread += [f"{sweep.folder / 'cells'}/*-{lost} is missing" for lost in sorted(order.keys() - known)]
    if not cells and not unread:
        raise NotComparableError(f"{name}: a sweep without cells")
    return Side(name, "sweep", tuple(sorted(cells, key=lambda one: order.get(one.id, len(order)))), tuple(unread))


def _read_cell(paths: CellPaths) -> dict[str, Any]:
    content = read_json(paths.cell)
    if content.get("schema") != SCHEMA:
        raise FileError(f"{paths.cell} has schema {content.get('schema')!r}, this version reads {SCHEMA}")
    if absent := {"id", "slug", "config", "overrides"} - content.keys():
        raise FileError(f"{paths.cell} has no {', '.join(sorted(absent))}")
    return content


def _cell(paths: CellPaths, content: Mapping[str, Any], only: int | None = None) -> CellSide:
    """A cell with its trials, launches of mode `relaunch` judged as they compare; or with one of them alone."""
    config = content["config"]
    numbers = sorted({number for number, _ in paths.trials()} | set(range(int(config["trials"]))))
    found = {
        number: (paths.trial(number), _result(paths.trial(number))) for number in numbers if only in (None, number)
    }
    judged = settled(found, config)
    trials = {number: FolderTrial(number, folder, judged[number]) for number, (folder, _) in found.items()}
    return CellSide(content["id"], content["slug"], content["overrides"], config, trials)


def _of_trial(trial: TrialPaths) -> CellSide:
    """A trial's cell with that trial alone; of a trial that lies by itself what its spec says of the cell."""
    name = trial.folder.name.removeprefix("trial")
    number = int(name) if name.isdigit() else 0
    cell = CellPaths(trial.folder.parent)
    if cell.cell.exists() and trial.folder.name == f"trial{number}":
        return _cell(cell, _read_cell(cell), number)
    spec = read_json(trial.spec)
    if spec.get("schema") != SCHEMA or "config" not in spec:
        raise FileError(f"{trial.spec} is no spec in schema {SCHEMA}")
    own = FolderTrial(number, trial, _result(trial))
    return CellSide(str(spec.get("cell")), trial.folder.name, {}, spec["config"], {number: own})


def _result(trial: TrialPaths) -> Mapping[str, Any]:
    return results.read_result(trial, whole=True) or {"verdict": NO_VERDICT}
