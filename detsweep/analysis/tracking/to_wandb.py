"""Cells as runs of Weights & Biases: offline in the sweep's own folder, unless WANDB_MODE says otherwise."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from detsweep.analysis.tracking.runs import Tracked, TrackedRun
from detsweep.analysis.words import counted

PROJECT = "detsweep"
_LONGEST_TAG = 64
_TAGS = ("verdict", "first_site", "cause")
"""Those that are short and few: what is searched for. All of them are in the run's summary."""


def write(sweep: Tracked) -> str:
    """Write a run for each cell; offline one that was written before is replaced, online it is resumed."""
    mode = os.environ.setdefault("WANDB_MODE", "offline")
    os.environ.setdefault("WANDB_SILENT", "true")
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    import wandb

    # wandb itself makes a folder of this name in the one that it is given.
    where = sweep.paths.tracker("wandb")
    for run in sweep.runs:
        if mode == "offline":
            _remove(where, run.key)
        _write_run(wandb, sweep, run)
    # Its service writes on after a run has ended; this waits for it.
    wandb.teardown()
    upload = f"; to upload: wandb sync {where}/offline-run-*" if mode == "offline" else ""
    return f"{counted(len(sweep.runs), 'run')}, WANDB_MODE={mode}, in {where}{upload}"


def _remove(folder: Path, key: str) -> None:
    for earlier in folder.glob(f"offline-run-*-{key}"):
        shutil.rmtree(earlier)


def _write_run(wandb: Any, sweep: Tracked, run: TrackedRun) -> None:
    settings = wandb.Settings(console="off", disable_git=True, disable_code=True, x_disable_stats=True)
    tags = [run.tags[name][:_LONGEST_TAG] for name in _TAGS if name in run.tags]
    with wandb.init(
        project=os.environ.get("WANDB_PROJECT") or PROJECT,
        dir=str(sweep.paths.folder),
        id=run.key,
        name=run.name,
        group=sweep.name,
        tags=tags,
        config=dict(run.params),
        resume="allow",
        settings=settings,
    ) as opened:
        opened.log(dict(run.metrics))
        opened.summary.update(dict(run.tags))
        if sweep.matrix is not None:
            matrix = wandb.Artifact(f"matrix-{sweep.name}", type="report")
            matrix.add_file(str(sweep.matrix))
            opened.log_artifact(matrix)
