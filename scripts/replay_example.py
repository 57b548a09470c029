"""A small FSDP2 model, five steps, with SHA-256 of every gradient before the optimizer's step; recorded.

torchrun --standalone --nproc-per-node 2 scripts/replay_example.py runs/poc-1
torchrun --standalone --nproc-per-node 2 scripts/replay_example.py runs/poc-2
python -m detsweep.replay diff runs/poc-1 runs/poc-2
python -m detsweep.replay runs/poc-1 --rank 1
"""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard

import detsweep


class SimpleModel(nn.Module):
    """(batch, 10) -> (batch, 2)."""

    def __init__(self) -> None:
        super().__init__()
        self.layer1 = nn.Linear(10, 20)
        self.layer2 = nn.Linear(20, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer2(F.relu(self.layer1(x)))  # type: ignore[no-any-return]


def main(folder: str) -> None:
    """Train for five steps and record them."""
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if cuda else "gloo")
    torch.manual_seed(42)
    model = SimpleModel().to("cuda" if cuda else "cpu")
    for layer in (model.layer1, model.layer2, model):
        fully_shard(layer)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    torch.manual_seed(1000 + dist.get_rank())
    with detsweep.record(folder, model, optimizer, checksum="auto" if cuda else "sha256") as tape:
        for step in tape.steps(5):
            x, labels = tape.data("batch", torch.randn(64, 10), torch.randint(0, 2, (64,)))
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x.to(model.layer1.weight.device)), labels.to(model.layer1.weight.device))
            loss.backward()
            tape.fingerprint("loss", "loss", loss)
            optimizer.step()
            if dist.get_rank() == 0:
                print(f"step {step}: loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
