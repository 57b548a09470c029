"""Deliveries: told when the program may look, once, and let go of when they are over."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import Tensor

from detsweep.worker.collectives import TAPE, Collectives
from detsweep.worker.deliveries import DoneWork, WatchedWork
from tests.support import one_rank

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


@pytest.fixture(autouse=True)
def _group() -> Iterator[None]:
    with one_rank():
        yield


Told = list[tuple[str, list[list[float]]]]


@contextmanager
def _watched(collectives: Collectives) -> Iterator[Told]:
    """What has been told of each collective: its operator, and what its tensors had at that moment."""
    told: Told = []

    def layer(func: Any, args: tuple[Any, ...], go_on: Callable[[], Any]) -> Any:
        def then(tensors: list[Tensor]) -> None:
            told.append((func.name(), [tensor.tolist() for tensor in tensors]))

        return collectives.deliveries.watch(func, args, go_on(), then)

    with collectives.layer(TAPE, layer):
        yield told


def test_a_work_is_told_of_when_it_has_been_waited_for_and_once() -> None:
    collectives, tensor = Collectives(), torch.ones(2)
    with _watched(collectives) as told:
        work: Any = dist.all_reduce(tensor, async_op=True)
        while not work.is_completed():
            pass
        assert told == []
        tensor.fill_(2.0)
        assert work.wait() is True
        tensor.fill_(3.0)
        work.wait()
        work.synchronize()
    assert told == [("c10d::allreduce_", [[2.0, 2.0]])]
    assert collectives.deliveries.flush() == []


def test_a_synchronous_collective_is_told_of_at_once() -> None:
    with _watched(Collectives()) as told:
        dist.broadcast(torch.ones(2), 0)
        assert told == [("c10d::broadcast_", [[1.0, 1.0]])]


def test_a_watched_work_answers_as_the_work_that_it_stands_for() -> None:
    collectives, tensor = Collectives(), torch.ones(2)
    plain: Any = dist.all_gather([torch.empty(2)], tensor, async_op=True)
    with _watched(collectives):
        work: Any = dist.all_gather([torch.empty(2)], tensor, async_op=True)
    assert isinstance(work, WatchedWork)
    for one in (plain, work):
        one.wait()
    assert [work.is_completed(), work.is_success(), work.exception()] == [
        plain.is_completed(),
        plain.is_success(),
        plain.exception(),
    ]
    future = work.get_future()
    assert [one.tolist() for one in future.wait()[0]] == [one.tolist() for one in plain.get_future().wait()[0]]


def test_works_that_are_waited_for_in_another_order_are_told_of_in_that_order() -> None:
    with _watched(Collectives()) as told:
        works: list[Any] = [dist.all_reduce(torch.full((1,), float(n)), async_op=True) for n in range(3)]
        for number in (2, 0, 1):
            works[number].wait()
    assert [values for _, values in told] == [[[2.0]], [[0.0]], [[1.0]]]


def test_a_functional_collective_is_told_of_by_the_memory_of_its_result() -> None:
    with _watched(Collectives()) as told:
        one = functional.all_reduce(torch.ones(2), "sum", dist.group.WORLD)
        other = functional.broadcast(torch.zeros(2), 0, dist.group.WORLD)
        assert told == []
        # A view is of the same memory; what is no result of a collective is nothing to tell.
        torch.ops._c10d_functional.wait_tensor(torch.ones(2))
        assert told == []
        assert (other.view(1, 2) + 1).tolist() == [[1.0, 1.0]]
        assert told == [("_c10d_functional::broadcast", [[0.0, 0.0]])]
        assert (one + 1).tolist() == [2.0, 2.0]
    assert len(told) == 2


def test_what_nobody_has_waited_for_is_told_of_at_the_end() -> None:
    collectives = Collectives()
    with _watched(collectives) as told:
        dist.all_reduce(torch.ones(1), async_op=True)
        functional.all_reduce(torch.full((1,), 2.0), "sum", dist.group.WORLD)
        dist.all_reduce(torch.full((1,), 3.0))
        late = collectives.deliveries.flush()
        assert collectives.deliveries.flush() == []
    assert [one.func.name() for one in late] == ["c10d::allreduce_"]
    assert told == [
        ("c10d::allreduce_", [[3.0]]),
        ("c10d::allreduce_", [[1.0]]),
        ("_c10d_functional::all_reduce", [[2.0]]),
    ]


def test_what_is_forgotten_is_neither_waited_for_nor_told_of() -> None:
    collectives = Collectives()
    with _watched(collectives) as told:
        dist.all_reduce(torch.ones(1), async_op=True)
        result = functional.all_reduce(torch.ones(1), "sum", dist.group.WORLD)
        collectives.deliveries.forget()
        assert collectives.deliveries.flush() == []
        assert (result + 1).tolist() == [2.0]
    assert told == []


@pytest.mark.parametrize(
    "call",
    [
        lambda t: dist.all_reduce(t),  # noqa: PLW0108, of several arguments
        lambda t: dist.all_reduce(t, async_op=True).wait(),
        lambda t: functional.all_reduce_coalesced([t, t + 1], "sum", dist.group.WORLD)[0] + 1,
    ],
    ids=["synchronous", "asynchronous", "functional"],
)
def test_at_the_end_of_a_run_nothing_is_left_of_what_is_over(call: Callable[[Tensor], object]) -> None:
    """A thousand collectives of a step would keep all of their tensors."""
    collectives, tensor = Collectives(), torch.ones(3)
    with _watched(collectives):
        call(tensor)
    collectives.deliveries.trim()
    kept = weakref.ref(tensor)
    del tensor
    gc.collect()
    assert kept() is None


def test_at_the_end_of_a_run_what_is_under_way_is_kept() -> None:
    collectives = Collectives()
    with _watched(collectives) as told:
        work: Any = dist.all_reduce(torch.ones(1), async_op=True)
        result = functional.all_reduce(torch.ones(1), "sum", dist.group.WORLD)
        collectives.deliveries.trim()
        assert (result + 1).tolist() == [2.0]
        work.wait()
    assert len(told) == 2


def test_what_is_waited_for_quietly_is_so_each_time() -> None:
    collectives, entered = Collectives(), []

    @contextmanager
    def quietly() -> Iterator[None]:
        entered.append(True)
        yield

    def layer(func: Any, args: tuple[Any, ...], go_on: Callable[[], Any]) -> Any:
        return collectives.deliveries.quiet(go_on(), quietly)

    with collectives.layer(TAPE, layer):
        work: Any = dist.all_reduce(torch.ones(1), async_op=True)
        assert entered == []
        work.wait()
        work.synchronize()
        dist.monitored_barrier()
        assert len(entered) == 2
        assert (functional.all_reduce(torch.ones(1), "sum", dist.group.WORLD) + 1).tolist() == [2.0]
    assert collectives.deliveries.flush() == []


def test_a_work_that_is_done_has_nothing_to_wait_for() -> None:
    work = DoneWork()
    assert (work.wait(), work.is_completed(), work.is_success()) == (True, True, True)
    work.synchronize()
    work.block_current_stream()
