"""The environment of a trial's processes: what is taken away, and what is set."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from detsweep.mitigations import catalogue

# Variables that change which bits a training step produces: all that the catalogue describes, and whatever else these
# families hold. What the shell happens to have of them does not reach a trial unless a mitigation, `env` or `keep_env`
# says so, or two cells would differ by more than their settings.
NUMERIC_PREFIXES = (
    "AMDGCN_",
    "AMD_SERIALIZE_",
    "DISABLE_ADDMM_",
    "DNNL_",
    "FLASH_ATTENTION_",
    "HIPBLASLT_",
    "HSA_",
    "KMP_",
    "MIOPEN_",
    "MKL_",
    "MSCCLPP_",
    "NCCL_",
    "NVTE_",
    "OMP_",
    "ONEDNN_",
    "PRIMUS_",
    "PYTORCH_TUNABLEOP_",
    "RCCL_",
    "ROCBLAS_",
    "TE_HIPBLASLT_",
    "TENSILE_",
    "TORCHINDUCTOR_",
    "TORCH_BLAS_",
    "TORCH_COMPILE_",
    "TORCH_NCCL_",
    "TORCH_ROCM_",
    "TRITON_",
)
# These say how to reach the network or what to log, and are needed to start at all on many clusters.
KEPT_NAMES = (
    "NCCL_DEBUG",
    "NCCL_DEBUG_FILE",
    "NCCL_DEBUG_SUBSYS",
    "NCCL_IB_GID_INDEX",
    "NCCL_IB_HCA",
    "NCCL_NET",
    "NCCL_NET_PLUGIN",
    "NCCL_SOCKET_IFNAME",
    "HSA_OVERRIDE_GFX_VERSION",
)
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
# A launcher's own variables must not reach another launcher's processes.
FOREIGN = re.compile(
    r"(SUBMITIT_\w+|TORCHELASTIC_\w+|RANK|LOCAL_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|GROUP_RANK|ROLE_RANK"
    r"|ROLE_WORLD_SIZE|GROUP_WORLD_SIZE|MASTER_ADDR|MASTER_PORT|ROLE_NAME"
    r"|(SLURM|SLURMD|SRUN|SBATCH|SALLOC|PMI|PMI2|PMIX)_\w+)"
)
_LAUNCHERS = ("SUBMITIT_", "SLURM_", "SLURMD_", "SRUN_", "PMI_", "PMI2_", "PMIX_")
NODE_VARIABLE = "DETSWEEP_NODE"
"""The name of the node that a rank is on, as the cluster has it; unset on a machine that is no node of one."""


@dataclass(frozen=True)
class ChildEnvironment:
    """The variables of a trial's processes; of these the ones that the shell has not, or otherwise; the shell's own
    that were taken away; and what the shell had where the cell asks for something else.
    """

    variables: dict[str, str]
    changed: dict[str, str]
    removed: dict[str, str]
    overruled: dict[str, str]


def of_torchrun(name: str) -> bool:
    """Whether a variable is one of those that torchrun gives its ranks."""
    return FOREIGN.fullmatch(name) is not None and not name.startswith(_LAUNCHERS)


def changes_numerics(name: str) -> bool:
    """Whether a variable belongs to those that change the bits of a step."""
    return name not in KEPT_NAMES and (name.startswith(NUMERIC_PREFIXES) or name in catalogue())


def overruled(base: Mapping[str, str], wanted: Mapping[str, str | None]) -> dict[str, str]:
    """What the shell has of the variables of which a cell asks for something else."""
    return {name: base[name] for name, value in wanted.items() if name in base and base[name] != value}


def kept_out(base: Mapping[str, str], wanted: Sequence[Mapping[str, str | None]]) -> list[str]:
    """The shell's variables that change bits and that no cell has anything to say of: no trial gets them."""
    own = set(THREAD_VARIABLES).union(*wanted)
    return sorted(name for name in base if changes_numerics(name) and name not in own)


def thread_variables(threads: int, wanted: Mapping[str, str | None]) -> dict[str, str]:
    """The variables that give a rank its threads: the cell's own number, or the one that it asks for.

    Where it asks for one of them alone the other follows: torch takes the smaller.
    """
    asked = [value for name in THREAD_VARIABLES if (value := wanted.get(name)) is not None]
    number = asked[0] if len(asked) == 1 else str(threads)
    return {name: wanted.get(name) or number for name in THREAD_VARIABLES}


def isolated(cache: Path | None, *, compiles: bool, gpu: bool) -> dict[str, str]:
    """Variables that point libraries at files of a cell's own, in place of what lies in the home or working directory.

    `cache`: the folder for what they find out and keep (tuning results, compiled kernels); None: the shared places.
    """
    variables = {"NCCL_CONF_FILE": os.devnull} if gpu else {}
    if cache is None:
        return variables
    if compiles:
        variables |= {"TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"), "TRITON_CACHE_DIR": str(cache / "triton")}
    if gpu:
        variables |= {
            "MIOPEN_CUSTOM_CACHE_DIR": str(cache / "miopen-kernels"),
            "MIOPEN_USER_DB_PATH": str(cache / "miopen"),
            "PYTORCH_KERNEL_CACHE_PATH": str(cache / "torch"),
            "PYTORCH_TUNABLEOP_FILENAME": str(cache / "tunableop_results%d.csv"),
        }
    return variables


def child_environment(
    base: Mapping[str, str],
    wanted: Mapping[str, str | None],
    *,
    threads: int,
    gpus: Sequence[str],
    defaults: Mapping[str, str],
) -> ChildEnvironment:
    """The environment in which a trial's torchrun is started.

    `base` is the shell's; `wanted` what the cell sets (None: unset); `gpus` are the trial's own, and none hides them
    all; `defaults` are set unless the cell says otherwise. The thread count is always set: torchrun would otherwise set
    one thread by itself, but only where there is more than one rank.
    """
    variables = {
        name: value for name, value in base.items() if not FOREIGN.fullmatch(name) and not changes_numerics(name)
    }
    own = thread_variables(threads, wanted)
    variables |= own
    variables["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
    # On AMD it would win over the line above.
    variables.pop("HIP_VISIBLE_DEVICES", None)
    variables |= defaults
    for name, value in wanted.items():
        if value is None:
            variables.pop(name, None)
        else:
            variables[name] = value
    # What submitit and Slurm say to their own task was never the shell's.
    removed = {k: v for k, v in base.items() if k not in variables and not k.startswith(_LAUNCHERS)}
    changed = {k: v for k, v in variables.items() if base.get(k) != v}
    return ChildEnvironment(variables, changed, removed, overruled(base, {**own, **wanted}))
