"""Process group and FSDP2, the same code on every device type. Never unsharded in silence."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from detsweep.worker.model import DTYPES, RepeatedBlockModel

BACKENDS = {"cpu": "gloo", "cuda": "nccl"}


def open_device(device_type: str) -> torch.device:
    """The device of this rank. Raises RuntimeError where the machine does not have what the cell asks for."""
    if device_type == "cpu":
        return torch.device("cpu")
    local_rank = int(os.environ["LOCAL_RANK"])
    found = torch.cuda.device_count()
    if local_rank >= found:
        raise RuntimeError(f"device=cuda, but torch {torch.__version__} sees {found} GPUs for local rank {local_rank}")
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


def open_group(device: torch.device, trial_timeout_min: float) -> None:
    """Join the process group that torchrun's variables describe.

    Collectives wait longer than the trial may take: it is the trial's own limit that finds the rank that hangs, where
    a collective's would end the ranks that only wait for it.
    """
    limit = timedelta(minutes=trial_timeout_min + 10)
    dist.init_process_group(BACKENDS[device.type], timeout=limit, device_id=None if device.type == "cpu" else device)


def shard(model: RepeatedBlockModel, config: Mapping[str, Any], device: torch.device) -> None:
    """Shard each block and then the root over all ranks, in place."""
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    policy = MixedPrecisionPolicy(
        param_dtype=DTYPES[config["dtype"]["compute"]], reduce_dtype=DTYPES[config["dtype"]["reduce"]]
    )
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
