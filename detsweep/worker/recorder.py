"""The tape: records every collective of a step on a rank, with what it was given and what it delivered."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from detsweep.capture import Stream
from detsweep.fingerprints import Digest, collect, host_bytes, local
from detsweep.paths import RankRecordingPaths, write_json
from detsweep.recording import FullError, StepHeader, Writer
from detsweep.recording.calls import COLLECTIVE, DATA, records_digest
from detsweep.worker import state
from detsweep.worker.collectives import TAPE, Collectives
from detsweep.worker.collectives import Call as GoOn
from detsweep.worker.deliveries import has_work
from detsweep.worker.described import Described, Describer, NotReplayableError, reads_of
from detsweep.worker.dispatched import is_dense, sides
from detsweep.worker.entries import Entry, TensorSide, call_of, kept, pinned


@dataclass(frozen=True)
class Options:
    """What of a recording is kept: see the `record` group of the configuration."""

    payload: str = "outputs"
    compress: str = "none"
    every: int | None = None
    keep: int | None = None
    limit: int | None = None


class Recorder:
    """Records the steps of one rank that run inside `step`.

    `position` says where in the model execution is. When the disk is full, or the recording has reached its limit,
    recording ends and the run goes on: it is not `on` any more, `notes` say why, and what is on disk ends with the last
    whole step.
    """

    def __init__(
        self,
        collectives: Collectives,
        paths: RankRecordingPaths,
        options: Options,
        *,
        rank: int,
        checksum: str,
        fingerprint: Callable[[Tensor], Digest],
        position: Callable[[], tuple[str, str]],
        device: torch.device,
    ) -> None:
        self._collectives = collectives
        self._paths = paths
        self._options = options
        self._rank = rank
        self._checksum = checksum
        self._fingerprint = fingerprint
        self._describer = Describer(position)
        self._device = device
        self._writer = Writer(paths, compress=options.compress, keep=options.keep, limit=options.limit)
        self._entries: list[Entry] = []
        self._snapshot: str | None = None
        self._records: str | None = None
        self._first: int | None = None
        self._last: int | None = None
        self.on = True
        self.notes: list[str] = []

    @contextmanager
    def step(
        self,
        number: int,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None,
        more: Mapping[str, Any] | None = None,
    ) -> Iterator[None]:
        """Record what happens inside this context as a step; first a snapshot, where one is due.

        `more`: what else the snapshot has, see `state.save`.
        """
        self._entries.clear()
        self._records = None
        self._describer.begin()
        if self.on:
            with self._ends_when_full(number):
                self._take_snapshot(number, model, optimizer, more)
                self._writer.begin(number)
        if not self.on:
            yield
            return
        try:
            with self._collectives.layer(TAPE, self):
                yield
                self._flush()
        except BaseException:
            # Peers may be gone: what is under way is not waited for.
            self._collectives.deliveries.forget()
            with self._ends_when_full(number):
                self._end(number, complete=False)
            raise
        with self._ends_when_full(number):
            self._end(number, complete=True)

    def __call__(self, func: Any, args: tuple[Any, ...], go_on: GoOn) -> Any:
        """A collective that the program issues."""
        described = self._describer.describe(func, args)
        if not is_dense(args):
            raise NotReplayableError(f"{described.name} has a tensor that is not strided, which cannot be recorded")
        keep = self._options.payload == "all"
        entry = Entry(COLLECTIVE, described, [self._side(tensor, keep=keep) for tensor in reads_of(func, args)])
        self._entries.append(entry)
        result = go_on()
        if func.namespace == "c10d" and sides(func)[0] is not None and not has_work(result):
            # As NCCL does of what it gathers into one (batch_isend_irecv): the handle of that one is not seen here.
            raise NotReplayableError(f"{described.name} has no handle of its own: when it has delivered cannot be told")
        return self._collectives.deliveries.watch(func, args, result, partial(self._delivered, entry))

    def seal(self, stream: Stream) -> None:
        """The fingerprints of the step that is recorded now: its log has their digest."""
        self._records = records_digest(stream)

    def data(self, name: str, tensors: Sequence[Tensor]) -> None:
        """Record data that the program got from outside: token ids, labels."""
        if self.on:
            described = Described("", name, "before", "", (), None, None, {})
            entry = Entry(DATA, described, [])
            self._entries.append(entry)
            self._delivered(entry, list(tensors))

    def batch(self, micro: int, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Record the token ids and labels of a micro-batch; they are what is returned."""
        self.data(f"batch {micro}", batch)
        return batch

    def keep_nothing(self, reason: str) -> None:
        """Remove the recording: nothing happened for which it would be kept."""
        self._writer.drop_all()
        self.note(reason)
        self.stop()

    def stop(self) -> None:
        """Record no more; what is on disk stays."""
        self.on = False

    def note(self, line: str) -> None:
        """Something to be said of this recording, once."""
        if line not in self.notes:
            self.notes.append(line)

    def close(self) -> None:
        """Write down how the recording of this rank ended."""
        try:
            write_json(self._paths.end, self.to_json())
        except OSError as error:
            self._full(f"{self._paths.end} cannot be written: {error.strerror}")

    def _full(self, reason: str) -> None:
        after = "before its first step" if self._last is None else f"with step {self._last}"
        self.note(f"recording ended {after}: {reason}")
        self.stop()

    def to_json(self) -> dict[str, Any]:
        """How the recording went: notes, and the bytes ever written by kind, whether or not they are still there."""
        return {"notes": self.notes, "written": dict(self._writer.written)}

    def _delivered(self, entry: Entry, tensors: list[Tensor]) -> None:
        entry.outputs = [self._side(tensor, keep=self._options.payload != "digest") for tensor in tensors]

    def _side(self, tensor: Tensor, *, keep: bool) -> TensorSide:
        own = local(tensor)
        side = TensorSide(str(own.dtype).removeprefix("torch."), tuple(own.shape), self._fingerprint(own))
        if keep and self.on:
            if own.device.type == "cpu":
                try:
                    known = side.digest if self._checksum == "xxh3" else None
                    side.stored = self._writer.store(host_bytes(own), known if isinstance(known, int) else None)
                except FullError as error:
                    self._full(str(error))
            else:
                # Without stopping the device: it arrives by the end of the step; until then the memory is taken.
                own.record_stream(torch.cuda.current_stream(own.device))
                side.on_host = pinned(own)
        return side

    def _flush(self) -> None:
        """Wait for what the program did not wait for."""
        late = self._collectives.deliveries.flush()
        if unknown := [entry.func.name() for entry in late if entry.func.name() != "c10d::send"]:
            raise NotReplayableError(
                f"{unknown[0]} was not waited for by its own handle within its step ({len(unknown)} such): "
                f"what it had delivered when the program went on cannot be told"
            )

    def _take_snapshot(
        self,
        number: int,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None,
        more: Mapping[str, Any] | None,
    ) -> None:
        self._snapshot = None
        every = 1 if self._options.every is None and self._options.keep is not None else self._options.every
        first = self._first is None
        if first:
            self._first = number
        assert self._first is not None
        if first or (every is not None and (number - self._first) % every == 0):
            path = self._paths.snapshot(number)
            self._snapshot = state.save(path, number, model, optimizer, self._device, more=more)
            self._writer.snapshot(number, path.stat().st_size)

    def _end(self, number: int, *, complete: bool) -> None:
        if not self.on:
            self._writer.abandon(number)
            return
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        sides = [side for entry in self._entries for side in (*entry.inputs, *entry.outputs)]
        for side in sides:
            if side.on_host is not None:
                side.stored = self._writer.store(host_bytes(side.on_host))
        values = iter(collect([side.digest for side in sides]))
        calls = [
            call_of(
                seq,
                entry,
                [kept(side, next(values)) for side in entry.inputs],
                [kept(side, next(values)) for side in entry.outputs],
            )
            for seq, entry in enumerate(self._entries)
        ]
        header = StepHeader(
            self._rank, number, self._checksum, self._options.payload, self._options.compress, self._snapshot
        )
        self._writer.end(header, calls, complete=complete, records=self._records)
        self._last = number
        self._entries.clear()

    @contextmanager
    def _ends_when_full(self, number: int) -> Iterator[None]:
        try:
            yield
        except (FullError, OSError) as error:
            self._writer.abandon(number)
            self._full(str(error))
