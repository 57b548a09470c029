"""The tape: what a step's collectives sent and delivered, at the moment at which the program may look at it."""

from __future__ import annotations

import resource
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import Tensor

from detsweep.fingerprints import xxh3
from detsweep.paths import read_json
from detsweep.recording.calls import COLLECTIVE, DATA
from detsweep.worker.described import NotReplayableError
from detsweep.worker.recorder import Options
from tests.collectives import ISSUED, ISSUED_IDS, MODULE, Case, Tape, bits
from tests.support import one_rank

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


@pytest.fixture(autouse=True)
def _group() -> Iterator[None]:
    with one_rank():
        yield


@pytest.fixture
def tape(tmp_path: Path) -> Tape:
    return Tape(tmp_path)


def _tensors(case: Case) -> tuple[list[Tensor], list[Tensor]]:
    return [torch.randn(4) for _ in range(case.tensors)], [torch.full((4,), 7.0) for _ in range(case.tensors)]


# --- what is recorded ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("case", "asynchronous"), ISSUED, ids=ISSUED_IDS)
@pytest.mark.parametrize("payload", ["digest", "outputs", "all"])
def test_every_collective_is_recorded(tmp_path: Path, case: Case, asynchronous: bool, payload: str) -> None:
    tape = Tape(tmp_path, options=Options(payload=payload))
    sent, into = _tensors(case)
    before = [tensor.clone() for tensor in (into if case.in_place else sent)]
    with tape.record():
        results = [one.clone() for one in case.run(sent, into, asynchronous=asynchronous)]
    step = tape.step()
    step.check()
    (call,) = step.calls
    assert (call.kind, call.operator, call.reduce, call.ranks) == (COLLECTIVE, case.operator, case.reduce, (0,))
    assert dict(call.arguments) == case.arguments
    assert [side.digest for side in call.inputs] == [xxh3(tensor) for tensor in before]
    outputs = call.outputs if case.tensors else ()
    assert [side.digest for side in outputs] == [xxh3(tensor) for tensor in results]
    assert {(side.dtype, side.shape) for side in (*call.inputs, *outputs)} <= {("float32", (4,))}
    for kept, sides, tensors in (
        (payload == "all", call.inputs, before),
        (payload != "digest", outputs, results),
    ):
        assert {side.offset is not None for side in sides} <= {kept}
        if kept:
            assert [bytes(step.bytes_of(call, side)) for side in sides] == [bits(tensor) for tensor in tensors]


def test_what_counts_is_what_there_is_when_it_is_waited_for(tape: Tape) -> None:
    """A work that is done long before is looked at no earlier than the program may look at it."""
    sent, into = torch.ones(4), torch.zeros(4)
    with tape.record():
        work = dist.all_gather_into_tensor(into, sent, async_op=True)
        while not work.is_completed():
            pass
        into.fill_(5.0)
        work.wait()
        into.fill_(6.0)
        # Only the first time counts.
        work.wait()
    assert tape.contents() == [[bits(torch.full((4,), 5.0))]]


@pytest.mark.parametrize("how", ["wait", "synchronize"])
def test_whichever_way_it_is_waited_for(tape: Tape, how: str) -> None:
    into = torch.ones(4)
    with tape.record():
        work = dist.all_reduce(into, async_op=True)
        assert work is not None
        while not work.is_completed():
            pass
        into.fill_(5.0)
        getattr(work, how)()
        into.fill_(6.0)
    assert tape.contents() == [[bits(torch.full((4,), 5.0))]]


def test_a_functional_collective_is_looked_at_when_its_tensor_is_waited_for(tape: Tape) -> None:
    with tape.record():
        one = functional.all_reduce(torch.ones(4), "sum", dist.group.WORLD)
        other = functional.all_reduce(torch.full((4,), 2.0), "sum", dist.group.WORLD)
        # The wrapper's own tensor, past its wait.
        for result, value in ((one, 3.0), (other, 4.0)):
            torch.ops._c10d_functional.wait_tensor(torch.zeros(1))
            result.elem.fill_(value)
        assert (other + 0).tolist() == [4.0] * 4
        other.elem.fill_(9.0)
        assert (one + 0).tolist() == [3.0] * 4
    assert tape.contents() == [[bits(torch.full((4,), 3.0))], [bits(torch.full((4,), 4.0))]]


def test_a_functional_collective_that_nobody_waits_for_is_looked_at_when_the_step_ends(tape: Tape) -> None:
    with tape.record():
        functional.all_reduce(torch.ones(4), "sum", dist.group.WORLD)
    assert tape.contents() == [[bits(torch.ones(4))]]


def test_calls_are_in_the_order_in_which_they_were_issued(tape: Tape) -> None:
    tensors = [torch.full((2,), float(number)) for number in range(3)]
    with tape.record():
        works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
        for work in reversed(works):
            work.wait()
    assert [call.seq for call in tape.step().calls] == [0, 1, 2]
    assert tape.contents() == [[bits(tensor)] for tensor in tensors]
    assert [call.name for call in tape.step().calls] == [
        f"c10d.allreduce_ #{number} group default_pg in {MODULE}" for number in range(3)
    ]


