"""Versions of the installed packages that can have a say in which bits come out."""

from __future__ import annotations

import re
from importlib import metadata

NAMES = (
    "accelerate", "aiter", "amdsmi", "apex", "bitsandbytes", "causal-conv1d", "composable-kernel", "deepspeed",
    "detsweep", "flash-attn", "flash-attn-3", "hydra-core", "intel-openmp", "jax", "jaxlib", "liger-kernel",
    "lightning", "mamba-ssm", "megatron-core", "mkl", "nemo-toolkit", "numpy", "omegaconf", "pandas", "primus",
    "primus-turbo", "pytorch-triton", "pytorch-triton-rocm", "safetensors", "scipy", "submitit", "torch", "torchao",
    "torchtitan", "torchvision", "transformer-engine", "transformer-engine-torch", "transformers", "triton",
    "triton-rocm", "vllm", "xformers", "xxhash",
)  # fmt: skip
FAMILIES = ("nvidia-", "rocm", "transformer-engine-", "fbgemm-gpu")
"""Packages of which all are listed: those that bring libraries of their own."""


def packages() -> dict[str, str]:
    """The version of each that is installed, by its name."""
    found: dict[str, str] = {}
    for one in metadata.distributions():
        # A folder that a broken uninstall left behind has a name and nothing else.
        name = re.sub(r"[-_.]+", "-", str(one.metadata["Name"] or "")).lower()
        if name in NAMES or name.startswith(FAMILIES):
            found.setdefault(name, str(one.version))
    return dict(sorted(found.items()))
