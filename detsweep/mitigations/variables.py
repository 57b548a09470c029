"""The catalogue of environment variables that change which bits a training step produces: data, in variables.yaml."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path

import yaml

FILE = Path(__file__).with_name("variables.yaml")
READERS = (
    "python", "glibc", "torch", "torch_gpu", "torch_rocm", "dynamo", "inductor", "triton", "openmp", "mkl", "onednn",
    "gloo", "nccl", "rccl", "cuda", "hip", "hsa", "cublas", "cublaslt", "hipblaslt", "rocblas", "cudnn", "miopen",
    "transformer_engine", "flash_attention", "transformers", "primus", "primus_turbo", "megatron", "mamba",
    "causal_conv1d",
)  # fmt: skip
READ = ("process", "import", "handle", "communicator", "construction", "compile", "call")
USES = ("preset", "isolated", "observe")


@dataclass(frozen=True)
class Variable:
    """One variable.

    `readers`: the libraries that read it (see READERS), `read`: when they do: at process start, import, creation of a
    handle or first use, of a communicator, construction of a module, compilation, or each call. `use`: a preset sets
    it, or a trial gets a path of its own for it (`isolated`), or it is only kept out and recorded (`observe`).
    """

    name: str
    readers: tuple[str, ...]
    read: str
    values: str
    default: str
    effect: str
    cost: str
    source: str
    use: str


@cache
def catalogue() -> Mapping[str, Variable]:
    """Every variable by name.

    Raises ValueError, naming the variable, where the file does not hold what it must.
    """
    # The C loader, where PyYAML has it: every rank reads this. Both are safe ones.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    with FILE.open(encoding="utf-8") as stream:
        content = yaml.load(stream, loader)  # noqa: S506
    return {name: _variable(name, entry) for name, entry in content.items()}


def _variable(name: str, entry: Mapping[str, object]) -> Variable:
    expected = {item.name for item in fields(Variable)} - {"name"}
    if entry.keys() != expected:
        raise ValueError(f"{FILE.name}: {name} must have {', '.join(sorted(expected))}")
    readers = entry["readers"]
    if not isinstance(readers, list) or not readers or not set(readers) <= set(READERS):
        raise ValueError(f"{FILE.name}: {name}: readers {readers!r} are not all of {', '.join(READERS)}")
    for key, valid in (("read", READ), ("use", USES)):
        if entry[key] not in valid:
            raise ValueError(f"{FILE.name}: {name}: {key} {entry[key]!r} is none of {', '.join(valid)}")
    texts = {key: str(value) for key, value in entry.items() if key != "readers"}
    return Variable(name=name, readers=tuple(readers), **texts)
