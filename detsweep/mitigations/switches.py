"""The switches of torch that a mitigation can set: their names and values, known without importing torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

BOOLEAN = (False, True)
SWITCHES: Mapping[str, tuple[Any, ...]] = {
    "deterministic_algorithms": ("off", "warn", "strict"),
    "fill_uninitialized_memory": BOOLEAN,
    "cudnn_deterministic": BOOLEAN,
    "cudnn_benchmark": BOOLEAN,
    "cudnn_allow_tf32": BOOLEAN,
    "cuda_matmul_allow_tf32": BOOLEAN,
    "fp16_reduced_precision_reduction": BOOLEAN,
    "bf16_reduced_precision_reduction": BOOLEAN,
    "mkldnn_enabled": BOOLEAN,
    "mkldnn_deterministic": BOOLEAN,
    "float32_matmul_precision": ("highest", "high", "medium"),
    "sdpa_backend": ("math", "flash", "efficient", "cudnn"),
    "blas_library": ("cublas", "cublaslt", "ck"),
    "num_threads": (),
}
"""Every switch with the values that it takes; `num_threads` takes any number from 1 on."""


def check_switch(name: str, value: Any, source: str) -> None:
    """Raise ValueError, naming `source`, for a switch that does not exist or a value that it does not take."""
    if name not in SWITCHES:
        raise ValueError(f"{source}: unknown torch switch {name!r}; switches: {', '.join(SWITCHES)}")
    values = SWITCHES[name]
    if not values:
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{source}: {name}={value!r} must be a whole number of at least 1")
    elif values is BOOLEAN:
        if not isinstance(value, bool):
            raise ValueError(f"{source}: {name}={value!r} is neither true nor false")
    elif value not in values:
        raise ValueError(f"{source}: {name}={value!r} is none of {', '.join(map(str, values))}")
