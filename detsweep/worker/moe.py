"""Mixture of experts: top-k routing over experts held by every rank, combined in one accumulate."""

from __future__ import annotations

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


class MixtureOfExperts(nn.Module):
    """`top_k` of `experts` feed-forward networks for each token, weighted by the router's probabilities.

    The combine is one index_put with accumulation over tokens * top_k rows: with three addends and more for each
    token its result depends on the order in which a kernel adds them.

    `routing`: `learned` takes the router's largest logits; `even` deals the experts out in turn, so that all get
    the same number of tokens, and still weights by the router's probabilities.
    """

    def __init__(self, hidden_size: int, ffn_size: int, *, experts: int, top_k: int, routing: str) -> None:
        super().__init__()
        self.top_k = top_k
        self.routing = routing
        self.router = nn.Linear(hidden_size, experts, bias=False)
        self.experts = nn.ModuleList(FeedForward(hidden_size, ffn_size) for _ in range(experts))

    def forward(self, hidden: Tensor) -> Tensor:
        tokens = hidden.reshape(-1, hidden.shape[-1])
        probabilities = F.softmax(self.router(tokens), dim=-1, dtype=torch.float32)
        chosen = self._route(probabilities)
        weights = probabilities.gather(1, chosen).to(tokens.dtype)
        rows, places = [], []
        for number, expert in enumerate(self.experts):
            token, slot = torch.where(chosen == number)
            # An expert without tokens is run all the same: FSDP2 reduces the gradients of all ranks together, and
            # a rank that has none for this expert would leave the others waiting.
            output = expert(tokens.index_select(0, token))
            rows.append(output * weights[token, slot].unsqueeze(-1))
            places.append(token)
        combined = torch.zeros_like(tokens).index_put((torch.cat(places),), torch.cat(rows), accumulate=True)
        return combined.view_as(hidden)

    def _route(self, probabilities: Tensor) -> Tensor:
        """Expert numbers, (tokens, top_k)."""
        if self.routing == "even":
            dealt = torch.arange(probabilities.shape[0] * self.top_k, device=probabilities.device)
            return dealt.view(-1, self.top_k) % len(self.experts)
        return probabilities.topk(self.top_k, dim=-1).indices
