"""What became of each setting of a mitigation: in force and seen to act, only set, read by nothing, or lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from detsweep.environment.libraries import loaded
from detsweep.mitigations import catalogue
from detsweep.mitigations.effect import UNDONE
from detsweep.mitigations.switches import SWITCHES
from detsweep.mitigations.torch_switches import read_back
from detsweep.mitigations.variables import READERS
from detsweep.worker.effects import _IDLE, _READERS, Effect, Process, effects, lost, switch_effect, to_json
from detsweep.worker.effects import variable_effect as effect_of
from tests.support import compose

STARTED = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
    "KMP_AFFINITY": "none",
    "NCCL_ALGO": "Ring",
    "NCCL_PROTO": "Simple",
    "OMP_DYNAMIC": "false",
    "MY_FLAG": "1",
}
PRESETS: Mapping[str, Any] = {
    "none": {"env": {}, "torch": {}},
    "acting": {"env": {"PYTHONHASHSEED": "0"}, "torch": {"float32_matmul_precision": "highest"}},
    "threads": {"env": {"OMP_NUM_THREADS": "1"}, "torch": {"num_threads": 1}},
    "dynamic": {"env": {"OMP_DYNAMIC": "false"}},
    "unset": {"env": {"GOMP_CPU_AFFINITY": None, "ATEN_CPU_CAPABILITY": None}},
    "rings": {"env": {"NCCL_ALGO": "Ring"}},
    "overwritten": {"env": {"NCCL_PROTO": "Simple"}},
    "never came": {"env": {"NVTE_FLASH_ATTN": "0"}},
    "not kept out": {"env": {"KMP_AFFINITY": None}},
    "switched": {"torch": {"deterministic_algorithms": "strict", "cudnn_benchmark": False}},
}
OWN_ENV = {"MY_FLAG": "1"}
# In C, behind the back of Python: what a library does that reads a configuration file.
INSIDE = """
import ctypes, json, sys
from pathlib import Path
import torch
from detsweep.worker import effects
config, presets, own = map(json.loads, sys.argv[1:4])
taken = torch.get_num_threads()
torch.set_num_threads(1)
libc = ctypes.CDLL(None)
libc.setenv(b"NCCL_PROTO", b"LL", 1)
libc.setenv(b"NCCL_NTHREADS", b"64", 1)
process = effects.Process.now(config, Path(sys.argv[4]), threads_taken=taken)
became = effects.effects(presets, own, process)
known = {"device": process.device, "compiles": process.compiles, "attention": process.attention}
said = {"effects": effects.to_json(became), "lost": list(effects.lost(became)), "appeared": process.appeared, **known}
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def inside(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What a process finds of PRESETS that was started with STARTED, and in which a library set two more."""
    own = {name: value for name, value in os.environ.items() if name not in catalogue()}
    path = os.pathsep.join(filter(None, sys.path))
    texts = [json.dumps(one) for one in (compose("model.attention=sdpa"), PRESETS, OWN_ENV)]
    done = subprocess.run(
        [sys.executable, "-c", INSIDE, *texts, str(tmp_path_factory.mktemp("log") / "nccl.log")],
        env={**own, **STARTED, "LC_ALL": "C.UTF-8", "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("mitigation", "setting", "status", "evidence"),
    [
        ("acting", "PYTHONHASHSEED", "effective", "hash randomization is False"),
        ("acting", "float32_matmul_precision", "effective", "torch says float32_matmul_precision=highest"),
        ("threads", "OMP_NUM_THREADS", "effective", "torch took 1 threads from it"),
        ("threads", "num_threads", "effective", "torch says num_threads=1"),
        ("dynamic", "OMP_DYNAMIC", "set", "there is what reads it: openmp"),
        ("unset", "ATEN_CPU_CAPABILITY", "set", "there is what reads it: torch"),
        ("rings", "NCCL_ALGO", "inert", "nothing here reads it (no nccl, no rccl)"),
        ("overwritten", "NCCL_PROTO", "lost", "NCCL_PROTO should be Simple, is LL for C libraries"),
        ("never came", "NVTE_FLASH_ATTN", "lost", "NVTE_FLASH_ATTN should be 0, was unset when the process started"),
        ("not kept out", "KMP_AFFINITY", "lost", "KMP_AFFINITY should be unset, was none when the process started"),
        ("switched", "deterministic_algorithms", "lost", "deterministic_algorithms should be strict, is off"),
        ("switched", "cudnn_benchmark", "inert", "for GPUs, and this is a CPU"),
        ("env", "MY_FLAG", "set", "not in the catalogue: what reads it is not known"),
    ],
)
def test_in_a_real_process_each_setting_has_its_status_and_how_it_is_known(
    inside: Any, mitigation: str, setting: str, status: str, evidence: str
) -> None:
    assert inside["effects"][mitigation][setting] == {"status": status, "evidence": evidence}


def test_a_preset_that_sets_nothing_has_no_effects_and_ones_own_variables_are_called_env(inside: Any) -> None:
    assert list(inside["effects"]) == [*(name for name in PRESETS if name != "none"), "env"]


def test_what_is_lost_is_said_in_a_line_each(inside: Any) -> None:
    assert inside["lost"] == [
        "NCCL_PROTO should be Simple, is LL for C libraries",
        "NVTE_FLASH_ATTN should be 0, was unset when the process started",
        "KMP_AFFINITY should be unset, was none when the process started",
        "deterministic_algorithms should be strict, is off",
    ]


def test_what_a_library_set_behind_pythons_back_has_appeared(inside: Any) -> None:
    assert inside["appeared"] == {"NCCL_PROTO": "LL", "NCCL_NTHREADS": "64"}


def test_a_process_knows_what_its_cell_does(inside: Any) -> None:
    assert (inside["device"], inside["compiles"], inside["attention"]) == ("cpu", False, "sdpa")


# --- who reads it ----------------------------------------------------------------------------------------------------


def _process(device: str = "cpu", *, compiles: bool = False, attention: str = "math", taken: int = 1) -> Process:
    """This process, as if its cell were another one; its variables are those that a test has set."""
    own = dict(os.environ)
    return Process(device, taken, compiles, attention, tuple(loaded()), kernel=own, c=own, nccl={})


def test_every_reader_of_the_catalogue_is_known_here_and_every_idle_switch_exists() -> None:
    assert _READERS.keys() == set(READERS)
    assert _IDLE.keys() <= SWITCHES.keys()


def test_every_variable_of_the_catalogue_comes_to_a_status(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in catalogue():
        monkeypatch.delenv(name, raising=False)
    processes = [_process(device, compiles=compiles) for device in ("cpu", "cuda") for compiles in (False, True)]
    found = {effect_of(name, None, process).status for name in catalogue() for process in processes}
    assert found == {"set", "inert"}


@pytest.mark.parametrize(
    ("reader", "read", "not_read"),
    [
        ("nccl", [_process("cuda")], [_process()]),
        ("cuda", [_process("cuda")], [_process()]),
        ("torch_gpu", [_process("cuda")], [_process()]),
        ("cublas", [_process("cuda")], [_process()]),
        ("gloo", [_process()], [_process("cuda")]),
        ("torch_rocm", [], [_process("cuda"), _process()]),
        ("rccl", [], [_process("cuda"), _process()]),
        ("dynamo", [_process(compiles=True), _process("cuda", compiles=True)], [_process(), _process("cuda")]),
        ("inductor", [_process(compiles=True)], [_process()]),
        ("triton", [_process("cuda", compiles=True)], [_process(compiles=True), _process("cuda")]),
        ("torch", [_process(), _process("cuda")], []),
        ("python", [_process(), _process("cuda")], []),
        ("rocblas", [replace(_process("cuda"), libraries=("/opt/rocm/lib/librocblas.so.4",))], [_process("cuda")]),
        ("openmp", [replace(_process(), libraries=("/a b/libiomp5.so",))], [replace(_process(), libraries=())]),
        ("transformer_engine", [], [_process("cuda")]),
    ],
)
@pytest.mark.skipif(torch.version.hip is not None, reason="what NVIDIA's libraries read is not read on AMD")
def test_a_reader_is_there_or_not(reader: str, read: list[Process], not_read: list[Process]) -> None:
    assert [_READERS[reader](process) for process in (*read, *not_read)] == [True] * len(read) + [False] * len(not_read)


@pytest.mark.parametrize(
    ("reader", "there"),
    [("rccl", True), ("hip", True), ("torch_rocm", True), ("nccl", False), ("cublas", False), ("cublaslt", False)],
)
def test_on_amd_the_readers_are_amds(monkeypatch: pytest.MonkeyPatch, reader: str, there: bool) -> None:
    monkeypatch.setattr(torch.version, "hip", "6.4.0")
    assert _READERS[reader](_process("cuda")) is there
    assert not _READERS[reader](_process("cpu"))


def test_a_module_reads_once_it_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVTE_FLASH_ATTN", "0")
    assert effect_of("NVTE_FLASH_ATTN", "0", _process()).status == "inert"
    monkeypatch.setitem(sys.modules, "transformer_engine", sys)
    assert effect_of("NVTE_FLASH_ATTN", "0", _process()).status == "set"


@pytest.mark.parametrize(
    ("name", "needed"),
    [("TORCHINDUCTOR_MAX_AUTOTUNE", "nothing is compiled"), ("NCCL_ALGO", "no nccl, no rccl")],
)
def test_what_is_missing_to_read_it_is_said(monkeypatch: pytest.MonkeyPatch, name: str, needed: str) -> None:
    monkeypatch.setenv(name, "1")
    assert effect_of(name, "1", _process()) == Effect("inert", f"nothing here reads it ({needed})")


@pytest.mark.parametrize(
    ("said", "status", "evidence"),
    [
        ({"NCCL_ALGO": "Ring"}, "effective", "NCCL says NCCL_ALGO=Ring"),
        ({"NCCL_ALGO": "Tree"}, "lost", "NCCL says NCCL_ALGO=Tree"),
        ({"NCCL_PROTO": "LL"}, "set", "there is what reads it: nccl"),
    ],
)
@pytest.mark.skipif(torch.version.hip is not None, reason="on AMD it is RCCL that reads it")
def test_what_nccl_says_to_have_read_is_the_proof(
    monkeypatch: pytest.MonkeyPatch, said: dict[str, str], status: str, evidence: str
) -> None:
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    process = replace(_process("cuda"), nccl=said)
    assert effect_of("NCCL_ALGO", "Ring", process) == Effect(status, evidence)


def test_a_canary_that_contradicts_makes_a_variable_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    # Asked before the variable is there: torch reads it at the first question.
    seen = torch.backends.cpu.get_cpu_capability()
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "none")
    evidence = f"ATEN_CPU_CAPABILITY=none, but ATen's kernels are {seen}"
    assert effect_of("ATEN_CPU_CAPABILITY", "none", _process()) == Effect("lost", evidence)


@pytest.mark.parametrize("name", ["OMP_NUM_THREADS", "MKL_NUM_THREADS"])
def test_threads_are_what_torch_took_before_it_was_told(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "5")
    assert effect_of(name, "5", _process(taken=5)) == Effect("effective", "torch took 5 threads from it")
    # More than there are cores: torch takes them when it is told, and not before.
    evidence = f"torch took 2 threads by itself, and has {torch.get_num_threads()} since it was told"
    assert effect_of(name, "5", _process(taken=2)) == Effect("set", evidence)


def test_what_a_library_undid_itself_is_set_and_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch._inductor.config as inductor

    monkeypatch.setenv("TORCHINDUCTOR_DETERMINISTIC", "1")
    monkeypatch.setattr(inductor, "deterministic", False)
    effect = effect_of("TORCHINDUCTOR_DETERMINISTIC", "1", _process(compiles=True))
    assert (effect.status, effect.evidence.partition(":")[0]) == ("set", UNDONE)


def test_a_number_is_the_text_that_a_variable_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_FLAG", "1")
    assert effect_of("MY_FLAG", 1, _process()).status == "set"  # type: ignore[arg-type]


# --- switches --------------------------------------------------------------------------------------------------------


@pytest.fixture
def _torch_as_it_was() -> Iterator[None]:
    yield
    torch.use_deterministic_algorithms(False)
    torch.utils.deterministic.fill_uninitialized_memory = True  # type: ignore[attr-defined]


@pytest.mark.usefixtures("_torch_as_it_was")
def test_a_switch_acts_where_torch_is_seen_to_obey_it() -> None:
    torch.use_deterministic_algorithms(True)
    evidence = "an operation without a deterministic form is refused"
    assert switch_effect("deterministic_algorithms", "strict", read_back(), _process()) == Effect("effective", evidence)


@pytest.mark.usefixtures("_torch_as_it_was")
def test_filling_is_idle_without_deterministic_algorithms_and_acts_with_them() -> None:
    idle = switch_effect("fill_uninitialized_memory", True, read_back(), _process())
    assert idle == Effect("inert", "only read with deterministic algorithms")
    torch.use_deterministic_algorithms(True, warn_only=True)
    acts = switch_effect("fill_uninitialized_memory", True, read_back(), _process())
    assert acts == Effect("effective", "fresh memory is filled")


@pytest.mark.parametrize(
    ("name", "process", "reason"),
    [
        ("cudnn_deterministic", _process(), "for GPUs, and this is a CPU"),
        ("blas_library", _process(), "for GPUs, and this is a CPU"),
        ("cudnn_deterministic", _process("cuda"), None),
        ("sdpa_backend", _process(attention="math"), "nothing here lets SDPA choose: see model.attention"),
        ("sdpa_backend", _process(attention="flex"), "nothing here lets SDPA choose: see model.attention"),
        ("sdpa_backend", _process(attention="flash"), "nothing here lets SDPA choose: see model.attention"),
        ("sdpa_backend", _process(attention="sdpa"), None),
        ("float32_matmul_precision", _process(), None),
        ("mkldnn_deterministic", _process(), None),
    ],
)
def test_a_switch_that_nothing_here_asks_is_inert(name: str, process: Process, reason: str | None) -> None:
    state = read_back()
    expected = Effect("effective", f"torch says {name}={state[name]}") if reason is None else Effect("inert", reason)
    assert switch_effect(name, state[name], state, process) == expected


def test_a_switch_of_another_value_is_lost_even_where_it_would_be_idle() -> None:
    state = {**read_back(), "cudnn_benchmark": True}
    effect = switch_effect("cudnn_benchmark", False, state, _process())
    assert effect == Effect("lost", "cudnn_benchmark should be False, is True")


# --- all of a cell ---------------------------------------------------------------------------------------------------


def test_what_two_mitigations_lost_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NCCL_ALGO", raising=False)
    ring = {"env": {"NCCL_ALGO": "Ring"}, "torch": {}}
    found = effects({"one": ring, "two": ring}, {"NCCL_ALGO": "Ring"}, _process())
    assert list(found) == ["one", "two", "env"]
    assert list(lost(found)) == ["NCCL_ALGO should be Ring, was unset when the process started"]


def test_without_mitigations_and_variables_there_is_nothing_to_say() -> None:
    assert effects({"none": {"env": {}, "torch": {}}}, {}, _process()) == {}


def test_as_json_each_setting_has_its_two_words() -> None:
    found = {"m": {"A": Effect("set", "there is what reads it: torch")}}
    assert to_json(found) == {"m": {"A": {"status": "set", "evidence": "there is what reads it: torch"}}}


def test_this_process_is_what_it_is(tmp_path: Path) -> None:
    log = tmp_path / "nccl.log"
    log.write_text("a:1:1 [0] NCCL INFO NCCL_ALGO set by environment to Ring\n")
    process = Process.now(compose("model.attention=flex"), log, threads_taken=7)
    # Flex attention is compiled in any case.
    assert (process.device, process.compiles, process.attention, process.threads_taken) == ("cpu", True, "flex", 7)
    assert process.nccl == {"NCCL_ALGO": "Ring"}
    assert process.libraries == tuple(loaded())
    assert process.c["PATH"] == os.environ["PATH"]
