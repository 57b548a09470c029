"""No test of this folder reaches a cluster that the machine may have: Slurm's commands are programs of the test."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.dispatch.slurm.commands import Cluster, on_path


@pytest.fixture(autouse=True)
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Slurm's commands, first on PATH, and the jobs that they know."""
    for name in list(os.environ):
        if name.startswith(("SLURM", "SBATCH", "SUBMITIT")):
            monkeypatch.delenv(name)
    made = Cluster(tmp_path / "slurm")
    monkeypatch.setenv("PATH", on_path(made.folder))
    return made
