"""What a tracker is told of each cell of a sweep, whichever tracker it is."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from detsweep.analysis.frames import Sweep
from detsweep.analysis.rates import Rate, rates
from detsweep.analysis.verdicts import FAILED, VALID, worst
from detsweep.analysis.words import describe_first, missing
from detsweep.baselines import value_of
from detsweep.paths import FileError, SweepPaths, read_json


@dataclass(frozen=True)
class TrackedRun:
    """A cell as a run of a tracker.

    `key` is the same whenever this cell of this sweep is logged, and another one for every other. `params`: what the
    command line says of it, and its values on the axes; `metrics` the numbers that there are; `tags` words.
    """

    key: str
    name: str
    params: Mapping[str, str]
    metrics: Mapping[str, float]
    tags: Mapping[str, str]


@dataclass(frozen=True)
class Tracked:
    """A sweep for a tracker: its cells as runs, and the matrix, None where the folder has none (yet)."""

    name: str
    paths: SweepPaths
    runs: tuple[TrackedRun, ...]
    matrix: Path | None


def tracked(sweep: Sweep) -> Tracked:
    """Everything of a sweep that a tracker is told. Cells whose own file cannot be read are no runs."""
    paths = SweepPaths(sweep.folder)
    own = _identity(paths)
    groups, known = sweep.trials.groupby("cell", sort=False, dropna=False), rates(sweep)
    runs = tuple(
        _run(sweep, str(cell), group, known[str(cell)], own) for cell, group in groups if cell in sweep.configs
    )
    return Tracked(sweep.folder.name, paths, runs, paths.matrix_md if paths.matrix_md.exists() else None)


def _identity(paths: SweepPaths) -> str:
    """What tells a sweep from all others, wherever its folder is moved to: when and where it was begun."""
    try:
        first = read_json(paths.sweep)["sessions"][0]
        words = [str(first.get(key)) for key in ("started", "host", "command")]
    except (FileError, KeyError, IndexError, TypeError):
        words = [str(paths.folder)]
    return hashlib.sha256("\n".join(words).encode()).hexdigest()[:8]


def _run(sweep: Sweep, cell: str, group: pd.DataFrame, rate: Rate, own: str) -> TrackedRun:
    overrides = {key.lstrip("+~"): value for key, value in sweep.overrides[cell].items()}
    axes = {
        axis: str(value_of(sweep.configs[cell], axis, sweep.overrides[cell])) for axis in sweep.axes if axis != "cell"
    }
    name = " ".join(f"{key}={value}" for key, value in overrides.items()) or str(group["slug"].iloc[0])
    metrics = {key: float(value) for key, value in _metrics(sweep, cell, group, rate) if not missing(value)}
    return TrackedRun(f"{own}{cell}", name, {**overrides, **axes}, metrics, dict(_tags(sweep, cell, group)))


def _metrics(sweep: Sweep, cell: str, group: pd.DataFrame, rate: Rate) -> Iterator[tuple[str, Any]]:
    verdicts = [str(verdict) for verdict in group["verdict"]]
    yield "trials", len(verdicts)
    yield "valid_trials", sum(verdict in VALID for verdict in verdicts)
    yield "diverged_trials", verdicts.count("diverged")
    yield "errors", sum(verdict in FAILED for verdict in verdicts)
    yield "replays", rate.seen.compared
    yield "diverged", rate.seen.diverged
    yield "rate", rate.columns()["rate"]
    yield "bound", rate.bound
    yield "step_ms", group["plain_step_ms"].median()
    yield "observed_step_ms", group["step_ms"].median()
    costs = sweep.costs[sweep.costs["cell"] == cell]
    for _, cost in costs.head(1).iterrows():
        yield from (("cost_ratio", cost["ratio"]), ("cost_low", cost["low"]), ("cost_high", cost["high"]))


def _tags(sweep: Sweep, cell: str, group: pd.DataFrame) -> Iterator[tuple[str, str]]:
    yield "verdict", worst([str(verdict) for verdict in group["verdict"]])
    diverged = group[group["first_site"].notna()]
    for _, trial in diverged.head(1).iterrows():
        yield "first_site", str(trial["first_site"])
        yield "first", describe_first(trial)
        if not missing(trial["cause"]):
            yield "cause", str(trial["cause"])
    for key in ("effect", "mitigation", "fault", "mode"):
        words = _each(group[key])
        if words and words != "none":
            yield key, words
    errors = group[group["error"].notna()]
    if len(errors):
        yield "error", str(errors.iloc[0]["error"])
    yield "cell", cell
    yield "sweep", sweep.folder.name


def _each(column: Iterable[Any]) -> str:
    return ", ".join(dict.fromkeys(str(word) for word in column if isinstance(word, str) and word))
