"""Positive controls: was what was put in on purpose found, and in its place?"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

    from detsweep.analysis.frames import Sweep

GOOD = ("clean", "found in place")
PLACED = 0.99
"""The share of found faults that must be in their place; one that a rank shares with a neighbour may not be."""


def judge(sweep: Sweep, cell: str) -> str:
    """What a cell says about the detector.

    `clean` and `found in place` are what they should be; `false alarm` is a divergence without a fault, `missed` a
    fault without one, `misplaced` a fault that was found elsewhere, `wrong cause` one that was taken for another,
    `not put in` a fault that struck nothing; `no verdict` is neither.
    """
    trials = sweep.trials[sweep.trials["cell"] == cell]
    verdicts = set(map(str, trials["verdict"]))
    if not verdicts <= {"pass", "diverged"}:
        return "no verdict"
    if sweep.configs[cell]["fault"]["kind"] == "none":
        return "clean" if verdicts == {"pass"} else "false alarm"
    faults = sweep.injections[sweep.injections["cell"] == cell]
    if faults.empty or faults["detected"].isna().any():
        return "not put in"
    if not faults["detected"].all():
        return "missed"
    if faults["placed"].mean() < PLACED:
        return "misplaced"
    if faults["caused"].mean() < PLACED:
        return "wrong cause"
    return "false alarm" if trials["false_alarms"].sum() else "found in place"


def campaign(sweep: Sweep) -> pd.DataFrame:
    """Faults by mode, persistence and kind: how many were put in, detected, placed right and missed.

    `by_replay`: how many of them comparing runs of one process would have found.
    """
    put_in = sweep.injections[sweep.injections["detected"].notna()]
    groups = put_in.groupby(["mode", "persistence", "kind"], sort=False)
    table = groups.agg(
        put_in=("detected", "size"),
        detected=("detected", "sum"),
        placed=("placed", "sum"),
        cause=("caused", "sum"),
        by_replay=("detected_by_replay", "sum"),
    )
    table["missed"] = table["put_in"] - table["detected"]
    shown: pd.DataFrame = table.astype(int).reset_index()
    return shown
