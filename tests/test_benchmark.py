"""The benchmark measures the cells that conf/ describes; its figures are not for tests."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"


@pytest.fixture
def measuring(monkeypatch: pytest.MonkeyPatch) -> Any:
    return _script("measuring", monkeypatch)


@pytest.fixture
def levels(monkeypatch: pytest.MonkeyPatch) -> Any:
    return _script("levels", monkeypatch)


def _script(name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    # As python does it for the script that it is given: what lies beside it can be imported.
    monkeypatch.syspath_prepend(SCRIPTS)
    return importlib.import_module(name)


def test_the_cell_it_measures_is_composed_from_conf(measuring: Any) -> None:
    config = measuring.trial_spec("model=small", "dtype=fp32")["config"]
    assert (config["model"]["name"], config["dtype"]["param"], config["device"]) == ("small", "fp32", "cpu")


def test_wrong_arguments_leave_with_2() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPTS / "benchmark.py"), "--only", "nothing"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "invalid choice: 'nothing'" in done.stderr


@pytest.mark.parametrize("arms", [2, 5])
def test_arms_take_turns_at_every_place(measuring: Any, arms: int) -> None:
    calls: list[int] = []

    def arm(number: int) -> Any:
        return lambda: calls.append(number) or number

    found = measuring.in_turn([arm(number) for number in range(arms)], rounds=2 * arms, warm_up=2)
    assert found == [tuple(range(arms))] * 2 * arms
    counted = calls[2 * arms :]
    rounds = [counted[start : start + arms] for start in range(0, len(counted), arms)]
    assert all(sorted(one) == list(range(arms)) for one in rounds)
    for place in range(arms):
        assert set(Counter(one[place] for one in rounds).values()) == {2}


def test_a_ratio_is_the_median_of_neighbours_and_is_held_against_its_limit(measuring: Any) -> None:
    # The machine became ten times slower on the way: neighbours did so together.
    figure = measuring.ratios("observe", "bf16", [[(1.1, 1.0), (11.0, 10.0), (13.0, 10.0)]], 1.2, "ms")
    assert figure.values == [pytest.approx(1.1)]
    assert figure.kept
    assert not measuring.ratios("observe", "bf16", [[(1.3, 1.0)]], 1.2, "ms").kept
    assert measuring.ratios("speed", "xxh3", [[(20.0, 1.0)]], 10.0, "GB/s", at_least=True).kept


def test_a_command_is_ended_at_its_limit_with_what_it_had_said(measuring: Any) -> None:
    command = [sys.executable, "-c", "import time; print('begun', flush=True); time.sleep(600)"]
    ended = measuring.run_command(command, dict(os.environ), timeout_s=1.0)
    assert (ended.code, ended.out) == (None, "begun\n")


def test_every_level_is_measured_against_off(levels: Any) -> None:
    cell = ("model.num_layers=1", "model.seq_len=8", "world.nproc_per_node=1")
    figures = levels.measure("tiny", cell, repeats=1, rounds=1, timeout_s=120)
    assert [(figure.case, figure.limit) for figure in figures] == [
        (f"tiny, {level}, {part}", limit) for level, limit in levels.LIMITS.items() for part in levels.PARTS
    ]
    assert all(value > 0 for figure in figures for value in figure.values)
