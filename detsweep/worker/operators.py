"""Operators and collectives as torch's dispatcher sees them, with digests of what they read and what they wrote."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.distributed.tensor import DTensor

# The module's name is private, the class is what torch's own documentation on extending it says to use.
from torch.utils._python_dispatch import TorchDispatchMode

from detsweep.causes import collective_name
from detsweep.worker.deliveries import Deliveries
from detsweep.worker.dispatched import (
    COLLECTIVES,
    POINT_TO_POINT,
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
    from detsweep.worker.collectives import Call
    from detsweep.worker.observe import Observer


class OperatorMode(TorchDispatchMode):
    """Records every ATen operator that computes, forward and backward; collectives go through a layer of their own.

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
        return func(*args, **kwargs) if func.namespace in COLLECTIVES else self._operator(func, args, kwargs)

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


class CollectiveLayer:
    """Records every collective, with digests of what it is given and of what it delivers.

    `deliveries`: where it is told of those for which it must not wait at once.
    """

    def __init__(self, observer: Observer, position: Callable[[], tuple[str, str]], deliveries: Deliveries) -> None:
        self._observer = observer
        self._position = position
        self._deliveries = deliveries

    def __call__(self, func: Any, args: tuple[Any, ...], go_on: Call) -> Any:
        """Go on with a collective, and record it where the observer looks."""
        if not self._observer.looking:
            return go_on()
        operator = operator_of(func)
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
        result = go_on()

        def delivered(tensors: list[Tensor]) -> None:
            if tensors:
                self._record_side("collective_out", name, tensors, module, phase)

        if operator in POINT_TO_POINT:
            # The peer may be waiting for what this rank sends next.
            return self._deliveries.watch(func, args, result, delivered)
        with self._observer.unseen():
            brought = delivered_by(func, args, writes, result)
        delivered(brought)
        return self._deliveries.quiet(result, self._observer.unseen)

    def _record_side(self, site: str, name: str, tensors: list[Tensor], module: str, phase: str) -> None:
        digest = self._observer.digest(tensors)
        self._observer.record(site, name, tensors[0], block=block_of(module), digest=digest, phase=phase)
