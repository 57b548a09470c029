"""From a sweep's folder to tidy pandas frames. Reads only the disk: during a sweep, after a crash, in a notebook."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from detsweep import results
from detsweep.analysis.cells import Broken, axes_of, read_cells, value_of, world_size
from detsweep.capture import read_streams
from detsweep.paths import CellPaths, SweepPaths, TrialPaths, read_json

NO_VERDICT = "none"
MATRIX_VERDICTS = (*results.VERDICTS, NO_VERDICT)
TRIAL_COLUMNS = (
    "cell", "slug", "trial", "verdict", "mitigation", "fault", "diverged_ranks", "first_site", "first_block",
    "first_name", "first_kind", "first_step", "first_run", "first_ranks", "cause", "replays", "diverged_replays",
    "error", "error_ranks", "log", "log_tail", "step_ms", "plain_step_ms", "seconds", "folder",
)  # fmt: skip
DIVERGENCE_COLUMNS = (
    "cell", "trial", "rank", "step", "run", "seq", "site", "block", "name", "kind", "cause", "fault",
)  # fmt: skip
RECORD_COLUMNS = (
    "cell", "trial", "rank", "step", "run", "seq", "site", "block", "name", "dtype", "shape", "digest",
)  # fmt: skip


@dataclass(frozen=True)
class Sweep:
    """What a sweep's folder holds.

    `trials`: a row for each trial that the sweep asks for; `verdict` is `none` where it has no result yet. The
    columns named in `axes` tell the cells apart, and stand first. `divergences`: a row for each rank, step and run
    that differed from the first run. `configs`: each cell's whole configuration by its id.
    """

    folder: Path
    trials: pd.DataFrame
    divergences: pd.DataFrame
    axes: tuple[str, ...]
    configs: Mapping[str, Mapping[str, Any]]

    @property
    def positive_control(self) -> bool:
        """Whether the sweep is one of faults that are to be found."""
        return any(config.get("positive_control", False) for config in self.configs.values())

    def records(self, *, cell: str | None = None, trial: int | None = None, rank: int | None = None) -> pd.DataFrame:
        """All records of the trials that match and have a result: a row for each fingerprint, `digest` in hexadecimal.

        Raises FileError, naming the file, where records of a rank are missing or torn; the arguments read around it.
        """
        rows = [
            (one, number, stream.rank, stream.step, stream.run, r.seq, r.site, r.block, r.name, r.dtype, r.shape,
             f"{r.digest & (1 << 64) - 1:016x}")
            for one, number, paths in _trial_folders(SweepPaths(self.folder))
            if cell in (None, one) and trial in (None, number)
            if paths.result.exists()
            for number_of_rank in range(world_size(self.configs[one]))
            if rank in (None, number_of_rank) and _has_records(paths, number_of_rank)
            for stream in read_streams(paths.records(number_of_rank))
            for r in stream.records
        ]  # fmt: skip
        return _frame(rows, RECORD_COLUMNS, ("block",))

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
    axes = axes_of(list(cells.values()))
    trials: list[dict[str, Any]] = []
    divergences: list[dict[str, Any]] = []
    for paths, cell in cells.items():
        described = _described(cell, axes)
        for number, trial in _expected_trials(paths, cell):
            result = results.read_result(trial) or {"verdict": NO_VERDICT}
            trials.append({**described, **_trial_row(number, trial, result)})
            for rank in result.get("ranks", ()):
                divergences += [
                    {"cell": cell["id"], "trial": number, "fault": described["fault"], **divergence}
                    for divergence in rank["divergences"]
                ]
    trials += [_broken_row(one, axes) for one in broken]
    return Sweep(
        sweep.folder,
        _trials_frame(trials, axes),
        _frame(divergences, DIVERGENCE_COLUMNS, ("block",)),
        axes,
        {cell["id"]: cell["config"] for cell in cells.values()},
    )


def _has_records(trial: TrialPaths, rank: int) -> bool:
    """Whether there are records to read: of a trial that came to a verdict each rank must have some."""
    return trial.records(rank).exists() or bool(read_json(trial.result).get("files"))


def _broken_row(broken: Broken, axes: tuple[str, ...]) -> dict[str, Any]:
    return {
        **dict.fromkeys(axes, ""),
        "cell": broken.cell,
        "slug": broken.folder.name,
        "mitigation": "",
        "fault": "",
        **_trial_row(0, TrialPaths(broken.folder), {"verdict": "error", "error": broken.error}),
    }


def _trial_folders(sweep: SweepPaths) -> Iterator[tuple[str, int, TrialPaths]]:
    for paths, cell in read_cells(sweep)[0].items():
        for number, trial in paths.trials():
            yield cell["id"], number, trial


def _expected_trials(paths: CellPaths, cell: Mapping[str, Any]) -> list[tuple[int, TrialPaths]]:
    numbers = {number for number, _ in paths.trials()} | set(range(cell["config"]["trials"]))
    return [(number, paths.trial(number)) for number in sorted(numbers)]


def _described(cell: Mapping[str, Any], axes: tuple[str, ...]) -> dict[str, Any]:
    config = cell["config"]
    return {
        **{axis: value_of(config, axis, cell["overrides"]) for axis in axes},
        "cell": cell["id"],
        "slug": cell["slug"],
        "mitigation": value_of(config, "mitigation"),
        "fault": config["fault"]["kind"],
    }


def _trial_row(number: int, trial: TrialPaths, result: Mapping[str, Any]) -> dict[str, Any]:
    first = result.get("first") or {}
    log = result.get("log")
    return {
        "trial": number,
        "verdict": result["verdict"],
        "diverged_ranks": tuple(result.get("diverged_ranks", ())),
        "first_site": first.get("site"),
        "first_block": first.get("block"),
        "first_name": first.get("name"),
        "first_kind": first.get("kind"),
        "first_step": first.get("step"),
        "first_run": first.get("run"),
        "first_ranks": _ranks_at(first, result),
        "cause": first.get("cause"),
        "replays": result.get("replays"),
        "diverged_replays": result.get("diverged_replays"),
        "error": result.get("error"),
        "error_ranks": tuple(result.get("error_ranks", ())),
        "log": str(trial.folder / log) if log else None,
        "log_tail": "\n".join(result.get("log_tail", ())) or None,
        "step_ms": result.get("step_ms"),
        "plain_step_ms": result.get("plain_step_ms"),
        "seconds": result.get("seconds"),
        "folder": str(trial.folder),
    }


def _ranks_at(first: Mapping[str, Any], result: Mapping[str, Any]) -> tuple[int, ...]:
    """The ranks whose own first divergence is at the trial's first place: in that step and run, at that record."""
    if not first:
        return ()
    place = ("step", "run", "seq", "site", "name")
    return tuple(
        rank["rank"]
        for rank in result.get("ranks", ())
        if any(all(divergence[key] == first[key] for key in place) for divergence in rank["divergences"])
    )


def _trials_frame(rows: list[dict[str, Any]], axes: tuple[str, ...]) -> pd.DataFrame:
    integers = ("first_block", "first_step", "replays", "diverged_replays")
    frame = _frame(rows, (*axes, *(column for column in TRIAL_COLUMNS if column not in axes)), integers)
    frame["verdict"] = pd.Categorical(frame["verdict"], categories=MATRIX_VERDICTS, ordered=True)
    for column in ("step_ms", "plain_step_ms", "seconds"):
        frame[column] = frame[column].astype("Float64")
    return frame


def _frame(rows: Sequence[Any], columns: tuple[str, ...], integers: tuple[str, ...]) -> pd.DataFrame:
    frame: pd.DataFrame = pd.DataFrame(rows, columns=list(columns))
    for column in integers:
        frame[column] = frame[column].astype("Int64")
    return frame
