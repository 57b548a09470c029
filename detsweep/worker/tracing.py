"""Hooks on modules: what goes into and comes out of each, forward and backward, and where in the model execution is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from detsweep.worker.model import Block, RepeatedBlockModel
from detsweep.worker.progress import Progress

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle

    from detsweep.worker.observe import Observer

ROOT = "model"


class ModuleHooks:
    """Hooks every block, with `submodules` every other module too, while its context lasts.

    They come after FSDP2's own: its pre-forward may cast a block's input, and this is what the block computes on.
    """

    def __init__(self, model: RepeatedBlockModel, observer: Observer, progress: Progress, *, submodules: bool) -> None:
        self._model = model
        self._observer = observer
        self._progress = progress
        self._submodules = submodules
        self._entered: list[str] = []
        self._backward_in = ROOT
        self._handles: list[RemovableHandle] = []
        self._insides: list[tuple[Block, Any]] = []
        self._compiled = observer.compiled
        self._draws = any(isinstance(module, nn.Dropout) for module in model.modules())

    def __enter__(self) -> ModuleHooks:
        for number, block in enumerate(cast(Iterable[Block], self._model.blocks)):
            if block.checkpointed:
                self._insides.append((block, vars(block).get("inside")))
                block.inside = self._entering(f"blocks.{number}", block.inside)  # type: ignore[method-assign,assignment]
        for name, module in self._model.named_modules():
            if not name or isinstance(module, nn.ModuleList):
                continue
            if _is_block(name):
                self._hook(name, module, site="block")
            elif self._submodules:
                self._hook(name, module, site="module")
            if isinstance(module, nn.Dropout) and not self._compiled:
                self._handles.append(module.register_forward_pre_hook(self._random(name)))
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()
        for block, compiled in self._insides:
            del block.inside
            if compiled is not None:
                block.inside = compiled  # type: ignore[method-assign]

    def position(self) -> tuple[str, str]:
        """The module in whose forward or backward execution is, and the phase that this is."""
        if self._entered:
            return self._entered[-1], self._forward_phase()
        return (self._backward_in if self._observer.phase == "backward" else ROOT), self._observer.phase

    def _forward_phase(self) -> str:
        """What the forward of a module is part of: a forward during backward is a recomputation."""
        return "recompute" if self._observer.phase == "backward" else self._observer.phase

    def _hook(self, name: str, module: nn.Module, *, site: str) -> None:
        add = self._handles.append
        # First of all: the all-gather that FSDP2 issues before a module's forward belongs to it.
        add(module.register_forward_pre_hook(self._enter(name), prepend=True))
        if site == "block":
            add(module.register_forward_pre_hook(self._before(name)))
        elif self._submodules:
            add(module.register_forward_pre_hook(self._gradient_in(name)))
        add(module.register_forward_hook(self._after(name, site)))
        # Called also where checkpointing stops a recomputation by an exception, as soon as it has what it needs.
        add(module.register_forward_hook(self._leave(name), always_call=True))

    def _enter(self, name: str) -> Callable[..., None]:
        def hook(_: nn.Module, __: tuple[Any, ...]) -> None:
            if self._observer.phase == "forward":
                self._backward_in = ROOT
            self._entered.append(name)

        return hook

    def _leave(self, name: str) -> Callable[..., None]:
        def hook(_: nn.Module, __: tuple[Any, ...], ___: Any) -> None:
            if name in self._entered:
                del self._entered[self._entered.index(name) :]

        return hook

    def _before(self, name: str) -> Callable[..., None]:
        number = block_of(name)
        assert number is not None

        def hook(_: nn.Module, inputs: tuple[Any, ...]) -> None:
            self._progress.at_block(number)
            if self._compiled and self._draws:
                self._record_random(name, number, inputs[0].device)
            self._observer.record("block_pre", name, inputs[0], block=number, phase=self._forward_phase())
            self._on_gradient(inputs[0], "block_grad_in", name, leaving=True)

        return hook

    def _gradient_in(self, name: str) -> Callable[..., None]:
        def hook(_: nn.Module, inputs: tuple[Any, ...]) -> None:
            for number, tensor in enumerate(_tensors(inputs)):
                self._on_gradient(tensor, "module_grad_in", _numbered(name, number), leaving=True)

        return hook

    def _after(self, name: str, site: str) -> Callable[..., None]:
        block = block_of(name)
        forward, backward = ("block_post", "block_grad_out") if site == "block" else ("module", "module_grad_out")

        def hook(_: nn.Module, __: tuple[Any, ...], output: Any) -> None:
            phase = self._forward_phase()
            for number, tensor in enumerate(_tensors((output,))):
                label = _numbered(name, number)
                self._observer.record(forward, label, tensor, block=block, phase=phase)
                self._on_gradient(tensor, backward, label, leaving=False)

        return hook

    def _on_gradient(self, tensor: Tensor, site: str, name: str, *, leaving: bool) -> None:
        # What is recomputed has a graph of its own that nobody goes back through.
        if not tensor.requires_grad or self._observer.phase == "backward":
            return
        module, block = name.partition("[")[0], block_of(name)

        def hook(gradient: Tensor) -> None:
            self._entered.clear()
            if not leaving and not self._backward_in.startswith(f"{module}."):
                self._backward_in = module
            self._observer.record(site, name, gradient, block=block, phase="backward")
            if leaving and (self._backward_in == module or self._backward_in.startswith(f"{module}.")):
                # Out of a block, execution is still in its course: the reduction of its gradients follows.
                self._backward_in = module if _is_block(module) else module.rpartition(".")[0] or ROOT

        tensor.register_hook(hook)

    def _random(self, name: str) -> Callable[..., None]:
        block = block_of(name)

        def hook(_: nn.Module, inputs: tuple[Any, ...]) -> None:
            self._record_random(name, block, inputs[0].device)

        return hook

    def _record_random(self, name: str, block: int | None, device: torch.device) -> None:
        state = torch.get_rng_state() if device.type == "cpu" else torch.cuda.get_rng_state(device)
        self._observer.record_random(name, state, block=block, phase=self._forward_phase())

    def _entering(self, name: str, inside: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        """What checkpointing runs again: during backward it is in the block, whose own hooks do not run again."""

        def run(hidden: Tensor) -> Tensor:
            if self._observer.phase != "backward":
                return inside(hidden)
            self._entered.append(name)
            try:
                return inside(hidden)
            finally:
                del self._entered[self._entered.index(name) :]

        return run


def block_of(name: str) -> int | None:
    """The number of the block that a module or parameter belongs to, None for the root's own."""
    parts = name.split(".")
    return int(parts[1]) if parts[0] == "blocks" and len(parts) > 1 else None


def _is_block(name: str) -> bool:
    return name.startswith("blocks.") and name.count(".") == 1


def _numbered(name: str, number: int) -> str:
    return name if number == 0 else f"{name}[{number}]"


def _tensors(values: tuple[Any, ...]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (tuple, list)):
            yield from _tensors(tuple(value))
