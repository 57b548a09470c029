"""The environment of a trial: what of the shell's reaches it, and what it always has."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from detsweep.consistency import RESERVED
from detsweep.environment import (
    ChildEnvironment,
    changes_numerics,
    child_environment,
    gpu_platform,
    gpus,
    isolated,
    kept_out,
    overruled,
    thread_variables,
    visible_gpus,
)
from detsweep.mitigations import catalogue

SHELL = {
    "PATH": "/bin",
    "HOME": "/home/user",
    "NCCL_ALGO": "Tree",
    "NCCL_SOCKET_IFNAME": "eth0",
    "OMP_NUM_THREADS": "64",
    "MKL_NUM_THREADS": "64",
    "CUBLAS_WORKSPACE_CONFIG": ":16:8",
    "PYTHONHASHSEED": "0",
}


def _child(
    base: Mapping[str, str], gpus: Sequence[str] = (), threads: int = 2, **wanted: str | None
) -> ChildEnvironment:
    return child_environment(base, wanted, threads=threads, gpus=gpus, defaults={})


def test_what_changes_bits_is_taken_away_and_recorded() -> None:
    child = _child(SHELL)
    assert child.removed == {"CUBLAS_WORKSPACE_CONFIG": ":16:8", "NCCL_ALGO": "Tree", "PYTHONHASHSEED": "0"}
    assert child.changed == {"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2", "CUDA_VISIBLE_DEVICES": ""}
    assert child.variables == {
        "PATH": "/bin",
        "HOME": "/home/user",
        "NCCL_SOCKET_IFNAME": "eth0",
        "OMP_NUM_THREADS": "2",
        "MKL_NUM_THREADS": "2",
        "CUDA_VISIBLE_DEVICES": "",
    }


def test_changed_and_removed_make_the_shells_variables_a_trials() -> None:
    child = _child(SHELL, ["1"], NCCL_ALGO="Ring", HOME=None, MY_FLAG="1")
    kept = {name: value for name, value in SHELL.items() if name not in child.removed}
    assert {**kept, **child.changed} == child.variables
    assert not child.removed.keys() & child.changed.keys()


@pytest.mark.parametrize("base", [{}, SHELL], ids=["empty", "shell"])
def test_threads_are_always_those_of_the_cell(base: dict[str, str]) -> None:
    child = _child(base, threads=3)
    assert (child.variables["OMP_NUM_THREADS"], child.variables["MKL_NUM_THREADS"]) == ("3", "3")
    assert (child.changed["OMP_NUM_THREADS"], child.changed["MKL_NUM_THREADS"]) == ("3", "3")


@pytest.mark.parametrize(
    ("wanted", "openmp", "mkl"),
    [
        ({}, "4", "4"),
        ({"OMP_NUM_THREADS": "1"}, "1", "1"),
        ({"MKL_NUM_THREADS": "8"}, "8", "8"),
        ({"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "2"}, "1", "2"),
        ({"OMP_NUM_THREADS": None}, "4", "4"),
        ({"OMP_NUM_THREADS": None, "MKL_NUM_THREADS": "2"}, "2", "2"),
    ],
    ids=str,
)
def test_where_a_cell_asks_for_one_number_of_threads_the_other_follows(
    wanted: dict[str, str | None], openmp: str, mkl: str
) -> None:
    assert thread_variables(4, wanted) == {"OMP_NUM_THREADS": openmp, "MKL_NUM_THREADS": mkl}


def test_threads_of_the_shell_are_overruled_by_those_of_the_cell() -> None:
    assert _child(SHELL).overruled == {"OMP_NUM_THREADS": "64", "MKL_NUM_THREADS": "64"}
    assert _child(SHELL, threads=64).overruled == {}


def test_threads_that_are_the_shells_too_are_no_change() -> None:
    assert not {"OMP_NUM_THREADS", "MKL_NUM_THREADS"} & _child(SHELL, threads=64).changed.keys()


def test_what_the_cell_wants_comes_last() -> None:
    child = _child(SHELL, NCCL_ALGO="Ring", MY_FLAG="1", HOME=None, OMP_NUM_THREADS="7")
    assert (child.variables["NCCL_ALGO"], child.variables["MY_FLAG"]) == ("Ring", "1")
    assert (child.changed["NCCL_ALGO"], child.changed["MY_FLAG"]) == ("Ring", "1")
    assert child.variables["OMP_NUM_THREADS"] == "7"
    assert "HOME" not in child.variables
    assert child.removed["HOME"] == "/home/user"


def test_a_variable_set_to_what_the_shell_has_is_neither_changed_nor_removed() -> None:
    child = _child(SHELL, NCCL_ALGO="Tree")
    assert child.variables["NCCL_ALGO"] == "Tree"
    assert "NCCL_ALGO" not in {**child.changed, **child.removed}


def test_what_the_shell_has_otherwise_is_overruled_and_nothing_else_is() -> None:
    wanted = {"NCCL_ALGO": "Ring", "PYTHONHASHSEED": "0", "HOME": None, "NEVER_SET": "1", "NVTE_X": None}
    assert overruled(SHELL, wanted) == {"NCCL_ALGO": "Tree", "HOME": "/home/user"}
    assert _child(SHELL, threads=64, **wanted).overruled == overruled(SHELL, wanted)


def test_defaults_are_set_unless_the_cell_says_otherwise() -> None:
    defaults = {"CACHE": "/own", "NCCL_DEBUG": "INFO", "NCCL_SOCKET_IFNAME": "eth7"}
    wanted = {"CACHE": "/mine", "NCCL_SOCKET_IFNAME": None}
    child = child_environment(SHELL, wanted, threads=2, gpus=(), defaults=defaults)
    assert child.variables["CACHE"] == child.changed["CACHE"] == "/mine"
    assert child.variables["NCCL_DEBUG"] == child.changed["NCCL_DEBUG"] == "INFO"
    assert "NCCL_SOCKET_IFNAME" not in child.variables
    assert child.removed["NCCL_SOCKET_IFNAME"] == "eth0"


def test_what_no_cell_speaks_of_is_kept_out() -> None:
    assert kept_out(SHELL, [{}]) == ["CUBLAS_WORKSPACE_CONFIG", "NCCL_ALGO", "PYTHONHASHSEED"]


def test_what_some_cell_sets_or_unsets_is_not_said_to_be_kept_out() -> None:
    assert kept_out(SHELL, [{"NCCL_ALGO": None}, {}, {"PYTHONHASHSEED": "1"}]) == ["CUBLAS_WORKSPACE_CONFIG"]


@pytest.mark.parametrize("name", ["PATH", "NCCL_SOCKET_IFNAME", "NCCL_DEBUG", "OMP_NUM_THREADS", "MKL_NUM_THREADS"])
def test_what_reaches_a_trial_or_every_cell_sets_is_not_kept_out(name: str) -> None:
    assert kept_out({name: "1"}, [{}]) == []


def test_a_cell_that_is_neither_compiled_nor_on_a_gpu_needs_no_files_of_its_own() -> None:
    assert isolated(Path("/cell"), compiles=False, gpu=False) == {}
    assert isolated(None, compiles=True, gpu=False) == {}


def test_each_file_of_its_own_is_another_one_below_the_cells_folder() -> None:
    own = isolated(Path("/cell/cache"), compiles=True, gpu=True)
    assert own.pop("NCCL_CONF_FILE") == os.devnull
    assert len(set(own.values())) == len(own) == 6
    assert all(Path(value).parent == Path("/cell/cache") for value in own.values())
    # TunableOp puts the number of the GPU in its place.
    assert own["PYTORCH_TUNABLEOP_FILENAME"].endswith("%d.csv")


def test_all_that_points_to_such_files_is_in_the_catalogue_for_that() -> None:
    own = isolated(Path("/cell"), compiles=True, gpu=True)
    assert {catalogue()[name].use for name in own} == {"isolated"}


def test_null_unsets_what_is_there_and_what_is_not() -> None:
    child = _child(SHELL, NCCL_SOCKET_IFNAME=None, NEVER_SET=None)
    assert not {"NCCL_SOCKET_IFNAME", "NEVER_SET"} & child.variables.keys()
    assert child.removed["NCCL_SOCKET_IFNAME"] == "eth0"
    assert "NEVER_SET" not in child.removed


@pytest.mark.parametrize(("gpus", "shown"), [([], ""), (["2", "3"], "2,3"), (["GPU-7"], "GPU-7")])
def test_a_trial_sees_its_own_gpus_alone(gpus: list[str], shown: str) -> None:
    child = _child(
        {"CUDA_VISIBLE_DEVICES": "0,1,2,3", "HIP_VISIBLE_DEVICES": "0,1", "ROCR_VISIBLE_DEVICES": "4,5"}, gpus
    )
    assert child.variables["CUDA_VISIBLE_DEVICES"] == child.changed["CUDA_VISIBLE_DEVICES"] == shown
    # torch on AMD would look at it first; what ROCR leaves is what the numbers count.
    assert child.removed == {"HIP_VISIBLE_DEVICES": "0,1"}
    assert child.variables["ROCR_VISIBLE_DEVICES"] == "4,5"


@pytest.mark.parametrize(
    "name",
    ["RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "SUBMITIT_JOB_ID"],
)
def test_another_launchers_variables_do_not_reach_a_trial(name: str) -> None:
    child = _child({name: "7", "PATH": "/bin"})
    assert name not in child.variables
    assert "PATH" in child.variables
    # submitit says these to its own task; they were never the shell's.
    assert child.removed == ({} if name.startswith("SUBMITIT_") else {name: "7"})


@pytest.mark.parametrize(
    "name",
    [
        *("SLURM_JOB_ID", "SLURM_NODELIST", "SLURM_CPU_BIND", "SLURMD_NODENAME", "SRUN_DEBUG", "SBATCH_PARTITION"),
        *("SALLOC_QOS", "PMI_RANK", "PMI2_SIZE", "PMIX_NAMESPACE"),
    ],
)
def test_what_slurm_says_of_its_job_does_not_reach_a_trial(name: str) -> None:
    child = _child({name: "7", "PATH": "/bin", "SLURMISH": "1"})
    assert child.variables.keys() & {name, "PATH", "SLURMISH"} == {"PATH", "SLURMISH"}
    # What a job has from Slurm was never the shell's; what a shell had for sbatch was.
    assert child.removed == ({name: "7"} if name.startswith(("SBATCH_", "SALLOC_")) else {})


@pytest.mark.parametrize("name", ["MY_RANK", "RANKING", "NOT_MASTER_ADDR"])
def test_names_that_only_look_like_a_launchers_stay(name: str) -> None:
    assert _child({name: "7"}).variables[name] == "7"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("NCCL_ALGO", True),
        ("NCCL_DEBUG", False),
        ("HSA_OVERRIDE_GFX_VERSION", False),
        ("HSA_ENABLE_SDMA", True),
        ("ATEN_CPU_CAPABILITY", True),
        ("PATH", False),
        ("MKL", False),
    ],
)
def test_which_variables_change_bits(name: str, expected: bool) -> None:
    assert changes_numerics(name) is expected


def test_the_shells_own_mapping_is_left_alone() -> None:
    base = dict(SHELL)
    _child(base, HOME=None)
    assert base == SHELL


@pytest.fixture
def _three_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if Path("/dev/kfd").exists():
        pytest.skip("an AMD driver is asked before nvidia-smi")
    tool = tmp_path / "nvidia-smi"
    tool.write_text('#!/bin/sh\nfor i in 0 1 2; do echo "GPU $i: Some GPU (UUID: GPU-$i)"; done\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    for name in RESERVED:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("_three_gpus")
@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (None, ("0", "1", "2")),
        ("2,0", ("2", "0")),
        (" 1 , GPU-7", ("1", "GPU-7")),
        ("", ()),
        (",", ()),
        ("2,-1,0", ("2",)),
        ("-1", ()),
    ],
)
def test_the_shells_choice_of_gpus_is_obeyed(
    monkeypatch: pytest.MonkeyPatch, limit: str | None, expected: tuple[str, ...]
) -> None:
    if limit is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", limit)
    assert visible_gpus() == expected
    assert gpu_platform() == "nvidia"


@pytest.mark.usefixtures("_three_gpus")
def test_amds_variables_say_nothing_about_another_makers_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "0")
    monkeypatch.setenv("ROCR_VISIBLE_DEVICES", "0")
    assert visible_gpus() == ("0", "1", "2")


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, ("0", "1", "2", "3")),
        ({"CUDA": "2,0"}, ("2", "0")),
        ({"HIP": "3", "CUDA": "0,1"}, ("3",)),
        ({"HIP": "", "CUDA": "0,1"}, ()),
        ({"ROCR": "5,7"}, ("0", "1")),
        ({"ROCR": "5,7", "HIP": "1"}, ("1",)),
        ({"ROCR": "5,7", "CUDA": "1,0"}, ("1", "0")),
        ({"ROCR": ""}, ()),
        ({"ROCR": "-1", "CUDA": "0"}, ()),
        ({"HIP": "1,-1,2"}, ("1",)),
    ],
    ids=str,
)
def test_on_amd_hip_comes_before_cuda_and_both_count_what_rocr_leaves(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: tuple[str, ...]
) -> None:
    exists = Path.exists
    monkeypatch.setattr(Path, "exists", lambda path, **kw: str(path) == "/dev/kfd" or exists(path, **kw))
    monkeypatch.setattr(gpus, "_amd_count", lambda: 4)
    for name in RESERVED:
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(f"{name}_VISIBLE_DEVICES", value)
    assert visible_gpus() == expected
    assert gpu_platform() == "amd"
