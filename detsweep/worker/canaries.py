"""Canaries: what shows, on this platform, that a variable has had its effect, and not only that it is set.

Each takes the variable's value and returns what it saw, with whether that is what the value asks for.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path
from typing import Any

import torch

from detsweep.mitigations.effect import UNDONE

Seen = tuple[bool | None, str]
"""Whether it acts (None: it did, and has been undone since), and what shows that."""
Canary = Callable[[str], Seen | None]
"""None: it cannot tell here."""


def _capability(value: str) -> Seen:
    seen = torch.backends.cpu.get_cpu_capability()
    return seen.lower() == value.lower(), f"ATen's kernels are {seen}"


def _mkl_branch(value: str) -> Seen | None:
    """MKL names the branch of its code in its verbose line: CNR:COMPATIBLE, CNR:OFF, ..."""
    small = torch.ones(64, 64)
    if not torch.backends.mkl.is_available():
        return None
    text = _printed(torch.backends.mkl.verbose(torch.backends.mkl.VERBOSE_ON), lambda: small @ small)
    branch = re.search(r"CNR:(\S+)", text)
    if branch is None:
        return None
    return branch[1].split(",")[0].upper() == value.split(",", maxsplit=1)[0].upper(), f"MKL runs with CNR:{branch[1]}"


# The instruction sets below AVX-512 that oneDNN's variable takes, weakest first, and how oneDNN says that it uses them.
_ISA = {"SSE41": "Intel SSE4.1", "AVX": "Intel AVX", "AVX2": "Intel AVX2"}


def _onednn_isa(value: str) -> Seen | None:
    """The variable is a limit: what is used may be weaker, and not stronger."""
    if value.upper() not in _ISA or (seen := _onednn_instructions()) is None:
        return None
    allowed = list(_ISA)[: list(_ISA).index(value.upper()) + 1]
    return seen in [_ISA[name] for name in allowed], f"oneDNN runs with {seen}"


@cache
def _onednn_instructions() -> str | None:
    """The instructions that oneDNN uses, which it says once in a process: at the head of the first verbose lines."""
    # Two images: a single one with so few channels is none of oneDNN's.
    images, kernel = torch.ones(2, 8, 8, 8), torch.ones(8, 8, 3, 3)
    if not torch.backends.mkldnn.is_available():
        return None
    run = torch.nn.functional.conv2d
    text = _printed(torch.backends.mkldnn.verbose(torch.backends.mkldnn.VERBOSE_ON), lambda: run(images, kernel))
    seen = re.search(r"cpu,isa:(.+)", text)
    return None if seen is None else seen[1].strip()


def _hash_seed(value: str) -> Seen | None:
    if value == "0":
        return not sys.flags.hash_randomization, f"hash randomization is {bool(sys.flags.hash_randomization)}"
    return None


def _compile_disabled(value: str) -> Seen | None:
    # No public way to ask whether dynamo is off; the module is there only where something was compiled, or set.
    config = sys.modules.get("torch._dynamo.config")
    if config is None:
        return None
    return bool(getattr(config, "disable", None)) == (value == "1"), f"dynamo's disable is {config.disable}"


def _inductor_deterministic(value: str) -> Seen | None:
    seen = _inductor("deterministic")(value)
    if seen is None or seen[0] or value != "1":
        return seen
    # Seen in torch 2.13: after each frame dynamo puts torch's own switch back, and that sets inductor's too.
    return None, f"{UNDONE}: it was read at import, and after the first compiled frame {seen[1]}"


def _inductor(attribute: str) -> Canary:
    def look(value: str) -> Seen | None:
        config = sys.modules.get("torch._inductor.config")
        state = getattr(config, attribute, None)
        return None if state is None else (bool(state) == (value == "1"), f"inductor's {attribute} is {state}")

    return look


def _cublas_workspace(value: str) -> Seen | None:
    """The workspace that ATen gives cuBLAS, in bytes: the sum over the value's pairs of a size in KiB and a count."""
    ask = getattr(torch.backends.cuda, "cublas_workspace_size", None)
    if ask is None or not torch.cuda.is_available():
        return None
    numbers = [int(number) for number in re.findall(r"\d+", value)]
    wanted = sum(size * count for size, count in zip(numbers[::2], numbers[1::2], strict=False)) * 1024
    return ask() == wanted, f"cuBLAS has {ask()} bytes of workspace"


CANARIES: Mapping[str, Canary] = {
    "ATEN_CPU_CAPABILITY": _capability,
    "MKL_CBWR": _mkl_branch,
    "ONEDNN_MAX_CPU_ISA": _onednn_isa,
    "DNNL_MAX_CPU_ISA": _onednn_isa,
    "PYTHONHASHSEED": _hash_seed,
    "TORCH_COMPILE_DISABLE": _compile_disabled,
    "TORCHINDUCTOR_DETERMINISTIC": _inductor_deterministic,
    "CUBLAS_WORKSPACE_CONFIG": _cublas_workspace,
}


def _deterministic(level: str) -> Seen:
    """put_ with an index that comes twice has no deterministic form: it raises when strict, warns at `warn`."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            torch.zeros(2).put_(torch.tensor([0, 0]), torch.ones(2))
            seen = "warn" if any("deterministic" in str(warning.message) for warning in said) else "off"
        except RuntimeError:
            seen = "strict"
    told = {"strict": "is refused", "warn": "is warned of", "off": "runs"}[seen]
    return seen == level, f"an operation without a deterministic form {told}"


def _fills(value: bool) -> Seen | None:
    if not torch.are_deterministic_algorithms_enabled():
        return None
    filled = bool(torch.empty(256).isnan().all())
    # Memory that happens to hold NaN everywhere would be a strange accident; zeros are not.
    return filled == value, f"fresh memory is {'filled' if filled else 'left as it was'}"


SWITCH_CANARIES: Mapping[str, Callable[[Any], Seen | None]] = {
    "deterministic_algorithms": _deterministic,
    "fill_uninitialized_memory": _fills,
}


def said_by_nccl(log: Path) -> dict[str, str]:
    """Variables with the values that NCCL or RCCL says, in its INFO lines, to have read from the environment."""
    if not log.exists():
        return {}
    return dict(re.findall(r"NCCL INFO (\w+) set by environment to (\S+?)\.?$", log.read_text(), re.MULTILINE))


def _printed(switch: AbstractContextManager[Any], run: Callable[[], Any]) -> str:
    """What C code prints to this process's stdout while something runs."""
    sys.stdout.flush()
    libc = ctypes.CDLL(None)
    libc.fflush(None)
    kept = os.dup(1)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 1)
        try:
            with switch:
                run()
            libc.fflush(None)
        finally:
            os.dup2(kept, 1)
            os.close(kept)
        file.seek(0)
        return file.read().decode(errors="replace")
