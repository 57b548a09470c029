"""A sweep's frames taken apart by cell, once: a look through whole frames for each cell is slow where both are many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from detsweep.analysis.cells import rows_by_cell
from detsweep.analysis.commands import sessions_of
from detsweep.analysis.costs import without_mitigations
from detsweep.analysis.rates import Rate, chances_by_trial, rates
from detsweep.analysis.words import missing
from detsweep.chances import Chances

if TYPE_CHECKING:
    from detsweep.analysis.frames import Sweep


Rows = Sequence[Mapping[str, Any]]
"""Rows of a frame."""


@dataclass(frozen=True)
class Known:
    """What is known of each cell, by its id; a cell that has nothing of a kind is not there.

    `cells`: all that the matrix shows, in its order. `baselines`: what `against` names. `bare`: the cells without
    mitigations, by what they have in common with those that have some. `seen`: what each trial adds to its cell's rate.
    """

    sweep: Sweep
    cells: tuple[str, ...]
    trials: Mapping[str, Rows]
    divergences: Mapping[str, Rows]
    effects: Mapping[str, Rows]
    injections: Mapping[str, Rows]
    costs: Mapping[str, Mapping[Any, Any]]
    baselines: Mapping[str, str]
    bare: Mapping[str, str]
    rates: Mapping[str, Rate]
    seen: Mapping[tuple[str, int], Chances]
    sessions: tuple[Mapping[str, Any], ...]


def known(sweep: Sweep) -> Known:
    """Take the frames of a sweep apart."""
    bare: dict[str, str] = {}
    cells = tuple(map(str, dict.fromkeys(sweep.trials["cell"])))
    for cell in cells:
        if cell in sweep.configs and not mitigated(sweep.configs[cell]):
            bare.setdefault(without_mitigations(sweep.configs[cell]), cell)
    return Known(
        sweep,
        cells,
        rows_by_cell(sweep.trials),
        rows_by_cell(sweep.divergences),
        rows_by_cell(sweep.effects),
        rows_by_cell(sweep.injections),
        {str(row["cell"]): row for row in sweep.costs.to_dict("records")},
        {str(row["cell"]): str(row["baseline"]) for row in sweep.baselines.to_dict("records")
         if not missing(row["baseline"])},
        bare,
        rates(sweep),
        chances_by_trial(sweep),
        tuple(sessions_of(sweep)),
    )  # fmt: skip


def mitigated(config: Mapping[str, Any]) -> bool:
    """Whether a cell sets anything that is meant to make it repeat, or a variable of its own."""
    return bool(config["env"]) or any(one.get("env") or one.get("torch") for one in config["mitigation"].values())
