"""A real rank, started by torchrun: the same steps with `moe.dispatch` local and all_to_all, written down.

`python -m tests.worker.expert_ranks FOLDER NAME...` writes FOLDER/NAME.RANK.pt for each case.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from detsweep.worker import sharding
from detsweep.worker.experts import own_experts
from detsweep.worker.progress import Progress
from detsweep.worker.rank import prepare as prepare_rank
from detsweep.worker.step import TrainingStep
from tests.support import compose

CPU = torch.device("cpu")
TRAIN = ("mode=train", "optimizer=sgd", "lr=0.5", "clip=0.05", "accum=2")
CASES: dict[str, tuple[str, ...]] = {
    "plain": (),
    "even": ("moe=even", "top_k=3"),
    "none_at_home_of_rank_1": (),
    "none_for_expert_0": (),
    "again": ("checkpointing=block", "model.dropout=0.1"),
    "module": ("wrap=module",),
    "copies": ("world.shard_ranks=1", *TRAIN),
    "train": TRAIN,
    "bf16_mixed": ("dtype=bf16_mixed",),
}
"""What is set beside experts, of which there are two on each rank."""
LIMITS = {"none_at_home_of_rank_1": {"max": 1}, "none_for_expert_0": {"min": 1}}
"""Between which numbers the experts that are chosen are brought, so that others have no tokens."""


def config_of(name: str, dispatch: str, ranks: int) -> dict[str, Any]:
    """The cell of a case."""
    moe = () if any(one.startswith("moe=") for one in CASES[name]) else ("moe=top2",)
    sizes = (f"world.nproc_per_node={ranks}", f"experts={2 * ranks}", "model.num_layers=2", "dtype=fp32")
    return compose(*sizes, *moe, f"moe.dispatch={dispatch}", *CASES[name])


def _step(name: str, dispatch: str, folder: Path) -> TrainingStep:
    config = config_of(name, dispatch, dist.get_world_size())
    step = prepare_rank(config, dist.get_rank(), CPU, Progress(folder / f"rank{dist.get_rank()}.progress"))[2]
    for block in step.model.blocks:
        block.get_submodule("ffn.router").register_forward_hook(
            lambda _, __, output: (output[0].clamp(**LIMITS[name]), output[1]) if name in LIMITS else output
        )
    return step


def _whole(tensor: Tensor | None) -> Tensor:
    assert isinstance(tensor, DTensor)
    return tensor.full_tensor().detach().clone()


def _outcome(name: str, dispatch: str, folder: Path) -> dict[str, Any]:
    """Loss, whole gradients and whole parameters after a step, of what trains two, and digests of what it clipped."""
    step = _step(name, dispatch, folder)
    steps = 1 if step.optimizer is None else 2
    observed = [step.observed(number, 1).stream for number in range(steps)]
    parameters = dict(step.model.named_parameters())
    return {
        "loss": step.loss,
        "gradients": {key: _whole(one.grad) for key, one in parameters.items()},
        "parameters": {key: _whole(one) for key, one in parameters.items()},
        "norms": [record.digest for stream in observed for record in stream.records if record.site == "norm"],
        "own": [key for experts in own_experts(step.model) for key, _ in experts.named_parameters()],
    }


def main(folder: Path, names: list[str]) -> None:
    """Run the cases and write what each rank has."""
    torch.set_num_threads(1)
    sharding.open_group(CPU, 1.0)
    for name in names:
        found = {dispatch: _outcome(name, dispatch, folder) for dispatch in ("local", "all_to_all")}
        torch.save(found, folder / f"{name}.{dist.get_rank()}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
