"""A collective in words: its group, ranks, reduce operation and arguments, for every operator that can be replayed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from detsweep.worker.collectives import TAPE, Collectives
from detsweep.worker.described import REPLAYABLE, Described, Describer, NotReplayableError, reads_of
from tests.collectives import C10D, FUNCTIONAL, ISSUED, ISSUED_IDS, MODULE, PHASE, Case, bits, group_name, position
from tests.support import one_rank

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


@pytest.fixture(autouse=True)
def _group() -> Iterator[None]:
    with one_rank():
        yield


def _seen(call: Callable[[], object], describer: Describer | None = None) -> list[tuple[Described, list[Tensor]]]:
    """What a call issues: described, and the tensors whose bits are sent."""
    collectives, found = Collectives(), []
    describer = describer or Describer(position)

    def layer(func: Any, args: tuple[Any, ...], go_on: Callable[[], Any]) -> Any:
        found.append((describer.describe(func, args), reads_of(func, args)))
        return go_on()

    with collectives.layer(TAPE, layer):
        call()
    return found


def _described(call: Callable[[], object], describer: Describer | None = None) -> list[Described]:
    return [one for one, _ in _seen(call, describer)]


def test_every_operator_that_can_be_replayed_is_issued_here_or_needs_a_peer() -> None:
    issued = {case.operator for case in (*C10D, *FUNCTIONAL)}
    assert REPLAYABLE - issued == {"c10d.send", "c10d.recv_"}
    assert issued <= REPLAYABLE


@pytest.mark.parametrize(("case", "asynchronous"), ISSUED, ids=ISSUED_IDS)
def test_every_collective_is_described(case: Case, asynchronous: bool) -> None:
    sent, into = ([torch.randn(4) for _ in range(case.tensors)] for _ in range(2))
    read = [bits(tensor) for tensor in (into if case.in_place else sent)]
    ((one, reads),) = _seen(lambda: case.run(sent, into, asynchronous=asynchronous))
    group = group_name() if case.functional else "default_pg"
    assert one == Described(
        case.operator,
        f"{case.operator} #0 group {group} in {MODULE}",
        PHASE,
        group,
        (0,),
        case.reduce,
        None if case.functional or not case.says else asynchronous,
        case.arguments,
    )
    # What was sent in place has been overwritten with itself: the group has one rank.
    assert [bits(tensor) for tensor in reads] == read


@pytest.mark.parametrize("name", ["SUM", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR"])
@pytest.mark.parametrize("as_object", [False, True])
def test_a_reduce_operation_goes_by_its_name(name: str, as_object: bool) -> None:
    operation = getattr(dist.ReduceOp, name)
    tensor = torch.ones(3, dtype=torch.int32)
    (one,) = _described(lambda: dist.all_reduce(tensor, op=dist.ReduceOp(operation) if as_object else operation))
    assert one.reduce == name.lower()


def test_each_group_counts_for_itself_until_another_step_begins() -> None:
    pair = dist.new_group([0], group_desc="pair")
    tensor, describer = torch.randn(4), Describer(position)

    def call() -> None:
        for group in (None, pair, None):
            dist.all_reduce(tensor, group=group)

    describer.begin()
    expected = [(0, "default_pg"), (0, "pair"), (1, "default_pg")]
    names = [f"c10d.allreduce_ #{number} group {group} in {MODULE}" for number, group in expected]
    assert [one.name for one in _described(call, describer)] == names
    assert [one.name for one in _described(call, describer)] != names
    describer.begin()
    assert [one.name for one in _described(call, describer)] == names


def test_module_and_phase_are_those_of_the_moment() -> None:
    places = iter([("norm", "forward"), ("blocks.0", "recompute")])
    tensor = torch.randn(4)
    found = _described(lambda: [dist.all_reduce(tensor) for _ in range(2)], Describer(lambda: next(places)))
    assert [(one.name, one.phase) for one in found] == [
        ("c10d.allreduce_ #0 group default_pg in norm", "forward"),
        ("c10d.allreduce_ #1 group default_pg in blocks.0", "recompute"),
    ]


def test_a_group_that_cannot_be_found_by_its_name_has_no_ranks() -> None:
    operator = torch.ops._c10d_functional.all_reduce.default
    one = Describer(position).describe(operator, (torch.ones(1), "sum", "a group that is gone"))
    assert (one.group, one.ranks, one.reduce) == ("a group that is gone", (), "sum")


@pytest.mark.parametrize(
    ("operator", "call"),
    [
        ("c10d.recv_any_source_", dist.recv),
        ("c10d.recv_any_source_", dist.irecv),
        (
            "_c10d_functional.all_gather_into_tensor_out",
            lambda t: torch.ops._c10d_functional.all_gather_into_tensor_out(t, 1, group_name(), out=torch.empty(4)),
        ),
    ],
)
def test_what_cannot_be_replayed_is_refused_by_name(operator: str, call: Callable[[Tensor], object]) -> None:
    line = f"^{operator}, issued in {MODULE}, cannot be replayed, so it cannot be recorded$"
    with pytest.raises(NotReplayableError, match=line):
        _seen(lambda: call(torch.randn(4)))
