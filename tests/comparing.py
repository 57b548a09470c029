"""Sweeps on disk for tests of what compares them: trials with records and the environments of their ranks."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from detsweep.paths import SweepPaths, TrialPaths, write_json
from detsweep.plan import Cell, Plan
from tests.support import plan_of, trial_of, write_cells, write_trial

_PORTS = count(20_000)
Differs = Mapping[int, Mapping[tuple[int, int], int]]
"""Of each rank the step and run that differ, with the record from which on."""


def environment(rank: int = 0, **more: Any) -> dict[str, Any]:
    """What a rank on a CPU writes of its environment; `variables` are added to those that every rank has."""
    variables = {"OMP_NUM_THREADS": "1", "MASTER_PORT": str(next(_PORTS))}
    return {
        "schema": 2,
        "rank": rank,
        "host": "one",
        "node": None,
        "pid": 4242 + rank,
        "python": "3.11.7",
        "platform": "Linux-6",
        "detsweep": "0.1.0",
        "torch": "2.13.0+cpu",
        "torch_git": "cf30153c",
        "device": {"type": "cpu", "name": "A CPU", "cores": 2},
        "settings": {"deterministic_algorithms": "off", "num_threads": 1, "cpu_capability": "AVX512"},
        "libraries": ["/opt/torch/lib/libtorch_cpu.so"],
        "versions": {"mkl": "2024.2", "onednn": "3.12.0"},
        **more,
        "variables": {**variables, **more.get("variables", {})},
    }


def write_environments(trial: TrialPaths, ranks: int, **more: Any) -> None:
    """Write the environments of all ranks of a trial, alike but for what is each process's own."""
    for rank in range(ranks):
        write_json(trial.environment(rank), environment(rank, **more))


def written(
    folder: Path,
    *points: Sequence[str],
    common: Sequence[str] = (),
    differs: Mapping[int, Differs] | None = None,
    **more: Any,
) -> tuple[SweepPaths, Plan]:
    """A sweep in which every trial of every cell ran to its end; `differs` says of cells, by place, what is not well.

    A cell's own variables are in the environments of its ranks; `more` is what these have besides.
    """
    plan = plan_of(*points, common=common)
    sweep = write_cells(folder, plan)
    for place, cell in enumerate(plan.cells):
        for number in range(cell.trials):
            write_trial(trial_of(sweep, cell, number), cell, number, differs=(differs or {}).get(place))
            write_environments(trial_of(sweep, cell, number), cell.world_size, **_with_variables(cell, more))
    return sweep, plan


def written_anew(trial: TrialPaths, cell: Cell, number: int = 0, *, differs: Differs) -> None:
    """Put another trial in the place of one that is there."""
    shutil.rmtree(trial.folder)
    write_trial(trial, cell, number, differs=differs)
    write_environments(trial, cell.world_size)


def _with_variables(cell: Cell, more: Mapping[str, Any]) -> dict[str, Any]:
    return {**more, "variables": {**cell.config["env"], **more.get("variables", {})}}
