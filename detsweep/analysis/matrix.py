"""The divergence matrix: one row for each cell, or any pair of axes against each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd

from detsweep.analysis.cells import has_key
from detsweep.analysis.compared import Against, against_none
from detsweep.analysis.control import judge
from detsweep.analysis.costs import cost_words
from detsweep.analysis.frames import Sweep
from detsweep.analysis.marks import shown_as
from detsweep.analysis.rates import LAUNCH_COLUMNS, Rate, rates
from detsweep.analysis.verdicts import FAILED, VALID, worst
from detsweep.analysis.words import counted, describe_first, describe_place, listed, missing
from detsweep.baselines import value_of
from detsweep.bounds import rate_below, upper_bound
from detsweep.crosstrial import RAN

MATRIX_COLUMNS = (
    "verdict", "fault", "mitigation", "effect", "against_none", "p_against_none", "cost", "diverged", "errors",
    "stopped", "replays", "rate", "rate_low", "rate_high", "upper_bound", *LAUNCH_COLUMNS, "first",
    "cause", "closer_look", "loss", "ranks", "baseline", "differs_from_baseline", "baseline_loss", "plain_step_ms",
    "step_ms", "retries", "error", "log_tail",
)  # fmt: skip


_DERIVED = ("shown_as", "rate", "bound", "cost", "first")
"""Values of a field that are no column of the trials."""


def cell_table(sweep: Sweep) -> pd.DataFrame:
    """One row for each cell, in the sweep's order.

    Columns: the axes that vary; `verdict`, the worst of its trials; `fault` and `mitigation` where any cell has one;
    what became of its mitigations as `effect` (see detsweep.mitigations.effect), and what they `cost`, as a ratio of
    step times with its spread; `diverged` as "diverged/valid trials"; `errors`; `replays` as "diverged/compared
    replays" of the valid trials; `rate`, that of a replay, with its 95% interval from `rate_low` to `rate_high`;
    `upper_bound`, below which it lies with 95% confidence when none diverged; where a cell has several valid trials
    `launch_rate`, the share of launches that diverged, with its interval; where a cell `stopped` early, after how many
    trials and why; where the same cell without mitigations is there, how it compares `against_none`, and the p of that
    (see detsweep.analysis.rates and .compared); the `first` divergence of the first trial that has one; `ranks`, all
    that diverged in any trial; milliseconds of a step without and with observation (medians of the valid trials);
    `retries`, how often its trials were submitted again, or started anew by Slurm, where any was; the first `error` and
    the end of its log. With the first divergence its `cause`; `closer_look`, what a drill found; `loss`, in how many of
    the diverged comparisons
    the loss differs, or how many steps after the first divergence it does. Where cells have a `baseline`:
    which, where the cell `differs_from_baseline` first, and whether its loss does.
    """
    known = rates(sweep)
    pairs = against_none(sweep, known)
    rows = [
        {**_cell_row(sweep, group), **_statistics(known[str(cell)], pairs.get(str(cell)))}
        for cell, group in sweep.trials.groupby("cell", sort=False, dropna=False)
    ]
    # The cell column names rows of a sweep without axes, and of a cell whose own file is broken.
    table = pd.DataFrame(rows)
    columns = [*(sweep.axes or ("slug",)), *(column for column in MATRIX_COLUMNS if column not in sweep.axes)]
    idle = {"fault": {"none", ""}, "mitigation": {"none", ""}}
    idle |= {column: {""} for column in ("closer_look", "effect", "cost", "retries", "stopped", "against_none")}
    for column, nothing in idle.items():
        if column not in sweep.axes and set(table[column]) <= nothing:
            columns.remove(column)
    if set(table["differs_from_baseline"]) <= {""}:
        columns = [name for name in columns if name not in ("baseline", "differs_from_baseline", "baseline_loss")]
    if "against_none" not in columns:
        columns.remove("p_against_none")
    if table["launch_rate"].isna().all():
        columns = [name for name in columns if name not in LAUNCH_COLUMNS]
    if sweep.positive_control:
        table["control"] = [judge(sweep, cell) for cell in table["cell"]]
        columns.append("control")
    shown: pd.DataFrame = table[columns]
    return shown


def pivot(
    sweep: Sweep, *, rows: str | list[str] | None = None, columns: str | list[str] | None = None, value: str = "verdict"
) -> pd.DataFrame:
    """Any column of the trials as a table of axes against axes; no row is dropped because a key is missing.

    `rows` and `columns` default to the axes that vary, the last of them across. `verdict` shows the worst verdict of
    the trials that meet in a field, `shown_as` the same or `inert`, `rate` is "diverged/valid" trials, `replays` the
    same of replays, `bound` the rate per replay below which it lies with 95% confidence, `cost` the ratio of step
    times, `first` the first divergence in words; numbers are medians, other values are joined. Any key of the
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
    if not keys:
        single: pd.DataFrame = pd.DataFrame({value: [_field(trials, value, sweep)]})
        return single
    # A group of one key is named by a plain value, of several by a tuple; by dropna=False no missing key drops a row.
    fields = {
        key if isinstance(key, tuple) else (key,): _field(group, value, sweep)
        for key, group in trials.groupby(keys, sort=False, dropna=False, observed=True)
    }
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


