"""The tape played back: every collective delivers what it did, nothing is issued, and another program is noticed."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

from detsweep.recording import RecordingError
from detsweep.worker.parted import BeyondError, PartedError, UntilError
from detsweep.worker.recorder import Options
from tests.collectives import ISSUED, ISSUED_IDS, MODULE, PHASE, Case, Tape, bits
from tests.support import one_rank

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


@pytest.fixture(autouse=True)
def _group() -> Iterator[None]:
    with one_rank():
        yield


@pytest.fixture
def tape(tmp_path: Path) -> Tape:
    return Tape(tmp_path)


def _record(tape: Tape, call: Callable[[], object], number: int = 0) -> None:
    with tape.record(number):
        call()


def _play(tape: Tape, call: Callable[[], object], number: int = 0, *, until: int | None = None) -> None:
    with tape.play(number, until=until):
        call()


def _reduce(*values: float) -> None:
    for value in values:
        dist.all_reduce(torch.full((4,), value))


# --- what is fed -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compress", ["none", "zlib"])
@pytest.mark.parametrize(("case", "asynchronous"), ISSUED, ids=ISSUED_IDS)
def test_every_collective_delivers_what_it_did(tmp_path: Path, case: Case, asynchronous: bool, compress: str) -> None:
    """Into memory that holds garbage, and where nobody answers."""
    tape = Tape(tmp_path, options=Options(compress=compress))
    sent = [torch.randn(4) for _ in range(case.tensors)]
    into = [tensor.clone() if case.in_place else torch.zeros(4) for tensor in sent]
    with tape.record():
        recorded = [bits(one) for one in case.run(sent, into, asynchronous=asynchronous)]
    into = [tensor.clone() if case.in_place else torch.full((4,), math.nan) for tensor in sent]
    with tape.play():
        fed = case.run(sent, into, asynchronous=asynchronous)
        assert [bits(one) for one in fed] == recorded
    assert (tape.noticed, tape.player.checked) == ([], case.tensors)


@pytest.mark.parametrize(("case", "asynchronous"), ISSUED, ids=ISSUED_IDS)
def test_what_is_sent_does_not_matter_to_what_is_delivered_and_is_noticed(
    tape: Tape, case: Case, asynchronous: bool
) -> None:
    sent = [torch.randn(4) for _ in range(case.tensors)]
    into = [tensor.clone() if case.in_place else torch.zeros(4) for tensor in sent]
    with tape.record():
        recorded = [bits(one) for one in case.run(sent, into, asynchronous=asynchronous)]
    sent, into = ([torch.full((4,), math.nan) for _ in range(case.tensors)] for _ in range(2))
    with tape.play():
        fed = case.run(sent, into, asynchronous=asynchronous)
        assert [bits(one) for one in fed] == recorded
    found = [(one.step, one.seq, one.operator, one.phase, one.tensor) for one in tape.noticed]
    assert found == [(0, 0, case.operator, PHASE, number) for number in range(case.tensors)]
    assert tape.player.mismatches == tape.noticed


def test_one_flipped_bit_that_is_sent_is_noticed_before_the_answer(tape: Tape) -> None:
    tensor = torch.randn(4)
    _record(tape, lambda: [dist.all_reduce(tensor.clone()) for _ in range(3)])
    others = [tensor.clone() for _ in range(3)]
    others[1].view(torch.int32)[2] ^= 1
    with tape.play():
        dist.all_reduce(others[0])
        assert tape.noticed == []
        dist.all_reduce(others[1])
        (mismatch,) = tape.noticed
        dist.all_reduce(others[2])
    assert tape.noticed == [mismatch]
    assert mismatch.words == (
        f"step 0, call 1: the input of c10d.allreduce_ #1 group default_pg in {MODULE} ({PHASE}) has other bits"
    )
    assert all(bits(other) == bits(tensor) for other in others)


PATTERNS = [0x7FC00001, -0x00400001, 0x7F800001, -0x80000000, 0x00000001]
"""NaN with payloads, one of them signalling, a zero with a sign, and the smallest number that there is."""


def test_every_bit_of_a_float_comes_back(tape: Tape) -> None:
    tensor = torch.tensor(PATTERNS, dtype=torch.int32).view(torch.float32)
    into = torch.zeros(5)
    _record(tape, lambda: dist.all_gather_into_tensor(into, tensor))
    assert into.view(torch.int32).tolist() == PATTERNS
    into.zero_()
    _play(tape, lambda: dist.all_gather_into_tensor(into, tensor))
    assert into.view(torch.int32).tolist() == PATTERNS


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (2, 3)])
@pytest.mark.parametrize(
    "dtype",
    [
        torch.float64,
        torch.float16,
        torch.bfloat16,
        torch.float8_e4m3fn,
        torch.complex64,
        torch.int64,
        torch.int8,
        torch.uint8,
        torch.bool,
    ],
    ids=str,
)
def test_data_of_every_shape_and_dtype_come_back(tape: Tape, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = (torch.rand(shape) > 0.5).to(dtype)
    _record(tape, lambda: tape.recorder.data("x", [tensor, tensor]))
    with tape.play():
        found = tape.player.data("x")
    assert [(one.dtype, one.shape, bits(one)) for one in found] == [(dtype, tensor.shape, bits(tensor))] * 2
    # They are the program's own, to be changed as it likes.
    assert all(one.data_ptr() != tensor.data_ptr() for one in found if one.numel())


def test_batches_are_the_recorded_ones_whatever_there_is(tape: Tape) -> None:
    batches = [(torch.arange(6), torch.arange(6) + number) for number in range(2)]
    _record(tape, lambda: [tape.recorder.batch(micro, batch) for micro, batch in enumerate(batches)])
    garbage = (torch.full((6,), -1), torch.full((6,), -1))
    with tape.play():
        fed = [tensor for micro in range(2) for tensor in tape.player.batch(micro, garbage)]
    assert [bits(one) for one in fed] == [bits(one) for batch in batches for one in batch]


def test_autograd_does_not_notice(tape: Tape) -> None:
    """As with gloo, the version of a tensor that backward needs does not move."""

    def call() -> list[float]:
        weight = torch.ones(4, requires_grad=True)
        other = torch.full((4,), 3.0)
        product = weight * other
        dist.all_reduce(other)
        product.sum().backward()
        assert weight.grad is not None
        return [*weight.grad.tolist(), other._version]

    with tape.record():
        live = call()
    with tape.play():
        fed = call()
    assert fed == live == [3.0] * 4 + [0]


def test_several_steps_and_the_same_one_again(tape: Tape) -> None:
    for number in range(3):
        with tape.record(number):
            _reduce(float(number), -float(number))
    for number in (0, 1, 2, 1, 1):
        tensor = torch.full((4,), math.nan)
        with tape.play(number):
            dist.all_reduce(tensor)
            assert tensor.tolist() == [float(number)] * 4
            dist.all_reduce(tensor)
            assert tensor.tolist() == [-float(number)] * 4


def test_what_one_replay_found_is_forgotten_in_the_next(tape: Tape) -> None:
    _record(tape, lambda: _reduce(1.0))
    _play(tape, lambda: _reduce(2.0))
    assert len(tape.player.mismatches) == 1
    _play(tape, lambda: _reduce(1.0))
    assert (tape.player.mismatches, tape.player.checked) == ([], 1)


def test_after_a_replay_collectives_are_live(tape: Tape) -> None:
    _record(tape, lambda: _reduce(1.0))
    _play(tape, lambda: _reduce(1.0))
    tensor = torch.full((4,), 5.0)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [5.0] * 4


# --- another program -------------------------------------------------------------------------------------------------

NAME = f"c10d.allreduce_ #0 group default_pg in {MODULE}"
OTHER = [
    (
        lambda: dist.broadcast(torch.ones(4), 0),
        f"step 0, call 0: the program issues {NAME.replace('allreduce', 'broadcast')}, recorded was {NAME}",
    ),
    (
        lambda: dist.all_reduce(torch.ones(3)),
        f"step 0, call 0: {NAME} is given [('float32', (3,))], recorded was [('float32', (4,))]",
    ),
    (
        lambda: dist.all_reduce(torch.ones(4, dtype=torch.float64)),
        f"step 0, call 0: {NAME} is given [('float64', (4,))], recorded was [('float32', (4,))]",
    ),
    (
        lambda: dist.all_reduce(torch.ones(4), op=dist.ReduceOp.MAX),
        f"step 0, call 0: {NAME} reduces by max, recorded was sum",
    ),
    (lambda: _reduce(1.0, 1.0), "step 0: the program issues more than the 1 recorded calls"),
    (lambda: None, f"step 0: 1 recorded calls did not come, the first {NAME}"),
]


@pytest.mark.parametrize(("call", "line"), OTHER, ids=["operator", "shape", "dtype", "reduce", "more", "fewer"])
def test_a_program_that_goes_another_way_is_told_where(tape: Tape, call: Callable[[], object], line: str) -> None:
    _record(tape, lambda: _reduce(1.0))
    with pytest.raises(PartedError, match=f"^{re.escape(line)}$"):
        _play(tape, call)
    # Nothing of it is left.
    _play(tape, lambda: _reduce(1.0))


def test_how_much_an_all_to_all_sends_is_compared_like_what_it_sends(tape: Tape) -> None:
    _record(tape, lambda: dist.all_to_all_single(torch.empty(4), torch.arange(4.0), [4], [4]))
    out = torch.full((3,), 7.0)
    _play(tape, lambda: dist.all_to_all_single(out, torch.arange(3.0), [3], [3]))
    (mismatch,) = tape.noticed
    assert mismatch.words.endswith("is [('float32', (3,))], recorded was [('float32', (4,))]")
    # As much of what was delivered as there is room for: the rest of the step is not as recorded in any case.
    assert out.tolist() == [0.0, 1.0, 2.0]


def test_data_that_are_asked_for_elsewhere_are_another_way(tape: Tape) -> None:
    with tape.record():
        tape.recorder.data("x", [torch.ones(1)])
        _reduce(1.0)
    with pytest.raises(PartedError, match=f"^step 0, call 0: the program issues {NAME}, recorded was x$"):
        _play(tape, lambda: _reduce(1.0))
    with pytest.raises(PartedError, match=r"^the program asks for data y, recorded was x$"):
        _play(tape, lambda: tape.player.data("y"))
    with pytest.raises(PartedError, match=r"^the program asks for data x, recorded was c10d.allreduce_ "):
        _play(tape, lambda: [tape.player.data("x"), tape.player.data("x")])


def test_a_step_that_broke_off_is_fed_as_far_as_it_goes(tape: Tape) -> None:
    def broken() -> None:
        _reduce(1.0)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        _record(tape, broken)
    _play(tape, lambda: _reduce(1.0))
    # Fewer than were recorded are none too few.
    _play(tape, lambda: None)
    with pytest.raises(BeyondError, match=r"^step 0: the program issues more than the 1 recorded calls$"):
        _play(tape, lambda: _reduce(1.0, 2.0))
    with pytest.raises(PartedError) as raised:
        _play(tape, lambda: dist.broadcast(torch.full((4,), 1.0), 0))
    assert type(raised.value) is PartedError


@pytest.mark.parametrize(
    "issue",
    [
        lambda: dist.all_reduce(torch.ones(4), async_op=True),
        lambda: functional.all_reduce(torch.ones(4), "sum", dist.group.WORLD),
    ],
    ids=["c10d", "functional"],
)
def test_what_was_under_way_when_a_step_broke_off_is_where_its_replay_ends(
    tape: Tape, issue: Callable[[], object]
) -> None:
    def broken() -> None:
        _reduce(1.0)
        issue()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        _record(tape, broken)
    with pytest.raises(BeyondError, match=r"^step 0, call 1: .* delivers 1 tensors, recorded are 0$"):
        _play(tape, broken)


def test_a_replay_stops_at_the_call_that_was_named(tape: Tape) -> None:
    _record(tape, lambda: _reduce(1.0, 2.0, 3.0))
    done: list[float] = []

    def call() -> None:
        for value in (1.0, 2.0, 3.0):
            _reduce(value)
            done.append(value)

    with pytest.raises(UntilError, match=f"^step 0, call 1: {re.escape(NAME.replace('#0', '#1'))} \\({PHASE}\\)$"):
        _play(tape, call, until=1)
    assert done == [1.0]
    # What that call is given has been looked at.
    assert tape.player.checked == 2
    _play(tape, lambda: _reduce(1.0, 2.0, 3.0))


def test_without_payloads_there_is_nothing_to_feed(tmp_path: Path) -> None:
    tape = Tape(tmp_path, options=Options(payload="digest"))
    _record(tape, lambda: _reduce(1.0))
    with pytest.raises(RecordingError, match=r"no bytes of call 0 .* were kept: it was recorded with record.payload="):
        _play(tape, lambda: _reduce(1.0))


def test_damage_is_found_before_anybody_computes_with_it(tape: Tape) -> None:
    _record(tape, lambda: _reduce(1.0))
    path = tape.recording.rank(0).payload(0)
    path.write_bytes(path.read_bytes()[:-1] + b"\x01")
    tensor = torch.full((4,), 1.0)
    with pytest.raises(RecordingError, match=f"^{re.escape(str(path))}: bytes 0 to 16 are not those that were written"):
        _play(tape, lambda: dist.all_reduce(tensor))
    assert tensor.tolist() == [1.0] * 4
