"""How a replay can part from its recording: by what is called, or by what is given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


class PartedError(BaseException):
    """The program issues other collectives than it did when it was recorded.

    Like the next one it is no Exception: a program that catches those must not go on without the tape.
    """


class BeyondError(PartedError):
    """The program goes beyond what was recorded; of a step that was broken off that is all there is."""


class UntilError(BaseException):
    """The call up to which the replay was to go has been reached."""


@dataclass(frozen=True)
class Mismatch:
    """A collective that is given something else than when it was recorded.

    `tensor`: which of several that it is given; `what`: how it differs.
    """

    step: int
    seq: int
    operator: str
    name: str
    phase: str
    tensor: int = 0
    what: str = "has other bits"

    @property
    def words(self) -> str:
        return f"step {self.step}, call {self.seq}: the input of {self.name} ({self.phase}) {self.what}"


_SPLITS = ("input_split_sizes", "output_split_sizes")


def fixed(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """What a call is called with, but for how much it sends and receives."""
    return {key: list(v) if isinstance(v, tuple) else v for key, v in arguments.items() if key not in _SPLITS}


def sent(arguments: Mapping[str, Any]) -> list[list[int]]:
    return [list(arguments.get(key, ())) for key in _SPLITS]


def fitted(value: Tensor, target: Tensor) -> Tensor:
    """As much of a value as a tensor of another shape has room for, and zeros."""
    fitted = torch.zeros_like(target)
    room = min(fitted.numel(), value.numel())
    fitted.view(-1)[:room] = value.reshape(-1)[:room]
    return fitted
