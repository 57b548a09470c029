"""Collectives alone, recorded without a look at any other operator."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from detsweep.worker.dispatched import COLLECTIVES, NO_COLLECTIVE
from detsweep.worker.operators import OperatorMode

if TYPE_CHECKING:
    from detsweep.worker.observe import Observer


class CollectiveHooks:
    """Records every collective and nothing else, while its context lasts.

    It stands in the dispatcher's place for autograd, which no collective uses. A dispatch mode would take every
    operator of the step through Python, a thousand times, to find out that it is no collective.
    """

    def __init__(self, observer: Observer, position: Callable[[], tuple[str, str]]) -> None:
        self._mode = OperatorMode(observer, position)
        self._libraries: list[torch.library.Library] = []

    def __enter__(self) -> CollectiveHooks:
        for namespace in COLLECTIVES:
            library = torch.library.Library(namespace, "IMPL")
            self._libraries.append(library)
            for func in _all_of(namespace):
                for key in ("AutogradCPU", "AutogradCUDA"):
                    library.impl(func.name().partition("::")[2], self._recorded(func), key)
        return self

    def __exit__(self, *_: object) -> None:
        for library in self._libraries:
            # What a library does when it is collected; but it must not see the next step.
            library._destroy()
        self._libraries.clear()

    def _recorded(self, func: Any) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            # Private, but the only way on from here to where the collective is; torch's own autograd kernels do it so.
            with torch._C._AutoDispatchBelowAutograd():
                return self._mode.collective(func, args, kwargs)

        return call


@cache
def _all_of(namespace: str) -> tuple[Any, ...]:
    """Every operator of a namespace of collectives, with each of its overloads."""
    found = []
    # Operators of a namespace that nobody has called yet are in no public list.
    for full in torch._C._dispatch_get_all_op_names():
        if full.startswith(f"{namespace}::"):
            name, _, overload = full.partition("::")[2].partition(".")
            if name not in NO_COLLECTIVE:
                found.append(getattr(getattr(getattr(torch.ops, namespace), name), overload or "default"))
    return tuple(found)
