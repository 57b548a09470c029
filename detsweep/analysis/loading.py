"""From folders to frames: one sweep or several, captures of other tools, frames that were kept, a bundle."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from detsweep.analysis import columns, parquet, rows
from detsweep.analysis.against import BASELINE_COLUMNS, baseline_rows
from detsweep.analysis.cells import Broken, axes_of, is_capture, read_cells, world_size
from detsweep.analysis.costs import COST_COLUMNS, cost_rows
from detsweep.analysis.fleet import FLEET_COLUMNS, FLEET_INTEGERS, fleet_rows
from detsweep.analysis.frames import Drill, Sweep, TrialFiles
from detsweep.analysis.injected import INJECTION_COLUMNS
from detsweep.analysis.joined import joined
from detsweep.analysis.problems import Problem
from detsweep.analysis.recipe import captures_in, read_captures
from detsweep.analysis.rows import TRIAL_COLUMNS
from detsweep.analysis.unread import CHECKED_AT_ONCE
from detsweep.analysis.verdicts import NO_VERDICT
from detsweep.capture import SCHEMA
from detsweep.captured import collecting_nothing
from detsweep.paths import FileError, SweepPaths, read_json

Found = Mapping[str, rows.Trials]
"""The trials of each cell, by its id."""
Cells = Sequence[dict[str, Any]]


def load(folder: str | Path | Iterable[str | Path], *, recount: bool = False) -> Sweep:
    """Read a sweep, finished or not: its folder, a bundle of it, or frames that `Sweep.save` kept.

    A folder of captures that the LLM determinism recipe wrote (rank<NNN>.jsonl) is read as one cell, or one for each
    folder below that holds some, with what they hold. Several folders are one sweep with `sweep` as its first axis.
    `recount`: all is judged anew from the records, whatever the results say, trials without a result included.

    Raises FileNotFoundError where there is none of these, FileError where a bundle is damaged. A file that is missing,
    torn or of another schema makes its trial an `error` that names it; all others are there. So do records with other
    bytes than were written; of a sweep with more than 100 MB of records these are looked at only where they are read.
    """
    if not isinstance(folder, (str, Path)):
        return joined([load(one, recount=recount) for one in folder])
    path = Path(folder).absolute()
    if path.is_file():
        from detsweep.bundling import opened

        path = opened(path)
    if parquet.holds_frames(path):
        return parquet.read(path)
    sweep = SweepPaths(path)
    cells, broken = read_cells(sweep)
    if not cells and not broken:
        if found := captures_in(path):
            own, trials = read_captures(path, found)
            return _sweep(sweep, own, trials, [])
        raise FileNotFoundError(f"{folder}: no sweep here (no cells/*/cell.json), and no captures (no rank*.jsonl)")
    whole = sum(file.stat().st_size for file in path.glob("cells/*/trial*/rank*.jsonl")) <= CHECKED_AT_ONCE
    with collecting_nothing():
        results = {
            cell["id"]: rows.read_trials(paths, cell, recount=recount, whole=whole) for paths, cell in cells.items()
        }
        return _sweep(sweep, list(cells.values()), results, broken)


def _sweep(sweep: SweepPaths, cells: Cells, found: Found, broken: Sequence[Broken]) -> Sweep:
    drills = [cell for cell in cells if cell.get("drill_of")]
    shown = [cell for cell in cells if not cell.get("drill_of")]
    axes = axes_of(shown)
    fleet = _frame(list(fleet_rows(shown, found, axes)), FLEET_COLUMNS, FLEET_INTEGERS)
    baselines = baseline_rows(shown, found, set(fleet["cell"]))
    described = {cell["id"]: rows.described(cell, axes) for cell in shown}
    each = [(cell, number, trial, result) for cell in shown for number, (trial, result) in found[cell["id"]].items()]
    trials = [
        {**described[cell["id"]], **rows.trial_row(number, trial, result), **rows.clean_counts(cell, result)}
        for cell, number, trial, result in each
    ]
    trials += [rows.broken_row(one, axes) for one in broken]
    return Sweep(
        folder=sweep.folder,
        trials=_trials_frame(trials, axes),
        divergences=_divergences(shown, drills, found),
        axes=axes,
        configs={cell["id"]: cell["config"] for cell in cells},
        overrides={cell["id"]: cell["overrides"] for cell in cells},
        injections=_frame([row for c, n, _, r in each for row in rows.fault_rows(c, n, r)], INJECTION_COLUMNS),
        baselines=_frame(baselines, BASELINE_COLUMNS, ("block", "rank", "step")),
        drills={parent: _drilled(found[cell["id"]]) for cell in drills for parent in cell["drill_of"]},
        effects=_typed([row for c, n, _, r in each for row in rows.effect_rows(c, n, r)], columns.EFFECTS),
        costs=_costs_frame(list(cost_rows(list(shown), found))),
        fleet=fleet,
        search=_searched(sweep),
        timings=_typed([row for c, n, _, r in each for row in rows.timing_rows(c, n, r)], columns.TIMINGS),
        files={place: files for cell in cells for place, files in _files(cell, found[cell["id"]])},
        sessions=_sessions(sweep),
        roots=(sweep.folder,),
        unread=[
            Problem.of(one.error, one.folder if one.folder.is_dir() else sweep.folder, sweep.folder, one.cell)
            for one in broken
        ],
    )


def _files(cell: Mapping[str, Any], trials: rows.Trials) -> list[tuple[tuple[str, int], TrialFiles]]:
    """The files of a cell's trials."""
    ranks = world_size(cell["config"])
    found = []
    for number, (paths, result) in trials.items():
        judged = result["verdict"] != NO_VERDICT
        unreadable = None if "trial" in result else result.get("error")
        complete = bool(result.get("files")) or unreadable is not None
        alone = is_capture(cell["overrides"])
        found.append(((cell["id"], number), TrialFiles(paths, ranks, complete, unreadable, judged, alone)))
    return found


