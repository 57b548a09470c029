"""What a trial is started as: torchrun's arguments and the environment of its processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from detsweep.dispatch.torchrun import environment_of, torchrun_arguments
from detsweep.locks import DriverLock, is_free
from detsweep.paths import SweepPaths, TrialPaths, write_json
from tests.support import one_cell, trial_of


def test_torchrun_gets_the_world_of_the_cell_and_the_trials_folder(tmp_path: Path) -> None:
    trial = TrialPaths(tmp_path / "trial0")
    arguments = torchrun_arguments(one_cell("world.nproc_per_node=3").spec(0), trial)
    assert "--nproc-per-node=3" in arguments
    assert "--nnodes=1" in arguments
    assert arguments[-4:] == ["-m", "detsweep.worker", str(trial.folder), "0"]


def test_a_launch_is_told_its_number(tmp_path: Path) -> None:
    spec, trial = one_cell("mode=resume", "steps=2").spec(0), TrialPaths(tmp_path)
    first, second = (torchrun_arguments(spec, trial, launch) for launch in (0, 1))
    assert (first[-1], second[-1]) == ("0", "1")
    assert first[:-1] == second[:-1]


def test_a_failed_rank_is_never_restarted(tmp_path: Path) -> None:
    assert "--max-restarts=0" in torchrun_arguments(one_cell().spec(0), TrialPaths(tmp_path))


SHELL = {"PATH": "/bin", "NCCL_ALGO": "Tree", "CUDA_VISIBLE_DEVICES": "0,1,2,3", "OMP_NUM_THREADS": "64"}


def test_a_trial_has_its_own_gpus_alone() -> None:
    spec = one_cell().spec(0)
    assert environment_of(spec, SHELL, ["2", "3"]).variables["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert environment_of(spec, SHELL, []).variables["CUDA_VISIBLE_DEVICES"] == ""


@pytest.mark.parametrize(
    ("overrides", "algorithm"),
    [
        ((), None),
        (("keep_env=[NCCL_ALGO]",), "Tree"),
        (("+env.NCCL_ALGO=Ring",), "Ring"),
        (("mitigation=[primus]", "mitigation_force=true"), "Ring"),
        (("keep_env=[NCCL_ALGO]", "+env.NCCL_ALGO=null"), None),
    ],
)
def test_the_cell_decides_what_changes_bits_and_not_the_shell(
    monkeypatch: pytest.MonkeyPatch, overrides: tuple[str, ...], algorithm: str | None
) -> None:
    monkeypatch.setenv("NCCL_ALGO", "Tree")
    child = environment_of(one_cell(*overrides).spec(0), SHELL, [])
    assert child.variables.get("NCCL_ALGO") == algorithm
    assert child.changed.get("NCCL_ALGO") == (algorithm if algorithm == "Ring" else None)
    assert child.removed.get("NCCL_ALGO") == ("Tree" if algorithm is None else None)


def test_what_the_shell_held_when_the_cell_was_made_is_what_a_trial_gets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    spec = one_cell("keep_env=[NCCL_ALGO]").spec(0)
    assert environment_of(spec, SHELL, []).variables["NCCL_ALGO"] == "Ring"


def test_threads_are_those_of_the_cell() -> None:
    child = environment_of(one_cell("world.threads_per_rank=5").spec(0), SHELL, [])
    assert child.variables["OMP_NUM_THREADS"] == child.variables["MKL_NUM_THREADS"] == "5"
    assert child.changed["OMP_NUM_THREADS"] == "5"


LATE = """
import sys
from detsweep.dispatch.torchrun import Launch, run_trial
trial, sweep, session = sys.argv[1:]
print(run_trial(Launch(trial, sweep, session, 1.0, ())))
"""


@pytest.mark.parametrize("driver", ["gone", "another"])
def test_a_trial_that_starts_when_its_driver_is_gone_launches_nothing(tmp_path: Path, driver: str) -> None:
    sweep, cell = SweepPaths(tmp_path), one_cell()
    trial = trial_of(sweep, cell)
    write_json(trial.spec, cell.spec(0))
    locks = [DriverLock(sweep.driver_lock), DriverLock(sweep.driver_lock)]
    assert locks[0].acquire()
    locks[0].release()
    assert driver == "gone" or locks[1].acquire()
    # In a process of its own, as submitit's: it takes the signals of the process that it runs in.
    command = [sys.executable, "-c", LATE, str(trial.folder), str(sweep.folder), locks[0].session]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    locks[1].release()
    assert done.stdout == "None\n"
    assert list(trial.folder.iterdir()) == [trial.spec]
    assert is_free(sweep.trials_lock)
    assert is_free(sweep.trial_lock(cell.id, 0))
