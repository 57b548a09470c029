"""What became of each mitigation in this process: in force and seen to act, only set, read by nothing, or lost."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from detsweep import modes
from detsweep.environment import THREAD_VARIABLES
from detsweep.environment.libraries import loaded
from detsweep.mitigations import Variable, catalogue
from detsweep.mitigations.torch_switches import read_back
from detsweep.worker import variables
from detsweep.worker.canaries import CANARIES, SWITCH_CANARIES, Seen, said_by_nccl

OWN = "env"
"""The name under which a cell's own variables (`+env.NAME=value`) stand beside its mitigations."""


@dataclass(frozen=True)
class Effect:
    """`status` is one of EFFECTS, `evidence` says how that is known."""

    status: str
    evidence: str


@dataclass(frozen=True)
class Process:
    """What is known of the process in which mitigations are to act.

    `device`: cpu or cuda. `compiles`, `attention`: what the cell's step does. `threads_taken`: how many threads torch
    had before detsweep set them. `nccl`: what NCCL says to have read.
    """

    device: str
    threads_taken: int
    compiles: bool
    attention: str
    libraries: tuple[str, ...]
    kernel: Mapping[str, str] | None
    c: Mapping[str, str]
    nccl: Mapping[str, str]

    @property
    def appeared(self) -> dict[str, str]:
        """Variables that were set or changed since the process was started."""
        return variables.appeared(self.kernel, self.c)

    @classmethod
    def now(cls, config: Mapping[str, Any], nccl_log: Path, *, threads_taken: int) -> Process:
        """This process, as it is at this moment."""
        return cls(
            device=torch.device(config["device"]).type,
            threads_taken=threads_taken,
            compiles=modes.compiles(config),
            attention=str(config["model"]["attention"]),
            libraries=tuple(loaded()),
            kernel=variables.kernel_environment(),
            c=variables.c_environment(),
            nccl=said_by_nccl(nccl_log),
        )


def effects(
    presets: Mapping[str, Mapping[str, Any]], own: Mapping[str, str | None], process: Process
) -> dict[str, dict[str, Effect]]:
    """For each mitigation of a cell, and for its own variables, what became of every setting of it."""
    state = read_back()
    sources = {**presets, OWN: {"env": own}} if own else presets
    return {
        source: {
            **{name: variable_effect(name, value, process) for name, value in preset.get("env", {}).items()},
            **{name: switch_effect(name, value, state, process) for name, value in preset.get("torch", {}).items()},
        }
        for source, preset in sources.items()
        if preset.get("env") or preset.get("torch")
    }


def variable_effect(name: str, value: str | None, process: Process) -> Effect:
    """What became of one variable; `value` None: it had to be unset."""
    value = None if value is None else str(value)
    if (line := variables.wrong(name, value, process.kernel, process.c)) is not None:
        return Effect("lost", line)
    variable = catalogue().get(name)
    if variable is None:
        return Effect("set", "not in the catalogue: what reads it is not known")
    here = [reader for reader in variable.readers if _READERS[reader](process)]
    if not here:
        return Effect("inert", f"nothing here reads it ({_needed(variable)})")
    if value is not None and name in THREAD_VARIABLES:
        return _threads(value, process.threads_taken)
    if value is not None and name in CANARIES and (seen := CANARIES[name](value)) is not None:
        return _shown(name, value, seen)
    if name in process.nccl:
        said = process.nccl[name]
        return Effect("effective" if said == value else "lost", f"NCCL says {name}={said}")
    return Effect("set", f"there is what reads it: {', '.join(here)}")


def switch_effect(name: str, value: Any, state: Mapping[str, Any], process: Process) -> Effect:
    """What became of one switch of torch."""
    if state[name] != value:
        return Effect("lost", f"{name} should be {value}, is {state[name]}")
    if reason := next((why for applies, why in _IDLE.get(name, ()) if not applies(process, state)), None):
        return Effect("inert", reason)
    if name in SWITCH_CANARIES and (seen := SWITCH_CANARIES[name](value)) is not None:
        return _shown(name, value, seen)
    return Effect("effective", f"torch says {name}={state[name]}")


def _threads(value: str, taken: int) -> Effect:
    if str(taken) == value:
        return Effect("effective", f"torch took {taken} threads from it")
    # It takes the smaller of both variables, and no more than there are cores, until it is told.
    return Effect("set", f"torch took {taken} threads by itself, and has {torch.get_num_threads()} since it was told")


