"""Causal self-attention around kernels of several kinds, all of the same result up to rounding."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

Mix = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Query, key and value, each (batch, heads, seq, width of a head) -> what each token takes in, of the same shape."""


class Attention(nn.Module):
    """Causal multi-head attention: (batch, seq, hidden) -> the same.

    `variant` is the kernel: `math` (written out), `sdpa` (what torch chooses), `flash` or `flex`. Of `flex` the
    sequence length must be the one that was given here.
    """

    def __init__(self, hidden_size: int, num_heads: int, *, seq_len: int, variant: str = "math") -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(hidden_size, 3 * hidden_size, bias=False)
        self.out = nn.Linear(hidden_size, hidden_size, bias=False)
        self._mix = mix_of(variant, seq_len)

    def forward(self, hidden: Tensor) -> Tensor:
        batch, seq, width = hidden.shape
        query, key, value = self.qkv(hidden).view(batch, seq, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        mixed = self._mix(query, key, value)
        return self.out(mixed.transpose(1, 2).reshape(batch, seq, width))  # type: ignore[no-any-return]


def mix_of(variant: str, seq_len: int) -> Mix:
    """The function of a variant; of `flex` it is made for one sequence length and the default device."""
    if variant == "flex":
        return _flex(seq_len)
    return {"math": _math, "sdpa": _sdpa, "flash": _flash}[variant]


def _math(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Written out, softmax in fp32."""
    seq, width = query.shape[-2:]
    scores = query @ key.transpose(-2, -1) * width**-0.5
    future = torch.ones(seq, seq, dtype=torch.bool, device=query.device).triu(1)
    attention = F.softmax(scores.masked_fill(future, float("-inf")), dim=-1, dtype=torch.float32)
    return attention.to(query.dtype) @ value


def _sdpa(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(query, key, value, is_causal=True)


def _flash(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Flash attention or a RuntimeError: with no other backend allowed torch has none to fall back on."""
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return F.scaled_dot_product_attention(query, key, value, is_causal=True)


def _flex(seq_len: int) -> Mix:
    # Imported here: it needs torch's compiler, which takes seconds to import, and nobody else does.
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    mask = create_block_mask(_is_past, None, None, seq_len, seq_len, device=torch.get_default_device())
    # Compiled whatever `compile` says: uncompiled it is attention written out, and no kernel of its own.
    compiled = torch.compile(flex_attention)
    return lambda query, key, value: compiled(query, key, value, block_mask=mask)


def _is_past(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """Whether a token may look at another, by their places."""
    return query >= key
