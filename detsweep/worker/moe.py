"""Mixture of experts: top-k routing over experts held by every rank, and several ways to combine their outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class FeedForward(nn.Module):
    """Gated linear unit with SiLU: (..., hidden) -> (..., hidden)."""

    def __init__(self, hidden_size: int, ffn_size: int) -> None:
        super().__init__()
        self.gate = nn.Linear(hidden_size, ffn_size, bias=False)
        self.up = nn.Linear(hidden_size, ffn_size, bias=False)
        self.down = nn.Linear(ffn_size, hidden_size, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(hidden)) * self.up(hidden))  # type: ignore[no-any-return]


class Router(nn.Module):
    """Tokens (tokens, hidden) -> experts chosen, int64 (tokens, top_k), and probabilities, fp32 (tokens, experts).

    `routing`: `learned` chooses the largest probabilities; `even` deals the experts out in turn, so that all get the
    same number of tokens. A module of its own, so that a forward hook can see or change where tokens go.
    """

    def __init__(self, hidden_size: int, *, experts: int, top_k: int, routing: str) -> None:
        super().__init__()
        self.top_k = top_k
        self.routing = routing
        self.weight = nn.Linear(hidden_size, experts, bias=False).weight

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        probabilities = F.softmax(F.linear(tokens, self.weight), dim=-1, dtype=torch.float32)
        return self._choose(probabilities), probabilities

    def _choose(self, probabilities: Tensor) -> Tensor:
        count, experts = probabilities.shape
        if self.routing == "even":
            dealt = torch.arange(count * self.top_k, device=probabilities.device)
            return dealt.view(-1, self.top_k) % experts
        return probabilities.topk(self.top_k, dim=-1).indices


class MixtureOfExperts(nn.Module):
    """`top_k` of `experts` feed-forward networks for each token, weighted by the router's probabilities.

    `combine` is how the weighted rows, top_k for each token, become one: see COMBINES.
    """

    def __init__(
        self, hidden_size: int, ffn_size: int, *, experts: int, top_k: int, routing: str, combine: str = "index_put"
    ) -> None:
        super().__init__()
        self._combine = COMBINES[combine]
        self.router = Router(hidden_size, experts=experts, top_k=top_k, routing=routing)
        self.experts = nn.ModuleList(FeedForward(hidden_size, ffn_size) for _ in range(experts))

    def forward(self, hidden: Tensor) -> Tensor:
        tokens = hidden.reshape(-1, hidden.shape[-1])
        chosen, probabilities = self.router(tokens)
        weights = probabilities.gather(1, chosen).to(tokens.dtype)
        rows, places, slots = [], [], []
        for number, expert in enumerate(self.experts):
            token, slot = torch.where(chosen == number)
            # An expert without tokens is run all the same: FSDP2 reduces the gradients of all ranks together, and
            # a rank that has none for this expert would leave the others waiting.
            output = expert(tokens.index_select(0, token))
            rows.append(output * weights[token, slot].unsqueeze(-1))
            places.append(token)
            slots.append(slot)
        combined = self._combine(tokens, torch.cat(rows), torch.cat(places), torch.cat(slots))
        return combined.view_as(hidden)


Combine = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""Tokens (tokens, hidden), whose values do not matter; rows (tokens * top_k, hidden), and of each row its token and
its slot among that token's -> the sum of each token's rows, (tokens, hidden)."""


def _index_put(tokens: Tensor, rows: Tensor, token: Tensor, _slot: Tensor) -> Tensor:
    return torch.zeros_like(tokens).index_put((token,), rows, accumulate=True)


def _index_add(tokens: Tensor, rows: Tensor, token: Tensor, _slot: Tensor) -> Tensor:
    return torch.zeros_like(tokens).index_add(0, token, rows)


def _scatter_add(tokens: Tensor, rows: Tensor, token: Tensor, _slot: Tensor) -> Tensor:
    return torch.zeros_like(tokens).scatter_add(0, token.unsqueeze(-1).expand_as(rows), rows)


def _ordered(tokens: Tensor, rows: Tensor, token: Tensor, slot: Tensor) -> Tensor:
    """Bring the rows into the order of tokens and slots, then add slot after slot.

    Every row is read once, so that nothing is accumulated in backward either.
    """
    top_k = len(rows) // len(tokens)
    order = torch.argsort(token * top_k + slot)
    by_slot = rows.index_select(0, order).view(len(tokens), top_k, -1).unbind(1)
    return reduce(torch.add, by_slot)


def _unwritten(tokens: Tensor, rows: Tensor, token: Tensor, _slot: Tensor) -> Tensor:
    """A bug on purpose: it adds to memory that nobody has written. See the mitigations' three arms."""
    return torch.empty_like(tokens).index_add(0, token, rows)


COMBINES: Mapping[str, Combine] = {
    "index_put": _index_put,
    "index_add": _index_add,
    "scatter_add": _scatter_add,
    "ordered": _ordered,
    "unwritten": _unwritten,
}
"""Three that accumulate, each in a kernel of its own: with three addends and more for each token the result depends on
the order in which that kernel adds them. One whose order is fixed on every device. And one with a bug."""