def test_data_are_recorded_between_the_collectives_and_handed_on(tape: Tape) -> None:
    ids, labels = torch.arange(6).view(2, 3), torch.arange(6, 0, -1)
    with tape.record():
        dist.barrier()
        assert tape.recorder.batch(2, (ids, labels)) == (ids, labels)
    _, data = tape.step().calls
    assert (data.kind, data.name, data.operator, data.inputs) == (DATA, "batch 2", "", ())
    assert [(side.dtype, side.shape) for side in data.outputs] == [("int64", (2, 3)), ("int64", (6,))]
    assert tape.contents()[1] == [bits(ids), bits(labels)]


def test_what_is_not_contiguous_is_recorded_in_row_major_order(tape: Tape) -> None:
    tensor = torch.arange(12.0).view(3, 4).t()
    with tape.record():
        tape.recorder.data("x", [tensor, tensor[1::2]])
    assert tape.contents() == [[bits(tensor), bits(tensor[1::2])]]


def test_outside_of_a_step_nothing_is_recorded(tape: Tape) -> None:
    tensor = torch.ones(2)
    dist.all_reduce(tensor)
    for number in range(2):
        with tape.record(number):
            dist.all_reduce(tensor)
        dist.all_reduce(tensor)
    assert [len(tape.step(number).calls) for number in range(2)] == [1, 1]
    assert tape.step(1).calls[0].name.startswith("c10d.allreduce_ #0 ")


def test_recording_changes_no_bit(tape: Tape, tmp_path: Path) -> None:
    def work() -> list[Tensor]:
        tensors = list(torch.randn(3, 4, generator=torch.Generator().manual_seed(1)))
        dist.all_reduce(tensors[0])
        dist.broadcast(tensors[1], 0)
        return [*tensors, functional.all_reduce(tensors[2], "sum", dist.group.WORLD) + 1]

    plain = work()
    with tape.record():
        recorded = work()
    assert [bits(tensor) for tensor in recorded] == [bits(tensor) for tensor in plain]


# --- what cannot be recorded -----------------------------------------------------------------------------------------


def _record(tape: Tape, call: Callable[[], object], number: int = 0) -> None:
    with tape.record(number):
        call()


def test_a_work_that_is_never_waited_for_is_refused_by_name(tape: Tape) -> None:
    def call() -> None:
        dist.all_reduce(torch.ones(2))
        dist.broadcast(torch.ones(2), 0, async_op=True)
        dist.all_reduce(torch.ones(2), async_op=True)

    with pytest.raises(NotReplayableError, match=r"^c10d::broadcast_ was not waited for .* \(2 such\): "):
        _record(tape, call)
    # What was there before it broke off stays, and says so.
    assert (tape.step().complete, len(tape.step().calls)) == (False, 3)


def test_a_future_is_no_handle_by_which_it_can_be_told_when_it_was_waited_for(tape: Tape) -> None:
    def call() -> None:
        future: Any = dist.all_reduce_coalesced([torch.ones(2)], async_op=True)
        future.wait()

    with pytest.raises(NotReplayableError, match=r"^c10d::allreduce_coalesced_ was not waited for by its own handle "):
        _record(tape, call)


def test_the_next_step_knows_nothing_of_what_was_never_waited_for(tape: Tape) -> None:
    with pytest.raises(NotReplayableError):
        _record(tape, lambda: dist.all_reduce(torch.ones(2), async_op=True))
    _record(tape, lambda: dist.all_reduce(torch.ones(2)), 1)
    assert tape.step(1).complete


def test_what_was_under_way_when_a_step_broke_off_does_not_end_the_next(tape: Tape) -> None:
    works: list[Any] = []

    def call() -> None:
        works.append(dist.all_reduce(torch.ones(2), async_op=True))
        raise ValueError("the program's own")

    with pytest.raises(ValueError, match="the program's own"):
        _record(tape, call)
    _record(tape, lambda: [works[0].wait(), dist.all_reduce(torch.ones(2))], 1)
    assert (tape.step(0).complete, tape.step(1).complete) == (False, True)
    assert [len(tape.step(number).calls) for number in range(2)] == [1, 1]


def test_a_receive_from_anybody_is_refused_before_it_is_issued(tape: Tape) -> None:
    with pytest.raises(NotReplayableError, match=rf"^c10d.recv_any_source_, issued in {MODULE}, "):
        _record(tape, lambda: [dist.barrier(), dist.recv(torch.ones(2))])
    assert [call.operator for call in tape.step().calls] == ["c10d.barrier"]
    assert tape.step().complete is False


