"""The numerical libraries that are really loaded, with the versions they tell."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

_NAMES = re.compile(
    r"lib(torch|c10|gomp|omp|iomp|mkl|onednn|dnnl|gloo|nccl|rccl|cublas|cudnn|hipblas|rocblas|MIOpen|cudart|amdhip|"
    r"openblas|transformer_engine|triton)[\w.+-]*\.so"
)


def loaded() -> list[str]:
    """Paths of the numerical libraries mapped into this process, from the kernel's own list; empty elsewhere."""
    maps = Path("/proc/self/maps")
    if not maps.exists():
        return []
    paths = {line.split(maxsplit=5)[-1].strip() for line in maps.read_text().splitlines() if "/" in line}
    return sorted(path for path in paths if _NAMES.search(Path(path).name))


def versions(paths: list[str]) -> dict[str, str]:
    """What each library says of its own version: of the one that is loaded, whatever package it came with.

    gloo has no version of its own: it is the one of torch's commit.
    """
    told = {name: ask() for name, ask in _ASKED.items()}
    for name, (prefix, function) in _PROPERTIES.items():
        path = next((path for path in paths if Path(path).name.startswith(prefix)), None)
        told[name] = None if path is None else _property(path, function)
    for name, prefix in _NAMED.items():
        told[name] = next((version for path in paths if (version := _in_the_name(path, prefix))), None)
    return {name: version for name, version in told.items() if version}


def _built(pattern: str) -> Callable[[], str | None]:
    # torch links these statically on many platforms, and only its own description has their versions.
    def ask() -> str | None:
        found = re.search(pattern, torch.__config__.show())
        return found[1] if found else None

    return ask


def _nccl() -> str | None:
    if not torch.cuda.is_available():
        return None
    from torch.cuda import nccl

    return ".".join(map(str, nccl.version()))


def _cudnn() -> str | None:
    return str(torch.backends.cudnn.version()) if torch.backends.cudnn.is_available() else None


_ASKED: Mapping[str, Callable[[], str | None]] = {
    "mkl": _built(r"Math Kernel Library Version ([\w.]+)"),
    "onednn": _built(r"MKL-DNN v([\w.]+)"),
    "openmp": _built(r"OpenMP (\d+)"),
    "rccl" if torch.version.hip else "nccl": _nccl,
    "miopen" if torch.version.hip else "cudnn": _cudnn,
}
_PROPERTIES = {
    "cublas": ("libcublas.so", "cublasGetProperty"),
    "cublaslt": ("libcublasLt.so", "cublasLtGetProperty"),
}


_NAMED = {"hipblas": "libhipblas.so", "hipblaslt": "libhipblaslt.so", "rocblas": "librocblas.so"}
"""Libraries that tell their version only through a handle, and have it in the name of their file."""


def _in_the_name(path: str, prefix: str) -> str | None:
    found = re.search(rf"{re.escape(prefix)}\.([\d.]+)$", Path(path).resolve().name)
    return found[1] if found else None


def _property(path: str, function: str) -> str | None:
    """major.minor.patch, as NVIDIA's libraries tell it by libraryPropertyType 0, 1 and 2."""
    ask = getattr(ctypes.CDLL(path), function, None)
    numbers = []
    for kind in range(3):
        number = ctypes.c_int()
        if ask is None or ask(kind, ctypes.byref(number)) != 0:
            return None
        numbers.append(str(number.value))
    return ".".join(numbers)
