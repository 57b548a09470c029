"""Operators and collectives as torch's dispatcher sees them, with digests of what they read and what they wrote."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.distributed.tensor import DTensor

# The module's name is private, the class is what torch's own documentation on extending it says to use.
from torch.utils._python_dispatch import TorchDispatchMode

from detsweep.causes import collective_name
from detsweep.worker.dispatched import (
    COLLECTIVES,
    NO_COLLECTIVE,
    Signature,
    delivered_by,
    group_of,
    operator_of,
    sides,
    signature_of,
    tensors_in,
)
from detsweep.worker.tracing import block_of

if TYPE_CHECKING:
    from detsweep.worker.observe import Observer


class OperatorMode(TorchDispatchMode):
    """Records every collective, and every ATen operator that computes, forward and backward.

    `position` says in which module's course, and in which phase, an operator is called.
    """

    def __init__(self, observer: Observer, position: Callable[[], tuple[str, str]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._observer = observer
        self._position = position
        self._signatures: dict[Any, Signature] = {}

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if DTensor in types:
            # It unwraps itself and calls again with the local tensors, and issues collectives on the way.
            return NotImplemented
        kwargs = kwargs or {}
        if types or not self._observer.looking:
            # Other kinds of tensors have no bits: with fake ones DTensor finds out what shape a result will have.
            return func(*args, **kwargs)
        return (self._collective if func.namespace in COLLECTIVES else self._operator)(func, args, kwargs)

    def collective(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Call a collective and record it, where the observer looks."""
        return self._collective(func, args, kwargs) if self._observer.looking else func(*args, **kwargs)

    def _operator(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        signature = self._signatures.get(func)
        if signature is None:
            signature = self._signatures[func] = signature_of(func)
        if not signature.computes:
            return func(*args, **kwargs)
        read = signature.inputs(args, kwargs)
        inputs = self._observer.digest(read) if read else None
        result = func(*args, **kwargs)
        if written := signature.outputs(args, kwargs, result):
            module, phase = self._position()
            self._observer.record(
                "op",
                f"{signature.name} in {module}",
                written[0],
                block=block_of(module),
                digest=self._observer.digest(written),
                phase=phase,
                inputs=inputs,
            )
        return result

    def _collective(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        operator = operator_of(func)
        if operator in NO_COLLECTIVE:
            return func(*args, **kwargs)
        module, phase = self._position()
        group, members = group_of(args)
        if members is not None:
            self._observer.groups[group] = members
        name = collective_name(f"{func.namespace}.{operator}", self._observer.issued[group], group)
        name += f" in {module}"
        self._observer.issued[group] += 1
        writes, reads = sides(func)
        sent = list(tensors_in([args[reads]])) if reads is not None else []
        if sent:
            self._record_side("collective_in", name, sent, module, phase)
        result = func(*args, **kwargs)
        if delivered := delivered_by(func, args, writes, result):
            self._record_side("collective_out", name, delivered, module, phase)
        return result

    def _record_side(self, site: str, name: str, tensors: list[Tensor], module: str, phase: str) -> None:
        digest = self._observer.digest(tensors)
        self._observer.record(site, name, tensors[0], block=block_of(module), digest=digest, phase=phase)