def test_after_a_step_that_raised_collectives_are_not_seen(tape: Tape) -> None:
    with pytest.raises(ZeroDivisionError), tape.record():
        raise ZeroDivisionError
    dist.all_reduce(torch.ones(2))
    assert tape.step().calls == ()


# --- how much is kept ------------------------------------------------------------------------------------------------


def _steps(tape: Tape, count: int, size: int = 16) -> None:
    for number in range(count):
        with tape.record(number):
            dist.all_reduce(torch.full((size,), float(number)))


@pytest.mark.parametrize(
    ("options", "snapshots"),
    [
        (Options(), [0]),
        (Options(every=3), [0, 3, 6]),
        (Options(keep=2), [5, 6]),
        (Options(keep=3, every=3), [3, 6]),
        (Options(keep=1, every=4), [4]),
    ],
)
def test_snapshots_are_taken_where_a_replay_is_to_begin(tmp_path: Path, options: Options, snapshots: list[int]) -> None:
    tape = Tape(tmp_path, options=options)
    _steps(tape, 7)
    paths = tape.recording.rank(0)
    assert paths.snapshots() == snapshots
    assert paths.logs() == list(range(snapshots[0], 7))
    for number in paths.logs():
        tape.step(number).check()
        assert (tape.step(number).header.snapshot is not None) is (number in snapshots)


@pytest.mark.parametrize("compress", ["none", "repeats", "zlib"])
def test_a_step_is_compressed_as_asked(tmp_path: Path, compress: str) -> None:
    tape = Tape(tmp_path, options=Options(compress=compress, payload="all"))
    with tape.record():
        for _ in range(5):
            dist.all_reduce(torch.zeros(1000))
    tape.step().check()
    assert tape.contents() == [[bytes(4000)]] * 5
    size = tape.recording.rank(0).payload(0).stat().st_size
    assert {"none": size == 40000, "repeats": size == 4000, "zlib": 0 < size < 100}[compress]


def test_at_the_limit_recording_ends_and_the_program_goes_on(tmp_path: Path) -> None:
    tape = Tape(tmp_path, options=Options(limit=60_000))
    _steps(tape, 6, size=3000)
    paths = tape.recording.rank(0)
    numbers = paths.logs()
    assert 1 < len(numbers) < 6
    assert numbers == list(range(len(numbers)))
    assert {path.name for path in paths.folder.glob(f"*{len(numbers):06d}*")} == set()
    last = len(numbers) - 1
    assert tape.recorder.notes == [
        f"recording ended with step {last}: record.max_gb is reached: 0.000 GB in step {last + 1}"
    ]
    assert not tape.recorder.on
    for number in numbers:
        tape.step(number).check()


def test_on_a_full_device_recording_ends_and_the_program_goes_on(tape: Tape) -> None:
    paths = tape.recording.rank(0)
    paths.payload(1).symlink_to("/dev/full")
    _steps(tape, 3)
    assert paths.logs() == [0]
    assert not paths.payload(1).is_symlink()
    assert tape.recorder.notes == [
        f"recording ended with step 0: {paths.folder} cannot be written in step 1: No space left on device"
    ]


def test_a_snapshot_for_which_there_is_no_room_ends_the_recording(tape: Tape) -> None:
    tape.model.register_buffer("large", torch.zeros(100_000))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, before[1]))
    try:
        _steps(tape, 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    (line,) = tape.recorder.notes
    assert line.startswith("recording ended before its first step: ")
    assert "File too large" in line
    assert list(tape.recording.rank(0).folder.iterdir()) == []


def test_how_it_ended_is_written_down(tape: Tape) -> None:
    _steps(tape, 1)
    tape.recorder.note("one")
    tape.recorder.note("one")
    tape.recorder.note("over")
    tape.recorder.stop()
    tape.recorder.close()
    paths = tape.recording.rank(0)
    assert read_json(paths.end) == {
        "notes": ["one", "over"],
        "written": {
            "payload": 64,
            "log": paths.log(0).stat().st_size,
            "snapshot": paths.snapshot(0).stat().st_size,
        },
    }
    _steps(tape, 3)
    assert paths.logs() == [0]


def test_a_recording_that_nobody_needs_leaves_how_it_ended_alone(tape: Tape) -> None:
    _steps(tape, 2)
    tape.recorder.keep_nothing("all was well")
    tape.recorder.close()
    folder = tape.recording.rank(0).folder
    assert [path.name for path in folder.iterdir()] == ["end.json"]
    assert read_json(tape.recording.rank(0).end)["notes"] == ["all was well"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.bool])
@pytest.mark.parametrize("shape", [(), (0,), (2, 3)])
def test_every_shape_and_dtype_is_recorded(tape: Tape, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = torch.ones(shape, dtype=dtype)
    with tape.record():
        tape.recorder.data("x", [tensor])
    (call,) = tape.step().calls
    (side,) = call.outputs
    assert (side.dtype, side.shape) == (str(dtype).removeprefix("torch."), shape)
    assert tape.contents() == [[bits(tensor)]]
