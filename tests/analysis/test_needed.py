"""`python -m detsweep.analysis needed`: how many clean replays a bound takes, alone and of the cells of a sweep."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from detsweep.analysis.__main__ import main
from tests.support import INPUT, plan_of, trial_of, write_cells, write_trial


def _run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    monkeypatch.setattr(sys, "argv", ["analysis", "needed", *words])
    assert main() == 0
    return capsys.readouterr().out.splitlines()


def test_a_bound_takes_so_many_clean_replays(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(monkeypatch, capsys, "--bound", "0.01") == [
        "299 replays without a divergence: the rate is below 1% per replay (95% confidence)",
        "with two runs of each step: steps=299, or steps=100 trials=3; for a bound of the rate per launch: trials=299",
    ]
    first, second = _run(monkeypatch, capsys, "--bound", "0.05", "--confidence", "0.5")
    assert first == "14 replays without a divergence: the rate is below 5% per replay (50% confidence)"
    assert second == "with two runs of each step: steps=14; for a bound of the rate per launch: trials=14"


def test_each_cell_of_a_sweep_says_what_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = plan_of(["seed=1"], ["seed=2"], ["seed=3"], common=["steps=20", "trials=3"])
    sweep = write_cells(tmp_path, plan)
    for cell, trials in zip(plan.cells, (2, 3, 1), strict=True):
        for number in range(trials):
            differs = {0: {(4, 2): INPUT, (9, 2): INPUT}} if cell.config["seed"] == 3 else {}
            write_trial(trial_of(sweep, cell, number), cell, number, differs=differs)
    assert _run(monkeypatch, capsys, "--bound", "0.05", str(tmp_path))[2:] == [
        "seed=1: 0 of 40 replays diverged: 19 more, 1 trial of 20 replays",
        "seed=2: 0 of 60 replays diverged: enough",
        "seed=3: 2 of 20 replays diverged, 10% (1.2-32%): no bound of zero",
    ]


@pytest.mark.parametrize("value", ["0", "1", "-0.5", "nan", "much"])
@pytest.mark.parametrize("option", ["--bound", "--confidence"])
def test_what_is_no_share_is_refused_in_one_line(
    option: str, value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--bound", "0.1", f"{option}={value}"]
    monkeypatch.setattr(sys, "argv", ["analysis", "needed", *words])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"detsweep: argument {option}: {value}: must be a number above 0 and below 1 (usage: ")


def test_a_folder_without_a_sweep_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["analysis", "needed", "--bound", "0.1", str(tmp_path / "nothing")])
    assert main() == 2
    assert capsys.readouterr().err.startswith(f"detsweep: {tmp_path / 'nothing'}: no sweep here (no cells/*/cell.json)")
