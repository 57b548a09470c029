"""Recording a training program of one's own, and playing one of its ranks back: `detsweep.record`.

    with detsweep.record("runs/poc", model, optimizer) as tape:
        for step in tape.steps(5):
            x, y = tape.data("batch", *next(batches))
            ...

The same program is what replays: `python -m detsweep.replay runs/poc --rank 1` runs it again as one process, whose
process group answers from the tape, and whose steps begin at a snapshot.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from detsweep import fingerprints
from detsweep.capture import Stream, write_streams
from detsweep.fingerprints import local
from detsweep.paths import RecordingPaths, write_json
from detsweep.recording import RankRecording, open_rank
from detsweep.recording.calls import COMPRESSIONS, PAYLOADS
from detsweep.recording.reading import write_about
from detsweep.recording.streams import streams_of
from detsweep.replays import REPLAY_VARIABLE, Request
from detsweep.worker import state as snapshots
from detsweep.worker.observe import Observer
from detsweep.worker.origin import program
from detsweep.worker.ownrecords import OwnRecords
from detsweep.worker.parted import PartedError, UntilError
from detsweep.worker.passes import Seen, judged
from detsweep.worker.player import Player
from detsweep.worker.recorder import Options, Recorder
from detsweep.worker.tape import about


class Tape:
    """One rank of a program that is recorded, or that is replayed: see `record`.

    Of every step it keeps fingerprints: random states, parameters and optimizer state before and after, gradients as
    they are when the optimizer takes its step, and what is given to `fingerprint`.
    """

    def __init__(
        self,
        recording: RecordingPaths,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None,
        *,
        checksum: str,
        options: Options,
        replay: Request | None,
        state: Mapping[str, Any] | None = None,
    ) -> None:
        self._recording, self._model, self._optimizer = recording, model, optimizer
        self._more = dict(state or {})
        self._rank = dist.get_rank()
        self._device = local(next(model.parameters())).device
        self._checksum, fingerprint = fingerprints.select(checksum, self._device.type)
        self._observer = Observer(
            cast(Any, model),
            level="off",
            checksum=self._checksum,
            fingerprint=fingerprint,
        )
        self._own = OwnRecords(self._observer, model, optimizer, self._device)
        self._stack = ExitStack()
        self._open = ExitStack()
        self._step, self._inside = -1, False
        self._begun = time.perf_counter()
        self._recorder: Recorder | None = None
        self._player: Player | None = None
        if replay is None:
            self._recorder = self._begin_recording(options, fingerprint)
        else:
            self._request, self._seen = replay, Seen([])
            self._tape: RankRecording = open_rank(recording, self._rank)
            self._player = Player(
                self._observer.collectives,
                fingerprint=fingerprint,
                position=self._own.position,
                device=self._device,
            )

    def __enter__(self) -> Tape:
        if self._optimizer is not None:
            handle = self._optimizer.register_step_pre_hook(lambda *_: self._own.gradients())
            self._stack.callback(handle.remove)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        over = self._player is not None and isinstance(error, (PartedError, UntilError))
        with self._stack:
            if error is None and self._inside:
                # The program has left its loop in the middle of a step.
                self._end()
            self._open.__exit__(kind, error, trace)
            if self._recorder is not None:
                self._recorder.close()
            elif over or error is None:
                if over:
                    self._broken_off(error)
                self._answer()
        return over

    def steps(self, count: int, *, first: int = 0) -> Iterator[int]:
        """The numbers of the steps to run: all `count` from `first` on, or of a replay those that are asked for.

        What the program does in the loop's body is the step.
        """
        wanted = range(first, first + count)
        if self._player is not None:
            wanted = range(self._request.start, self._request.last + 1)
            recorded = self._tape.step(self._request.start)
            recorded.check_snapshot()
            path = recorded.paths.snapshot(self._request.start)
            snapshots.load(path, self._model, self._optimizer, self._device, more=self._more)
        for number in wanted:
            self._begin(number)
            yield number
            self._end()

    def data(self, name: str, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Data that come from outside the step: recorded as they are, or in their place those that were recorded."""
        if self._player is not None:
            tensors = tuple(self._player.data(name))
        elif self._recorder is not None:
            self._recorder.data(name, tensors)
        for tensor in tensors:
            self._observer.record("input", name, tensor)
        return tensors

    def fingerprint(self, site: str, name: str, tensor: Tensor) -> None:
        """A fingerprint of the program's own: of logits, or whatever it wants compared; of a `loss` its raw bits."""
        bits = fingerprints.raw_bits(tensor) if site == "loss" and tensor.dim() == 0 else None
        self._observer.record(site, name, tensor, digest=bits)

    def _begin_recording(self, options: Options, fingerprint: Any) -> Recorder:
        paths, rank = self._recording.rank(self._rank), self._rank
        if int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")):
            # What the attempt before has recorded leads up to its failure.
            self._recording.set_aside(rank)
        if paths.folder.exists():
            raise FileExistsError(f"{paths.folder} exists: a recording is not written over; use another folder")
        paths.folder.mkdir(parents=True)
        if rank == 0:
            whole = about(dist.get_world_size(), self._checksum, self._device, {"program": program()})
            write_about(self._recording, whole)
        return Recorder(
            self._observer.collectives,
            paths,
            options,
            rank=rank,
            checksum=self._checksum,
            fingerprint=fingerprint,
            position=self._own.position,
            device=self._device,
        )

    def _begin(self, number: int) -> None:
        self._step, self._inside = number, True
        if self._recorder is not None:
            self._open.enter_context(self._recorder.step(number, self._model, self._optimizer, self._more))
        elif self._player is not None:
            until = self._request.until if number == self._request.last else None
            self._open.enter_context(self._player.step(self._tape.step(number), until=until))
        self._own.state("before")
        self._observer.phase = "forward"

    def _end(self) -> None:
        if self._optimizer is None:
            self._own.gradients()
        self._inside = False
        self._own.state("after")
        stream = self._finished()
        if self._recorder is not None:
            self._recorder.seal(stream)
        else:
            self._seen.streams.append(stream)
        # Closes the step: it waits for what is under way, and may find that the program went another way.
        self._open.close()
        if self._recorder is not None:
            write_streams(self._recording.records(self._rank), [stream], world_size=dist.get_world_size())

    def _finished(self) -> Stream:
        return self._observer.finish(rank=self._rank, step=self._step, run="r1")

    def _broken_off(self, error: BaseException | None) -> None:
        """The replay ended inside a step: what it has seen of it until then is compared all the same."""
        recorded = self._tape.step(self._step)
        self._seen.end(error, recorded)
        if self._inside:
            self._seen.streams.append(self._finished())

    def _answer(self) -> None:
        assert self._player is not None
        steps = range(self._request.first, self._request.last + 1)
        recorded = streams_of(self._tape, self._recording.records(self._rank), steps)
        found = judged(
            self._request,
            self._seen,
            recorded,
            self._player,
            seconds=time.perf_counter() - self._begun,
            aligned=True,
        )
        answer = {"request": self._request.to_json(), "passes": [found.to_json()]}
        write_json(Path(os.environ[REPLAY_VARIABLE]).with_name("answer.json"), answer)


