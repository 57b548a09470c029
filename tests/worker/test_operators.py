"""Operators and collectives: what each read and wrote, nothing of the observer's own, and no bit changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.nn.functional as F
from torch import Tensor

from detsweep.capture import Record
from detsweep.fingerprints import combine, xxh3
from detsweep.worker.collectives import FAULT, OBSERVER, Collectives
from detsweep.worker.dispatched import signature_of, tensors_in
from detsweep.worker.model import build
from detsweep.worker.observe import Observer
from detsweep.worker.operators import CollectiveLayer, OperatorMode
from detsweep.worker.progress import Progress
from detsweep.worker.strikes import FaultMode
from tests.support import compose, one_rank

ATEN = torch.ops.aten
MODULE = "blocks.1.ffn"


@pytest.fixture(autouse=True)
def _group() -> Iterator[None]:
    with one_rank():
        yield


@pytest.fixture
def observer(tmp_path: Path) -> Observer:
    model = build(compose("model.num_layers=1"), torch.device("cpu"))
    progress = Progress(tmp_path / "rank000.progress")
    return Observer(model, level="op", checksum="xxh3", fingerprint=xxh3, progress=progress)


@contextmanager
def _mode(observer: Observer, *, operators: bool = True) -> Iterator[None]:
    def position() -> tuple[str, str]:
        return MODULE, "forward"

    with ExitStack() as stack:
        collectives = observer.collectives
        stack.enter_context(collectives.layer(OBSERVER, CollectiveLayer(observer, position, collectives.deliveries)))
        if operators:
            stack.enter_context(OperatorMode(observer, position))
        yield


def _recorded(observer: Observer, call: Callable[[], object], *, operators: bool = True) -> tuple[Record, ...]:
    """The records of one call, whose operators run in the forward of MODULE."""
    with _mode(observer, operators=operators):
        call()
    return observer.finish(rank=0, step=0, run="r1").records


def _only(observer: Observer, call: Callable[[], object]) -> Record:
    (one,) = _recorded(observer, call)
    return one


def _digest(*tensors: Tensor) -> int:
    digest = combine([xxh3(tensor) for tensor in tensors])
    assert isinstance(digest, int)
    return digest


# --- signatures ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operator", "reads", "writes"),
    [
        (ATEN.mm.default, (0, 1), ()),
        (ATEN.cat.default, (0, 1), ()),
        (ATEN.native_dropout.default, (0, 1, 2), ()),
        (ATEN.add_.Tensor, (0, 1), (0,)),
        (ATEN.relu_.default, (0,), (0,)),
        (ATEN.index_put_.default, (0, 1, 2, 3), (0,)),
        (ATEN._foreach_add_.List, (0, 1), (0,)),
        (ATEN.copy_.default, (1, 2), (0,)),
        (ATEN.fill_.Scalar, (1,), (0,)),
        (ATEN.zero_.default, (), (0,)),
        (ATEN._foreach_copy_.default, (1, 2), (0,)),
    ],
    ids=str,
)
def test_what_an_operator_reads_and_writes_by_position(
    operator: Any, reads: Sequence[int], writes: Sequence[int]
) -> None:
    signature = signature_of(operator)
    assert (signature.computes, signature.reads, signature.writes) == (True, reads, writes)


@pytest.mark.parametrize(
    ("operator", "reads", "writes"),
    [
        (ATEN.mm.out, ("self", "mat2"), ("out",)),
        (ATEN.add.out, ("self", "other", "alpha"), ("out",)),
        (ATEN.add_.Tensor, ("self", "other", "alpha"), ("self",)),
        (ATEN.copy_.default, ("src", "non_blocking"), ("self",)),
        (ATEN.mm.default, ("self", "mat2"), ()),
    ],
    ids=str,
)
def test_what_an_operator_reads_and_writes_by_name(operator: Any, reads: Sequence[str], writes: Sequence[str]) -> None:
    signature = signature_of(operator)
    assert (signature.reads_named, signature.writes_named) == (reads, writes)


@pytest.mark.parametrize(
    "operator",
    [
        ATEN.view.default,
        ATEN.transpose.int,
        ATEN.split.Tensor,
        ATEN.expand.default,
        ATEN.empty.memory_format,
        ATEN.empty_like.default,
        ATEN.new_empty.default,
        ATEN.detach.default,
        ATEN._unsafe_view.default,
        ATEN._local_scalar_dense.default,
    ],
    ids=str,
)
def test_views_and_uninitialised_memory_compute_nothing(operator: Any) -> None:
    assert not signature_of(operator).computes


def test_an_operators_name_is_without_its_overload() -> None:
    assert signature_of(ATEN.add.Tensor).name == signature_of(ATEN.add.Scalar).name == "aten.add"


def test_a_gather_reads_no_buffer_that_it_is_going_to_fill() -> None:
    from torch.distributed.fsdp import _fully_shard  # noqa: F401, registers the operator

    signature = signature_of(torch.ops.fsdp.all_gather_copy_in.default)
    assert (signature.reads, signature.writes) == ((0,), ())


# --- operators -------------------------------------------------------------------------------------------------------


def test_an_operator_is_recorded_with_all_that_it_read_and_wrote(observer: Observer) -> None:
    one, other = torch.randn(3, 4), torch.randn(4, 5)
    assert _only(observer, lambda: one @ other) == Record(
        0, "op", f"aten.mm in {MODULE}", 1, "float32", (3, 5), _digest(one @ other), "forward", _digest(one, other)
    )


def test_the_phase_and_module_are_those_of_the_moment(observer: Observer) -> None:
    positions = iter([("norm", "forward"), ("blocks.0", "backward"), ("blocks.0.ffn", "recompute")])
    tensor = torch.randn(3)
    with OperatorMode(observer, lambda: next(positions)):
        for _ in range(3):
            tensor.abs()
    found = [(r.name, r.block, r.phase) for r in observer.finish(rank=0, step=0, run="r1").records]
    assert found == [
        ("aten.abs in norm", None, "forward"),
        ("aten.abs in blocks.0", 0, "backward"),
        ("aten.abs in blocks.0.ffn", 0, "recompute"),
    ]


def test_an_operator_in_place_is_recorded_as_it_found_and_as_it_left(observer: Observer) -> None:
    tensor, other = torch.randn(4), torch.randn(4)
    before = tensor.clone()
    one = _only(observer, lambda: tensor.add_(other))
    assert (one.inputs, one.digest) == (_digest(before, other), _digest(before + other))
    assert one.digest == _digest(tensor)


@pytest.mark.parametrize("overwrite", [lambda t, o: t.copy_(o), lambda t, _: t.zero_(), lambda t, _: t.fill_(2.0)])
def test_what_was_there_before_is_not_read_where_it_is_overwritten(
    observer: Observer, overwrite: Callable[[Tensor, Tensor], object]
) -> None:
    source = torch.randn(4)
    found = [_only(observer, lambda garbage=garbage: overwrite(garbage, source)) for garbage in torch.randn(2, 4)]
    assert found[0] == found[1]


def test_accumulation_reads_what_was_there(observer: Observer) -> None:
    places, values = (torch.tensor([1, 1, 0]),), torch.randn(3)
    found = [
        _only(observer, lambda start=start: start.index_put_(places, values, accumulate=True))
        for start in torch.randn(2, 4)
    ]
    assert found[0].inputs != found[1].inputs
    assert found[0].name == f"aten.index_put_ in {MODULE}"


def test_the_target_of_out_is_written_and_not_read(observer: Observer) -> None:
    one, other = torch.randn(3, 3), torch.randn(3, 3)
    found = [_only(observer, lambda out=out: torch.mm(one, other, out=out)) for out in torch.randn(2, 3, 3)]
    assert found[0] == found[1]
    assert (found[0].inputs, found[0].digest) == (_digest(one, other), _digest(one @ other))


def test_all_of_several_results_are_in_one_digest(observer: Observer) -> None:
    torch.manual_seed(3)
    tensor = torch.randn(50)
    one = _only(observer, lambda: torch.native_dropout(tensor, 0.5, True))
    torch.manual_seed(3)
    tensor = torch.randn(50)
    kept, mask = torch.native_dropout(tensor, 0.5, True)
    assert (one.digest, one.inputs, one.shape) == (_digest(kept, mask), _digest(tensor), (50,))


def test_a_list_of_tensors_is_read_whole_and_written_whole(observer: Observer) -> None:
    parts = [torch.randn(2), torch.randn(3)]
    assert _only(observer, lambda: torch.cat(parts)).inputs == _digest(*parts)
    before = [part.clone() for part in parts]
    one = _only(observer, lambda: torch._foreach_mul_(parts, 2.0))
    assert (one.inputs, one.digest) == (_digest(*before), _digest(*parts))


def test_an_operator_that_reads_no_tensor_has_no_inputs(observer: Observer) -> None:
    assert _only(observer, lambda: torch.ones(3)).inputs is None


@pytest.mark.parametrize(
    "call",
    [
        lambda t: t.view(-1),
        lambda t: t.t(),
        lambda t: t[1],
        lambda t: t.detach(),
        lambda _: torch.empty(3),
        lambda t: t.chunk(2),
    ],
    ids=["view", "t", "select", "detach", "empty", "chunk"],
)
def test_what_computes_nothing_is_not_recorded(observer: Observer, call: Callable[[Tensor], object]) -> None:
    tensor = torch.randn(4, 4)
    assert _recorded(observer, lambda: call(tensor)) == ()


def test_equal_inputs_have_equal_digests_and_one_bit_another(observer: Observer) -> None:
    tensor = torch.randn(8)
    other = tensor.clone()
    other.view(torch.int32)[5] ^= 1
    first, again, changed = (_only(observer, lambda t=t: t.exp()) for t in (tensor, tensor.clone(), other))
    assert first == again
    assert changed.inputs != first.inputs


def test_nothing_unseen_is_recorded(observer: Observer) -> None:
    tensor = torch.randn(3)

    def call() -> None:
        with observer.unseen():
            tensor.exp()
            dist.all_reduce(tensor)
        observer.digest([tensor.t()])
        observer.record("loss", "loss", tensor)
        observer.count_nonfinite("loss", tensor)

    assert [one.site for one in _recorded(observer, call)] == ["loss"]


def test_backward_is_recorded_too(observer: Observer) -> None:
    weight = torch.randn(3, 3, requires_grad=True)
    names = [one.name for one in _recorded(observer, lambda: (weight @ weight).sum().backward())]
    assert names[0] == f"aten.mm in {MODULE}"
    assert names.count(f"aten.mm in {MODULE}") == 3


def _work(seed: int) -> list[Tensor]:
    """A bit of everything that a step does: matmul, softmax, dropout, accumulation, views, in place, a collective."""
    torch.manual_seed(seed)
    weight = torch.randn(16, 16, requires_grad=True)
    hidden = torch.randn(4, 16)
    output = F.dropout(F.softmax(hidden @ weight, dim=-1), 0.3)
    output = torch.zeros(4, 16).index_put((torch.tensor([0, 1, 1, 3]),), output, accumulate=True)
    output = output.view(8, 8).t().reshape(4, 16) * hidden
    output.sum().backward()
    assert weight.grad is not None
    weight.grad.mul_(0.5)
    dist.all_reduce(weight.grad)
    return [output.detach(), weight.grad, torch.rand(3)]


@pytest.mark.parametrize("operators", [True, False])
def test_observing_changes_no_bit(observer: Observer, operators: bool) -> None:
    plain = _work(1)
    with _mode(observer, operators=operators):
        observed = _work(1)
    assert all(map(torch.equal, plain, observed))


def test_a_call_that_is_repeated_has_the_same_records(observer: Observer) -> None:
    one, again = (_recorded(observer, lambda: _work(1)) for _ in range(2))
    assert one == again
    assert len(one) > 10
    assert _recorded(observer, lambda: _work(2)) != one


# --- collectives -----------------------------------------------------------------------------------------------------


def _collectives(observer: Observer, call: Callable[[], object]) -> list[tuple[str, str]]:
    return [(one.site, one.name) for one in _recorded(observer, call, operators=False)]


def test_a_collective_is_recorded_with_its_group_number_and_both_sides(observer: Observer) -> None:
    tensor = torch.randn(4)

    def call() -> None:
        dist.all_reduce(tensor)
        dist.broadcast(tensor, 0)

    assert _collectives(observer, call) == [
        ("collective_in", f"c10d.allreduce_ #0 group default_pg in {MODULE}"),
        ("collective_out", f"c10d.allreduce_ #0 group default_pg in {MODULE}"),
        ("collective_in", f"c10d.broadcast_ #1 group default_pg in {MODULE}"),
        ("collective_out", f"c10d.broadcast_ #1 group default_pg in {MODULE}"),
    ]
    assert observer.groups == {"default_pg": (0,)}


def test_each_group_counts_for_itself_and_goes_by_its_description(observer: Observer) -> None:
    pair = dist.new_group([0], group_desc="pair")
    tensor = torch.randn(4)

    def call() -> None:
        for group in (None, pair, None):
            dist.all_reduce(tensor, group=group)

    names = [name for site, name in _collectives(observer, call) if site == "collective_in"]
    assert names == [
        f"c10d.allreduce_ #{number} group {group} in {MODULE}"
        for number, group in ((0, "default_pg"), (0, "pair"), (1, "default_pg"))
    ]
    assert observer.groups == {"default_pg": (0,), "pair": (0,)}


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize(
    ("operator", "call"),
    [
        ("_allgather_base_", lambda out, own, a: dist.all_gather_into_tensor(out, own, async_op=a)),
        ("_reduce_scatter_base_", lambda out, own, a: dist.reduce_scatter_tensor(out, own, async_op=a)),
        ("allgather_", lambda out, own, a: dist.all_gather([out], own, async_op=a)),
        ("alltoall_base_", lambda out, own, a: dist.all_to_all_single(out, own, async_op=a)),
    ],
)
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_what_a_collective_sends_and_delivers(
    observer: Observer, operator: str, call: Callable[[Tensor, Tensor, bool], Any], asynchronous: bool
) -> None:
    out, own = torch.zeros(6), torch.randn(6)

    def waited() -> None:
        work = call(out, own, asynchronous)
        if work is not None:
            work.wait()

    sent, delivered = _recorded(observer, waited, operators=False)
    assert sent.name == delivered.name == f"c10d.{operator} #0 group default_pg in {MODULE}"
    assert (sent.digest, delivered.digest) == (_digest(own), _digest(own))
    assert torch.equal(out, own)
    assert (sent.block, sent.phase, sent.inputs) == (1, "forward", None)


def test_a_collective_without_tensors_counts_and_has_no_records(observer: Observer) -> None:
    def call() -> None:
        dist.barrier()
        dist.all_reduce(torch.ones(1))

    assert [name for _, name in _collectives(observer, call)] == [
        f"c10d.allreduce_ #1 group default_pg in {MODULE}"
    ] * 2


def test_a_functional_collective_is_recorded_once(observer: Observer) -> None:
    tensor = torch.randn(4)
    results: list[Tensor] = []

    def call() -> None:
        results.append(functional.all_reduce(tensor, "sum", dist.group.WORLD) + 1)

    records = _recorded(observer, call, operators=False)
    assert [one.site for one in records] == ["collective_in", "collective_out"]
    assert records[0].name == f"_c10d_functional.all_reduce #0 group {dist.group.WORLD.group_name} in {MODULE}"
    assert {one.digest for one in records} == {_digest(tensor)}
    assert torch.equal(results[0], tensor + 1)


def test_tensors_are_found_in_nested_lists() -> None:
    one, other = torch.ones(1), torch.zeros(2)
    sparse, meta = torch.eye(2).to_sparse(), torch.empty(2, device="meta")
    assert [id(t) for t in tensors_in([one, [3, (other, "x")], None, sparse, meta])] == [id(one), id(other)]


# --- faults below the observer ---------------------------------------------------------------------------------------

Strike = Callable[[str, int, int | None, Tensor, str], bool]
Shown = tuple[str, int, int | None]


def _struck_at(number: int, shown: list[Shown], site: str = "op") -> Strike:
    """Zero the tensor of one number, and keep what was shown."""

    def strike(kind: str, place: int, count: int | None, tensor: Tensor, name: str) -> bool:
        shown.append((kind, place, count))
        if (kind, place) == (site, number):
            tensor.zero_()
            return True
        return False

    return strike


def _fault_mode(
    strike: Strike, block: int | None = 0, looking: bool = True, collectives: Collectives | None = None
) -> FaultMode:
    mode = FaultMode(strike, lambda: block, lambda: looking, (collectives or Collectives()).deliveries)
    mode.begin()
    return mode


def test_a_fault_strikes_the_operator_of_its_number(observer: Observer) -> None:
    shown: list[Shown] = []
    tensor = torch.ones(3)
    with _fault_mode(_struck_at(1, shown)):
        results = [tensor + 1, tensor + 2, tensor.view(3), tensor > 0, tensor + 3]
    assert [result.tolist() for result in (results[0], results[1], results[4])] == [[2.0] * 3, [0.0] * 3, [4.0] * 3]
    # Neither views nor what has no floating point are counted.
    assert shown == [("op", 0, None), ("op", 1, None), ("op", 2, None)]


def test_the_observer_above_sees_what_a_fault_did(observer: Observer) -> None:
    tensor = torch.ones(3)
    with _fault_mode(_struck_at(0, [])):
        one = _only(observer, lambda: tensor + 1)
    assert (one.inputs, one.digest) == (_digest(tensor), _digest(torch.zeros(3)))


def test_a_run_knows_how_many_the_run_before_had() -> None:
    shown: list[Shown] = []
    mode = _fault_mode(_struck_at(9, shown))
    for count in (2, 3, 1):
        mode.begin()
        with mode:
            for _ in range(count):
                torch.ones(2).exp()
    assert [count for _, _, count in shown] == [None] * 4 + [4] * 6 + [6] * 2
    assert [place for _, place, _ in shown] == [*range(4), *range(6), *range(2)]


@pytest.mark.parametrize(("block", "looking"), [(None, True), (0, False)], ids=["outside a block", "unseen"])
def test_nothing_is_shown_outside_of_blocks_and_of_the_step(block: int | None, looking: bool) -> None:
    shown: list[Shown] = []
    with _fault_mode(_struck_at(0, shown), block, looking):
        assert (torch.ones(3) + 1).tolist() == [2.0] * 3
    assert shown == []


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize(
    "call",
    [
        lambda out, own, a: dist.all_gather_into_tensor(out, own, async_op=a),
        lambda out, own, a: dist.reduce_scatter_tensor(out, own, async_op=a),
        lambda out, own, a: dist.all_gather([out], own, async_op=a),
        lambda out, own, a: dist.all_to_all_single(out, own, async_op=a),
    ],
    ids=["all_gather_base", "reduce_scatter_base", "all_gather", "all_to_all_base"],
)
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_fault_strikes_what_the_collective_of_its_number_delivers(
    observer: Observer, call: Callable[[Tensor, Tensor, bool], Any], asynchronous: bool
) -> None:
    shown: list[Shown] = []
    own, outs = torch.randn(4), [torch.ones(4), torch.ones(4)]

    def both() -> None:
        for out in outs:
            work = call(out, own, asynchronous)
            if work is not None:
                work.wait()

    mode = _fault_mode(_struck_at(1, shown, "collective_out"), None, collectives=observer.collectives)
    with mode, observer.collectives.layer(FAULT, mode.collective):
        records = _recorded(observer, both, operators=False)
    assert torch.equal(outs[0], own)
    assert outs[1].tolist() == [0.0] * 4
    assert shown == [("collective_out", 0, None), ("collective_out", 1, None)]
    assert [one.digest for one in records] == [_digest(t) for t in (own, own, own, torch.zeros(4))]
