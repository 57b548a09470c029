"""The numerical libraries that are really loaded, with the versions they tell."""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

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
    told = {name: ask() for name, ask in _asked().items()}
    for name, (prefix, function) in _PROPERTIES.items():
        path = next((path for path in paths if Path(path).name.startswith(prefix)), None)
        told[name] = None if path is None else _property(path, function)
    for name, prefix in _NAMED.items():
        told[name] = next((version for path in paths if (version := _in_the_name(path, prefix))), None)
    return {name: version for name, version in told.items() if version}


def _built(pattern: str) -> Callable[[], str | None]:
    # torch links these statically on many platforms, and only its own description has their versions.
    def ask() -> str | None:
        import torch

        found = re.search(pattern, torch.__config__.show())
        return found[1] if found else None

    return ask


def _nccl() -> str | None:
    import torch

    if not torch.cuda.is_available():
        return None
    from torch.cuda import nccl

    return ".".join(map(str, nccl.version()))


def _cudnn() -> str | None:
    import torch

    return str(torch.backends.cudnn.version()) if torch.backends.cudnn.is_available() else None


def _asked() -> dict[str, Callable[[], str | None]]:
    """What only torch can tell, by the names that the libraries have on this build."""
    # Not at the top: the driver imports this room and never torch.
    import torch

    return {
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


DIGEST_LIMIT = 64 << 20
"""The largest file, in bytes, whose digest is taken unless all are asked for: torch's own have gigabytes."""


def described(path: str, *, whole: bool = False) -> dict[str, Any]:
    """A library's file: path, size, build id, and the SHA-256 of what is in it (of large ones with `whole` alone).

    The build id is the linker's own digest of what it linked: two builds of one version differ in it.
    """
    told: dict[str, Any] = {"path": path}
    try:
        with Path(path).open("rb") as stream:
            told["size"] = os.fstat(stream.fileno()).st_size
            told["build_id"] = build_id(stream)
            if whole or told["size"] <= DIGEST_LIMIT:
                stream.seek(0)
                digest = hashlib.sha256()
                while block := stream.read(1 << 20):
                    digest.update(block)
                told["sha256"] = digest.hexdigest()
    except OSError as error:
        # Replaced since it was loaded, most likely by an upgrade: that is worth knowing.
        told["unreadable"] = str(error.strerror)
    return told


def build_id(stream: BinaryIO) -> str | None:
    """The GNU build id of an ELF file of 64 bits in hexadecimal; None where it has none."""
    head = stream.read(64)
    if head[:5] != b"\x7fELF\x02" or len(head) < 64:
        return None
    order = "<" if head[5] == 1 else ">"
    offset, size, count = (*struct.unpack_from(f"{order}Q", head, 32), *struct.unpack_from(f"{order}2H", head, 54))
    end = stream.seek(0, os.SEEK_END)
    for number in range(count if offset + count * size <= end else 0):
        stream.seek(offset + number * size)
        entry = stream.read(56)
        if len(entry) < 56:
            return None
        kind, _, place, _, _, length = struct.unpack_from(f"{order}2I4Q", entry)
        if kind == _PT_NOTE and length <= _MOST_NOTES and place + length <= end:
            stream.seek(place)
            if found := _note(stream.read(length), order):
                return found
    return None


_PT_NOTE, _NT_GNU_BUILD_ID, _MOST_NOTES = 4, 3, 1 << 20


def _note(notes: bytes, order: str) -> str | None:
    place = 0
    while place + 12 <= len(notes):
        name_size, size, kind = struct.unpack_from(f"{order}3I", notes, place)
        name = notes[place + 12 : place + 12 + name_size]
        start = place + 12 + (name_size + 3) // 4 * 4
        if kind == _NT_GNU_BUILD_ID and name == b"GNU\0":
            return notes[start : start + size].hex()
        place = start + (size + 3) // 4 * 4
    return None
