"""Observation: fingerprints taken while a step runs, in the order of events, without stopping the device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from detsweep.capture import Record, Stream
from detsweep.fingerprints import Digest, collect, local
from detsweep.worker.model import RepeatedBlockModel
from detsweep.worker.progress import Progress


class Observer:
    """Collects the records of one run at a time.

    Digests stay on the device until `finish`. With `level` `off` nothing is hooked, so that what is recorded inside
    the step is nothing; what the caller records before and after it is the same at every level.
    """

    def __init__(
        self,
        model: RepeatedBlockModel,
        *,
        level: str,
        checksum: str,
        fingerprint: Callable[[Tensor], Digest],
        progress: Progress,
    ) -> None:
        self._model = model
        self.level = level
        self._checksum = checksum
        self._fingerprint = fingerprint
        self._progress = progress
        self._pending: list[tuple[str, str, int | None, str, tuple[int, ...], Digest]] = []

    def record(
        self, site: str, name: str, tensor: Tensor, *, block: int | None = None, digest: Digest | None = None
    ) -> Digest:
        """Fingerprint a tensor (of a DTensor the rank's own shard) as the next record of the run; return its digest.

        `digest` takes the place of the fingerprint where the record has bits of its own: a loss has its raw ones.
        """
        own = local(tensor)
        taken = self._fingerprint(own) if digest is None else digest
        self._pending.append((site, name, block, str(own.dtype).removeprefix("torch."), tuple(own.shape), taken))
        return taken

    @contextmanager
    def observed(self) -> Iterator[None]:
        """Hook every block while the step runs inside this context; at level `off`, hook nothing."""
        handles = []
        if self.level != "off":
            for number, block in enumerate(self._model.blocks):
                # After FSDP2's own hooks: its pre-forward may cast the input, and this is what the block computes on.
                handles.append(block.register_forward_pre_hook(self._before(number)))
                handles.append(block.register_forward_hook(self._after(number)))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def finish(self, *, rank: int, step: int, run: str) -> Stream:
        """The stream of the run that just ended; the next one starts empty. Waits for the device."""
        pending, self._pending = self._pending, []
        digests = collect([item[-1] for item in pending])
        records = tuple(
            Record(seq, site, name, block, dtype, shape, digest)
            for seq, ((site, name, block, dtype, shape, _), digest) in enumerate(zip(pending, digests, strict=True))
        )
        return Stream(rank, step, run, self._checksum, records)

    def _before(self, number: int) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        def hook(_: nn.Module, inputs: tuple[Any, ...]) -> None:
            self._progress.at_block(number)
            self.record("block_pre", f"blocks.{number}", inputs[0], block=number)

        return hook

    def _after(self, number: int) -> Callable[[nn.Module, tuple[Any, ...], Tensor], None]:
        def hook(_: nn.Module, __: tuple[Any, ...], output: Tensor) -> None:
            self.record("block_post", f"blocks.{number}", output, block=number)

        return hook
