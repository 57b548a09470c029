"""What a step may change, put aside and brought back: parameters, buffers and every random state."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from detsweep.fingerprints import local


@dataclass(frozen=True)
class RandomState:
    """The random states of Python, NumPy, torch on the CPU and, where there is one, the device."""

    python: Any
    numpy: Any
    cpu: Tensor
    device: Tensor | None

    @classmethod
    def now(cls, device: torch.device) -> RandomState:
        on_device = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
        return cls(random.getstate(), np.random.get_state(), torch.get_rng_state(), on_device)

    def restore(self, device: torch.device) -> None:
        random.setstate(self.python)
        np.random.set_state(self.numpy)
        torch.set_rng_state(self.cpu)
        if self.device is not None:
            torch.cuda.set_rng_state(self.device, device)

    def tensors(self) -> dict[str, Tensor]:
        """Each state as a CPU tensor, by name."""
        version, words, gauss = self.python
        keys, position, has_gauss, cached = self.numpy[1:]
        states = {
            "python": torch.tensor([version, *words], dtype=torch.int64),
            "python_gauss": torch.tensor(math.nan if gauss is None else gauss, dtype=torch.float64),
            "numpy": torch.from_numpy(np.append(keys.astype(np.int64), [position, has_gauss])),
            "numpy_gauss": torch.tensor(cached, dtype=torch.float64),
            "torch": self.cpu,
        }
        return states if self.device is None else {**states, "device": self.device}

    @classmethod
    def from_tensors(cls, states: Mapping[str, Tensor]) -> RandomState:
        """The state that `tensors` gave as tensors."""
        version, *words = states["python"].tolist()
        gauss = float(states["python_gauss"])
        *keys, position, has_gauss = states["numpy"].tolist()
        python = (version, tuple(words), None if math.isnan(gauss) else gauss)
        numpy = ("MT19937", np.array(keys, dtype=np.uint32), position, has_gauss, float(states["numpy_gauss"]))
        return cls(python, numpy, states["torch"], states.get("device"))


@dataclass(frozen=True)
class Snapshot:
    """A model's local shards and buffers, its optimizer's state and the random state, at one moment."""

    tensors: tuple[tuple[Tensor, Tensor], ...]
    random: RandomState
    device: torch.device
    optimizer: torch.optim.Optimizer | None
    state: Mapping[Tensor, Mapping[str, Any]]

    @classmethod
    @torch.no_grad()
    def take(cls, model: nn.Module, device: torch.device, optimizer: torch.optim.Optimizer | None = None) -> Snapshot:
        """Clone every local shard and buffer, and what the optimizer keeps: as much extra memory as these take."""
        live = (*model.parameters(), *model.buffers())
        shards = tuple((tensor, local(tensor).clone()) for tensor in live)
        kept = {} if optimizer is None else {own: _cloned(values) for own, values in optimizer.state.items()}
        return cls(shards, RandomState.now(device), device, optimizer, kept)

    def random_moved(self) -> bool:
        """Whether random numbers have been drawn since."""
        now, then = RandomState.now(self.device).tensors(), self.random.tensors()
        return any(now[name].numpy().tobytes() != state.numpy().tobytes() for name, state in then.items())

    @torch.no_grad()
    def restore(self, *, random: bool = True) -> None:
        """Bring everything back in place; with `random` false all but the random state."""
        for live, saved in self.tensors:
            local(live).copy_(saved)
        if self.optimizer is not None:
            self._restore_optimizer(self.optimizer)
        if random:
            self.random.restore(self.device)

    def _restore_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        for own in [own for own in optimizer.state if own not in self.state]:
            # It had taken no step.
            del optimizer.state[own]
        for own, values in self.state.items():
            for key, value in values.items():
                live = optimizer.state[own][key]
                if isinstance(value, Tensor):
                    local(live).copy_(value)
                else:
                    optimizer.state[own][key] = value


def _cloned(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: local(value).clone() if isinstance(value, Tensor) else value for key, value in values.items()}
