"""From a sweep's folder to tidy pandas frames. Reads only the disk: during a sweep, after a crash, in a notebook."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from detsweep import results
from detsweep.analysis import rows
from detsweep.analysis.against import BASELINE_COLUMNS, baseline_rows
from detsweep.analysis.cells import axes_of, read_cells, world_size
from detsweep.analysis.costs import COST_COLUMNS, cost_rows
from detsweep.analysis.fleet import FLEET_COLUMNS, FLEET_INTEGERS, fleet_rows
from detsweep.analysis.injected import INJECTION_COLUMNS
from detsweep.analysis.rows import NO_VERDICT, TRIAL_COLUMNS
from detsweep.capture import SCHEMA, Stream, read_streams
from detsweep.compare import differences
from detsweep.paths import FileError, SweepPaths, TrialPaths, read_json

MATRIX_VERDICTS = (*results.VERDICTS, NO_VERDICT)
DIFFERING_COLUMNS = (
    "cell", "trial", "rank", "step", "run", "seq", "site", "block", "name", "phase", "kind",
)  # fmt: skip
RECORD_COLUMNS = (
    "cell", "trial", "rank", "step", "run", "seq", "site", "block", "name", "phase", "dtype", "shape", "digest",
)  # fmt: skip


@dataclass(frozen=True)
class Drill:
    """A diverged cell once more at a closer level: its verdict, and where it diverged first, as in `trials`.

    `error`: why it has no verdict about repeating, None where it has.
    """

    verdict: str
    first: Mapping[str, Any]
    error: str | None = None


@dataclass(frozen=True)
class Sweep:
    """What a sweep's folder holds.

    `trials`: a row for each trial that the sweep asks for; `verdict` is `none` where it has no result yet. The
    columns named in `axes` tell the cells apart, and stand first. `nodes` are those of a cluster that it ran on, in the
    order of their ranks; `retries` counts how often it was submitted again after a failure of the infrastructure, and
    `requeues` how often Slurm itself started it anew. `divergences`: a row for each rank, step and run
    that differed from what it is compared with. `configs`: each cell's whole configuration by its id,
    `overrides` what the command line said of it.
    `injections`: a row for each fault that was put in. `baselines`: a row for each cell that is compared with another
    one (`against`). `drills`: what a closer look at a cell found, by the cell's id. `effects`: a row for each setting
    of a mitigation in each trial: whether it was in force, and did anything. `costs`: a row for each cell with a
    mitigation whose cell without it is there too. `fleet`: a row for each place of each fleet, empty without one; see
    detsweep.analysis.fleet. `search`: what the last command's search has tried and found, None
    without one.
    """

    folder: Path
    trials: pd.DataFrame
    divergences: pd.DataFrame
    axes: tuple[str, ...]
    configs: Mapping[str, Mapping[str, Any]]
    overrides: Mapping[str, Mapping[str, str]]
    injections: pd.DataFrame
    baselines: pd.DataFrame
    drills: Mapping[str, Drill]
    effects: pd.DataFrame
    costs: pd.DataFrame
    fleet: pd.DataFrame
    search: Mapping[str, Any] | None

    @property
    def positive_control(self) -> bool:
        """Whether the sweep is one of faults that are to be found."""
        return any(config.get("positive_control", False) for config in self.configs.values())

    def records(self, *, cell: str | None = None, trial: int | None = None, rank: int | None = None) -> pd.DataFrame:
        """All records of the trials that match and have a result: a row for each fingerprint, `digest` in hexadecimal.

        It has 16 digits, with checksum=sha256 the 64 that sha256sum prints, but for the loss and the sum over ranks.
        Raises FileError, naming the file, where records of a rank are missing or torn; the arguments read around it.
        """
        rows = [
            (one, number, stream.rank, stream.step, stream.run, r.seq, r.site, r.block, r.name, r.phase, r.dtype,
             r.shape, r.hexadecimal(stream.checksum))
            for one, number, paths in _trial_folders(SweepPaths(self.folder))
            if cell in (None, one) and trial in (None, number)
            if paths.result.exists()
            for number_of_rank in range(world_size(self.configs[one]))
            if rank in (None, number_of_rank) and _has_records(paths, number_of_rank)
            for stream in read_streams(paths.records(number_of_rank))
            for r in stream.records
        ]  # fmt: skip
        return _frame(rows, RECORD_COLUMNS, ("block",))

    def differing(self, *, cell: str | None = None, trial: int | None = None, rank: int | None = None) -> pd.DataFrame:
        """Every record, not the first alone, in which a run differs from the first run of its step.

        Raises FileError as `records` does.
        """
        rows = [
            (one, number, stream.rank, stream.step, stream.run, r.seq, r.site, r.block, r.name, r.phase, found.kind)
            for one, number, paths in _trial_folders(SweepPaths(self.folder))
            if cell in (None, one) and trial in (None, number)
            if paths.result.exists()
            for number_of_rank in range(world_size(self.configs[one]))
            if rank in (None, number_of_rank) and _has_records(paths, number_of_rank)
            for reference, stream in _with_first_run(read_streams(paths.records(number_of_rank)))
            for found in differences(reference, stream)
            for r in (found.record,)
        ]
        return _frame(rows, DIFFERING_COLUMNS, ("block",))

    def matrix(
        self, *, rows: str | list[str] | None = None, columns: str | list[str] | None = None, value: str = "verdict"
    ) -> pd.DataFrame:
        """The wide table: see `detsweep.analysis.matrix.pivot`."""
        from detsweep.analysis.matrix import pivot

        return pivot(self, rows=rows, columns=columns, value=value)


def load(folder: str | Path) -> Sweep:
    """Read the folder of a sweep, finished or not.

    Raises FileNotFoundError where the folder holds no sweep. A file that is missing, torn or of another schema makes
    its trial an `error` that names it; all others are there.
    """
    sweep = SweepPaths(Path(folder).absolute())
    cells, broken = read_cells(sweep)
    if not cells and not broken:
        raise FileNotFoundError(f"{folder}: no sweep here (no cells/*/cell.json)")
    drills = {paths: cell for paths, cell in cells.items() if cell.get("drill_of")}
    shown = {paths: cell for paths, cell in cells.items() if paths not in drills}
    axes = axes_of(list(shown.values()))
    found = {cell["id"]: rows.read_trials(paths, cell) for paths, cell in cells.items()}
    trials: list[dict[str, Any]] = []
    divergences: list[dict[str, Any]] = []
    faults: list[dict[str, Any]] = []
    effects: list[dict[str, Any]] = []
    for cell in shown.values():
        common = rows.described(cell, axes)
        for number, (trial, result) in found[cell["id"]].items():
            trials.append({**common, **rows.trial_row(number, trial, result), **rows.clean_counts(cell, result)})
            divergences += rows.divergence_rows(cell, number, result, shown_as=cell["id"])
            faults += rows.fault_rows(cell, number, result)
            effects += rows.effect_rows(cell, number, result)
    for cell in drills.values():
        for number, (_, result) in found[cell["id"]].items():
            for parent in cell["drill_of"]:
                divergences += rows.divergence_rows(cell, number, result, shown_as=parent)
    trials += [rows.broken_row(one, axes) for one in broken]
    fleet = _frame(list(fleet_rows(list(shown.values()), found, axes)), FLEET_COLUMNS, FLEET_INTEGERS)
    return Sweep(
        sweep.folder,
        _trials_frame(trials, axes),
        _frame(divergences, rows.DIVERGENCE_COLUMNS, ("block", "origin")),
        axes,
        {cell["id"]: cell["config"] for cell in cells.values()},
        {cell["id"]: cell["overrides"] for cell in cells.values()},
        _frame(faults, INJECTION_COLUMNS, ("block",)),
        _frame(baseline_rows(shown.values(), found, set(fleet["cell"])), BASELINE_COLUMNS, ("block", "rank", "step")),
        {parent: _drilled(found[cell["id"]]) for cell in drills.values() for parent in cell["drill_of"]},
        _frame(effects, rows.EFFECT_COLUMNS, ()),
        _costs_frame(list(cost_rows(list(shown.values()), found))),
        fleet,
        _searched(sweep),
    )


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


def _with_first_run(streams: Sequence[Stream]) -> Iterator[tuple[Stream, Stream]]:
    first = {stream.step: stream for stream in streams if stream.run == "r1"}
    yield from ((first[stream.step], stream) for stream in streams if stream.run != "r1")


def _has_records(trial: TrialPaths, rank: int) -> bool:
    """Whether there are records to read: of a trial that came to a verdict each rank must have some."""
    return trial.records(rank).exists() or bool(read_json(trial.result).get("files"))


def _trial_folders(sweep: SweepPaths) -> Iterator[tuple[str, int, TrialPaths]]:
    for paths, cell in read_cells(sweep)[0].items():
        for number, trial in paths.trials():
            yield cell["id"], number, trial


def _trials_frame(rows: list[dict[str, Any]], axes: tuple[str, ...]) -> pd.DataFrame:
    integers = ("first_block", "first_step", "replays", "diverged_replays", "clean_comparisons", "false_alarms",
                "retries", "requeues")  # fmt: skip
    frame = _frame(rows, (*axes, *(column for column in TRIAL_COLUMNS if column not in axes)), integers)
    frame["verdict"] = pd.Categorical(frame["verdict"], categories=MATRIX_VERDICTS, ordered=True)
    for column in ("step_ms", "plain_step_ms", "seconds"):
        frame[column] = frame[column].astype("Float64")
    return frame


def _costs_frame(rows: list[dict[str, Any]]) -> pd.DataFrame:
    frame = _frame(rows, COST_COLUMNS, ())
    for column in ("slower", "within_noise"):
        frame[column] = frame[column].astype("boolean")
    return frame


def _frame(rows: Sequence[Any], columns: tuple[str, ...], integers: tuple[str, ...]) -> pd.DataFrame:
    frame: pd.DataFrame = pd.DataFrame(rows, columns=list(columns))
    for column in integers:
        frame[column] = frame[column].astype("Int64")
    return frame
