"""Process group and FSDP2, the same code on every device type. Never unsharded in silence."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from detsweep.worker.experts import own_experts
from detsweep.worker.model import DTYPES, Block, RepeatedBlockModel

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


def open_group_alone(rank: int, world_size: int) -> None:
    """A process group of which this process is one rank and all others do not exist.

    It is torch's own fake group, whose module is private, and the one way to have a mesh of ranks that are not there:
    a group of any other backend waits for them.
    """
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)


def shard(model: RepeatedBlockModel, config: Mapping[str, Any], device: torch.device) -> None:
    """Shard the model in place, by the units that `wrap` names: all that is in one is gathered at once.

    `block`: each block, then what is left in the root. `module`: before that each block's attention and feed-forward.
    `root`: the whole model at once. Experts that are dealt out to ranks are units of their own, with nothing to share.
    """
    mesh = _mesh(config, device)
    policy = MixedPrecisionPolicy(
        param_dtype=DTYPES[config["dtype"]["compute"]], reduce_dtype=DTYPES[config["dtype"]["reduce"]]
    )
    if experts := own_experts(model):
        # On a mesh of this rank alone, so that the policy holds for them too: casts, and the dtype of their gradients.
        alone = init_device_mesh(device.type, (dist.get_world_size(), 1), mesh_dim_names=("expert", "expert_shard"))
        for one in experts:
            fully_shard(one, mesh=alone["expert_shard"], mp_policy=policy)
    for unit in _units(model, config["wrap"]):
        fully_shard(unit, mesh=mesh, mp_policy=policy)


def _units(model: RepeatedBlockModel, wrap: str) -> Iterator[nn.Module]:
    """From the inside out: fully_shard leaves out what is sharded already."""
    assert wrap in ("block", "module", "root")
    for block in cast(Iterable[Block], model.blocks):
        if wrap == "module":
            yield from (block.attention, block.ffn)
        if wrap != "root":
            yield block
    yield model


def _mesh(config: Mapping[str, Any], device: torch.device) -> DeviceMesh:
    """All ranks in one dimension, or `shard_ranks` to each copy of the model and as many copies as that makes."""
    world, shard_ranks = dist.get_world_size(), config["world"]["shard_ranks"]
    if shard_ranks is None:
        return init_device_mesh(device.type, (world,))
    # The mesh would be made all the same, without the ranks that are left over.
    assert world % shard_ranks == 0
    return init_device_mesh(device.type, (world // shard_ranks, shard_ranks), mesh_dim_names=("replicate", "shard"))
