"""torch's switches, set and read back. Imports torch, so only what runs in a training process imports this."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.backends import cuda, cudnn, mkldnn


def apply(switches: Mapping[str, Any]) -> None:
    """Set switches, in whatever order they are given; the names and values are those of SWITCHES."""
    # Always in one order: torch sets the matmul precision along with cuda_matmul_allow_tf32.
    for name in sorted(switches, key=list(_SET).index):
        _SET[name](switches[name])


def read_back() -> dict[str, Any]:
    """The state of every switch, as torch tells it."""
    return {name: read() for name, read in _READ.items()}


def _set_deterministic(level: str) -> None:
    torch.use_deterministic_algorithms(level != "off", warn_only=level == "warn")


def _deterministic() -> str:
    if not torch.are_deterministic_algorithms_enabled():
        return "off"
    return "warn" if torch.is_deterministic_algorithms_warn_only_enabled() else "strict"


_SDPA: Mapping[str, tuple[Callable[[bool], None], Callable[[], bool]]] = {
    "math": (cuda.enable_math_sdp, cuda.math_sdp_enabled),
    "flash": (cuda.enable_flash_sdp, cuda.flash_sdp_enabled),
    "efficient": (cuda.enable_mem_efficient_sdp, cuda.mem_efficient_sdp_enabled),
    "cudnn": (cuda.enable_cudnn_sdp, cuda.cudnn_sdp_enabled),
}


def _set_sdpa(backend: str) -> None:
    for name, (enable, _) in _SDPA.items():
        enable(name == backend)


def _sdpa() -> str:
    return "+".join(name for name, (_, enabled) in _SDPA.items() if enabled())


def _blas() -> str:
    # An enum of torch's own, which prints as `_BlasBackend.Cublas`.
    return str(cuda.preferred_blas_library()).rpartition(".")[2].lower()


def _attribute(owner: Any, name: str) -> tuple[Callable[[Any], None], Callable[[], Any]]:
    def write(value: Any) -> None:
        if not hasattr(owner, name):
            raise ValueError(f"torch {torch.__version__} has no {owner.__name__}.{name}")
        setattr(owner, name, value)

    return write, lambda: getattr(owner, name, None)


_ATTRIBUTES = {
    "fill_uninitialized_memory": _attribute(torch.utils.deterministic, "fill_uninitialized_memory"),
    "cudnn_deterministic": _attribute(cudnn, "deterministic"),
    "cudnn_benchmark": _attribute(cudnn, "benchmark"),
    "cudnn_allow_tf32": _attribute(cudnn, "allow_tf32"),
    "cuda_matmul_allow_tf32": _attribute(cuda.matmul, "allow_tf32"),
    "fp16_reduced_precision_reduction": _attribute(cuda.matmul, "allow_fp16_reduced_precision_reduction"),
    "bf16_reduced_precision_reduction": _attribute(cuda.matmul, "allow_bf16_reduced_precision_reduction"),
    "mkldnn_enabled": _attribute(mkldnn, "enabled"),
    "mkldnn_deterministic": _attribute(mkldnn, "deterministic"),
}
_SET: Mapping[str, Callable[[Any], Any]] = {
    "deterministic_algorithms": _set_deterministic,
    **{name: write for name, (write, _) in _ATTRIBUTES.items()},
    "float32_matmul_precision": torch.set_float32_matmul_precision,
    "sdpa_backend": _set_sdpa,
    "blas_library": cuda.preferred_blas_library,
    "num_threads": torch.set_num_threads,
}
_READ: Mapping[str, Callable[[], Any]] = {
    "deterministic_algorithms": _deterministic,
    **{name: read for name, (_, read) in _ATTRIBUTES.items()},
    "float32_matmul_precision": torch.get_float32_matmul_precision,
    "sdpa_backend": _sdpa,
    "blas_library": _blas,
    "num_threads": torch.get_num_threads,
}
