"""The model under test: one generic transformer block, repeated, with a tied head.

It stands for no particular language model. Under FSDP2 each block is one stage of communicate and compute; the
sizes decide how much of either.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, cast

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from detsweep.worker.attention import Attention
from detsweep.worker.experts import DispatchedExperts
from detsweep.worker.moe import FeedForward, MixtureOfExperts

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
INIT_STD = 0.02


class IndexedEmbedding(nn.Embedding):
    """An embedding looked up by indexing, whose backward is index_put with accumulation: ids (...) -> (..., hidden)."""

    def forward(self, ids: Tensor) -> Tensor:
        return self.weight[ids]


EMBEDDINGS = {"module": nn.Embedding, "index": IndexedEmbedding}


class Block(nn.Module):
    """Pre-norm attention and feed-forward (dense, or a mixture of experts), each with a residual.

    (batch, seq, hidden) -> the same. With `checkpointing` it keeps its input only, and backward computes what is
    inside once more: hooks on the block run once, those on its submodules twice.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        model = config["model"]
        hidden, dropout = model["hidden_size"], model["dropout"]
        self.checkpointed = config["checkpointing"] == "block"
        self._preserve_rng_state = config["preserve_rng_state"]
        self.attention_norm = nn.LayerNorm(hidden)
        self.attention = Attention(hidden, model["num_heads"], seq_len=model["seq_len"], variant=model["attention"])
        self.attention_dropout = nn.Dropout(dropout) if dropout > 0 else None
        self.ffn_norm = nn.LayerNorm(hidden)
        self.ffn = _feed_forward(model, config["moe"])
        self.ffn_dropout = nn.Dropout(dropout) if dropout > 0 else None

    def forward(self, hidden: Tensor) -> Tensor:
        if not self.checkpointed:
            return self.inside(hidden)
        # To the very end, although backward may have all that it needs before: a hook of a submodule that runs on the
        # way in must be followed by the one on the way out.
        with set_checkpoint_early_stop(False):
            return checkpoint(  # type: ignore[no-any-return]
                self.inside, hidden, use_reentrant=False, preserve_rng_state=self._preserve_rng_state
            )

    def inside(self, hidden: Tensor) -> Tensor:
        hidden = hidden + _dropped(self.attention(self.attention_norm(hidden)), self.attention_dropout)
        return hidden + _dropped(self.ffn(self.ffn_norm(hidden)), self.ffn_dropout)


def _feed_forward(model: Mapping[str, Any], moe: Mapping[str, Any]) -> nn.Module:
    hidden, ffn = model["hidden_size"], model["ffn_size"]
    if moe["experts"] == 1:
        return FeedForward(hidden, ffn)
    keys = {key: moe[key] for key in ("experts", "top_k", "routing", "combine")}
    if moe["dispatch"] == "all_to_all":
        return DispatchedExperts(hidden, ffn, **keys, rank=dist.get_rank(), ranks=dist.get_world_size())
    return MixtureOfExperts(hidden, ffn, **keys)


def _dropped(branch: Tensor, dropout: nn.Dropout | None) -> Tensor:
    return branch if dropout is None else dropout(branch)


class RepeatedBlockModel(nn.Module):
    """Token ids (batch, seq) -> logits (batch, seq, vocab)."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        model = config["model"]
        self.embedding = EMBEDDINGS[model["embedding"]](model["vocab_size"], model["hidden_size"])
        self.blocks = nn.ModuleList(Block(config) for _ in range(model["num_layers"]))
        self.norm = nn.LayerNorm(model["hidden_size"])

    def forward(self, ids: Tensor) -> Tensor:
        hidden = self.embedding(ids)
        for block in self.blocks:
            hidden = block(hidden)
        return self._head(hidden)

    def _head(self, hidden: Tensor) -> Tensor:
        """Logits by the embedding's own weight: the head is tied to it."""
        return F.linear(self.norm(hidden), self.embedding.weight)


def build(config: Mapping[str, Any], device: torch.device) -> RepeatedBlockModel:
    """The model of a cell on a device, the same weights on every rank; of experts that are dealt out the rank's own.

    Each parameter has a generator of its own, seeded by the cell's seed and its name: its values do not depend on
    how many blocks or experts the model has.
    """
    # On the device itself, not on `meta`: torch's own initialisation of meta tensors imports its compiler first.
    default = torch.get_default_dtype()
    torch.set_default_dtype(DTYPES[config["dtype"]["param"]])
    try:
        with torch.device(device):
            model = RepeatedBlockModel(config)
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


def compile_forwards(model: RepeatedBlockModel, config: Mapping[str, Any]) -> None:
    """With `compile`, compile the embedding, what is inside each block, and the head, each on its own and in place.

    To be called after sharding. FSDP2's hooks, other hooks of blocks and the recomputation of activations stay outside
    of what is compiled.
    """
    if not config["compile"]:
        return
    # Experts get other numbers of tokens in each step. Without `dynamic` torch would compile for the first number it
    # meets and for any number after that, so that a run and its repetition could go through different code.
    dynamic = config["moe"]["experts"] > 1
    # The functions and not the modules: compiling a module would take the hooks on it along.
    embedding, blocks = model.embedding, cast(Iterable[Block], model.blocks)
    embedding.forward = torch.compile(embedding.forward, dynamic=dynamic)  # type: ignore[method-assign]
    for block in blocks:
        block.inside = torch.compile(block.inside, dynamic=dynamic)  # type: ignore[method-assign]
    model._head = torch.compile(model._head, dynamic=dynamic)  # type: ignore[method-assign]


def batch(
    config: Mapping[str, Any], rank: int, device: torch.device, *, step: int = 0, micro: int = 0
) -> tuple[Tensor, Tensor]:
    """Token ids and labels of a rank, step and micro-batch of that step, both (batch, seq); others have others.

    Labels are the ids shifted by one. With labels equal to the ids the tied head would make the loss collapse to 0.
    """
    model, seed = config["model"], config["seed"]
    first = step == 0 and micro == 0
    generator = torch.Generator().manual_seed(
        seed + rank if first else _derived_seed(seed, f"batch.{rank}.{step}.{micro}")
    )
    ids = torch.randint(model["vocab_size"], (model["batch_size"], model["seq_len"]), generator=generator)
    return ids.to(device), ids.roll(-1, dims=1).to(device)


def _derived_seed(seed: int, name: str) -> int:
    return int.from_bytes(hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=7).digest(), "big")
