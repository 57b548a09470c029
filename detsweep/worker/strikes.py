"""Where faults in operators and collectives strike: in their results, before anyone else sees them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from detsweep.causes import collective_name
from detsweep.worker.collectives import Call
from detsweep.worker.deliveries import Deliveries, DoneWork, with_work
from detsweep.worker.dispatched import (
    COLLECTIVES,
    POINT_TO_POINT,
    delivered_by,
    group_of,
    operator_of,
    sides,
    signature_of,
)


class FaultMode(TorchDispatchMode):
    """Counts collectives, and operators in a block's forward, and shows each one's result before anyone else sees it.

    `strike(site, number, count, tensor, name)` says whether it changed the tensor; `number` counts from 0 in this run,
    `count` is how many the run before had (None in the first), `name` begins as the record's does. `inside` gives the
    block whose forward runs. Entered below whatever observes.
    """

    def __init__(
        self,
        strike: Callable[[str, int, int | None, Tensor, str], bool],
        inside: Callable[[], int | None],
        looking: Callable[[], bool],
        deliveries: Deliveries,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._strike = strike
        self._inside = inside
        self._looking = looking
        self._deliveries = deliveries
        self._counts: Counter[int | None] = Counter()
        self._previous: Counter[int | None] = Counter()
        self._issued: Counter[str] = Counter()

    def begin(self) -> None:
        """A run begins."""
        self._previous, self._counts = self._counts or self._previous, Counter()
        self._issued.clear()

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if DTensor in types:
            return NotImplemented
        result = func(*args, **(kwargs or {}))
        if types or not self._looking():
            return result
        if func.namespace in COLLECTIVES:
            return result
        if (block := self._inside()) is not None and _is_computed(func, result):
            self._show("op", block, result, signature_of(func).name)
        return result

    def collective(self, func: Any, args: tuple[Any, ...], go_on: Call) -> Any:
        """The layer of collectives: lowest of all, so that what a fault left is what was delivered."""
        result = go_on()
        if not self._looking():
            return result
        group = group_of(args)[0]
        name = collective_name(f"{func.namespace}.{operator_of(func)}", self._issued[group], group)
        self._issued[group] += 1
        if operator_of(func) in POINT_TO_POINT:
            # To wait for one here could mean to wait for ever.
            return result
        delivered = delivered_by(func, args, sides(func)[0], result)[:1]
        # Integers are sizes that ranks tell each other: with other ones they would wait for each other for ever.
        if not delivered or not delivered[0].is_floating_point():
            return result
        if self._show("collective_out", None, delivered[0], name) and func.namespace == "c10d":
            # gloo copies a reduce-scatter's result with each wait, and the caller waits again: it gets a work that is
            # done.
            return with_work(result, self._deliveries.kept(DoneWork()))
        return result

    def _show(self, site: str, block: int | None, tensor: Tensor, name: str) -> bool:
        number = self._counts[block]
        self._counts[block] += 1
        return self._strike(site, number, self._previous[block] or None, tensor, name)


def _is_computed(func: Any, result: Any) -> bool:
    return isinstance(result, Tensor) and result.is_floating_point() and signature_of(func).computes
