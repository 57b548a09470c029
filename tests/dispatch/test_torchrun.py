"""What a trial is started as: torchrun's arguments and the environment of its processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from detsweep.dispatch.torchrun import environment_of, torchrun_arguments
from detsweep.locks import DriverLock, is_free
from detsweep.paths import SweepPaths, TrialPaths, write_json
from detsweep.results import read_result
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


TRIAL = TrialPaths(Path("/runs/cells/tiny-0f/trial0"))
SHELL = {"PATH": "/bin", "NCCL_ALGO": "Tree", "CUDA_VISIBLE_DEVICES": "0,1,2,3", "OMP_NUM_THREADS": "64"}


def test_a_trial_has_its_own_gpus_alone() -> None:
    spec = one_cell().spec(0)
    assert environment_of(spec, SHELL, ["2", "3"], TRIAL).variables["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert environment_of(spec, SHELL, [], TRIAL).variables["CUDA_VISIBLE_DEVICES"] == ""


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
    child = environment_of(one_cell(*overrides).spec(0), SHELL, [], TRIAL)
    assert child.variables.get("NCCL_ALGO") == algorithm
    assert child.changed.get("NCCL_ALGO") == (algorithm if algorithm == "Ring" else None)
    assert child.removed.get("NCCL_ALGO") == ("Tree" if algorithm is None else None)


def test_what_the_shell_held_when_the_cell_was_made_is_what_a_trial_gets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    spec = one_cell("keep_env=[NCCL_ALGO]").spec(0)
    assert environment_of(spec, SHELL, [], TRIAL).variables["NCCL_ALGO"] == "Ring"


def test_threads_are_those_of_the_cell() -> None:
    child = environment_of(one_cell("world.threads_per_rank=5").spec(0), SHELL, [], TRIAL)
    assert child.variables["OMP_NUM_THREADS"] == child.variables["MKL_NUM_THREADS"] == "5"
    assert child.changed["OMP_NUM_THREADS"] == "5"


# --- files of its own ------------------------------------------------------------------------------------------------


def _spec(*overrides: str, device: str = "cpu") -> dict[str, Any]:
    """A trial's spec, with a device that this machine need not have."""
    spec = one_cell(*overrides).spec(0)
    return {**spec, "config": {**spec["config"], "device": device}}


COMPILED = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
ON_GPU = (
    "MIOPEN_CUSTOM_CACHE_DIR", "MIOPEN_USER_DB_PATH", "PYTORCH_KERNEL_CACHE_PATH", "PYTORCH_TUNABLEOP_FILENAME",
)  # fmt: skip


@pytest.mark.parametrize(
    ("cache", "folder"), [("cell", "/runs/cells/tiny-0f/cache/"), ("trial", "/runs/cells/tiny-0f/trial0/cache/")]
)
@pytest.mark.parametrize(
    ("compiled", "device", "names"),
    [
        ("compile=true", "cpu", COMPILED),
        ("model.attention=flex", "cpu", COMPILED),
        ("compile=false", "cuda", ON_GPU),
        ("compile=true", "cuda", (*COMPILED, *ON_GPU)),
        ("compile=false", "cpu", ()),
    ],
)
def test_what_libraries_find_out_lies_where_the_cell_says(
    cache: str, folder: str, compiled: str, device: str, names: tuple[str, ...]
) -> None:
    spec = _spec(compiled, f"kernel_cache={cache}", "mitigation_force=true", device=device)
    found = environment_of(spec, SHELL, [], TRIAL).variables
    assert {name for name, value in found.items() if value.startswith(folder)} == set(names)
    assert not (set(COMPILED) | set(ON_GPU)) - set(names) & found.keys()


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_in_a_shared_cache_nothing_has_a_place_of_its_own(device: str) -> None:
    own = environment_of(_spec("compile=true", "kernel_cache=shared", device=device), SHELL, [], TRIAL).variables
    assert not {*COMPILED, *ON_GPU} & own.keys()


@pytest.mark.parametrize(("device", "expected"), [("cuda", "/dev/null"), ("cpu", None)])
@pytest.mark.parametrize("cache", ["cell", "shared"])
def test_no_configuration_file_of_the_user_reaches_nccl(device: str, expected: str | None, cache: str) -> None:
    spec = _spec(f"kernel_cache={cache}", device=device)
    assert environment_of(spec, SHELL, [], TRIAL).variables.get("NCCL_CONF_FILE") == expected


def test_a_place_that_the_cell_names_itself_is_the_one_it_gets() -> None:
    spec = _spec("compile=true", "+env.TORCHINDUCTOR_CACHE_DIR=/mine", "+env.TRITON_CACHE_DIR=null")
    child = environment_of(spec, {**SHELL, "TRITON_CACHE_DIR": "/shells"}, [], TRIAL)
    assert child.variables["TORCHINDUCTOR_CACHE_DIR"] == "/mine"
    assert "TRITON_CACHE_DIR" not in child.variables
    assert child.overruled["TRITON_CACHE_DIR"] == "/shells"


