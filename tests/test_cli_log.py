"""`log=` on the real command line: what came out goes to a tracker, and where it cannot, nothing is lost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import Ran, Run, run_detsweep

CELL = ("model.num_layers=2", "fault=bit_flip")


@pytest.fixture(scope="module")
def logged(detsweep: Run) -> Ran:
    return detsweep(*CELL, "log=tensorboard")


def test_the_cell_is_in_the_tracker_after_the_sweep(logged: Ran) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    # A divergence is one, whatever the tracker says.
    assert logged.code == 1, logged.out + logged.err
    assert logged.err == ""
    assert f"log=tensorboard: 1 run in {logged.folder / 'tensorboard'}" in logged.out
    (own,) = (logged.folder / "tensorboard").iterdir()
    run = EventAccumulator(str(own))
    run.Reload()
    assert (run.Scalars("diverged")[0].value, run.Scalars("replays")[0].value) == (1.0, 1.0)


def test_a_tracker_that_fails_is_said_and_costs_neither_result_nor_exit_code(logged: Ran) -> None:
    before = {path: path.read_bytes() for path in logged.folder.rglob("trial0/*") if path.is_file()}
    again = run_detsweep(logged.folder, *CELL, "log=mlflow", MLFLOW_TRACKING_URI="nonsense://nowhere")
    assert again.code == 1
    assert "✗ diverged" in again.out
    lines = again.err.splitlines()
    assert lines[-2].startswith("detsweep: log=mlflow: ")
    assert lines[-1].startswith("detsweep: note: log=mlflow: not logged, the results stand; to try again: ")
    # The same cell: nothing was launched, as where it is logged is no part of what it is.
    assert {path: path.read_bytes() for path in before} == before


def test_what_is_not_asked_for_is_not_there(logged: Ran) -> None:
    assert {path.name for path in logged.folder.iterdir()} >= {"tensorboard", "matrix.md"}
    assert not [name for name in ("mlruns", "wandb") if (logged.folder / name).exists()]
    cell: Path = next(iter(logged.cells().values()))
    assert json.loads((cell / "cell.json").read_text())["id"] == cell.name.rpartition("-")[2]
