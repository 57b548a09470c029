"""The simulation of large sweeps plans and submits what a user would, and runs nothing."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"


@pytest.fixture
def scale(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(SCRIPTS)
    return importlib.import_module("slurm_scale")


def test_a_sweep_of_several_arrays_is_submitted_in_a_call_for_each(scale: Any, tmp_path: Path) -> None:
    line = scale.measure(12, tmp_path)
    cells, seconds, _, peak, *counted = line.split(maxsplit=4)
    assert (cells, float(seconds) > 0, int(peak) > 0) == ("12", True, True)
    # Whether Slurm would take it, and the one array.
    assert counted == ["2 sbatch, 1 scontrol"]
    (array,) = (tmp_path / "sweep" / ".jobs").glob("array*.json")
    assert '"job": "101"' in array.read_text()


def test_its_programs_take_an_array_and_test_nothing(scale: Any, tmp_path: Path) -> None:
    calls = scale.install(tmp_path)
    said = [
        subprocess.run([tmp_path / "sbatch", word], capture_output=True, text=True, check=True).stdout
        for word in ("--test-only", "script", "script")
    ]
    assert said == ["", "Submitted batch job 101\n", "Submitted batch job 102\n"]
    assert calls.read_text().splitlines() == ["sbatch --test-only", "sbatch script", "sbatch script"]


def test_wrong_arguments_leave_with_2() -> None:
    done = subprocess.run(
        [sys.executable, SCRIPTS / "slurm_scale.py", "many"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "invalid int value: 'many'" in done.stderr
