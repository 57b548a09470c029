"""Every option of every group composes and is valid, in a checkout and in a wheel."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from detsweep.paths import conf_dir
from tests.conftest import clean_environment

ROOT = Path(__file__).resolve().parents[1]
GROUPS = sorted(path.name for path in conf_dir().iterdir() if path.is_dir())
# What options of a group need before they make sense.
NEEDED = {
    "fault": ("observe=collective", "model.dropout=0.1", "steps=2"),
    "mode": ("steps=2", "trials=2"),
}


def run(*command: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**clean_environment(), **variables}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300, check=False)


# The mitigations are composed all at once by tests of their own: planning each as a cell takes a quarter of a minute.
@pytest.mark.parametrize(
    "group", [group for group in GROUPS if group not in ("experiment", "launch", "search", "mitigation")]
)
def test_every_option_is_a_valid_cell(group: str, tmp_path: Path) -> None:
    options = sorted(path.stem for path in (conf_dir() / group).glob("*.yaml"))
    arguments = ("-m", f"{group}={','.join(options)}", "experts=8", "mitigation_force=true", "dry_run=true")
    done = run(sys.executable, "-m", "detsweep", *arguments, *NEEDED.get(group, ()), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{len(options)} cells, ")


@pytest.mark.parametrize("name", sorted(path.stem for path in (conf_dir() / "launch").glob("*.yaml")))
def test_every_way_to_launch_is_valid(name: str, tmp_path: Path) -> None:
    done = run(sys.executable, "-m", "detsweep", f"launch={name}", "dry_run=true", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert ("sbatch --nodes=1" in done.stdout) is (name == "slurm")


@pytest.mark.parametrize("name", sorted(path.stem for path in (conf_dir() / "search").glob("*.yaml")))
def test_every_search_of_the_default_cell_is_valid(name: str, tmp_path: Path) -> None:
    done = run(sys.executable, "-m", "detsweep", f"search={name}", "dry_run=true", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("1 cells, 1 trials, ")
    assert (f"search={name}: from this cell on, over " in done.stdout) == (name != "none")


# The fleet's cells are a cluster's nodes: see test_cli_slurm.py.
EXPERIMENTS = sorted({path.stem for path in (conf_dir() / "experiment").glob("*.yaml")} - {"fleet"})


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_sweeps_without_being_told_to(name: str, tmp_path: Path) -> None:
    done = run(sys.executable, "-m", "detsweep", f"experiment={name}", "dry_run=true", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[0]) > 1


def test_a_preset_of_the_users_own_folder(tmp_path: Path) -> None:
    preset = tmp_path / "mine" / "mitigation" / "ours.yaml"
    preset.parent.mkdir(parents=True)
    preset.write_text("ours:\n  env: {NCCL_ALGO: Tree}\n")
    arguments = ("--config-dir", "mine", "mitigation=[recipe,ours]", "dry_run=true")
    done = run(sys.executable, "-m", "detsweep", *arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "NCCL_ALGO=Tree" in done.stdout
    assert "CUBLAS_WORKSPACE_CONFIG=:4096:8" in done.stdout


def test_a_wheel_runs_a_sweep_from_another_folder(tmp_path: Path) -> None:
    built = run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path), cwd=ROOT)
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    site = tmp_path / "site"
    pip = run(sys.executable, "-m", "pip", "install", "--no-deps", "--target", str(site), str(wheel), cwd=tmp_path)
    assert pip.returncode == 0, pip.stderr
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    where = run(
        sys.executable,
        "-c",
        "import detsweep.paths as p; print(p.__file__, p.conf_dir())",
        cwd=elsewhere,
        PYTHONPATH=str(site),
    )
    assert where.stdout.split() == [str(site / "detsweep" / "paths" / "__init__.py"), str(site / "detsweep" / "conf")]
    script = site / "bin" / "detsweep"
    assert os.access(script, os.X_OK)
    swept = run(sys.executable, str(script), "-m", "dtype=bf16,fp32", cwd=elsewhere, PYTHONPATH=str(site))
    assert swept.returncode == 0, swept.stdout + swept.stderr
    assert len(list(elsewhere.glob("runs/*/*/cells/*/trial0/result.json"))) == 2
    (page,) = elsewhere.glob("runs/*/*/matrix.html")
    assert f"page with all details, for a browser: {page}" in swept.stdout
