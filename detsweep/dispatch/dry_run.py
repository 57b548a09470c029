"""What a sweep would do: every cell, and the command of its first trial."""

from __future__ import annotations

import os
import shlex

from detsweep import environment
from detsweep.dispatch.torchrun import environment_of, torchrun_arguments
from detsweep.paths import SweepPaths
from detsweep.plan import Plan


def dry_run(plan: Plan, sweep: SweepPaths) -> None:
    """Print every cell and the exact command of its first trial; start nothing, write nothing."""
    print(f"{len(plan.cells)} cells, {sum(cell.trials for cell in plan.cells)} trials, into {sweep.folder}")
    known, shell, gpus_here = sweep.cell_folders(), dict(os.environ), environment.visible_gpus()
    for number, cell in enumerate(plan.cells, start=1):
        paths = sweep.cell(cell.slug, cell.id, known)
        print(f"\n[{number}/{len(plan.cells)}] {cell.label}  (id {cell.id}, trials={cell.trials})")
        if cell.unsupported:
            print(f"  unsupported: {cell.unsupported}")
            continue
        spec, trial = cell.spec(0), paths.trial(0)
        gpus = gpus_here[: cell.world_size] if cell.config["device"] == "cuda" else ()
        child = environment_of(spec, shell, gpus, trial)
        words = ["env", *(word for name in sorted(child.removed) for word in ("-u", name))]
        words += [f"{name}={value}" for name, value in sorted(child.changed.items())]
        print("  " + shlex.join([*words, "torchrun", *torchrun_arguments(spec, trial)]))
    print("\nA trial's folder gets the spec.json that its ranks read when the sweep is run.")
