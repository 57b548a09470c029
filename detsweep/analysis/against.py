"""Cells against their baselines (`against`), from the records of both."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import cache
from typing import Any

from detsweep.analysis.fleet import golden_place
from detsweep.analysis.rows import Cell, Trials
from detsweep.baselines import Baselines
from detsweep.crosstrial import RAN, CrossComparison, against_baseline
from detsweep.paths import FileError, TrialPaths
from detsweep.results import check_records

BASELINE_COLUMNS = (
    "cell", "baseline", "equal", "compared", "differing", "site", "block", "name", "phase", "kind", "cause", "rank",
    "step", "loss_equal", "repeats", "error",
)  # fmt: skip


def baseline_rows(
    cells: Iterable[Cell], found: Mapping[str, Trials], screened: Collection[str] = ()
) -> list[dict[str, Any]]:
    """A row for each cell that has another one of the sweep as its baseline.

    Not of those that are `screened` in a fleet and have a place of it for their baseline: there they are compared.
    """
    own = list(cells)
    pairs = [(cell["config"], cell["overrides"]) for cell in own]
    compared = []
    baselines = cache(lambda against: Baselines(pairs, against))
    for place, cell in enumerate(own):
        against = cell["config"].get("against")
        if against is None or (cell["id"] in screened and golden_place(against)):
            continue
        try:
            baseline = baselines(against).of(pairs[place])
        except ValueError as error:
            compared.append({"cell": cell["id"], "error": str(error)})
            continue
        if baseline is not None:
            other = own[baseline]
            compared.append(baseline_row(cell, found[cell["id"]], other, found[other["id"]]))
    return compared


def baseline_row(cell: Cell, trials: Trials, baseline: Cell, its_trials: Trials) -> dict[str, Any]:
    """How the first valid trial of a cell compares with its baseline's; the row says what is missing where one is."""
    row: dict[str, Any] = {"cell": cell["id"], "baseline": baseline["id"]}
    own, other = _first_valid(trials), _first_valid(its_trials)
    if own is None or other is None:
        return {**row, "error": "no result" if own is None else "its baseline has no result"}
    try:
        for one in (own, other):
            check_records(*one)
        crossed = against_baseline(own[0], cell["config"], other[0], baseline["config"])
    except (FileError, ValueError) as error:
        return {**row, "error": str(error)}
    repeats = not any(result["verdict"] == "diverged" for _, result in [*trials.values(), *its_trials.values()])
    return {**row, **_crossed(crossed), "repeats": repeats}


def _crossed(crossed: CrossComparison) -> dict[str, Any]:
    first = crossed.first
    place = {} if first is None else {key: value for key, value in first.to_json().items() if key in BASELINE_COLUMNS}
    return {
        **place,
        "equal": first is None,
        "compared": crossed.compared,
        "differing": len({(d.step, d.run) for d in crossed.divergences}),
        "loss_equal": crossed.loss_differs == 0,
    }


def _first_valid(trials: Trials) -> tuple[TrialPaths, Mapping[str, Any]] | None:
    return next((one for one in trials.values() if one[1]["verdict"] in RAN), None)
