"""Faults put in on purpose: a detector that was never seen to detect proves nothing."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from detsweep.fingerprints import local
from detsweep.injections import Injection, ledger, misrouted_at
from detsweep.worker.collectives import FAULT
from detsweep.worker.corruptions import PLANTED, corrupt, corrupted
from detsweep.worker.model import RepeatedBlockModel
from detsweep.worker.observe import Observer
from detsweep.worker.strikes import FaultMode


@dataclass(frozen=True)
class Struck:
    """A fault as it was really put in: the place at which it is to be found first.

    `name` None: any of the site; of operators and collectives it is how the record's begins.
    """

    kind: str
    step: int
    run: int
    site: str
    name: str | None
    block: int | None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class Faults:
    """The faults of a cell as one rank has them: nothing at all outside the steps, runs and ranks that they name.

    What puts a fault in is no part of the step: the observer does not look at it.
    """

    def __init__(self, config: Mapping[str, Any], *, rank: int, observer: Observer) -> None:
        self._config = config
        self._rank = rank
        self._unseen = observer.unseen
        self._ledger = ledger(config)
        self._active: list[Injection] = []
        self._planted: list[Injection] = []
        self._step = self._run = -1
        self._running = False
        self._kept: dict[tuple[str, int], Tensor] = {}
        self._model: RepeatedBlockModel | None = None
        self._inside: int | None = None
        self._mode = FaultMode(
            self._strike_operator, lambda: self._inside, lambda: observer.looking, observer.collectives.deliveries
        )
        self._collectives = observer.collectives
        self.struck: list[Struck] = []

    def attach(self, model: RepeatedBlockModel) -> None:
        """Hook the blocks that may be struck; before any observer, which must see the corrupted tensors."""
        self._model = model
        for number in sorted({injection.block for injection in self._ledger}):
            block = model.blocks[number]
            block.register_forward_pre_hook(self._enter(number))
            # Before FSDP2's own, which hooks the output's gradient: that is to be of what the step goes on with.
            block.register_forward_hook(self._leave(number), prepend=True)
            if any(i.kind == "misrouted_expert" and i.block == number for i in self._ledger):
                block.get_submodule("ffn.router").register_forward_hook(self._misroute(number))

    def begin(self, step: int, run: int) -> None:
        """A run begins; `run` counts from 1. A rank failure and faults in parameters happen here."""
        fault = self._config["fault"]
        failing = fault["kind"] == "rank_failure" and fault["rank"] in (None, self._rank)
        if failing and fault["step"] in (None, step) and run == fault["run"]:
            fail(fault["how"])
        self._step, self._run, self._running = step, run, True
        self._active = [i for i in self._ledger if i.strikes(self._rank, step, run)]
        self._planted = [i for i in self._ledger if i.kind in PLANTED and i.step == step and i not in self._active]
        self._mode.begin()
        for injection in self._active:
            if injection.site == "param":
                self._strike_parameter(injection)
            elif injection.kind == "reordered_collectives":
                self._prefetch([2])
                self._note(injection, "collective_in", None, None)

    def end(self) -> None:
        """The run is over; whatever follows is clean."""
        if any(injection.kind == "reordered_collectives" for injection in self._active):
            self._prefetch([])
        self._active, self._planted, self._running = [], [], False

    def batch(self, ids: Tensor) -> Tensor:
        """The token ids of this run: of an input flip a copy with one token changed."""
        for injection in self._active:
            if injection.kind == "input_flip":
                ids = ids.clone()
                element = ids.view(-1)[injection.element % ids.numel()]
                element.copy_((element + 1) % self._config["model"]["vocab_size"])
                self._note(injection, "input", "input_ids", None)
        return ids

    def logits(self, logits: Tensor) -> Tensor:
        """The logits of this run."""
        return self._at("logits", 0, logits, "logits", None)

    def gradients(self, model: RepeatedBlockModel) -> None:
        """Corrupt the gradients that backward left."""
        for injection, strikes in self._at_site("grad", None):
            name, parameter = _target(model, injection.block)
            assert parameter.grad is not None
            if corrupt(local(parameter.grad), injection, strikes=strikes) and strikes:
                self._note(injection, "grad", name, injection.block)

    def drops_random_state(self, step: int, run: int, *, moved: bool = True) -> bool:
        """Whether the random state is not to be restored before this run; a fault only if it has `moved` since."""
        dropped = [i for i in self._ledger if i.kind == "rng_not_restored" and i.strikes(self._rank, step, run)]
        for injection in dropped if moved else ():
            self._step, self._run = step, run
            self._note(injection, "rng", "torch" if self._config["device"] == "cpu" else "device", None)
        return bool(dropped)

    @contextmanager
    def dispatched(self) -> Iterator[None]:
        """Faults in operators and collectives strike while the step runs inside this context."""
        if any(injection.site in ("op", "collective_out") for injection in self._ledger):
            with self._mode, self._collectives.layer(FAULT, self._mode.collective):
                yield
        else:
            yield

    def _enter(self, number: int) -> Callable[..., None]:
        def hook(_: nn.Module, inputs: tuple[Any, ...]) -> None:
            self._inside = number
            if inputs[0].requires_grad and (
                self._at_site("block_grad_in", number) or self._will_be_stale("block_grad_in", number)
            ):
                name = f"blocks.{number}"
                inputs[0].register_hook(lambda gradient: self._at("block_grad_in", number, gradient, name, number))

        return hook

    def _leave(self, number: int) -> Callable[..., Tensor | None]:
        def hook(_: nn.Module, __: tuple[Any, ...], output: Tensor) -> Tensor | None:
            self._inside = None
            changed = self._at("block_post", number, output, f"blocks.{number}", number)
            return None if changed is output else changed

        return hook

    def _misroute(self, number: int) -> Callable[..., Any]:
        def hook(_: nn.Module, __: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> Any:
            chosen, probabilities = output
            for injection in self._active:
                if injection.kind == "misrouted_expert" and injection.block == number:
                    with self._unseen():
                        chosen = chosen.clone()
                        token = chosen[injection.element % len(chosen)]
                        token[0] = (token[0] + 1) % self._config["experts"]
                    self._note(injection, *misrouted_at(self._config, number), number)
            return chosen, probabilities

        return hook

    def _at_site(self, site: str, block: int | None) -> list[tuple[Injection, bool]]:
        """What is to be done to a tensor at a site in this run: injections, and whether they strike or only plant."""
        here = [(i, True) for i in self._active] + [(i, False) for i in self._planted]
        # Logits have no block, whatever was drawn.
        return [(i, s) for i, s in here if i.site == site and (site in ("logits", "grad") or i.block == block)]

    def _at(self, site: str, number: int, tensor: Tensor, name: str, block: int | None) -> Tensor:
        """The tensor as the faults of this run leave it; the same object where there is none."""
        key = (site, number)
        for injection, strikes in self._at_site(site, number):
            with self._unseen():
                stale = self._kept.get(key)
                if injection.kind == "stale_tensor" and (stale is None or stale.shape != tensor.shape):
                    continue
                tensor = corrupted(tensor, injection, strikes=strikes, stale=stale)
            if strikes:
                self._note(injection, site, name, block)
        if self._running and self._will_be_stale(site, number):
            with self._unseen():
                self._kept[key] = tensor.detach().clone()
        return tensor

    def _will_be_stale(self, site: str, number: int) -> bool:
        """Whether a fault of the next step wants what is at this site in this one."""
        return any(
            (i.kind, i.site, i.step) == ("stale_tensor", site, self._step + 1)
            and (site == "logits" or i.block == number)
            for i in self._ledger
        )

    def _strike_parameter(self, injection: Injection) -> None:
        assert self._model is not None
        name, parameter = _target(self._model, injection.block)
        if corrupt(local(parameter), injection):
            self._note(injection, "param", name, injection.block)

    def _strike_operator(self, site: str, number: int, count: int | None, tensor: Tensor, name: str) -> bool:
        """Called below the observer with the result of every operator of a block's forward and every collective."""
        changed = False
        for injection in self._active:
            if injection.kind == "reordered_collectives":
                continue
            place = injection.number % count if count else injection.number
            here = self._inside == injection.block if site == "op" else True
            if injection.site == site and here and place == number:
                with self._unseen():
                    done = corrupt(tensor, injection) if tensor.is_contiguous() else False
                changed |= done
                if done:
                    self._note(injection, site, name, injection.block if site == "op" else None)

        return changed

    def _prefetch(self, blocks: list[int]) -> None:
        """What FSDP2 gathers together with block 0: block 2 then comes before block 1."""
        assert self._model is not None
        first = cast(FSDPModule, self._model.blocks[0])
        first.set_modules_to_forward_prefetch([cast(FSDPModule, self._model.blocks[n]) for n in blocks])

    def _note(self, injection: Injection, site: str, name: str | None, block: int | None) -> None:
        self.struck.append(Struck(injection.kind, self._step, self._run, site, name, block))


def _target(model: RepeatedBlockModel, block: int) -> tuple[str, nn.Parameter]:
    """The parameter of a block that faults in parameters and gradients strike."""
    name = f"blocks.{block}.attention.qkv.weight"
    return name, model.get_parameter(name)


def fail(how: str) -> None:
    """Fail as ranks fail in the field: an exception, a silent exit, SIGKILL, a hang, or no memory left."""
    if how == "raise":
        raise RuntimeError("fault=rank_failure fault.how=raise: this rank was told to fail")
    if how == "exit":
        os._exit(7)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "hang":
        while True:
            time.sleep(3600)
    if how == "oom":
        torch.empty(1 << 48, dtype=torch.uint8, device="cuda" if torch.cuda.is_available() else "cpu")
