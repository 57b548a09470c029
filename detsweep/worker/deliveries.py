"""What a collective brings, at the moment at which the program that issued it may look at it, and no earlier.

Whoever waited at once, where the program does not, would take away the overlap in which races live, and would hang
where two ranks each post a receive before they send.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from detsweep.worker.dispatched import POINT_TO_POINT, delivered_by, operator_of, sides, tensors_in


@dataclass
class Delivery:
    """A collective that has been issued. `then` is called once, with what it delivered, when it has been waited for."""

    func: Any
    args: tuple[Any, ...]
    result: Any
    then: Callable[[list[Tensor]], None]
    work: WatchedWork | None = None
    done: bool = False

    def take(self) -> None:
        """It has been waited for."""
        if not self.done:
            self.done = True
            writes = sides(self.func)[0]
            if self.func.namespace != "c10d":
                self.then(delivered_by(self.func, self.args, writes, self.result))
            else:
                self.then([] if writes is None else list(tensors_in([self.args[writes]])))

    def finish(self) -> None:
        """Wait for it, where nobody has."""
        if self.work is not None and not self.done:
            self.work.wait()
        self.take()


class WatchedWork(dist.Work):
    """A work that tells of it when it has been waited for, `quietly`; else it is the work that it stands for.

    `once`: it is waited for once, whoever asks again. gloo's receive would wait for another message.
    """

    def __init__(
        self,
        work: dist.Work,
        waited: Callable[[], None],
        quietly: Callable[[], AbstractContextManager[None]],
        *,
        once: bool = False,
    ) -> None:
        super().__init__()
        self._work = work
        self._waited = waited
        self._quietly = quietly
        self._once = once
        self.over = False

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Wait as the work itself does, then look at what it brought."""
        if self._once and self.over:
            return True
        with self._quietly():
            done = self._work.wait(timeout) if timeout else self._work.wait()
        self._over()
        return bool(done)

    def synchronize(self) -> None:
        with self._quietly():
            self._work.synchronize()
        self._over()

    def block_current_stream(self) -> None:
        with self._quietly():
            self._work.block_current_stream()
        self._over()

    def is_completed(self) -> bool:
        return bool(self._work.is_completed())

    def is_success(self) -> bool:
        return bool(self._work.is_success())

    def exception(self) -> Any:
        return self._work.exception()

    def result(self) -> list[Tensor]:
        return list(self._work.result())

    def source_rank(self) -> int:
        return int(self._work.source_rank())

    def get_future(self) -> Any:
        return self._work.get_future()

    def _over(self) -> None:
        self.over = True
        self._waited()


class DoneWork(dist.Work):
    """A work that is done: of a collective that nobody has to wait for."""

    over = True

    def __init__(self, brought: Sequence[Tensor] = ()) -> None:
        super().__init__()
        self._brought = list(brought)

    def wait(self, _: timedelta = timedelta(0)) -> bool:
        """There is nothing to wait for."""
        return True

    def synchronize(self) -> None:
        """There is nothing to wait for."""

    def block_current_stream(self) -> None:
        """There is nothing to wait for."""

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True

    def result(self) -> list[Tensor]:
        return self._brought

    def get_future(self) -> Any:
        done: torch.futures.Future[list[Tensor]] = torch.futures.Future()
        done.set_result(self._brought)
        return done


@dataclass
class Deliveries:
    """The deliveries that are under way; works of theirs are kept alive here, as C++ holds only half of each."""

    _pending: list[Delivery] = field(default_factory=list)
    _works: list[WatchedWork | DoneWork] = field(default_factory=list)
    _by_memory: dict[tuple[int, int], Delivery] = field(default_factory=dict)

    def watch(self, func: Any, args: tuple[Any, ...], result: Any, then: Callable[[list[Tensor]], None]) -> Any:
        """What to return in a collective's place, so that `then` is called as soon as it has been waited for."""
        delivery = Delivery(func, args, result, then)
        self._pending.append(delivery)
        if func.namespace != "c10d":
            places = [_place(tensor) for tensor in tensors_in([result])]
            if not any(size for _, size in places):
                # Nothing has no place in memory by which it could be told.
                delivery.take()
            for place in places:
                self._by_memory[place] = delivery
            return result
        boxed = result[-1] if isinstance(result, (list, tuple)) else result
        if not isinstance(boxed, torch.ScriptObject):
            delivery.take()
            return result
        # On an accelerator to wait again is to have another stream wait.
        once = operator_of(func) in POINT_TO_POINT and all(t.device.type == "cpu" for t in tensors_in(args))
        delivery.work = WatchedWork(dist.Work.unbox(boxed), delivery.take, nullcontext, once=once)
        return with_work(result, self.kept(delivery.work))

    def quiet(self, result: Any, quietly: Callable[[], AbstractContextManager[None]]) -> Any:
        """What to return in a collective's place, so that it is waited for `quietly`.

        gloo copies a reduce-scatter's result with each wait: an operator, but none that the program has called.
        """
        boxed = result[-1] if isinstance(result, (list, tuple)) else result
        if not isinstance(boxed, torch.ScriptObject):
            return result
        return with_work(result, self.kept(WatchedWork(dist.Work.unbox(boxed), lambda: None, quietly)))

    def kept(self, work: WatchedWork | DoneWork) -> torch.ScriptObject:
        """A work in the form in which operators return it."""
        self._works.append(work)
        return work.boxed()

    def waited(self, tensor: Tensor) -> None:
        """A functional collective's result has been waited for."""
        if (delivery := self._by_memory.pop(_place(tensor), None)) is not None:
            delivery.take()

    def trim(self) -> None:
        """End of a run: let go of what is over, and of the memory that it holds."""
        self._pending = [delivery for delivery in self._pending if not delivery.done]
        self._works = [work for work in self._works if not work.over]
        self._by_memory = {place: delivery for place, delivery in self._by_memory.items() if not delivery.done}

    def forget(self) -> None:
        """A step was broken off: what is under way is waited for by nobody here, and is no part of the next."""
        self._pending.clear()
        self._by_memory.clear()

    def flush(self) -> list[Delivery]:
        """End of a step: wait for what nobody has; returns the works among it, whose buffers may have been reused."""
        late = [delivery for delivery in self._pending if not delivery.done]
        for delivery in late:
            delivery.finish()
        for store in (self._pending, self._works):
            store.clear()
        self._by_memory.clear()
        return [delivery for delivery in late if delivery.func.namespace == "c10d"]


def _place(tensor: Tensor) -> tuple[int, int]:
    """Where in memory a tensor begins, and how many elements it has: of several views of one buffer which one it is."""
    return tensor.data_ptr(), tensor.numel()


def has_work(result: Any) -> bool:
    """Whether a c10d operator gave a handle to wait for."""
    boxed = result[-1] if isinstance(result, (list, tuple)) else result
    return isinstance(boxed, torch.ScriptObject)


def with_work(result: Any, boxed: torch.ScriptObject) -> Any:
    """A c10d operator's result, with another work in it."""
    return (*result[:-1], boxed) if isinstance(result, (list, tuple)) else boxed