def _shown(name: str, value: Any, seen: Seen) -> Effect:
    acts, evidence = seen
    if acts is None:
        return Effect("set", evidence)
    return Effect("effective", evidence) if acts else Effect("lost", f"{name}={value}, but {evidence}")


def to_json(found: Mapping[str, Mapping[str, Effect]]) -> dict[str, dict[str, dict[str, str]]]:
    """As it is written: `status` and `evidence` of each setting of each mitigation."""
    return {source: {name: asdict(effect) for name, effect in settings.items()} for source, settings in found.items()}


def lost(found: Mapping[str, Mapping[str, Effect]]) -> Iterator[str]:
    """The settings that were asked for and are not in force, a line each, one that several ask for once."""
    yield from dict.fromkeys(
        effect.evidence for settings in found.values() for effect in settings.values() if effect.status == "lost"
    )


def _needed(variable: Variable) -> str:
    reasons = {"dynamo": "nothing is compiled", "inductor": "nothing is compiled"}
    names = dict.fromkeys(reasons.get(reader, f"no {reader}") for reader in variable.readers)
    return ", ".join(names)


def _library(*names: str) -> Callable[[Process], bool]:
    return lambda process: any(Path(path).name.startswith(names) for path in process.libraries)


def _module(name: str) -> Callable[[Process], bool]:
    return lambda _: name in sys.modules


def _gpu(process: Process) -> bool:
    return process.device == "cuda"


def _nvidia(process: Process) -> bool:
    return _gpu(process) and torch.version.hip is None


def _amd(process: Process) -> bool:
    return _gpu(process) and torch.version.hip is not None


_READERS: Mapping[str, Callable[[Process], bool]] = {
    "python": lambda _: True,
    "glibc": lambda _: sys.platform == "linux",
    "torch": lambda _: True,
    "torch_gpu": _gpu,
    "dynamo": lambda process: process.compiles,
    "inductor": lambda process: process.compiles,
    "triton": lambda process: process.compiles and _gpu(process),
    "openmp": _library("libgomp", "libiomp", "libomp"),
    "mkl": lambda _: torch.backends.mkl.is_available(),
    "onednn": lambda _: torch.backends.mkldnn.is_available(),
    "gloo": lambda process: process.device == "cpu",
    "nccl": _nvidia,
    "rccl": _amd,
    "cuda": _nvidia,
    "hip": _amd,
    "hsa": _amd,
    "torch_rocm": _amd,
    "cublas": _nvidia,
    "cublaslt": _nvidia,
    "hipblaslt": _library("libhipblaslt"),
    "rocblas": _library("librocblas"),
    "cudnn": lambda process: _nvidia(process) and torch.backends.cudnn.is_available(),
    "miopen": _library("libMIOpen"),
    "transformer_engine": _module("transformer_engine"),
    "flash_attention": _module("flash_attn"),
    "transformers": _module("transformers"),
    "primus": _module("primus"),
    "primus_turbo": _module("primus_turbo"),
    "megatron": _module("megatron"),
    "mamba": _module("mamba_ssm"),
    "causal_conv1d": _module("causal_conv1d"),
}
"""Whether what reads a variable is in a process."""

_Applies = Callable[[Process, Mapping[str, Any]], bool]
_ON_GPU: tuple[_Applies, str] = (lambda process, _: _gpu(process), "for GPUs, and this is a CPU")
_IDLE: Mapping[str, Sequence[tuple[_Applies, str]]] = {
    "fill_uninitialized_memory": [
        (lambda _, state: state["deterministic_algorithms"] != "off", "only read with deterministic algorithms")
    ],
    **{
        name: [_ON_GPU]
        for name in (
            "cudnn_deterministic", "cudnn_benchmark", "cudnn_allow_tf32", "cuda_matmul_allow_tf32",
            "fp16_reduced_precision_reduction", "bf16_reduced_precision_reduction", "blas_library",
        )
    },
    "sdpa_backend": [
        (lambda process, _: process.attention == "sdpa", "nothing here lets SDPA choose: see model.attention")
    ],
}  # fmt: skip
"""Switches that something must be there for, with why it is not."""