# --- what NCCL says to have read -------------------------------------------------------------------------------------


def _debug(*overrides: str, device: str = "cuda", **shell: str) -> dict[str, str]:
    variables = environment_of(_spec(*overrides, device=device), {**SHELL, **shell}, [], TRIAL).variables
    return {name: value for name, value in variables.items() if name.startswith("NCCL_DEBUG")}


SAID = {
    "NCCL_DEBUG": "INFO",
    "NCCL_DEBUG_SUBSYS": "ENV",
    "NCCL_DEBUG_FILE": "/runs/cells/tiny-0f/trial0/log/nccl-%h-%p.log",
}


@pytest.mark.parametrize(
    "overrides",
    [
        ("mitigation=[nccl_ring]", "mitigation_force=true"),
        ("mitigation=[rccl_plain]", "mitigation_force=true"),
        ("+env.NCCL_PROTO=null",),
        (),
    ],
    ids=str,
)
def test_nccl_is_made_to_say_what_it_has_read_in_every_cell_on_a_gpu(overrides: tuple[str, ...]) -> None:
    assert _debug(*overrides) == SAID


def test_it_is_not_on_a_cpu() -> None:
    assert _debug("+env.NCCL_ALGO=Ring", device="cpu") == {}


def test_what_the_shell_wants_nccl_to_say_stays() -> None:
    own = {"NCCL_DEBUG": "WARN", "NCCL_DEBUG_FILE": "/mine"}
    assert _debug("+env.NCCL_ALGO=Ring", **own) == own


def test_what_the_cell_wants_nccl_to_say_comes_last() -> None:
    assert _debug("+env.NCCL_ALGO=Ring", "+env.NCCL_DEBUG=TRACE") == {**SAID, "NCCL_DEBUG": "TRACE"}


# --- in processes of their own ---------------------------------------------------------------------------------------

LATE = """
import sys
from detsweep.dispatch.trial import Launch, run_trial
trial, sweep, session = sys.argv[1:]
print(run_trial(Launch(trial, sweep, session, 1.0, ())))
"""


def _run_trial(trial: TrialPaths, sweep: SweepPaths, session: str, **variables: str) -> str:
    """What run_trial returns in a process of its own, as submitit's: it takes the signals of the one it runs in."""
    command = [sys.executable, "-c", LATE, str(trial.folder), str(sweep.folder), session]
    environment = {**os.environ, **variables}
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, env=environment).stdout


@pytest.mark.parametrize("driver", ["gone", "another"])
def test_a_trial_that_starts_when_its_driver_is_gone_launches_nothing(tmp_path: Path, driver: str) -> None:
    sweep, cell = SweepPaths(tmp_path), one_cell()
    trial = trial_of(sweep, cell)
    write_json(trial.spec, cell.spec(0))
    locks = [DriverLock(sweep.driver_lock), DriverLock(sweep.driver_lock)]
    assert locks[0].acquire()
    locks[0].release()
    assert driver == "gone" or locks[1].acquire()
    said = _run_trial(trial, sweep, locks[0].session)
    locks[1].release()
    assert said == "None\n"
    assert list(trial.folder.iterdir()) == [trial.spec]
    assert is_free(sweep.trials_lock)
    assert is_free(sweep.trial_lock(cell.id, 0))


@pytest.mark.parametrize(
    ("overrides", "shell", "absent"),
    [
        (("require=[no_compile]",), {}, "TORCH_COMPILE_DISABLE must be 1, is unset"),
        (("require=[no_compile]",), {"TORCH_COMPILE_DISABLE": "1"}, "TORCH_COMPILE_DISABLE must be 1, is unset"),
        (
            ("require=[seeded,omp_not_dynamic]", "+env.PYTHONHASHSEED=1"),
            {},
            "PYTHONHASHSEED must be 0, is 1; OMP_DYNAMIC must be false, is unset",
        ),
    ],
    ids=["absent", "in the shell alone", "several"],
)
def test_a_trial_that_lacks_a_variable_that_is_required_is_refused_before_anything_starts(
    tmp_path: Path, overrides: tuple[str, ...], shell: dict[str, str], absent: str
) -> None:
    sweep, cell = SweepPaths(tmp_path), one_cell(*overrides)
    trial = trial_of(sweep, cell)
    write_json(trial.spec, cell.spec(0))
    lock = DriverLock(sweep.driver_lock)
    assert lock.acquire()
    said = _run_trial(trial, sweep, lock.session, **shell)
    lock.release()
    assert said == "invalid\n"
    assert set(trial.folder.iterdir()) == {trial.spec, trial.result}
    result = read_result(trial)
    assert result is not None
    assert (result["verdict"], result["error"]) == ("invalid", f"refused, required and not in force: {absent}")
    assert is_free(sweep.trial_lock(cell.id, 0))
