"""The way of a collective through its layers: in their order, once each, and nothing hooked without any."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch._subclasses.fake_tensor import FakeTensorMode

from detsweep.worker.collectives import FAULT, OBSERVER, TAPE, Collectives, Layer
from tests.support import one_rank

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


@pytest.fixture(autouse=True)
def _group() -> Iterator[None]:
    with one_rank():
        yield


def _layer(seen: list[str], name: str = "") -> Layer:
    def layer(func: Any, args: tuple[Any, ...], go_on: Callable[[], Any]) -> Any:
        seen.append(f"{name}> {func.name()}".strip())
        result = go_on()
        seen.append(f"<{name}")
        return result

    return layer


def _calls(call: Callable[[], object], place: int = TAPE) -> list[str]:
    seen: list[str] = []
    collectives = Collectives()
    with collectives.layer(place, _layer(seen)):
        call()
    return [line.removeprefix("> ") for line in seen if line.startswith(">")]


def test_layers_lie_in_their_order_however_they_are_entered() -> None:
    seen: list[str] = []
    collectives, tensor = Collectives(), torch.ones(2)
    names = {OBSERVER: "observer", TAPE: "tape", FAULT: "fault"}
    with (
        collectives.layer(FAULT, _layer(seen, "fault")),
        collectives.layer(OBSERVER, _layer(seen, "observer")),
        collectives.layer(TAPE, _layer(seen, "tape")),
    ):
        dist.all_reduce(tensor)
    assert [line.split(">")[0] for line in seen[:3]] == list(names.values())
    assert seen[3:] == ["<fault", "<tape", "<observer"]
    assert {line.partition("> ")[2] for line in seen[:3]} == {"c10d::allreduce_"}


@pytest.mark.parametrize("place", [OBSERVER, TAPE, FAULT])
def test_every_place_may_be_the_only_one(place: int) -> None:
    assert _calls(lambda: dist.all_reduce(torch.ones(1)), place) == ["c10d::allreduce_"]


def test_a_layer_that_does_not_go_on_keeps_it_from_all_below() -> None:
    seen: list[str] = []
    collectives, tensor = Collectives(), torch.ones(2)

    def silent(func: Any, args: tuple[Any, ...], go_on: Callable[[], Any]) -> Any:
        return args[0]

    def broadcast() -> None:
        result = functional.broadcast(tensor, 0, dist.group.WORLD)
        assert (result + 1).tolist() == [2.0, 2.0]

    with collectives.layer(FAULT, _layer(seen)):
        with collectives.layer(TAPE, silent):
            broadcast()
        assert seen == []
        broadcast()
    assert seen == ["> _c10d_functional::broadcast", "<"]


def test_a_layer_is_told_arguments_and_its_result_is_the_programs() -> None:
    collectives, tensor = Collectives(), torch.ones(2)

    def doubled(func: Any, args: tuple[Any, ...], go_on: Callable[[], Any]) -> Any:
        assert torch.equal(args[0], tensor)
        assert args[1:] == ("sum", dist.group.WORLD.group_name)  # type: ignore[union-attr]
        return torch.ops._c10d_functional.wait_tensor(go_on()) * 2

    with collectives.layer(TAPE, doubled):
        assert (functional.all_reduce(tensor, "sum", dist.group.WORLD) + 0).tolist() == [2.0, 2.0]


def test_after_the_last_layer_has_left_nothing_is_hooked() -> None:
    def hooked() -> bool:
        return bool(torch._C._dispatch_has_kernel_for_dispatch_key("c10d::allreduce_", "BackendSelect"))

    seen: list[str] = []
    collectives, tensor = Collectives(), torch.ones(1)
    with collectives.layer(OBSERVER, _layer(seen)):
        with collectives.layer(TAPE, _layer(seen)):
            pass
        dist.all_reduce(tensor)
        assert (len(seen), hooked()) == (2, True)
    seen.clear()
    dist.all_reduce(tensor)
    assert (functional.all_reduce(tensor, "sum", dist.group.WORLD) + 1).tolist() == [2.0]
    assert seen == []
    assert not hooked()


def test_layers_that_left_by_an_exception_leave_nothing_either() -> None:
    seen: list[str] = []
    collectives = Collectives()

    def call() -> None:
        with collectives.layer(TAPE, _layer(seen)), collectives.layer(FAULT, _layer(seen)):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        call()
    dist.all_reduce(torch.ones(1))
    assert seen == []
    # And may come again.
    with collectives.layer(TAPE, _layer(seen)):
        dist.all_reduce(torch.ones(1))
    assert len(seen) == 2


def test_a_layer_that_raises_ends_the_call_and_not_the_next() -> None:
    collectives, fails = Collectives(), [True, False]

    def layer(func: Any, args: tuple[Any, ...], go_on: Callable[[], Any]) -> Any:
        if fails.pop(0):
            raise ZeroDivisionError
        return go_on()

    with collectives.layer(TAPE, layer):
        with pytest.raises(ZeroDivisionError):
            dist.all_reduce(torch.ones(1))
        dist.all_reduce(torch.ones(1))
    assert fails == []


def test_a_functional_collective_is_seen_once_though_it_is_made_of_others() -> None:
    # all_gather_tensor along another dimension than the first, and the differentiable one, each have one inside.
    def call() -> None:
        tensor = torch.ones(2, 2)
        assert (functional.all_gather_tensor(tensor, 1, dist.group.WORLD) + 1).sum() == 8
        assert (functional.all_reduce(tensor, "sum", dist.group.WORLD) + 1).sum() == 8

    assert _calls(call) == ["_c10d_functional::all_gather_into_tensor", "_c10d_functional::all_reduce"]


def test_what_a_layer_issues_itself_is_not_seen() -> None:
    seen: list[str] = []
    collectives = Collectives()

    def layer(func: Any, args: tuple[Any, ...], go_on: Callable[[], Any]) -> Any:
        seen.append(func.name())
        dist.barrier()
        return go_on()

    with collectives.layer(TAPE, layer):
        dist.all_reduce(torch.ones(1))
        dist.broadcast(torch.ones(1), 0)
    assert seen == ["c10d::allreduce_", "c10d::broadcast_"]


def test_waiting_is_no_collective() -> None:
    assert _calls(lambda: torch.ops._c10d_functional.wait_tensor(torch.ones(1))) == []


def test_fake_tensors_are_not_seen() -> None:
    def call() -> None:
        with FakeTensorMode():
            result = torch.ops._c10d_functional.all_reduce(
                torch.ones(2),
                "sum",
                dist.group.WORLD.group_name,  # type: ignore[union-attr]
            )
            assert result.shape == (2,)
        meta = torch.ones(2, device="meta")
        torch.ops._c10d_functional.all_reduce(meta, "sum", dist.group.WORLD.group_name)  # type: ignore[union-attr]

    assert _calls(call) == []


def test_collectives_of_other_threads_are_seen_too() -> None:
    def call() -> None:
        thread = threading.Thread(target=dist.all_reduce, args=(torch.ones(1),))
        thread.start()
        thread.join()

    assert _calls(call) == ["c10d::allreduce_"]


def test_a_collective_in_backward_is_seen() -> None:
    def call() -> None:
        tensor = torch.ones(2, requires_grad=True)
        functional.all_gather_tensor_autograd(tensor, 0, dist.group.WORLD).sum().backward()
        assert tensor.grad is not None
        assert tensor.grad.tolist() == [1.0, 1.0]

    assert _calls(call) == ["_c10d_functional::all_gather_into_tensor", "_c10d_functional::reduce_scatter_tensor"]