def _divergences(shown: Cells, drills: Cells, found: Found) -> pd.DataFrame:
    """Those of the cells, and under the cells at which they are a closer look those of the drills."""
    rows_of_all = [
        row
        for cell, parents in [*((cell, [cell["id"]]) for cell in shown), *((cell, cell["drill_of"]) for cell in drills)]
        for parent in parents
        for number, (_, result) in found[cell["id"]].items()
        for row in rows.divergence_rows(cell, number, result, shown_as=parent)
    ]
    return _typed(rows_of_all, columns.DIVERGENCES)


def _sessions(sweep: SweepPaths) -> Sequence[Mapping[str, Any]]:
    try:
        listed = read_json(sweep.sweep).get("sessions")
    except FileError:
        return ()
    return [one for one in listed if isinstance(one, Mapping)] if isinstance(listed, list) else ()


def _searched(sweep: SweepPaths) -> Mapping[str, Any] | None:
    """What search.json says, where the last command on this folder was a search."""
    if not sweep.search.exists() or not sweep.sweep.exists():
        return None
    try:
        content, sessions = read_json(sweep.search), read_json(sweep.sweep)["sessions"]
        searching = sessions[-1].get("search", "none") != "none"
    except (FileError, KeyError, IndexError):
        return None
    return content if searching and content.get("schema") == SCHEMA else None


def _drilled(trials: rows.Trials) -> Drill:
    """What the closer look at a cell found."""
    for number, (trial, result) in trials.items():
        if result.get("first"):
            return Drill("diverged", rows.trial_row(number, trial, result))
    failed = next((result for _, result in trials.values() if result["verdict"] != "pass"), {"verdict": "pass"})
    return Drill(str(failed["verdict"]), {}, failed.get("error"))


def _trials_frame(trials: list[dict[str, Any]], axes: tuple[str, ...]) -> pd.DataFrame:
    names = (*axes, *(column for column in TRIAL_COLUMNS if column not in axes))
    plain: pd.DataFrame = pd.DataFrame(trials, columns=list(names))
    frame = columns.conformed(plain, [column for column in columns.TRIALS if column.name not in axes])
    made: pd.DataFrame = frame.assign(**{name: columns.axis(plain[name]) for name in axes})
    return made


def _costs_frame(costs: list[dict[str, Any]]) -> pd.DataFrame:
    frame = _frame(costs, COST_COLUMNS)
    for column in ("slower", "within_noise"):
        frame[column] = frame[column].astype("boolean")
    return frame


def _typed(found: Sequence[Any], known: Sequence[columns.Column]) -> pd.DataFrame:
    return columns.conformed(pd.DataFrame(found, columns=[column.name for column in known]), known)


def _frame(found: Sequence[Any], names: tuple[str, ...], integers: tuple[str, ...] = ("block",)) -> pd.DataFrame:
    frame: pd.DataFrame = pd.DataFrame(found, columns=list(names))
    for column in integers:
        if column in frame:
            frame[column] = frame[column].astype("Int64")
    return frame
