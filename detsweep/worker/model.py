"""The model under test: one generic transformer block, repeated, with a tied head.

It stands for no particular language model. Under FSDP2 each block is one stage of communicate and compute; the
sizes decide how much of either.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from detsweep.worker.moe import FeedForward, MixtureOfExperts

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
INIT_STD = 0.02


class Attention(nn.Module):
    """Causal multi-head attention written out, softmax in fp32: (batch, seq, hidden) -> the same."""

    def __init__(self, hidden_size: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(hidden_size, 3 * hidden_size, bias=False)
        self.out = nn.Linear(hidden_size, hidden_size, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        batch, seq, width = hidden.shape
        query, key, value = self.qkv(hidden).view(batch, seq, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        scores = query @ key.transpose(-2, -1) * (width // self.num_heads) ** -0.5
        future = torch.ones(seq, seq, dtype=torch.bool, device=hidden.device).triu(1)
        attention = F.softmax(scores.masked_fill(future, float("-inf")), dim=-1, dtype=torch.float32)
        mixed = attention.to(hidden.dtype) @ value
        return self.out(mixed.transpose(1, 2).reshape(batch, seq, width))  # type: ignore[no-any-return]


class Block(nn.Module):
    """Pre-norm attention and feed-forward (dense, or a mixture of experts), each with a residual."""

    def __init__(self, model: Mapping[str, Any], moe: Mapping[str, Any]) -> None:
        super().__init__()
        hidden, ffn = model["hidden_size"], model["ffn_size"]
        self.attention_norm = nn.LayerNorm(hidden)
        self.attention = Attention(hidden, model["num_heads"])
        self.ffn_norm = nn.LayerNorm(hidden)
        self.ffn: nn.Module = (
            FeedForward(hidden, ffn)
            if moe["experts"] == 1
            else MixtureOfExperts(hidden, ffn, experts=moe["experts"], top_k=moe["top_k"], routing=moe["routing"])
        )

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = hidden + self.attention(self.attention_norm(hidden))
        return hidden + self.ffn(self.ffn_norm(hidden))  # type: ignore[no-any-return]


class RepeatedBlockModel(nn.Module):
    """Token ids (batch, seq) -> logits (batch, seq, vocab)."""

    def __init__(self, model: Mapping[str, Any], moe: Mapping[str, Any]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(model["vocab_size"], model["hidden_size"])
        self.blocks = nn.ModuleList(Block(model, moe) for _ in range(model["num_layers"]))
        self.norm = nn.LayerNorm(model["hidden_size"])

    def forward(self, ids: Tensor) -> Tensor:
        hidden = self.embedding(ids)
        for block in self.blocks:
            hidden = block(hidden)
        return F.linear(self.norm(hidden), self.embedding.weight)


def build(config: Mapping[str, Any], device: torch.device) -> RepeatedBlockModel:
    """The model of a cell on a device, the same weights on every rank.

    Each parameter has a generator of its own, seeded by the cell's seed and its name: its values do not depend on
    how many blocks or experts the model has.
    """
    # On the device itself, not on `meta`: torch's own initialisation of meta tensors imports its compiler first.
    default = torch.get_default_dtype()
    torch.set_default_dtype(DTYPES[config["dtype"]["param"]])
    try:
        with torch.device(device):
            model = RepeatedBlockModel(config["model"], config["moe"])
    finally:
        torch.set_default_dtype(default)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("norm.weight"):
                parameter.fill_(1.0)
            elif name.endswith("norm.bias"):
                parameter.zero_()
            else:
                generator = torch.Generator(device).manual_seed(_derived_seed(config["seed"], name))
                parameter.normal_(0.0, INIT_STD, generator=generator)
    return model


def batch(config: Mapping[str, Any], rank: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """A rank's own token ids and labels, both (batch, seq).

    Labels are the ids shifted by one. With labels equal to the ids the tied head would make the loss collapse to 0.
    """
    model = config["model"]
    generator = torch.Generator().manual_seed(config["seed"] + rank)
    ids = torch.randint(model["vocab_size"], (model["batch_size"], model["seq_len"]), generator=generator)
    return ids.to(device), ids.roll(-1, dims=1).to(device)


def _derived_seed(seed: int, name: str) -> int:
    return int.from_bytes(hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=7).digest(), "big")
