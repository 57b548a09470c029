"""Expert parallelism: each rank holds some of the experts, and tokens cross ranks to them and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from detsweep.worker.moe import COMBINES, FeedForward, Router


class LocalExperts(nn.Module):
    """This rank's experts, each under the number that it has among all of them.

    Rows (rows, hidden), those of one expert after those of another, and how many each has -> the same shape. A module
    of its own, so that FSDP2 has all of a rank's experts in one unit.
    """

    def __init__(self, hidden_size: int, ffn_size: int, numbers: range) -> None:
        super().__init__()
        for number in numbers:
            self.add_module(str(number), FeedForward(hidden_size, ffn_size))

    def forward(self, rows: Tensor, counts: Sequence[int]) -> Tensor:
        parts = rows.split(list(counts))
        # An expert without tokens is run all the same, as where every rank has all: each has a gradient, if of zeros.
        return torch.cat([expert(part) for expert, part in zip(self.children(), parts, strict=True)])


class DispatchedExperts(nn.Module):
    """`top_k` of `experts` feed-forward networks for each token, dealt out to the `ranks` of the default group.

    (..., hidden) -> the same. What `MixtureOfExperts` computes, with the same names of parameters: rank r holds the
    experts from r * experts / ranks on. Weights are applied, and rows combined, where the token is at home.

    Nothing on the way there and back is added up but by the combine, forward and backward: whether the layer repeats
    is up to that, the experts, and the collectives.
    """

    def __init__(
        self,
        hidden_size: int,
        ffn_size: int,
        *,
        experts: int,
        top_k: int,
        routing: str,
        combine: str,
        rank: int,
        ranks: int,
    ) -> None:
        super().__init__()
        assert experts % ranks == 0
        self._combine = COMBINES[combine]
        self._total, self._ranks, self._local = experts, ranks, experts // ranks
        self.router = Router(hidden_size, experts=experts, top_k=top_k, routing=routing)
        self.experts = LocalExperts(hidden_size, ffn_size, range(rank * self._local, (rank + 1) * self._local))

    def forward(self, hidden: Tensor) -> Tensor:
        tokens = hidden.reshape(-1, hidden.shape[-1])
        chosen, probabilities = self.router(tokens)
        weights = probabilities.gather(1, chosen).to(tokens.dtype)
        # Of all tokens of one expert the order is that of the tokens: a function of the data alone.
        order = chosen.flatten().argsort(stable=True)
        sent, received = self._exchanged_counts(chosen)
        outputs = self._at_home(_copies(tokens, order), sent, received)
        rows = outputs * weights.flatten().index_select(0, order).unsqueeze(-1)
        top_k = chosen.shape[1]
        return self._combine(tokens, rows, order // top_k, order % top_k).view_as(hidden)

    def _exchanged_counts(self, chosen: Tensor) -> tuple[list[list[int]], list[list[int]]]:
        """Experts chosen (tokens, top_k) -> how many rows go to each rank's experts, and come from each rank to ours.

        Both by rank, then by expert on the rank that holds it. The host waits for them: it is to name the sizes.
        """
        # Not with bincount, which older torch refuses on a GPU where deterministic algorithms are asked for.
        numbers = torch.arange(self._total, device=chosen.device)
        sent = (chosen.flatten().unsqueeze(1) == numbers).sum(0)
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent)
        both: list[list[list[int]]] = torch.stack([sent, received]).view(2, self._ranks, self._local).tolist()
        return both[0], both[1]

    def _at_home(self, rows: Tensor, sent: list[list[int]], received: list[list[int]]) -> Tensor:
        """Rows (tokens * top_k, hidden) by expert -> what the experts make of them, in the same order."""
        out, back = [sum(counts) for counts in sent], [sum(counts) for counts in received]
        arrived = exchange(rows, out, back)
        # They come by rank and in it by expert. Cut and put together, for which backward adds nothing up.
        by_expert = _transposed(arrived, received)
        counts = [sum(column) for column in zip(*received, strict=True)]
        outputs = self.experts(by_expert, counts)
        by_rank = _transposed(outputs, [list(column) for column in zip(*received, strict=True)])
        return exchange(by_rank, back, out)


def exchange(rows: Tensor, sent: list[int], received: list[int]) -> Tensor:
    """Rows (sum of `sent`, hidden) -> (sum of `received`, hidden): `sent[r]` of them go to rank r, in order of ranks.

    The gradient goes the way back.
    """
    arrived: Tensor = _Exchange.apply(rows, sent, received)  # type: ignore[no-untyped-call]
    return arrived


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, sent: list[int], received: list[int]) -> Tensor:
        ctx.sizes = sent, received
        return _all_to_all(rows, sent, received)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        sent, received = ctx.sizes
        return _all_to_all(gradients[0], received, sent), None, None


def _all_to_all(rows: Tensor, sent: list[int], received: list[int]) -> Tensor:
    arrived = rows.new_empty(sum(received), *rows.shape[1:])
    dist.all_to_all_single(arrived, rows.contiguous(), received, sent)
    return arrived


def _copies(tokens: Tensor, order: Tensor) -> Tensor:
    """Tokens (tokens, hidden) -> a copy for each expert of each token, (tokens * top_k, hidden), in this order.

    Copied before they are ordered: in backward a token's gradients are then added up in the order of its slots, where
    picking one token several times would add them as they come.
    """
    top_k = len(order) // len(tokens)
    return tokens.unsqueeze(1).expand(-1, top_k, -1).reshape(len(order), -1).index_select(0, order)


def _transposed(rows: Tensor, counts: list[list[int]]) -> Tensor:
    """Rows in pieces of `counts[i][j]`, by i and then by j -> the same pieces by j and then by i."""
    pieces = rows.split([count for line in counts for count in line])
    width = len(counts[0])
    return torch.cat([piece for start in range(width) for piece in pieces[start::width]])


def own_experts(model: nn.Module) -> list[LocalExperts]:
    """The experts of a model that are on this rank alone; none where every rank has all experts."""
    return [module for module in model.modules() if isinstance(module, LocalExperts)]
