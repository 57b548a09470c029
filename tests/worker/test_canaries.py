"""Canaries in real processes: one that was started with the variables, and one that was started without them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from detsweep.mitigations import catalogue
from detsweep.mitigations.switches import SWITCHES
from detsweep.worker.canaries import CANARIES, SWITCH_CANARIES, said_by_nccl

CPU = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
AVX2 = pytest.mark.skipif(re.search(r"\bavx2\b", CPU) is None, reason="this CPU has no AVX2")
AVX512 = pytest.mark.skipif(re.search(r"\bavx512bw\b", CPU) is None, reason="this CPU has nothing above AVX2")
MKL = pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="this torch has no MKL")
ONEDNN = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")

STARTED = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "MKL_CBWR": "COMPATIBLE",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "PYTHONHASHSEED": "0",
    "TORCH_COMPILE_DISABLE": "1",
    "TORCHINDUCTOR_DETERMINISTIC": "1",
}
"""What the first process is started with; the second has none of them."""
LOOK = """
import ctypes, json, sys
import torch
import torch._dynamo.config, torch._inductor.config
from detsweep.worker.canaries import CANARIES
libc = ctypes.CDLL(None)
print("of Python, before")
libc.puts(b"of C, before")
seen = {f"{name}={value}": CANARIES[name](value) for name, value in json.loads(sys.argv[1])}
libc.puts(b"of C, after")
print("of Python, after")
sys.stdout.flush()
libc.fflush(None)
print(json.dumps(seen))
"""
ASKED = [
    *STARTED.items(),
    ("DNNL_MAX_CPU_ISA", "AVX2"),
    ("ONEDNN_MAX_CPU_ISA", "SSE41"),
    ("ONEDNN_MAX_CPU_ISA", "AVX512_CORE"),
    ("ATEN_CPU_CAPABILITY", "default"),
    ("MKL_CBWR", "AVX2"),
    ("MKL_CBWR", "COMPATIBLE,STRICT"),
    ("PYTHONHASHSEED", "17"),
    ("TORCH_COMPILE_DISABLE", "0"),
    ("TORCHINDUCTOR_DETERMINISTIC", "0"),
]


def _process(variables: dict[str, str]) -> tuple[list[str], Any]:
    """What a process printed beside what its canaries saw, and that."""
    own = {name: value for name, value in os.environ.items() if name not in CANARIES}
    path = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(
        [sys.executable, "-c", LOOK, json.dumps(ASKED)],
        env={**own, **variables, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    *printed, seen = done.stdout.splitlines()
    return printed, json.loads(seen)


@pytest.fixture(scope="module")
def started() -> tuple[list[str], Any]:
    return _process(STARTED)


@pytest.fixture(scope="module")
def bare() -> tuple[list[str], Any]:
    return _process({})


EVIDENCE = [
    pytest.param("ATEN_CPU_CAPABILITY=avx2", "ATen's kernels are AVX2", id="aten", marks=AVX2),
    pytest.param("MKL_CBWR=COMPATIBLE", "MKL runs with CNR:COMPATIBLE", id="mkl-branch", marks=MKL),
    pytest.param("MKL_CBWR=COMPATIBLE,STRICT", "MKL runs with CNR:COMPATIBLE", id="mkl-strict", marks=MKL),
    pytest.param("ONEDNN_MAX_CPU_ISA=AVX2", "oneDNN runs with Intel AVX2", id="onednn", marks=[AVX2, ONEDNN]),
    pytest.param("DNNL_MAX_CPU_ISA=AVX2", "oneDNN runs with Intel AVX2", id="dnnl", marks=[AVX2, ONEDNN]),
    pytest.param("PYTHONHASHSEED=0", "hash randomization is False", id="hash"),
    pytest.param("TORCH_COMPILE_DISABLE=1", "dynamo's disable is True", id="dynamo"),
    pytest.param("TORCHINDUCTOR_DETERMINISTIC=1", "inductor's deterministic is True", id="inductor"),
]


@pytest.mark.parametrize(("asked", "evidence"), EVIDENCE)
def test_a_variable_that_acts_is_seen_to(started: tuple[list[str], Any], asked: str, evidence: str) -> None:
    assert started[1][asked] == [True, evidence]


# Newer CPUs call it by another name.
ABOVE_AVX2 = ("oneDNN runs with Intel AVX-512 ", "oneDNN runs with Intel AVX 10")
WITHOUT = [
    pytest.param("ATEN_CPU_CAPABILITY=avx2", "ATen's kernels are AVX512", id="aten", marks=AVX512),
    pytest.param("MKL_CBWR=COMPATIBLE", "MKL runs with CNR:OFF", id="mkl-branch", marks=MKL),
    pytest.param("ONEDNN_MAX_CPU_ISA=AVX2", ABOVE_AVX2, id="onednn", marks=[AVX512, ONEDNN]),
    pytest.param("PYTHONHASHSEED=0", "hash randomization is True", id="hash"),
    pytest.param("TORCH_COMPILE_DISABLE=1", "dynamo's disable is False", id="dynamo"),
]


@pytest.mark.parametrize(("asked", "evidence"), WITHOUT)
def test_in_a_process_that_was_started_without_it_it_is_not(
    bare: tuple[list[str], Any], asked: str, evidence: str | tuple[str, ...]
) -> None:
    acts, seen = bare[1][asked]
    assert acts is False
    assert seen.startswith(evidence)


CONTRADICTED = [
    pytest.param("ONEDNN_MAX_CPU_ISA=SSE41", "oneDNN runs with Intel AVX2", id="onednn", marks=[AVX2, ONEDNN]),
    pytest.param("ATEN_CPU_CAPABILITY=default", "ATen's kernels are AVX2", id="aten", marks=AVX2),
    pytest.param("MKL_CBWR=AVX2", "MKL runs with CNR:COMPATIBLE", id="mkl-branch", marks=MKL),
    pytest.param("TORCH_COMPILE_DISABLE=0", "dynamo's disable is True", id="dynamo"),
    pytest.param("TORCHINDUCTOR_DETERMINISTIC=0", "inductor's deterministic is True", id="inductor"),
]


@pytest.mark.parametrize(("asked", "evidence"), CONTRADICTED)
def test_another_value_than_the_one_that_acts_is_contradicted(
    started: tuple[list[str], Any], asked: str, evidence: str
) -> None:
    assert started[1][asked] == [False, evidence]


@pytest.mark.parametrize("asked", ["ONEDNN_MAX_CPU_ISA=AVX512_CORE", "PYTHONHASHSEED=17"])
def test_what_a_canary_cannot_tell_it_does_not_say(
    started: tuple[list[str], Any], bare: tuple[list[str], Any], asked: str
) -> None:
    assert started[1][asked] is None
    assert bare[1][asked] is None


def test_inductors_switch_that_is_off_after_all_was_undone(bare: tuple[list[str], Any]) -> None:
    evidence = "undone: it was read at import, and after the first compiled frame inductor's deterministic is False"
    assert bare[1]["TORCHINDUCTOR_DETERMINISTIC=1"] == [None, evidence]


@pytest.mark.parametrize("process", ["started", "bare"])
def test_what_the_process_prints_itself_stays_whole(process: str, request: pytest.FixtureRequest) -> None:
    printed, _ = request.getfixturevalue(process)
    assert sorted(printed) == sorted(["of Python, before", "of C, before", "of C, after", "of Python, after"])


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU that can tell")
def test_the_workspace_of_cublas_shows_on_a_gpu_alone() -> None:
    assert CANARIES["CUBLAS_WORKSPACE_CONFIG"](":4096:8") is None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_the_workspace_of_cublas_is_the_one_asked_for() -> None:
    code = "from detsweep.worker.canaries import CANARIES; print(CANARIES['CUBLAS_WORKSPACE_CONFIG'](':4096:8'))"
    variables = {**os.environ, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout == f"(True, 'cuBLAS has {4096 * 8 * 1024} bytes of workspace')\n"


def test_every_canary_is_of_a_variable_or_a_switch_that_there_is() -> None:
    assert CANARIES.keys() <= catalogue().keys()
    assert SWITCH_CANARIES.keys() <= SWITCHES.keys()


# --- switches --------------------------------------------------------------------------------------------------------


@pytest.fixture
def _torch_as_it_was() -> Iterator[None]:
    yield
    torch.use_deterministic_algorithms(False)
    torch.utils.deterministic.fill_uninitialized_memory = True  # type: ignore[attr-defined]


@pytest.mark.usefixtures("_torch_as_it_was")
@pytest.mark.parametrize(
    ("level", "evidence"),
    [
        ("off", "an operation without a deterministic form runs"),
        ("warn", "an operation without a deterministic form is warned of"),
        ("strict", "an operation without a deterministic form is refused"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_deterministic_algorithms_show_in_an_operation_that_has_none(level: str, evidence: str) -> None:
    torch.use_deterministic_algorithms(level != "off", warn_only=level == "warn")
    for asked in ("off", "warn", "strict"):
        assert SWITCH_CANARIES["deterministic_algorithms"](asked) == (asked == level, evidence)


@pytest.mark.usefixtures("_torch_as_it_was")
@pytest.mark.parametrize("filled", [True, False])
def test_filling_shows_in_fresh_memory(filled: bool) -> None:
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = filled  # type: ignore[attr-defined]
    evidence = f"fresh memory is {'filled' if filled else 'left as it was'}"
    assert SWITCH_CANARIES["fill_uninitialized_memory"](filled) == (True, evidence)
    assert SWITCH_CANARIES["fill_uninitialized_memory"](not filled) == (False, evidence)


@pytest.mark.usefixtures("_torch_as_it_was")
def test_filling_does_not_show_without_deterministic_algorithms() -> None:
    assert SWITCH_CANARIES["fill_uninitialized_memory"](True) is None


# --- NCCL ------------------------------------------------------------------------------------------------------------

LOG = """\
node7:1799:1799 [0] NCCL INFO cudaDriverVersion 12040
node7:1799:1799 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to eth0
node7:1799:1799 [0] NCCL INFO Bootstrap : Using eth0:10.244.1.10<0>
node7:1799:2383 [0] NCCL INFO NCCL_ALGO set by environment to ring,tree
node7:1799:2383 [0] NCCL INFO NCCL_NVLS_ENABLE set by environment to 0.
node7:1799:2383 [0] NCCL INFO NCCL_CONF_FILE set by environment to /dev/null
node7:1799:2383 [0] NCCL INFO NCCL_LAUNCH_MODE set to GROUP by default
node7:1799:2383 [0] NCCL WARN NCCL_PROTO set by environment to LL
node7:1799:2383 [0] NCCL INFO NCCL_TOPO_FILE environment variable not set
node7:1799:2383 [0] NCCL INFO NCCL_ALGO set by environment to Ring
"""


def test_what_nccl_says_to_have_read_is_read_from_its_info_lines(tmp_path: Path) -> None:
    log = tmp_path / "nccl-1799.log"
    log.write_text(LOG)
    assert said_by_nccl(log) == {
        "NCCL_SOCKET_IFNAME": "eth0",
        "NCCL_ALGO": "Ring",
        "NCCL_NVLS_ENABLE": "0",
        "NCCL_CONF_FILE": "/dev/null",
    }


def test_a_process_without_a_log_of_nccl_has_read_nothing_that_is_known(tmp_path: Path) -> None:
    assert said_by_nccl(tmp_path / "nccl-1.log") == {}
