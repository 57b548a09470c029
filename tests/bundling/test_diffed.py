"""A sweep held against its own redacted bundle: what was redacted is no difference, all else is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from detsweep.bundling import make
from detsweep.paths import SweepPaths, read_json, write_json
from tests.support import plan_of, trial_of, write_cells, write_trial

VARIABLES = {
    "TORCHINDUCTOR_CACHE_DIR": "/scratch/torchinductor_mallory",
    "NCCL_ALGO": "Ring",
    "LD_PRELOAD": "/opt/m/x.so:y",
}


def _sweep(folder: Path, variables: dict[str, str]) -> SweepPaths:
    plan = plan_of(["seed=1"], common=["world.nproc_per_node=1"])
    sweep = write_cells(folder, plan)
    trial = trial_of(sweep, plan.cells[0])
    write_trial(trial, plan.cells[0])
    write_json(trial.environment(0), {"schema": 2, "rank": 0, "host": "gpu17", "variables": variables})
    write_json(trial.job, {"host": "gpu17", "environment_set": {"X_CACHE": "/scratch/mallory/x", "USER": "mallory"}})
    return sweep


def _diff(one: Path, other: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "detsweep.diff", str(one), str(other)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_its_bundle_is_no_other_sweep(tmp_path: Path) -> None:
    sweep = _sweep(tmp_path / "a", VARIABLES)
    bundle = make(sweep.folder, tmp_path / "a.tar.zst", environment={}, redacted=True).path
    done = _diff(sweep.folder, bundle)
    assert (done.returncode, done.stderr) == (0, "")
    assert "no difference: configuration, environment and bits" in done.stdout
    assert "gpu17" not in done.stdout


def test_another_value_is_still_told(tmp_path: Path) -> None:
    sweep = _sweep(tmp_path / "a", VARIABLES)
    bundle = make(sweep.folder, tmp_path / "a.tar.zst", environment={}, redacted=True).path
    environment = sweep.all_cells()[0].trial(0).environment(0)
    changed = {"NCCL_ALGO": "Tree", "TORCHINDUCTOR_CACHE_DIR": "/scratch/elsewhere"}
    write_json(environment, {**read_json(environment), "variables": {**VARIABLES, **changed}})
    done = _diff(sweep.folder, bundle)
    assert "NCCL_ALGO: Tree -> Ring" in done.stdout
    assert "TORCHINDUCTOR_CACHE_DIR: /scratch/elsewhere -> " in done.stdout
    assert "LD_PRELOAD" not in done.stdout
