"""Checkpoints of mode `resume`: model, optimizer, every rank's random states and the position in the data."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn

from detsweep.worker.experts import own_experts
from detsweep.worker.snapshot import RandomState

if TYPE_CHECKING:
    from torch.distributed.checkpoint.state_dict import StateDictOptions


def save(
    folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device, *, next_step: int
) -> None:
    """Write everything that the steps from `next_step` on depend on, sharded, into an empty folder."""
    # These take a third of a second to import, and no other mode needs them.
    from torch.distributed.checkpoint.state_dict import get_state_dict
    from torch.distributed.checkpoint.state_dict_saver import save as save_sharded

    model_state, optimizer_state = get_state_dict(model, optimizer, options=_options(model))
    state = {"model": model_state, "optimizer": optimizer_state, **_own(RandomState.now(device), next_step)}
    save_sharded(state, checkpoint_id=str(folder))


def load(
    folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device, *, random: bool
) -> int:
    """Bring back what `save` wrote, in place, and return the step to go on with.

    With `random` false the random states are left as they are: the mistake that this mode is there to find.
    """
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torch.distributed.checkpoint.state_dict_loader import load as load_sharded

    # An optimizer without state gets one to load into; not where gradients are left, which it takes for work to do.
    model.zero_grad(set_to_none=True)
    options = _options(model)
    model_state, optimizer_state = get_state_dict(model, optimizer, options=options)
    own = _own(RandomState.now(device), -1)
    state: dict[str, Any] = {"model": model_state, "optimizer": optimizer_state, **own}
    load_sharded(state, checkpoint_id=str(folder))
    set_state_dict(
        model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"], options=options
    )
    saved = state[_key()]
    if random:
        RandomState.from_tensors(saved["random"]).restore(device)
    return int(saved["next_step"])


def _options(model: nn.Module) -> StateDictOptions:
    """How the optimizer's state is laid out.

    As torch does by itself, but where experts are dealt out to ranks: their parameter groups have one name and not the
    same parameters on all ranks, so that each parameter is written down with a group of its own.
    """
    from torch.distributed.checkpoint.state_dict import StateDictOptions

    return StateDictOptions(flatten_optimizer_state_dict=bool(own_experts(model)))


def _own(state: RandomState, next_step: int) -> dict[str, Any]:
    """What each rank has for itself, under a key of its own: equal keys are saved once for all ranks."""
    return {_key(): {"random": state.tensors(), "next_step": torch.tensor(next_step)}}


def _key() -> str:
    return f"rank{dist.get_rank()}"