def _cell_row(sweep: Sweep, group: pd.DataFrame) -> dict[str, Any]:
    verdicts = [str(verdict) for verdict in group["verdict"]]
    valid = sum(verdict in VALID for verdict in verdicts)
    counted = group[group["verdict"].isin(VALID)]
    ran = group[group["verdict"].isin(RAN)]
    replays, diverged_replays = int(counted["replays"].sum()), int(counted["diverged_replays"].sum())
    diverged = group[group["first_site"].notna()]
    failed = group[group["error"].notna()]
    error, log_tail = failed.iloc[0][["error", "log_tail"]] if len(failed) else ("", "")
    first = {name: group[name].iloc[0] for name in ("cell", "slug", "fault", "mitigation", *sweep.axes)}
    # A cell that cannot be read has no value on any axis.
    row: dict[str, Any] = {name: "" if missing(value) else value for name, value in first.items()}
    return {
        **row,
        "verdict": worst(verdicts),
        "effect": _effects(group),
        "cost": _cost(sweep, row["cell"]),
        "diverged": f"{verdicts.count('diverged')}/{valid}",
        "errors": sum(verdict in FAILED for verdict in verdicts),
        "replays": f"{diverged_replays}/{replays}",
        "upper_bound": upper_bound(replays) if replays and not diverged_replays else None,
        "first": _firsts(diverged),
        "cause": "" if diverged.empty or missing(diverged.iloc[0]["cause"]) else str(diverged.iloc[0]["cause"]),
        "closer_look": _closer_look(sweep, row["cell"]),
        "loss": ", ".join(dict.fromkeys(loss for loss in counted["loss"] if isinstance(loss, str))),
        **_baseline(sweep, row["cell"]),
        "ranks": listed({rank for ranks in diverged["diverged_ranks"] for rank in ranks}),
        "plain_step_ms": ran["plain_step_ms"].median(),
        "step_ms": ran["step_ms"].median(),
        "retries": _retries(group),
        "error": str(error),
        "log_tail": "" if missing(log_tail) else str(log_tail),
    }


def _effects(group: pd.DataFrame) -> str:
    return ", ".join(dict.fromkeys(effect for effect in group["effect"] if isinstance(effect, str) and effect))


def _statistics(rate: Rate, against: Against | None) -> dict[str, Any]:
    return {
        **rate.columns(),
        "stopped": "" if rate.stopped is None else rate.stopped.words,
        "against_none": "" if against is None else against.words,
        "p_against_none": None if against is None else against.p,
    }


def _firsts(diverged: pd.DataFrame) -> str:
    if diverged.empty:
        return ""
    places = {describe_first(trial) for _, trial in diverged.iterrows()}
    more = f" (+{len(places) - 1} other)" if len(places) > 1 else ""
    return describe_first(diverged.iloc[0]) + more


