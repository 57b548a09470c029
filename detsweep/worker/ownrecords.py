"""The fingerprints that every program has, whatever it trains: of its state, its gradients and its random numbers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from detsweep.worker.observe import Observer
from detsweep.worker.snapshot import RandomState


@dataclass(frozen=True)
class OwnRecords:
    """Takes them for a model and an optimizer that detsweep knows nothing else of."""

    observer: Observer
    model: nn.Module
    optimizer: torch.optim.Optimizer | None
    device: torch.device

    def gradients(self) -> None:
        """Gradients as they are now, each rank's own shards."""
        self.observer.phase = "backward"
        for name, parameter in self.model.named_parameters():
            if parameter.grad is not None:
                self.observer.record("grad", name, parameter.grad)
                self.observer.count_nonfinite(name, parameter.grad)
        self.observer.phase = "optimizer"

    def state(self, phase: str) -> None:
        """Random states, parameters, optimizer state and buffers, `before` or `after` a step."""
        observer = self.observer
        observer.phase = phase
        for name, value in RandomState.now(self.device).tensors().items():
            observer.record_random(name, value)
        for name, parameter in self.model.named_parameters():
            observer.record("param", name, parameter)
            for key, value in sorted((self.optimizer.state.get(parameter, {}) if self.optimizer else {}).items()):
                if isinstance(value, Tensor):
                    observer.record("optim", f"{name}.{key}", value)
        for name, buffer in self.model.named_buffers():
            observer.record("buffer", name, buffer)

    def position(self) -> tuple[str, str]:
        """The model as a whole, and the phase."""
        # torch has no public way to ask whether backward is running, and the program does not tell.
        backward = torch._C._current_graph_task_id() != -1
        module, phase = self.observer.position()
        return module, "backward" if backward else phase
