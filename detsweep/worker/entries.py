"""What the tape holds of a collective until its step is over, and the line that becomes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from detsweep.fingerprints import Digest
from detsweep.recording import Call, Side, Stored
from detsweep.worker.described import Described


@dataclass
class TensorSide:
    dtype: str
    shape: tuple[int, ...]
    digest: Digest
    stored: Stored | None = None
    on_host: Tensor | None = None


@dataclass
class Entry:
    kind: str
    described: Described
    inputs: list[TensorSide]
    outputs: list[TensorSide] = field(default_factory=list)


def pinned(own: Tensor) -> Tensor:
    """A copy of a device's tensor in host memory, there by the end of the step; at once where none can be pinned."""
    try:
        copy = torch.empty(own.shape, dtype=own.dtype, pin_memory=True)
    except RuntimeError:
        return own.cpu()
    return copy.copy_(own, non_blocking=True)


def kept(side: TensorSide, digest: int) -> Side:
    stored = side.stored
    where = (None, None, None) if stored is None else (stored.offset, stored.size, stored.xxh3)
    return Side(side.dtype, side.shape, digest, *where)


def call_of(seq: int, entry: Entry, inputs: Sequence[Side], outputs: Sequence[Side]) -> Call:
    d = entry.described
    return Call(
        seq,
        entry.kind,
        d.operator,
        d.name,
        d.phase,
        d.group,
        d.ranks,
        d.reduce,
        d.asynchronous,
        d.arguments,
        tuple(inputs),
        tuple(outputs),
    )
