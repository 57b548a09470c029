"""The divergence matrix as a table of cells, one row for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from detsweep.analysis.cells import rows_by_cell
from detsweep.analysis.compared import Against, against_none
from detsweep.analysis.control import judge
from detsweep.analysis.costs import cost_words
from detsweep.analysis.frames import Sweep
from detsweep.analysis.rates import LAUNCH_COLUMNS, Rate, rates
from detsweep.analysis.verdicts import FAILED, VALID, worst
from detsweep.analysis.words import counted, describe_first, describe_place, listed, median, missing, said, total
from detsweep.baselines import value_of
from detsweep.crosstrial import RAN

MATRIX_COLUMNS = (
    "verdict", "fault", "mitigation", "effect", "against_none", "p_against_none", "cost", "diverged", "errors",
    "stopped", "replays", "rate", "rate_low", "rate_high", "upper_bound", *LAUNCH_COLUMNS, "first",
    "cause", "closer_look", "loss", "ranks", "baseline", "differs_from_baseline", "baseline_loss", "plain_step_ms",
    "step_ms", "retries", "error", "log_tail",
)  # fmt: skip

Rows = Sequence[Mapping[str, Any]]
"""Trials as rows of a frame."""


def cell_table(sweep: Sweep) -> pd.DataFrame:
    """One row for each cell, in the sweep's order.

    Columns: the axes that vary; `verdict`, the worst of its trials; `fault` and `mitigation` where any cell has one;
    what became of its mitigations as `effect` (see detsweep.mitigations.effect), and what they `cost`, as a ratio of
    step times with its spread; `diverged` as "diverged/valid trials"; `errors`; `replays` as "diverged/compared
    replays" of the valid trials, of a trajectory up to the first step that differs; `rate`, the ratio of these, with
    its 95% interval from `rate_low` to `rate_high`; `upper_bound`, below which it lies with 95% confidence when none
    diverged; where a cell has several valid trials `launch_rate`, the share of launches that diverged, with its
    interval; where a cell `stopped` early, after how many trials and why; where the same cell without mitigations is
    there, how it compares `against_none`, and the p of that (see detsweep.analysis.rates and .compared); the `first`
    divergence of the first trial that has one; `ranks`, all that diverged in any trial; milliseconds of a step without
    and with observation (medians of the valid trials); `retries`, how often its trials were submitted again, or started
    anew by Slurm, where any was; the first `error` and the end of its log. With the first divergence its `cause`;
    `closer_look`, what a drill found; `loss`, in how many of the diverged comparisons the loss differs, or how many
    steps after the first divergence it does. Where cells have a `baseline`: which, where the cell
    `differs_from_baseline` first, and whether its loss does.
    """
    known, trials = rates(sweep), rows_by_cell(sweep.trials)
    pairs = against_none(sweep, known)
    costs, baselines = rows_by_cell(sweep.costs), rows_by_cell(sweep.baselines)
    rows = [
        {
            **_cell_row(sweep, own),
            **_statistics(known[cell], pairs.get(cell)),
            "cost": cost_words(costs[cell][0]) if cell in costs else "",
            **_baseline(sweep, baselines.get(cell)),
        }
        for cell, own in trials.items()
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


def _cell_row(sweep: Sweep, trials: Rows) -> dict[str, Any]:
    verdicts = [str(trial["verdict"]) for trial in trials]
    valid = [trial for trial in trials if trial["verdict"] in VALID]
    ran = [trial for trial in trials if trial["verdict"] in RAN]
    diverged = [trial for trial in trials if not missing(trial["first_site"])]
    failed = [trial for trial in trials if not missing(trial["error"])]
    # A cell that cannot be read has no value on any axis.
    row = {name: said(trials[0][name]) for name in ("cell", "slug", "fault", "mitigation", *sweep.axes)}
    return {
        **row,
        "verdict": worst(verdicts),
        "effect": effects(trials),
        "diverged": f"{verdicts.count('diverged')}/{len(valid)}",
        "errors": sum(verdict in FAILED for verdict in verdicts),
        "first": firsts(diverged),
        "cause": str(said(diverged[0]["cause"])) if diverged else "",
        "closer_look": _closer_look(sweep, row["cell"]),
        "loss": ", ".join(dict.fromkeys(trial["loss"] for trial in valid if not missing(trial["loss"]))),
        "ranks": listed({rank for trial in diverged for rank in trial["diverged_ranks"]}),
        "plain_step_ms": median(trial["plain_step_ms"] for trial in ran),
        "step_ms": median(trial["step_ms"] for trial in ran),
        "retries": _retries(trials),
        "error": str(failed[0]["error"]) if failed else "",
        "log_tail": str(said(failed[0]["log_tail"])) if failed else "",
    }


def effects(trials: Rows) -> str:
    """What became of the mitigations of trials, each outcome once."""
    return ", ".join(dict.fromkeys(trial["effect"] for trial in trials if said(trial["effect"])))


def _statistics(rate: Rate, against: Against | None) -> dict[str, Any]:
    return {
        "replays": rate.counted,
        **rate.columns(),
        "stopped": "" if rate.stopped is None else rate.stopped.words,
        "against_none": "" if against is None else against.words,
        "p_against_none": None if against is None else against.p,
    }


def firsts(diverged: Rows) -> str:
    """Where the first of these trials diverged first, and in how many other places others did."""
    places = list(dict.fromkeys(describe_first(trial) for trial in diverged))
    more = f" (+{len(places) - 1} other)" if len(places) > 1 else ""
    return places[0] + more if places else ""


def _retries(trials: Rows) -> str:
    again, anew = total(trials, "retries"), total(trials, "requeues")
    told = [counted(again, "retry", "retries")] if again else []
    return ", ".join([*told, *([counted(anew, "requeue")] if anew else [])])


def _closer_look(sweep: Sweep, cell: str) -> str:
    drill = sweep.drills.get(cell)
    if drill is None:
        return ""
    if not drill.first:
        verdict = {"pass": "pass: it did not show again", "none": "none yet"}.get(drill.verdict, drill.verdict)
        return verdict if drill.error is None else f"{verdict}: {drill.error}"
    return f"{drill.first['cause'] or 'no cause'}: {describe_first(drill.first)}"


def _baseline(sweep: Sweep, compared: Rows | None) -> dict[str, str]:
    if compared is None:
        return {"baseline": "", "differs_from_baseline": "", "baseline_loss": ""}
    row = compared[0]
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
