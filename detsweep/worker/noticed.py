"""What a recording is kept for: runs that differ, values that are not finite, a loss or a gradient too large."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import nn

from detsweep.capture import Stream
from detsweep.compare import compare
from detsweep.fingerprints import local

USUAL = 20
LEAST = 5


class Noticed:
    """Watches a rank's steps. `spike`: how many times the median of the last USUAL steps is too much; None: not asked.

    A spike is one of what was seen in at least LEAST steps. The norm is that of the rank's own shards.
    """

    def __init__(self, spike: float | None, device: torch.device) -> None:
        self._spike = spike
        self._device = device
        self._losses: deque[float] = deque(maxlen=USUAL)
        self._norms: deque[float] = deque(maxlen=USUAL)
        self.first: str | None = None

    def look(self, runs: Sequence[Stream], loss: float, model: nn.Module) -> str | None:
        """What went wrong in a step on any rank, in words; None where nothing did. All ranks must look at each step."""
        self.first = self._anywhere(self.in_step(runs, loss, model))
        return self.first

    def in_step(self, runs: Sequence[Stream], loss: float, model: nn.Module) -> str | None:
        """What went wrong in a step on this rank; None where nothing did. `runs`: all that were made of it."""
        first, *others = runs
        for other in others:
            if (parted := compare(first, other).first) is not None:
                return f"step {first.step}: {other.run} differs from r1 at {parted.site} {parted.name}"
        if first.nonfinite:
            name, count = next(iter(first.nonfinite.items()))
            return f"step {first.step}: {count} values of {name} are not finite"
        return None if self._spike is None else self._spiked(first.step, loss, _norm(model))

    def _anywhere(self, reason: str | None) -> str | None:
        worst = torch.tensor(dist.get_rank() if reason is not None else dist.get_world_size(), device=self._device)
        dist.all_reduce(worst, op=dist.ReduceOp.MIN)
        rank = int(worst.item())
        if reason is not None or rank == dist.get_world_size():
            return reason
        return f"rank {rank} noticed something"

    def _spiked(self, step: int, loss: float, norm: float) -> str | None:
        assert self._spike is not None
        for name, value, before in (("the loss", loss, self._losses), ("the gradients' norm", norm, self._norms)):
            usual = statistics.median(before) if len(before) >= LEAST else math.nan
            if abs(value) > self._spike * abs(usual):
                return f"step {step}: {name} is {value:.6g}, usually {usual:.6g}"
        self._losses.append(loss)
        self._norms.append(norm)
        return None


def _norm(model: nn.Module) -> float:
    squares = [
        local(parameter.grad).float().square().sum() for parameter in model.parameters() if parameter.grad is not None
    ]
    return float(torch.stack(squares).sum().sqrt()) if squares else 0.0