def _retries(group: pd.DataFrame) -> str:
    again, anew = int(group["retries"].sum()), int(group["requeues"].sum())
    said = [counted(again, "retry", "retries")] if again else []
    return ", ".join([*said, *([counted(anew, "requeue")] if anew else [])])


def _cost(sweep: Sweep, cell: str) -> str:
    found = sweep.costs[sweep.costs["cell"] == cell]
    return "" if found.empty else cost_words(found.iloc[0])


def _closer_look(sweep: Sweep, cell: str) -> str:
    drill = sweep.drills.get(cell)
    if drill is None:
        return ""
    if not drill.first:
        verdict = {"pass": "pass: it did not show again", "none": "none yet"}.get(drill.verdict, drill.verdict)
        return verdict if drill.error is None else f"{verdict}: {drill.error}"
    return f"{drill.first['cause'] or 'no cause'}: {describe_first(drill.first)}"


def _baseline(sweep: Sweep, cell: str) -> dict[str, str]:
    found = sweep.baselines[sweep.baselines["cell"] == cell]
    if found.empty:
        return {"baseline": "", "differs_from_baseline": "", "baseline_loss": ""}
    row = found.iloc[0]
    baseline = "" if missing(row["baseline"]) else label_of(sweep, row["baseline"])
    if not missing(row["error"]):
        return {"baseline": baseline, "differs_from_baseline": f"not compared: {row['error']}", "baseline_loss": ""}
    place = "equal"
    if not row["equal"]:
        cause = "" if missing(row["cause"]) else f"{row['cause']}: "
        place = f"{cause}{describe_place(row)}, rank {row['rank']}, step {row['step']}"
        if not row["repeats"]:
            place += " (but one of the two does not repeat)"
    return {
        "baseline": baseline,
        "differs_from_baseline": place,
        "baseline_loss": "equal" if row["loss_equal"] else "differs",
    }


def label_of(sweep: Sweep, cell: str) -> str:
    """What tells a cell from the others of its sweep, or its id where nothing of the command line does."""
    config, overrides = sweep.configs[cell], sweep.overrides[cell]
    axes = [key for key in sweep.axes if key != "cell"]
    return " ".join(f"{key}={value_of(config, key, overrides)}" for key in axes) or cell


def _field(group: pd.DataFrame, value: str, sweep: Sweep) -> Any:
    verdicts = [str(verdict) for verdict in group["verdict"]]
    counted = group[group["verdict"].isin(VALID)]
    compared, diverged = int(counted["replays"].sum()), int(counted["diverged_replays"].sum())
    special: dict[str, Callable[[], Any]] = {
        "verdict": lambda: worst(verdicts),
        "shown_as": lambda: shown_as({"verdict": worst(verdicts), "effect": _effects(group)}),
        "rate": lambda: f"{verdicts.count('diverged')}/{len(counted)}",
        "replays": lambda: f"{diverged}/{compared}",
        "bound": lambda: rate_below(diverged, compared) if compared else None,
        "cost": sweep.costs[sweep.costs["cell"].isin(set(group["cell"]))]["ratio"].median,
        "first": lambda: _firsts(group[group["first_site"].notna()]),
    }
    if value in special:
        return special[value]()
    if pd.api.types.is_numeric_dtype(group[value]):
        return group[value].median()
    return ", ".join(dict.fromkeys(str(item) for item in group[value] if not missing(item)))


def _constant(sweep: Sweep, key: str) -> list[Any]:
    """A key's value in each trial's cell."""
    values = [value_of(sweep.configs[cell], key) if cell in sweep.configs else "" for cell in sweep.trials["cell"]]
    if not any(has_key(config, key) for config in sweep.configs.values()):
        columns = ", ".join(map(str, [*sweep.trials.columns, *_DERIVED]))
        raise KeyError(f"no column and no configuration key {key!r}; columns: {columns}")
    return values


def _names(names: str | list[str]) -> list[str]:
    return [names] if isinstance(names, str) else list(names)
