"""Observation: fingerprints taken while a step runs, in the order of events, without stopping the device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor

from detsweep.capture import Record, Stream
from detsweep.fingerprints import Digest, collect, combine, local, sha256, xxh3
from detsweep.worker.collectives import OBSERVER, Collectives
from detsweep.worker.model import RepeatedBlockModel
from detsweep.worker.operators import CollectiveLayer, OperatorMode
from detsweep.worker.progress import Progress
from detsweep.worker.tracing import ROOT, ModuleHooks


class Observer:
    """Collects the records of one run at a time.

    `phase` is what part of the step the caller is in; `groups` the members of the process groups that were seen, and
    `issued` how many collectives each of them has issued in this run.

    What is `compiled` is not hooked inside. Digests stay on the device until `finish`. With `level` `off` nothing is
    hooked, so that what is recorded inside the step is nothing; what the caller records before and after it is the
    same at every level.
    """

    def __init__(
        self,
        model: RepeatedBlockModel,
        *,
        level: str,
        checksum: str,
        fingerprint: Callable[[Tensor], Digest],
        progress: Progress | None = None,
        collectives: Collectives | None = None,
        compiled: bool = False,
    ) -> None:
        self._model = model
        self.level = level
        self.compiled = compiled
        self._checksum = checksum
        self.fingerprint = fingerprint
        self._strong = checksum == "sha256"
        self._progress = progress
        self._pending: list[tuple[str, str, int | None, str, tuple[int, ...], Digest, str, Digest | None]] = []
        self._nonfinite: list[tuple[str, Tensor]] = []
        self._unseen = 0
        self._hooks: ModuleHooks | None = None
        # Told of each record as it is made: its site, name, phase and digest.
        self.noticed: Callable[[str, str, str, Digest], None] | None = None
        self.collectives = Collectives() if collectives is None else collectives
        self.phase = "before"
        self.groups: dict[str, tuple[int, ...]] = {}
        self.issued: Counter[str] = Counter()

    @property
    def looking(self) -> bool:
        """Whether what happens now is the step's own: not a fault being put in, nor the observer itself."""
        return self._unseen == 0

    @contextmanager
    def unseen(self) -> Iterator[None]:
        """Operators inside this context are not the step's own, and are not recorded."""
        self._unseen += 1
        try:
            yield
        finally:
            self._unseen -= 1

    def digest(self, tensors: Sequence[Tensor]) -> Digest:
        """One digest of the bits of all tensors, of DTensors the rank's own shards."""
        with self.unseen():
            return combine([self.fingerprint(tensor) for tensor in tensors], strong=self._strong)

    def record(
        self,
        site: str,
        name: str,
        tensor: Tensor,
        *,
        block: int | None = None,
        digest: Digest | None = None,
        phase: str | None = None,
        inputs: Digest | None = None,
    ) -> Digest:
        """Fingerprint a tensor (of a DTensor the rank's own shard) as the next record of the run; return its digest.

        `digest` takes the place of the fingerprint where the record has bits of its own: a loss has its raw ones.
        `phase` is the current one unless it is given.
        """
        with self.unseen():
            own = local(tensor)
            taken = self.fingerprint(own) if digest is None else digest
        dtype = str(own.dtype).removeprefix("torch.")
        self._pending.append((site, name, block, dtype, tuple(own.shape), taken, phase or self.phase, inputs))
        if self.noticed is not None:
            self.noticed(site, name, phase or self.phase, taken)
        return taken

    def record_random(self, name: str, state: Tensor, *, block: int | None = None, phase: str | None = None) -> None:
        """A random state, which lies in host memory whatever the device."""
        digest = sha256(state) if self._strong else xxh3(state)
        self.record("rng", name, state, block=block, digest=digest, phase=phase)

    def count_nonfinite(self, name: str, tensor: Tensor) -> None:
        """Count what is infinite or not a number; collected with the digests."""
        with self.unseen():
            self._nonfinite.append((name, (~torch.isfinite(local(tensor))).sum()))

    @contextmanager
    def observed(self) -> Iterator[None]:
        """Hook what the level asks for while the step runs inside this context; at level `off`, hook nothing."""
        with ExitStack() as stack:
            if self.level != "off":
                assert self._progress is not None
                hooks = ModuleHooks(self._model, self, self._progress, submodules=self.level in ("module", "op"))
                stack.enter_context(hooks)
                self._hooks = hooks
                stack.callback(self._unhooked)
                if self.level in ("collective", "op"):
                    layer = CollectiveLayer(self, hooks.position, self.collectives.deliveries)
                    stack.enter_context(self.collectives.layer(OBSERVER, layer))
                if self.level == "op":
                    stack.enter_context(OperatorMode(self, hooks.position))
            yield

    def position(self) -> tuple[str, str]:
        """The module in whose course execution is, and the phase; the whole model where nothing is hooked."""
        return (ROOT, self.phase) if self._hooks is None else self._hooks.position()

    def _unhooked(self) -> None:
        self._hooks = None

    def finish(self, *, rank: int, step: int, run: str) -> Stream:
        """The stream of the run that just ended; the next one starts empty. Waits for the device."""
        self.issued.clear()
        self.collectives.deliveries.trim()
        pending, self._pending = self._pending, []
        counted, self._nonfinite = self._nonfinite, []
        inputs = [item[-1] for item in pending if item[-1] is not None]
        values = iter(collect([*(item[5] for item in pending), *inputs, *(count for _, count in counted)]))
        digests = [next(values) for _ in pending]
        records = tuple(
            Record(seq, site, name, block, dtype, shape, digest, phase, None if read is None else next(values))
            for seq, ((site, name, block, dtype, shape, _, phase, read), digest) in enumerate(
                zip(pending, digests, strict=True)
            )
        )
        nonfinite = {name: count for (name, _), count in zip(counted, values, strict=True) if count}
        return Stream(rank, step, run, self._checksum, records, nonfinite)
