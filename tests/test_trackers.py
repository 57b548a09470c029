"""`log=`: a package that is missing is said before anything starts, and a tracker that fails costs nothing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from detsweep import app, trackers

MISSING = {
    "mlflow": ("no_such_package_1", "mlflow"),
    "wandb": ("no_such_package_2", "wandb"),
    "tensorboard": ("json", "x"),
}


def test_no_tracker_and_one_that_is_installed_are_no_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackers, "PACKAGES", MISSING)
    assert trackers.problem("none") is None
    assert trackers.problem("tensorboard") is None


def test_one_that_is_missing_is_a_line_with_those_that_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackers, "PACKAGES", MISSING)
    said = "log=mlflow: the package is not installed: pip install mlflow (valid here: none, tensorboard)"
    assert trackers.problem("mlflow") == said


def test_a_folder_of_that_name_is_no_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # wandb leaves a folder `wandb` behind where it ran.
    (tmp_path / "no_such_package_2").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(trackers, "PACKAGES", MISSING)
    assert trackers.problem("wandb") is not None


@pytest.mark.parametrize("more", [(), ("dry_run=true",)])
def test_a_missing_package_is_one_line_and_2_before_anything_starts(
    more: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(trackers, "PACKAGES", MISSING)
    monkeypatch.setattr(sys, "argv", ["detsweep", "log=wandb", f"folder={tmp_path / 'runs'}", *more])
    assert app.main() == 2
    said = "detsweep: log=wandb: the package is not installed: pip install wandb (valid here: none, tensorboard)\n"
    assert capsys.readouterr().err == said
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("log=neptune",), "log=neptune: valid: none, mlflow, wandb, tensorboard"),
        (("-m", "log=none,tensorboard"), "log=none,tensorboard: cannot be an axis of a sweep"),
    ],
)
def test_another_tracker_and_an_axis_are_one_line_and_2(
    words: tuple[str, ...],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["detsweep", *words, f"folder={tmp_path / 'runs'}"])
    assert app.main() == 2
    assert capsys.readouterr().err == f"detsweep: {said}\n"


def test_what_fails_there_is_a_line_with_the_command_to_try_again(tmp_path: Path) -> None:
    line = trackers.log_sweep("tensorboard", tmp_path / "nowhere")
    again = f"python -m detsweep.analysis log tensorboard {tmp_path / 'nowhere'}"
    assert line == f"log=tensorboard: not logged, the results stand; to try again: {again}"


def test_a_tracker_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackers, "MOST_S", 0.01)
    line = trackers.log_sweep("tensorboard", tmp_path)
    assert line is not None
    assert "no end after 0 minutes, given up" in line
