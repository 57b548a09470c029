"""One training step, observed or plain: every micro-batch forward and backward, and where it trains the optimizer.

All modes are made of it; they differ in what is put back between its executions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.tensor import DTensor

from detsweep import modes
from detsweep.capture import Stream
from detsweep.fingerprints import Digest, as_int64, raw_bits
from detsweep.worker import gradients
from detsweep.worker.faults import Faults
from detsweep.worker.model import RepeatedBlockModel
from detsweep.worker.observe import Observer
from detsweep.worker.progress import Progress
from detsweep.worker.snapshot import RandomState
from detsweep.worker.stress import Stress
from detsweep.worker.tracing import block_of

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class TimedRun:
    """One observed run and how long its forward, backward and optimizer took, in milliseconds."""

    stream: Stream
    milliseconds: float


class TrainingStep:
    """The step of a cell on one rank.

    `data(step, micro)` gives the token ids and labels of a micro-batch, both (batch, seq).
    """

    def __init__(
        self,
        model: RepeatedBlockModel,
        config: Mapping[str, Any],
        *,
        data: Callable[[int, int], Batch],
        observer: Observer,
        faults: Faults,
        stress: Stress,
        progress: Progress,
        device: torch.device,
    ) -> None:
        self.model = model
        self.device = device
        self.faults = faults
        self.progress = progress
        self.optimizer = _optimizer(model, config) if modes.trains(config) else None
        self._config = config
        self._data = data
        self.observer = observer
        self._stress = stress
        # What data pass through on their way in: a tape that records them, or has others.
        self.fed: Callable[[int, Batch], Batch] | None = None
        self._inside = observer.level != "off"
        self._milliseconds = 0.0
        self.loss = torch.zeros(())

    def plain(self, step: int) -> float:
        """The step with nothing observed and no fault; returns milliseconds."""
        micros = self._micros(step)
        self._milliseconds = 0.0
        with self._timed():
            self._forward_backward(micros)
            self._update()
        return self._milliseconds

    def observed(self, step: int, run: int) -> TimedRun:
        """The step from the state that is there: its records and its time. `run` counts from 1."""
        self.progress.run(step, run, f"r{run} of step {step}")
        self._stress.before_run(step, run)
        self.faults.begin(step, run)
        micros = [(self.faults.batch(ids), labels) for ids, labels in self._micros(step)]
        if self.fed is not None:
            micros = [self.fed(number, batch) for number, batch in enumerate(micros)]
        self._record_before(micros)
        self._milliseconds = 0.0
        # A fault in an operator or a collective strikes below the observer, which is to see what it did.
        with self.faults.dispatched(), self.observer.observed(), self._timed():
            output = self._forward_backward(micros, observed=True)
        self.faults.gradients(self.model)
        self._record_backward(output)
        self.observer.phase = "optimizer"
        norm = None
        if self.optimizer is not None:
            with self.observer.observed(), self._timed():
                norm = self._update()
        self._record_after(norm)
        self.faults.end()
        stream = self.observer.finish(rank=dist.get_rank(), step=step, run=f"r{run}")
        return TimedRun(stream, self._milliseconds)

    def _micros(self, step: int) -> list[Batch]:
        return [self._data(step, micro) for micro in range(self._config["accum"])]

    def _forward_backward(self, micros: list[Batch], *, observed: bool = False) -> Digest | None:
        """Gradients of the mean loss over all micro-batches; returns the last logits' digest where it was taken."""
        observer, looking = self.observer, observed and self._inside
        self.model.zero_grad(set_to_none=True)
        output = None
        for ids, labels in micros:
            observer.phase = "forward"
            logits = self.faults.logits(self.model(ids))
            if looking:
                output = observer.record("logits", "logits", logits)
            loss = F.cross_entropy(logits.float().flatten(0, 1), labels.flatten())
            self.loss = loss.detach()
            if looking:
                with observer.unseen():
                    bits = raw_bits(self.loss)
                observer.record("loss", "loss", self.loss, digest=bits)
            observer.phase = "backward"
            (loss / len(micros) if len(micros) > 1 else loss).backward()
        gradients.average_own(self.model)
        return output

    def _update(self) -> Tensor | None:
        """Clip and take the optimizer's step, where the mode trains; returns the norm of the gradients if it clips."""
        if self.optimizer is None:
            return None
        norm = None
        if self._config["clip"] is not None:
            norm = gradients.clip(self.model, self._config["clip"])
        self.optimizer.step()
        return norm

    def _record_before(self, micros: list[Batch]) -> None:
        observer = self.observer
        observer.phase = "before"
        self._record_random()
        for ids, labels in micros:
            observer.record("input", "input_ids", ids)
            observer.record("input", "labels", labels)
        self._record_state()

    def _record_backward(self, output: Digest | None) -> None:
        """What backward left behind, the same at every level of observation.

        Gradients come in the order in which backward completes them under FSDP2: the last block first, the root's
        own (final norm, embedding) at the end.
        """
        observer = self.observer
        observer.phase = "backward"
        bits = raw_bits(self.loss)
        if not self._inside:
            observer.record("loss", "loss", self.loss, digest=bits, phase="forward")
        observer.count_nonfinite("loss", self.loss)
        if self._config["checksum_mode"] == "global":
            total = self._global_bits(bits, output)
            observer.record("global", "loss^output", total, digest=total)
        for name, parameter in backward_order(self.model):
            assert parameter.grad is not None, f"{name} has no gradient"
            observer.record("grad", name, parameter.grad, block=block_of(name))
            observer.count_nonfinite(name, parameter.grad)

    def _record_after(self, norm: Tensor | None) -> None:
        observer = self.observer
        if norm is not None:
            whole = norm.full_tensor() if isinstance(norm, DTensor) else norm
            observer.record("norm", "grad_norm", whole)
        observer.phase = "after"
        self._record_state()
        self._record_random()

    def _record_state(self) -> None:
        """Optimizer state, parameters and buffers, in the order in which a step writes them."""
        record, phase = self.observer.record, self.observer.phase
        if self.optimizer is not None:
            for name, parameter in self.model.named_parameters():
                for key, value in sorted(self.optimizer.state.get(parameter, {}).items()):
                    if isinstance(value, Tensor):
                        record("optim", f"{name}.{key}", value, block=block_of(name), phase=phase)
        for name, parameter in self.model.named_parameters():
            record("param", name, parameter, block=block_of(name))
        for name, buffer in self.model.named_buffers():
            record("buffer", name, buffer, block=block_of(name))

    def _record_random(self) -> None:
        for name, state in RandomState.now(self.device).tensors().items():
            self.observer.record_random(name, state)

    def _global_bits(self, loss_bits: Tensor, output: Digest | None) -> Tensor:
        """The recipe's cross-rank fingerprint: loss bits XOR output bits, summed over all ranks modulo 2^64."""
        assert output is not None
        total = as_int64(output, self.device) ^ loss_bits.to(self.device)
        dist.all_reduce(total, op=dist.ReduceOp.SUM)
        return total

    @contextmanager
    def _timed(self) -> Iterator[None]:
        self._synchronize()
        start = time.perf_counter()
        yield
        self._synchronize()
        self._milliseconds += (time.perf_counter() - start) * 1e3

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def backward_order(model: RepeatedBlockModel) -> Iterator[tuple[str, Tensor]]:
    """Named parameters as backward completes their gradients: blocks from the last to the first, then the root's."""
    own = list(model.named_parameters())
    for number in reversed(range(len(model.blocks))):
        yield from (item for item in own if item[0].startswith(f"blocks.{number}."))
    yield from (item for item in own if not item[0].startswith("blocks."))


def _optimizer(model: RepeatedBlockModel, config: Mapping[str, Any]) -> torch.optim.Optimizer:
    groups = gradients.parameter_groups(model)
    if config["optimizer"] == "sgd":
        return torch.optim.SGD(groups, lr=config["lr"], momentum=0.9)
    return torch.optim.AdamW(groups, lr=config["lr"])
