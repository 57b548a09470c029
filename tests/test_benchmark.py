"""The benchmark measures the cells that conf/ describes; its figures are not for tests."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "benchmark.py"


def test_the_cell_it_measures_is_composed_from_conf() -> None:
    found = importlib.util.spec_from_file_location("benchmark", SCRIPT)
    assert found is not None
    assert found.loader is not None
    benchmark = importlib.util.module_from_spec(found)
    sys.modules["benchmark"] = benchmark
    found.loader.exec_module(benchmark)
    config = benchmark.trial_spec("model=small", "dtype=fp32")["config"]
    assert (config["model"]["name"], config["dtype"]["param"], config["device"]) == ("small", "fp32", "cpu")


def test_wrong_arguments_leave_with_2() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--only", "nothing"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "invalid choice: 'nothing'" in done.stderr
