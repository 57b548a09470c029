"""The tape played back: every collective gets what it delivered when it was recorded, and nobody is asked for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from detsweep.fingerprints import Digest, collect
from detsweep.recording import Call, RecordingError, Side, Step
from detsweep.recording.calls import COLLECTIVE
from detsweep.worker.collectives import TAPE, Collectives
from detsweep.worker.collectives import Call as GoOn
from detsweep.worker.deliveries import DoneWork, with_work
from detsweep.worker.described import Described, Describer, reads_of
from detsweep.worker.dispatched import sides, tensors_in
from detsweep.worker.parted import BeyondError, Mismatch, PartedError, UntilError, fitted, fixed, sent

DTYPES = {str(value).removeprefix("torch."): value for value in vars(torch).values() if isinstance(value, torch.dtype)}


class Player:
    """Feeds recorded steps to the program that runs inside `step`, and checks what it would have sent.

    `noticed` is called with each mismatch as soon as it is known: on the CPU before the collective gets its answer,
    on an accelerator when the step is over, unless `at_once`, which stops the device at each collective.
    """

    def __init__(
        self,
        collectives: Collectives,
        *,
        fingerprint: Callable[[Tensor], Digest],
        position: Callable[[], tuple[str, str]],
        device: torch.device,
        noticed: Callable[[Mismatch], None] | None = None,
        at_once: bool = False,
    ) -> None:
        self._collectives = collectives
        self._fingerprint = fingerprint
        self._describer = Describer(position)
        self._device = device
        self._noticed = noticed
        self._at_once = at_once
        self._until: int | None = None
        self._step: Step | None = None
        self._next = 0
        self._pending: list[tuple[Mismatch, Digest, int]] = []
        self.mismatches: list[Mismatch] = []
        self.checked = 0

    def begin(self) -> None:
        """Another replay begins: what the one before found is forgotten."""
        self._pending.clear()
        self.mismatches, self.checked = [], 0

    @contextmanager
    def step(self, step: Step, *, until: int | None = None) -> Iterator[None]:
        """Collectives inside this context are fed from a recorded step.

        Raises PartedError where the program issues others than it did, or fewer, and UntilError at call `until`.
        """
        self._step, self._next, self._until = step, 0, until
        self._describer.begin()
        try:
            with self._collectives.layer(TAPE, self):
                yield
        except BaseException:
            self._settle()
            self._collectives.deliveries.forget()
            raise
        self._settle()
        self._collectives.deliveries.flush()
        left = len(step.calls) - self._next
        if left and step.complete:
            call = step.calls[self._next]
            raise PartedError(f"step {step.number}: {left} recorded calls did not come, the first {call.name}")

    def data(self, name: str) -> list[Tensor]:
        """The data that the program got at this place when it was recorded."""
        call = self._expect()
        if call.kind == COLLECTIVE or call.name != name:
            raise PartedError(f"the program asks for data {name}, recorded was {call.name}")
        self._check_until(call)
        return [self._tensor(call, side) for side in call.outputs]

    def batch(self, micro: int, _: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """The recorded token ids and labels of a micro-batch, in the place of those that there are."""
        ids, labels = self.data(f"batch {micro}")
        return ids, labels

    def __call__(self, func: Any, args: tuple[Any, ...], _: GoOn) -> Any:
        """A collective that the program issues; nobody else hears of it."""
        described = self._describer.describe(func, args)
        call = self._expect()
        read = reads_of(func, args)
        self._check_same(call, described)
        self._check_inputs(call, described, read)
        self._check_until(call)
        outputs = [self._tensor(call, side) for side in call.outputs]
        self._check_delivered(call, func, args, len(outputs))
        if func.namespace != "c10d":
            return _functional(func, args, outputs)
        writes = sides(func)[0]
        targets = list(tensors_in([args[writes]])) if writes is not None else []
        for target, value in zip(targets, outputs, strict=True):
            # Past autograd's count of versions, which process groups need not move: it is the program that is checked.
            # One that asks for another number of rows is known for it by now: nothing after this can be as recorded.
            target.data.copy_(value if target.shape == value.shape else fitted(value, target))
        return _answer(func, args, writes, self._collectives.deliveries.kept(DoneWork(targets)))

    def _check_delivered(self, call: Call, func: Any, args: tuple[Any, ...], outputs: int) -> None:
        """A call of a step that was broken off may have been under way: it has delivered nothing that is known."""
        assert self._step is not None
        writes = sides(func)[0]
        wanted = args[writes] if writes is not None else args[:1] if func.namespace != "c10d" else ()
        expected = len(list(tensors_in([wanted])))
        if outputs != expected:
            where = f"step {self._step.number}, call {call.seq}"
            raise BeyondError(f"{where}: {call.name} delivers {expected} tensors, recorded are {outputs}")

    def _check_until(self, call: Call) -> None:
        if self._until is not None and call.seq >= self._until:
            assert self._step is not None
            raise UntilError(f"step {self._step.number}, call {call.seq}: {call.name} ({call.phase})")

    def _expect(self) -> Call:
        assert self._step is not None
        if self._next >= len(self._step.calls):
            raise BeyondError(f"step {self._step.number}: the program issues more than the {self._next} recorded calls")
        call = self._step.calls[self._next]
        self._next += 1
        return call

    def _check_same(self, call: Call, described: Described) -> None:
        """What is called must be what was: what it is given may differ, and is looked at after that."""
        assert self._step is not None
        where = f"step {self._step.number}, call {call.seq}"
        if call.kind != COLLECTIVE or call.operator != described.operator:
            raise PartedError(f"{where}: the program issues {described.name}, recorded was {call.name}")
        if None not in (call.reduce, described.reduce) and call.reduce != described.reduce:
            raise PartedError(f"{where}: {call.name} reduces by {described.reduce}, recorded was {call.reduce}")
        if None not in (call.asynchronous, described.asynchronous) and call.asynchronous != described.asynchronous:
            how = {True: "asynchronous", False: "synchronous"}
            now, then = how[bool(described.asynchronous)], how[bool(call.asynchronous)]
            raise PartedError(f"{where}: {call.name} is {now}, recorded was a {then} one")
        mine, theirs = fixed(described.arguments), fixed(call.arguments)
        if mine != theirs or call.ranks != described.ranks:
            raise PartedError(
                f"{where}: {call.name} has {mine} among ranks {list(described.ranks)}, "
                f"recorded was {theirs} {list(call.ranks)}"
            )

    def _check_inputs(self, call: Call, described: Described, read: list[Tensor]) -> None:
        assert self._step is not None
        one = Mismatch(self._step.number, call.seq, call.operator, call.name, call.phase)
        self.checked += len(call.inputs)
        mine = [(str(t.dtype).removeprefix("torch."), tuple(t.shape)) for t in read]
        theirs = [(side.dtype, side.shape) for side in call.inputs]
        if mine != theirs and "all_to_all" not in call.operator.replace("alltoall", "all_to_all"):
            where = f"step {self._step.number}, call {call.seq}"
            raise PartedError(f"{where}: {call.name} is given {mine}, recorded was {theirs}")
        # How much goes where in an all-to-all is itself computed, and can be computed wrong.
        for now, then in ((mine, theirs), (sent(described.arguments), sent(call.arguments))):
            if now != then:
                self._found(replace(one, what=f"is {now}, recorded was {then}"))
                return
        for number, (tensor, side) in enumerate(zip(read, call.inputs, strict=True)):
            self._pending.append((replace(one, tensor=number), self._fingerprint(tensor), side.digest))
        if self._at_once or not any(isinstance(digest, Tensor) for _, digest, _ in self._pending):
            self._settle()

    def _settle(self) -> None:
        values = collect([digest for _, digest, _ in self._pending])
        found = [one for (one, _, recorded), value in zip(self._pending, values, strict=True) if value != recorded]
        self._pending.clear()
        for one in found:
            self._found(one)

    def _found(self, one: Mismatch) -> None:
        self.mismatches.append(one)
        if self._noticed is not None:
            self._noticed(one)

    def _tensor(self, call: Call, side: Side) -> Tensor:
        assert self._step is not None
        dtype = DTYPES[side.dtype]
        data = bytearray(self._step.bytes_of(call, side))
        if not data:
            return torch.empty(side.shape, dtype=dtype, device=self._device)
        flat = torch.frombuffer(data, dtype=torch.uint8)
        try:
            value = flat.view(dtype).view(side.shape)
        except RuntimeError as error:
            raise RecordingError(f"step {self._step.number}, call {call.seq}: {error}") from None
        return value.to(self._device)


def _functional(func: Any, args: tuple[Any, ...], outputs: list[Tensor]) -> Any:
    """What a functional collective returns: new tensors, or those that it was told to work on."""
    if func.name().endswith("_"):
        for target, value in zip(tensors_in([args[0]]), outputs, strict=True):
            target.data.copy_(value)
        return args[0]
    return list(outputs) if isinstance(args[0], (list, tuple)) else outputs[0]


def _answer(func: Any, args: tuple[Any, ...], writes: int | None, done: torch.ScriptObject) -> Any:
    returns = len(func._schema.returns)
    if returns == 0:
        return None
    if returns == 1:
        return done
    assert writes is not None
    return with_work((args[writes], None), done)
