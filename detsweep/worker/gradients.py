"""Gradients and optimizer of a model of which some parameters are sharded over all ranks and others are on one alone.

Experts that are dealt out to ranks are on a device mesh of their own, and neither foreach kernels nor torch's clipping
take tensors of several meshes. Where there are none, all of this is what torch does by itself.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from detsweep.fingerprints import local
from detsweep.worker.experts import own_experts


def parameter_groups(model: nn.Module) -> list[nn.Parameter] | list[dict[str, list[nn.Parameter]]]:
    """What an optimizer is to be made of: all parameters, or a group for those of each mesh."""
    shared, own = _split(model)
    return [{"params": shared}, {"params": own}] if own else shared


@torch.no_grad()
def average_own(model: nn.Module) -> None:
    """Bring the gradients of experts that are on this rank alone to the scale of the others.

    FSDP2 gives the mean of all ranks' gradients. To an expert the all-to-alls bring the sum of them, as every rank's
    loss is in its rows. By hand, as FSDP2's own factor for that (set_gradient_divide_factor) is not in every torch,
    and in some needs NCCL.
    """
    for experts in own_experts(model):
        for parameter in experts.parameters():
            assert parameter.grad is not None
            local(parameter.grad).div_(dist.get_world_size())


def clip(model: nn.Module, limit: float) -> Tensor:
    """Scale all gradients so that their norm is at most `limit`; returns the norm that they had, the same on all ranks.

    A DTensor where torch clips them all together, else a plain fp32 number, ().
    """
    shared, own = _split(model)
    if not own:
        return torch.nn.utils.clip_grad_norm_(model.parameters(), limit)
    norm = _norm(shared, own)
    # As torch does it.
    factor = torch.clamp(limit / (norm + 1e-6), max=1.0)
    for gradient in _gradients([*shared, *own]):
        gradient.mul_(factor)
    return norm


@torch.no_grad()
def _norm(shared: list[nn.Parameter], own: list[nn.Parameter]) -> Tensor:
    """The norm of the gradients of all shards on all ranks, and of all ranks' own parameters, ().

    Gathered and not reduced: every rank adds the same numbers in the same order. Of the shared ones only the first
    copy counts, ranks 0 to `shard_ranks` - 1: the others have the same gradients.
    """
    assert isinstance(shared[0], DTensor)
    shard_ranks = shared[0].device_mesh.size(-1)
    squares = torch.stack([_squares(shared), _squares(own)])
    gathered = [torch.empty_like(squares) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, squares)
    everyone = torch.stack(gathered)
    return (everyone[:shard_ranks, 0].sum() + everyone[:, 1].sum()).sqrt()


def _squares(parameters: list[nn.Parameter]) -> Tensor:
    norms = [torch.linalg.vector_norm(one, dtype=torch.float32) for one in _gradients(parameters)]
    return torch.stack(norms).square().sum()


def _gradients(parameters: list[nn.Parameter]) -> list[Tensor]:
    """What this rank has of each gradient."""
    return [local(parameter.grad) for parameter in parameters if parameter.grad is not None]


def _split(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Parameters of which every rank has a shard, and those that are on this rank alone, in the model's order."""
    own = [parameter for experts in own_experts(model) for parameter in experts.parameters()]
    known = {id(parameter) for parameter in own}
    return [parameter for parameter in model.parameters() if id(parameter) not in known], own
