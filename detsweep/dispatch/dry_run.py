"""What a sweep would do: every cell, and the command of its first trial."""

from __future__ import annotations

import os
import shlex

from detsweep import environment, stopping
from detsweep.dispatch.torchrun import ALONE, Place, environment_of, torchrun_arguments
from detsweep.paths import SweepPaths
from detsweep.plan import Cell, Plan
from detsweep.resources import resources_of

_GPUS = "CUDA_VISIBLE_DEVICES"


def dry_run(plan: Plan, sweep: SweepPaths) -> None:
    """Print every cell and the exact command of its first trial; start nothing, write nothing."""
    rule = {key: value for key, value in stopping.rule_of(plan.options).items() if value is not None}
    stops = "".join(f", stop_after.{key}={value}" for key, value in rule.items())
    total = f"{'at most ' if rule else ''}{sum(cell.trials for cell in plan.cells)} trials{stops}"
    print(f"{len(plan.cells)} cells, {total}, into {sweep.folder}")
    known, shell, gpus_here = sweep.cell_folders(), dict(os.environ), environment.visible_gpus()
    for number, cell in enumerate(plan.cells, start=1):
        paths = sweep.cell(cell.slug, cell.id, known)
        print(f"\n[{number}/{len(plan.cells)}] {cell.label}  (id {cell.id}, trials={cell.trials})")
        if cell.unsupported:
            print(f"  unsupported: {cell.unsupported}")
            continue
        spec, trial = cell.spec(0), paths.trial(0)
        on_slurm = cell.config["launch"]["name"] == "slurm"
        gpus = gpus_here[: cell.world_size] if cell.config["device"] == "cuda" and not on_slurm else ()
        child = environment_of(spec, shell, gpus, trial)
        words = ["env", *(word for name in sorted(child.removed) for word in ("-u", name))]
        # Which GPUs a job gets is known when it has them.
        told = {
            name: value for name, value in child.changed.items() if not (on_slurm and name == _GPUS and value == "")
        }
        words += [f"{name}={value}" for name, value in sorted(told.items())]
        if on_slurm:
            print("  " + shlex.join(["sbatch", *resources_of(cell.config).words()]))
        print("  " + shlex.join([*words, "torchrun", *torchrun_arguments(spec, trial, place=_place(cell))]))
    print("\nA trial's folder gets the spec.json that its ranks read when the sweep is run.")


def _place(cell: Cell) -> Place:
    """The first node of a cell; where nodes meet is known when the job runs."""
    nodes = int(cell.config["world"]["nodes"])
    return ALONE if nodes == 1 else Place(0, nodes, "FIRST_NODE", ("PORT_OF_THE_JOB",))
