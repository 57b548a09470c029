"""Positive controls: was a fault that was put in on purpose found, and in its place?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

    from detsweep.analysis.frames import Sweep

GOOD = ("clean", "found in place")


def judge(sweep: Sweep, cell: str) -> str:
    """What a cell says about the detector.

    `clean` and `found in place` are what they should be; `false alarm` is a divergence without a fault, `missed` a
    fault without one, `misplaced` a fault that was found elsewhere; `no verdict` is neither.
    """
    trials = sweep.trials[sweep.trials["cell"] == cell]
    verdicts = set(map(str, trials["verdict"]))
    if not verdicts <= {"pass", "diverged"}:
        return "no verdict"
    config = sweep.configs[cell]
    if config["fault"]["kind"] == "none":
        return "clean" if verdicts == {"pass"} else "false alarm"
    if "pass" in verdicts:
        return "missed"
    placed = all(_in_place(config, trial) for _, trial in trials.iterrows())
    return "found in place" if placed else "misplaced"


def _in_place(config: Mapping[str, Any], trial: pd.Series[Any]) -> bool:
    fault, world = config["fault"], config["world"]
    everyone = range(world["nodes"] * world["nproc_per_node"])
    # A fault in the first run, the reference, shows in each run after it.
    run = f"r{max(2, fault['run'])}"
    found = (trial["first_step"], trial["first_run"], trial["first_ranks"])
    if found != (fault["step"], run, tuple(everyone) if fault["rank"] is None else (fault["rank"],)):
        return False
    if fault["kind"] == "input_flip":
        return bool(trial["first_site"] == "input" and trial["first_name"] == "input_ids")
    return bool(trial["first_site"] == "block_post" and trial["first_block"] == fault["block"])
