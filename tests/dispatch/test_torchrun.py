"""What a trial is started as: torchrun's arguments and the environment of its processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from detsweep.dispatch.torchrun import environment_of, torchrun_arguments
from detsweep.paths import TrialPaths
from tests.support import one_cell


def test_torchrun_gets_the_world_of_the_cell_and_the_trials_folder(tmp_path: Path) -> None:
    trial = TrialPaths(tmp_path / "trial0")
    arguments = torchrun_arguments(one_cell("world.nproc_per_node=3").spec(0), trial)
    assert "--nproc-per-node=3" in arguments
    assert "--nnodes=1" in arguments
    assert arguments[-3:] == ["-m", "detsweep.worker", str(trial.folder)]


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
    overrides: tuple[str, ...], algorithm: str | None
) -> None:
    child = environment_of(one_cell(*overrides).spec(0), SHELL, [])
    assert child.variables.get("NCCL_ALGO") == algorithm
    assert ("NCCL_ALGO" in child.removed) != ("keep_env=[NCCL_ALGO]" in overrides)


def test_threads_are_those_of_the_cell() -> None:
    child = environment_of(one_cell("world.threads_per_rank=5").spec(0), SHELL, [])
    assert child.variables["OMP_NUM_THREADS"] == child.variables["MKL_NUM_THREADS"] == "5"
    assert child.removed["OMP_NUM_THREADS"] == "64"
