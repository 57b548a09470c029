"""The divergence matrix as a wide table: any axes against each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd

from detsweep.analysis.cells import has_key
from detsweep.analysis.celltable import Rows, effects, firsts
from detsweep.analysis.frames import Sweep
from detsweep.analysis.marks import shown_as
from detsweep.analysis.rates import Rate, chances_by_trial
from detsweep.analysis.verdicts import VALID, worst
from detsweep.analysis.words import median, missing
from detsweep.baselines import value_of
from detsweep.chances import Chances, summed

_DERIVED = ("shown_as", "rate", "bound", "cost", "first")
"""Values of a field that are no column of the trials."""
_COUNTED = ("replays", "bound")
"""Those that are sums of chances."""


def pivot(
    sweep: Sweep, *, rows: str | list[str] | None = None, columns: str | list[str] | None = None, value: str = "verdict"
) -> pd.DataFrame:
    """Any column of the trials as a table of axes against axes; no row is dropped because a key is missing.

    `rows` and `columns` default to the axes that vary, the last of them across. `verdict` shows the worst verdict of
    the trials that meet in a field, `shown_as` the same or `inert`, `rate` is "diverged/valid" trials, `replays` the
    same of replays, of a trajectory up to the first step that differs, as in the cell table, `bound` the rate per
    replay below which it lies with 95% confidence, where all that meet in a field have one rate, `cost` the ratio of
    step times, `first` the first divergence in words; numbers are medians, other values are joined. Any key of the
    configuration is a column here, whether or not it varies.
    Raises KeyError, listing what there is, for a name that is neither.
    """
    along = _names(rows) if rows is not None else list(sweep.axes[:-1] or sweep.axes)
    across = _names(columns) if columns is not None else list(sweep.axes[-1:] if len(sweep.axes) > 1 else ())
    trials = sweep.trials.copy()
    for name in (*along, *across, value):
        if name not in trials and name not in _DERIVED:
            trials[name] = _constant(sweep, name)
    keys = [*along, *across]
    numbers = value not in _DERIVED and pd.api.types.is_numeric_dtype(trials[value])
    # By hand: pandas drops rows whose key is missing unless it is told otherwise, and takes milliseconds for a group.
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for trial in trials.to_dict("records"):
        groups.setdefault(tuple(None if missing(trial[key]) else trial[key] for key in keys), []).append(trial)
    ratios = dict(zip(sweep.costs["cell"], sweep.costs["ratio"], strict=True))
    seen = chances_by_trial(sweep) if value in _COUNTED else {}
    fields = {key: _field(group, value, ratios, seen, numbers=numbers) for key, group in groups.items()}
    if not keys:
        single: pd.DataFrame = pd.DataFrame({value: list(fields.values())})
        return single
    # Not by unstack: without sorting, pandas before 3 puts values into the wrong fields where the grid has holes.
    places = [(key[: len(along)], key[len(along) :]) for key in fields]
    down, over = list(dict.fromkeys(row for row, _ in places)), list(dict.fromkeys(column for _, column in places))
    content = [[fields.get((*row, *column)) for column in over] for row in down]
    wide: pd.DataFrame = pd.DataFrame(content, index=_axis(down, along), columns=_axis(over, across))
    return wide if across else wide.set_axis([value], axis=1)


def _axis(keys: list[tuple[Any, ...]], names: list[str]) -> pd.Index[Any] | None:
    if not names:
        return None
    index: pd.Index[Any] = pd.MultiIndex.from_tuples(keys, names=names)
    if len(names) == 1:
        index = pd.Index([key[0] for key in keys], name=names[0])
    return index


def _field(
    trials: Rows, value: str, costs: Mapping[str, float], seen: Mapping[tuple[str, int], Chances], *, numbers: bool
) -> Any:
    verdicts = [str(trial["verdict"]) for trial in trials]
    valid = [trial for trial in trials if trial["verdict"] in VALID]
    keys = [(str(trial["cell"]), int(trial["trial"])) for trial in valid]
    rate = Rate(summed(seen[key] for key in keys if key in seen))
    special: dict[str, Callable[[], Any]] = {
        "verdict": lambda: worst(verdicts),
        "shown_as": lambda: shown_as({**trials[0], "verdict": worst(verdicts), "effect": effects(trials)}),
        "rate": lambda: f"{verdicts.count('diverged')}/{len(valid)}",
        "replays": lambda: rate.counted,
        "bound": lambda: rate.bound,
        "cost": lambda: median({trial["cell"]: costs.get(trial["cell"]) for trial in trials}.values()),
        "first": lambda: firsts([trial for trial in trials if not missing(trial["first_site"])]),
    }
    if value in special:
        return special[value]()
    if numbers:
        return median(trial[value] for trial in trials)
    return ", ".join(dict.fromkeys(str(trial[value]) for trial in trials if not missing(trial[value])))


def _constant(sweep: Sweep, key: str) -> list[Any]:
    """A key's value in each trial's cell."""
    values = [value_of(sweep.configs[cell], key) if cell in sweep.configs else "" for cell in sweep.trials["cell"]]
    if not any(has_key(config, key) for config in sweep.configs.values()):
        columns = ", ".join(map(str, [*sweep.trials.columns, *_DERIVED]))
        raise KeyError(f"no column and no configuration key {key!r}; columns: {columns}")
    return values


def _names(names: str | list[str]) -> list[str]:
    return [names] if isinstance(names, str) else list(names)
