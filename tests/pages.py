"""Synthetic sweeps for the page: every verdict there is, names that would be markup, and many cells."""

from __future__ import annotations

import shutil
from pathlib import Path

from detsweep import Sweep, load
from detsweep.capture import Record
from detsweep.paths import SweepPaths, TrialPaths, write_json
from detsweep.plan import Cell
from detsweep.results import unsupported
from tests.support import (
    BLOCK_0_POST,
    BLOCK_1_POST,
    plan_of,
    record,
    trial_of,
    write_cells,
    write_failure,
    write_recorded,
    write_trial,
)

HOSTILE = "<script>alert('x')</script> & \"quotes\""
EVERY = ("pass", "diverged", "error", "timeout", "invalid", "unsupported", "none", "inert")
"""What the cells of `every_verdict` are shown as, in their order."""
DTYPES = ("bf16", "fp32")


def every_verdict(folder: Path) -> Sweep:
    """Four seeds by two dtypes, whose cells came to EVERY in this order; the error holds what would be markup."""
    points = [[f"seed={seed}", f"dtype={dtype}"] for seed in (2, 10, 9, 1) for dtype in DTYPES]
    plan = plan_of(*points)
    sweep = write_cells(folder, plan)
    for cell, verdict in zip(plan.cells, EVERY, strict=True):
        _write(trial_of(sweep, cell), cell, verdict)
    return load(folder)


def _write(trial: TrialPaths, cell: Cell, verdict: str) -> None:
    if verdict == "pass":
        write_trial(trial, cell)
    elif verdict == "diverged":
        write_trial(trial, cell, differs={0: {(0, 2): BLOCK_1_POST}, 1: {(0, 2): BLOCK_0_POST}})
        write_environments(trial, CUBLAS_WORKSPACE_CONFIG=":4096:8")
    elif verdict == "inert":
        write_trial(trial, cell, effects={"recipe": {"cudnn_deterministic": "inert"}})
    elif verdict == "invalid":
        write_trial(trial, cell, lost={0: ["A should be 1, is unset"]})
    elif verdict == "unsupported":
        write_json(trial.result, unsupported(cell.spec(0), "only for amd"))
    elif verdict != "none":
        trial.logs.mkdir(parents=True)
        trial.rank_log(1).write_text(f"first\n{HOSTILE}\n")
        write_failure(
            trial, cell, verdict=verdict, error=f"rank 1: {HOSTILE}", error_ranks=[1], log="log/rank001.log",
            log_tail=["first", HOSTILE],
        )  # fmt: skip


def write_environments(trial: TrialPaths, **variables: str) -> None:
    """What two ranks say of their environment."""
    settings = {"deterministic_algorithms": "off", "num_threads": 1}
    for rank in range(2):
        told = {"python": "3.11", "torch": "2.13", "device": {"type": "cpu"}, "settings": settings}
        write_json(trial.environment(rank), {"schema": 2, "rank": rank, **told, "variables": variables})


def many(folder: Path, cells: int, *, ranks: int = 8, layers: int = 24) -> SweepPaths:
    """A sweep of that many cells with that many ranks and layers; all ranks of all diverged, half of them later."""
    size = (f"world.nproc_per_node={ranks}", f"model.num_layers={layers}")
    plan = plan_of(*([f"seed={seed}"] for seed in range(cells)), common=size)
    sweep = write_cells(folder, plan)
    first = plan.cells[0]
    model = trial_of(sweep, first)
    sites = ("block_pre", "block_post", "block_grad_out", "block_grad_in")

    def records(rank: int, step: int, run: int) -> list[Record]:
        changed = 7 if run == 2 else 0
        return [
            record(site, f"blocks.{block}", 100 * block + (changed if block >= rank % 2 else 0), block=block)
            for block in range(layers)
            for site in sites
        ]

    result = write_recorded(model, first, records=records)
    write_environments(model, NCCL_ALGO="Ring", OMP_NUM_THREADS="1")
    # The same trial for every cell: writing it anew for each takes a minute.
    for cell in plan.cells[1:]:
        trial = trial_of(sweep, cell)
        shutil.copytree(model.folder, trial.folder)
        write_json(trial.result, {**result, "cell": cell.id})
        write_environments(trial, NCCL_ALGO="Tree", OMP_NUM_THREADS="1")
    return sweep
