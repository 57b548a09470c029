"""Faults put in on purpose: a detector that was never seen to detect proves nothing."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from detsweep.fingerprints import INTEGER_OF_WIDTH
from detsweep.worker.model import RepeatedBlockModel


class Fault:
    """The fault of a cell as one rank has it: nothing at all outside the step, run and rank that it names."""

    def __init__(self, config: Mapping[str, Any], *, rank: int, vocab_size: int) -> None:
        self._kind = config["kind"]
        self._config = config
        self._vocab_size = vocab_size
        self._mine = self._kind != "none" and config["rank"] in (None, rank)
        self._active = False

    def begin(self, step: int, run: int) -> None:
        """A run begins; `run` counts from 1. A rank failure happens here."""
        self._active = self._mine and (step, run) == (self._config["step"], self._config["run"])
        if self._active and self._kind == "rank_failure":
            fail(self._config["how"])

    def end(self) -> None:
        """The run is over; whatever follows is clean."""
        self._active = False

    def batch(self, ids: Tensor) -> Tensor:
        """The token ids of this run: of an input flip a copy with one token changed."""
        if not (self._active and self._kind == "input_flip"):
            return ids
        flipped = ids.clone()
        element = flipped.view(-1)[self._config["element"]]
        element.copy_((element + 1) % self._vocab_size)
        return flipped

    def attach(self, model: RepeatedBlockModel) -> None:
        """Hook the block whose output a bit flip corrupts; before any observer, which must see the corrupted one."""
        if self._mine and self._kind == "bit_flip":
            model.blocks[self._config["block"]].register_forward_hook(self._flip())

    def _flip(self) -> Callable[[nn.Module, tuple[Any, ...], Tensor], Tensor | None]:
        def hook(_: nn.Module, __: tuple[Any, ...], output: Tensor) -> Tensor | None:
            if not self._active:
                return None
            return flip_bit(output, element=self._config["element"], bit=self._config["bit"])

        return hook


def flip_bit(tensor: Tensor, *, element: int, bit: int) -> Tensor:
    """A copy with one bit of one element (in row-major order) inverted; gradients flow through it unchanged."""
    flipped = tensor.clone(memory_format=torch.contiguous_format)
    width = tensor.element_size()
    mask = 1 << bit if bit < 8 * width - 1 else -(1 << bit)
    flipped.detach().view(-1).view(INTEGER_OF_WIDTH[width])[element] ^= mask
    return flipped


def fail(how: str) -> None:
    """Fail as ranks fail in the field: an exception, a silent exit, SIGKILL, a hang, or no memory left."""
    if how == "raise":
        raise RuntimeError("fault=rank_failure fault.how=raise: this rank was told to fail")
    if how == "exit":
        os._exit(7)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "hang":
        while True:
            time.sleep(3600)
    if how == "oom":
        torch.empty(1 << 48, dtype=torch.uint8, device="cuda" if torch.cuda.is_available() else "cpu")
