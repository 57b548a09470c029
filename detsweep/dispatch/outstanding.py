"""Which trials of a plan are to be launched: those without a settled result that an earlier command did not leave."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from detsweep import asked, results, stopping
from detsweep.dispatch.pools import Pool, Trial
from detsweep.paths import FileError, SweepPaths, TrialPaths, read_json, write_json
from detsweep.plan import Cell, Plan


def outstanding(plan: Plan, sweep: SweepPaths, pool: Pool) -> list[Trial]:
    """Write every cell, set aside what is to be done again, and return what is to be launched, in order.

    What is under way since an earlier command is left to the pool, and not launched twice.

    First the first trial of every cell, then the second, ...: what drifts on a machine drifts alike for a cell and
    for the one that its cost is measured against.
    """
    rerun = str(plan.options["launch"]["rerun"])
    trials = []
    known = sweep.cell_folders()
    for cell in plan.cells:
        paths = sweep.cell(cell.slug, cell.id, known)
        write_json(paths.cell, cell.to_json())
        for number in range(cell.trials):
            trial = paths.trial(number)
            result = results.read_result(trial)
            kept = result is not None and not _again(result, rerun, unsupported=cell.unsupported is not None)
            if kept and _required_then(trial, cell):
                continue
            if result is None and pool.adopt(Trial(cell, number, trial)):
                continue
            paths.set_aside(number)
            spec = cell.spec(number)
            if cell.unsupported is not None:
                write_json(trial.spec, spec)
                write_json(trial.result, results.unsupported(spec, cell.unsupported))
                continue
            if not stopping.has_rule(cell.config):
                write_json(trial.spec, spec)
            failed = result is not None and result["verdict"] not in results.SETTLED
            trials.append(Trial(cell, number, trial, owed=failed and rerun == "errors"))
    return sorted(trials, key=lambda trial: trial.number)


def _required_then(trial: TrialPaths, cell: Cell) -> bool:
    """Whether a trial that has a result was held to all that is required now; where nothing is, any was."""
    required = cell.required.to_json()
    if required == asked.NOTHING.to_json():
        return True
    try:
        return bool(read_json(trial.spec).get("required") == required)
    except FileError:
        # Nobody knows what it was held to.
        return False


def _again(result: Mapping[str, Any], rerun: str, *, unsupported: bool) -> bool:
    if (result["verdict"] == "unsupported") != unsupported:
        return True
    if rerun == "errors":
        return result["verdict"] not in results.SETTLED
    return rerun == "all" and not unsupported
