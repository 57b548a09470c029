"""The environment of a trial: what of the shell's reaches it, and what it always has."""

from __future__ import annotations

from pathlib import Path

import pytest

from detsweep.environment import changes_numerics, child_environment, gpu_platform, visible_gpus

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


def test_what_changes_bits_is_taken_away_and_recorded() -> None:
    child = child_environment(SHELL, {}, keep=[], threads=2)
    assert child.removed == {
        "CUBLAS_WORKSPACE_CONFIG": ":16:8",
        "MKL_NUM_THREADS": "64",
        "NCCL_ALGO": "Tree",
        "OMP_NUM_THREADS": "64",
        "PYTHONHASHSEED": "0",
    }
    assert child.variables == {
        "PATH": "/bin",
        "HOME": "/home/user",
        "NCCL_SOCKET_IFNAME": "eth0",
        "OMP_NUM_THREADS": "2",
        "MKL_NUM_THREADS": "2",
    }


def test_what_is_to_be_kept_is_kept() -> None:
    child = child_environment(SHELL, {}, keep=["NCCL_ALGO", "PYTHONHASHSEED"], threads=2)
    assert (child.variables["NCCL_ALGO"], child.variables["PYTHONHASHSEED"]) == ("Tree", "0")
    assert not {"NCCL_ALGO", "PYTHONHASHSEED"} & child.removed.keys()


@pytest.mark.parametrize("keep", [[], ["OMP_NUM_THREADS", "MKL_NUM_THREADS"]])
@pytest.mark.parametrize("base", [{}, SHELL], ids=["empty", "shell"])
def test_threads_are_always_those_of_the_cell(base: dict[str, str], keep: list[str]) -> None:
    child = child_environment(base, {}, keep=keep, threads=3)
    assert (child.variables["OMP_NUM_THREADS"], child.variables["MKL_NUM_THREADS"]) == ("3", "3")


def test_what_the_cell_wants_comes_last() -> None:
    child = child_environment(SHELL, {"NCCL_ALGO": "Ring", "MY_FLAG": "1", "HOME": None}, keep=[], threads=1)
    assert (child.variables["NCCL_ALGO"], child.variables["MY_FLAG"]) == ("Ring", "1")
    assert "HOME" not in child.variables
    assert child.removed["NCCL_ALGO"] == "Tree"


def test_null_unsets_even_what_is_to_be_kept() -> None:
    child = child_environment(SHELL, {"NCCL_ALGO": None, "NEVER_SET": None}, keep=["NCCL_ALGO"], threads=1)
    assert not {"NCCL_ALGO", "NEVER_SET"} & child.variables.keys()


@pytest.mark.parametrize(
    "name",
    ["RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "SUBMITIT_JOB_ID"],
)
def test_another_launchers_variables_do_not_reach_a_trial(name: str) -> None:
    child = child_environment({name: "7", "PATH": "/bin"}, {}, keep=[name], threads=1)
    assert name not in child.variables
    assert "PATH" in child.variables


@pytest.mark.parametrize("name", ["MY_RANK", "RANKING", "NOT_MASTER_ADDR"])
def test_names_that_only_look_like_a_launchers_stay(name: str) -> None:
    assert child_environment({name: "7"}, {}, keep=[], threads=1).variables[name] == "7"


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
    child_environment(base, {"HOME": None}, keep=[], threads=1)
    assert base == SHELL


@pytest.fixture
def _three_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if Path("/dev/kfd").exists():
        pytest.skip("an AMD driver is asked before nvidia-smi")
    tool = tmp_path / "nvidia-smi"
    tool.write_text('#!/bin/sh\nfor i in 0 1 2; do echo "GPU $i: Some GPU (UUID: GPU-$i)"; done\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("_three_gpus")
@pytest.mark.parametrize(
    ("limit", "expected"),
    [(None, ("0", "1", "2")), ("2,0", ("2", "0")), (" 1 , GPU-7", ("1", "GPU-7")), ("", ()), (",", ())],
)
def test_the_shells_choice_of_gpus_is_obeyed(
    monkeypatch: pytest.MonkeyPatch, limit: str | None, expected: tuple[str, ...]
) -> None:
    if limit is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", limit)
    assert visible_gpus() == expected
    assert gpu_platform() == "nvidia"
