"""The cells of a sweep as they are on disk: their configurations, and the keys that tell them apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detsweep.baselines import value_of
from detsweep.capture import SCHEMA
from detsweep.paths import CellPaths, FileError, SweepPaths, read_json
from detsweep.validate import lookup

if TYPE_CHECKING:
    import pandas as pd


CAPTURE = "capture"
"""The axis of captures: the folder of each, by its name."""


@dataclass(frozen=True)
class Broken:
    """A cell that the sweep asks for and that cannot be read at all, or sweep.json itself."""

    cell: str
    folder: Path
    error: str


def read_cells(sweep: SweepPaths) -> tuple[dict[CellPaths, dict[str, Any]], list[Broken]]:
    """Every cell of the sweep in the order in which it was asked for, and what cannot be read or is not there."""
    found: dict[CellPaths, dict[str, Any]] = {}
    broken: list[Broken] = []
    for paths in sweep.all_cells():
        try:
            cell = read_json(paths.cell)
            if cell.get("schema") != SCHEMA:
                raise FileError(f"{paths.cell} has schema {cell.get('schema')!r}, this version reads {SCHEMA}")
            if missing := {"id", "slug", "config", "overrides"} - cell.keys():
                raise FileError(f"{paths.cell} has no {', '.join(sorted(missing))}")
            found[paths] = cell
        except FileError as error:
            broken.append(Broken(paths.folder.name.rpartition("-")[2], paths.folder, str(error)))
    try:
        order = {str(cell): place for place, cell in enumerate(read_json(sweep.sweep)["cells"])}
    except (FileError, KeyError, TypeError) as error:
        order = {}
        if found or broken:
            text = str(error) if isinstance(error, FileError) else f"{sweep.sweep} lists no cells"
            broken.append(Broken("sweep.json", sweep.folder, text))
    known = {cell["id"] for cell in found.values()} | {one.cell for one in broken}
    for lost in sorted(order.keys() - known):
        folder = sweep.folder / "cells" / f"*-{lost}"
        broken.append(Broken(lost, folder, f"{folder} is missing, and sweep.json lists it"))
    return dict(sorted(found.items(), key=lambda item: order.get(item[1]["id"], len(order)))), broken


def world_size(config: Mapping[str, Any]) -> int:
    """How many ranks a cell has."""
    return int(config["world"]["nodes"]) * int(config["world"]["nproc_per_node"])


def axes_of(cells: list[dict[str, Any]]) -> tuple[str, ...]:
    """The keys of the command line in which cells differ, in the order of the command line."""
    keys = dict.fromkeys(key for cell in cells for key in cell["overrides"])
    axes = tuple(key for key in keys if _varies(key, cells))
    told_apart = {tuple(str(value_of(cell["config"], key, cell["overrides"])) for key in axes) for cell in cells}
    # Cells may differ by what no key of the command line says: a preset that was edited, a variable that was kept.
    return axes if len(told_apart) == len(cells) else (*axes, "cell")


def _varies(key: str, cells: list[dict[str, Any]]) -> bool:
    if key.startswith("fault."):
        # Where there is no fault, nothing of it has a value.
        cells = [cell for cell in cells if cell["config"]["fault"]["kind"] != "none"]
    return len({str(value_of(cell["config"], key, cell["overrides"])) for cell in cells}) > 1


def rows_by_cell(frame: pd.DataFrame) -> dict[str, list[dict[str, Any]]]:
    """The rows of a frame by their cell, in their order: what pandas groups takes it a millisecond for each field."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in frame.to_dict("records"):
        found.setdefault(str(row["cell"]), []).append({str(name): value for name, value in row.items()})
    return found


def is_capture(overrides: Mapping[str, str]) -> bool:
    """Whether a cell is a folder of captures, with no sweep around it that could be run again."""
    return CAPTURE in overrides


def has_key(config: Mapping[str, Any], key: str) -> bool:
    """Whether a configuration has a dotted key."""
    try:
        lookup(config, key)
    except KeyError:
        return False
    return True