def record(
    folder: str | Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    payload: str = "outputs",
    checksum: str = "auto",
    every: int | None = None,
    keep: int | None = None,
    compress: str = "none",
    max_gb: float | None = None,
    state: Mapping[str, Any] | None = None,
) -> Tape:
    """Record a program's steps on every rank into a folder that all ranks reach; or, in a replay, play one rank back.

    To be called when the process group is open and model and optimizer are built (and sharded). `payload`: `digest`,
    `outputs` or `all`; `checksum`: as in the configuration of a sweep; `every`: steps between two snapshots; `keep`:
    only the last so many steps stay on disk; `compress`: `none`, `repeats` or `zlib`; `max_gb`: the most that a rank
    may have on disk; `state`: what else a snapshot must bring back, by name: a scheduler, whatever has state_dict and
    load_state_dict.

    Raises FileExistsError where the folder has a recording of this rank, ValueError for a value that makes no sense.
    """
    for key, value, valid in (("payload", payload, PAYLOADS), ("compress", compress, COMPRESSIONS)):
        if value not in valid:
            raise ValueError(f"{key}={value}: valid: {', '.join(valid)}")
    for key, number in (("every", every), ("keep", keep), ("max_gb", max_gb)):
        if number is not None and not (number >= 1 if key != "max_gb" else number > 0):
            raise ValueError(f"{key}={number}: must be {'above 0' if key == 'max_gb' else 'at least 1'}, or None")
    options = Options(payload, compress, every, keep, None if max_gb is None else int(max_gb * 1e9))
    request = None
    if (asked := os.environ.get(REPLAY_VARIABLE)) is not None:
        request = Request(**json.loads(Path(asked).read_text()))
        checksum = str(open_rank(RecordingPaths(Path(request.trial)), request.rank).about["checksum"])
    return Tape(
        RecordingPaths(Path(folder if request is None else request.trial).absolute()),
        model,
        optimizer,
        checksum=checksum,
        options=options,
        replay=request,
        state=state,
    )
