"""Mode `replay`: the same step several times from one snapshot in one process, each run against the first."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from detsweep.capture import Stream
from detsweep.fingerprints import Digest, as_int64, raw_bits, xxh3
from detsweep.worker.faults import Fault
from detsweep.worker.model import RepeatedBlockModel
from detsweep.worker.observe import Observer
from detsweep.worker.progress import Progress
from detsweep.worker.snapshot import RandomState, Snapshot


@dataclass(frozen=True)
class TimedRun:
    """One observed run and how long its forward and backward took, in milliseconds."""

    stream: Stream
    milliseconds: float


@dataclass(frozen=True)
class ReplayedStep:
    """All runs of one step, and the times of the same step with nothing observed."""

    runs: tuple[TimedRun, ...]
    plain_milliseconds: tuple[float, ...]


class Replay:
    """Snapshot, run, restore, run again; `runs` times for each of `steps` steps.

    There is no optimizer step: every step starts from the same parameters, so more steps are more chances to differ.
    """

    def __init__(
        self,
        model: RepeatedBlockModel,
        batch: tuple[Tensor, Tensor],
        *,
        observer: Observer,
        fault: Fault,
        progress: Progress,
        device: torch.device,
        checksum_mode: str,
    ) -> None:
        self._model = model
        self._ids, self._labels = batch
        self._observer = observer
        self._fault = fault
        self._progress = progress
        self._device = device
        self._global = checksum_mode == "global"
        self._inside = observer.level != "off"
        self._output: Digest | None = None
        self.loss = torch.zeros(())

    def warm_up(self, passes: int) -> None:
        """Run the step `passes` times unobserved and leave parameters and random state as they were."""
        snapshot = Snapshot.take(self._model, self._device)
        for number in range(passes):
            self._progress.phase(f"warm-up {number + 1} of {passes}")
            self._forward_backward(self._ids)
            snapshot.restore()

    def steps(self, count: int, runs: int, *, cold: bool) -> Iterator[ReplayedStep]:
        """Replay `count` steps with `runs` observed runs each.

        The control arm, a plain run before them and one after them, is unobserved and only timed: two, so that a
        machine that still warms up or drifts does not favour one side. With `cold` the first step has only the one
        after them: its r1 is the very first execution of the model.
        """
        for step in range(count):
            snapshot = Snapshot.take(self._model, self._device)
            plain = []
            if not (cold and step == 0):
                self._progress.run(step, 0, f"plain run of step {step}")
                plain.append(self._timed(self._ids))
            done = []
            for run in range(1, runs + 1):
                snapshot.restore()
                self._progress.run(step, run, f"r{run} of step {step}")
                self._fault.begin(step, run)
                done.append(self.observed_run(step, run))
                self._fault.end()
            snapshot.restore()
            self._progress.run(step, runs + 1, f"plain run after step {step}")
            plain.append(self._timed(self._ids))
            snapshot.restore()
            yield ReplayedStep(tuple(done), tuple(plain))

    def observed_run(self, step: int, run: int) -> TimedRun:
        """One observed run of the step from the state that is there: its records and its time."""
        ids = self._fault.batch(self._ids)
        self._record_random("start")
        self._observer.record("input", "input_ids", ids)
        self._observer.record("input", "labels", self._labels)
        with self._observer.observed():
            milliseconds = self._timed(ids, observed=True)
        self._record_outcome()
        return TimedRun(self._observer.finish(rank=dist.get_rank(), step=step, run=f"r{run}"), milliseconds)

    def _timed(self, ids: Tensor, *, observed: bool = False) -> float:
        self._synchronize()
        start = time.perf_counter()
        self._forward_backward(ids, observed=observed)
        self._synchronize()
        return (time.perf_counter() - start) * 1e3

    def _forward_backward(self, ids: Tensor, *, observed: bool = False) -> None:
        self._model.zero_grad(set_to_none=True)
        logits = self._model(ids)
        self._output = self._observer.record("logits", "logits", logits) if observed and self._inside else None
        loss = F.cross_entropy(logits.float().flatten(0, 1), self._labels.flatten())
        self.loss = loss.detach()
        loss.backward()

    def _record_outcome(self) -> None:
        """What the step left behind, the same at every level of observation.

        Gradients come in the order in which backward completes them under FSDP2: the last block first, the root's
        own (final norm, embedding) at the end.
        """
        record = self._observer.record
        bits = raw_bits(self.loss)
        record("loss", "loss", self.loss, digest=bits)
        if self._global:
            total = self._global_bits(bits)
            record("global", "loss^output", total, digest=total)
        for name, parameter in backward_order(self._model):
            assert parameter.grad is not None, f"{name} has no gradient"
            record("grad", name, parameter.grad, block=block_of(name))
        for name, parameter in self._model.named_parameters():
            record("param", name, parameter, block=block_of(name))
        for name, buffer in self._model.named_buffers():
            record("buffer", name, buffer)
        self._record_random("end")

    def _global_bits(self, loss_bits: Tensor) -> Tensor:
        """The recipe's cross-rank fingerprint: loss bits XOR output bits, summed over all ranks modulo 2^64."""
        assert self._output is not None
        output = as_int64(self._output, self._device)
        total = output ^ loss_bits.to(self._device)
        dist.all_reduce(total, op=dist.ReduceOp.SUM)
        return total

    def _record_random(self, moment: str) -> None:
        for name, state in RandomState.now(self._device).tensors().items():
            self._observer.record("rng", f"{moment}.{name}", state, digest=xxh3(state))

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def backward_order(model: RepeatedBlockModel) -> Iterator[tuple[str, Tensor]]:
    """Named parameters as backward completes their gradients: blocks from the last to the first, then the root's."""
    own = list(model.named_parameters())
    for number in reversed(range(len(model.blocks))):
        yield from (item for item in own if item[0].startswith(f"blocks.{number}."))
    yield from (item for item in own if not item[0].startswith("blocks."))


def block_of(name: str) -> int | None:
    """The number of the block that a parameter belongs to, None for the root's own."""
    parts = name.split(".")
    return int(parts[1]) if parts[0] == "blocks" else None
