"""Every collective of this process, on its way from the program to the process group, shown to whoever wants it.

One mechanism for all: what observes collectives, what records them or plays them back, and what puts faults in.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch

from detsweep.worker.deliveries import Deliveries
from detsweep.worker.dispatched import COLLECTIVES, NO_COLLECTIVE, is_real

Call = Callable[[], Any]
Layer = Callable[[Any, tuple[Any, ...], Call], Any]
"""Takes an operator, its arguments, and how to go on to the next layer (in the end the process group); returns what
the program gets."""
OBSERVER, TAPE, FAULT = range(3)
"""Where layers lie, from the program down: what is observed is what the tape has, and that is what a fault has left."""
_KEY = torch._C.DispatchKey.BackendSelect


class Collectives:
    """The layers through which collectives go; without any, nothing is hooked.

    It stands in the dispatcher where a backend is chosen: below autograd and every dispatch mode, so that it sees what
    DTensor issues by itself too. A dispatch mode would take every operator of the step through Python, a thousand
    times, to find out that it is no collective.
    """

    def __init__(self) -> None:
        self.deliveries = Deliveries()
        self._layers: dict[int, Layer] = {}
        self._libraries: list[torch.library.Library] = []
        # Backward of an accelerator runs in threads of its own.
        self._inside = threading.local()

    @contextmanager
    def layer(self, place: int, layer: Layer) -> Iterator[None]:
        """Every collective goes through a layer inside this context."""
        assert place not in self._layers
        self._layers[place] = layer
        if len(self._layers) == 1:
            self._hook()
        try:
            yield
        finally:
            del self._layers[place]
            if not self._layers:
                self._unhook()

    def _hook(self) -> None:
        for namespace in COLLECTIVES:
            library = torch.library.Library(namespace, "IMPL")
            self._libraries.append(library)
            for func in _all_of(namespace):
                library.impl(func.name().partition("::")[2], self._through(func), _KEY.name, with_keyset=True)

    def _unhook(self) -> None:
        for library in self._libraries:
            # What a library does when it is collected; but it must not see the next step.
            library._destroy()
        self._libraries.clear()

    def _through(self, func: Any) -> Callable[..., Any]:
        def call(keys: Any, *args: Any, **kwargs: Any) -> Any:
            # Not func itself: that would come here again, and without this key what the collective allocates fails.
            def go_on() -> Any:
                return func.redispatch(keys.remove(_KEY), *args, **kwargs)

            if getattr(self._inside, "now", False) or not is_real(args):
                # A functional collective is made of another one; and of fake tensors DTensor learns shapes.
                return go_on()
            self._inside.now = True
            try:
                if func.name() == "_c10d_functional::wait_tensor":
                    result = go_on()
                    self.deliveries.waited(args[0])
                    return result
                return self._from(OBSERVER, func, args, go_on)
            finally:
                self._inside.now = False

        return call

    def _from(self, place: int, func: Any, args: tuple[Any, ...], go_on: Call) -> Any:
        if place > FAULT:
            return go_on()
        layer = self._layers.get(place)
        if layer is None:
            return self._from(place + 1, func, args, go_on)
        return layer(func, args, lambda: self._from(place + 1, func, args, go_on))


@cache
def _all_of(namespace: str) -> tuple[Any, ...]:
    """Every operator of a namespace of collectives, with each of its overloads, and the one that waits."""
    found = []
    # Operators of a namespace that nobody has called yet are in no public list.
    for full in torch._C._dispatch_get_all_op_names():
        if full.startswith(f"{namespace}::"):
            name, _, overload = full.partition("::")[2].partition(".")
            if name not in NO_COLLECTIVE or name == "wait_tensor":
                found.append(getattr(getattr(getattr(torch.ops, namespace), name), overload or "default"))
    return tuple(found)
