"""One replay held against the recording: what differs, what ran before it, and what passes have in common."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from detsweep.capture import Stream
from detsweep.replays import Pass, Request
from detsweep.worker.parted import BeyondError, PartedError, UntilError
from detsweep.worker.passes import Seen, judged
from tests.collectives import Tape
from tests.support import BLOCK_1_POST, SEQUENCE, full_stream, one_rank, record, stream_of

REQUEST = Request("runs/x", 0, 0, 0, 1, "cpu")


@pytest.fixture(autouse=True)
def _group() -> Iterator[None]:
    with one_rank():
        yield


@pytest.fixture
def tape(tmp_path: Path) -> Tape:
    tape = Tape(tmp_path)
    for number in range(2):
        with tape.record(number):
            dist.all_reduce(torch.ones(4))
    return tape


RECORDED = {step: full_stream(0, step, 1) for step in range(2)}


def _judged(tape: Tape, *streams: Stream, request: Request = REQUEST, sends: float = 1.0, **seen: str) -> Pass:
    """A replay of both steps that saw these streams, and whose collective in step 1 was given `sends`."""
    tape.player.begin()
    for number, value in ((0, 1.0), (1, sends)):
        with tape.player.step(tape.step(number)):
            dist.all_reduce(torch.full((4,), value))
    return judged(request, Seen(list(streams), **seen), RECORDED, tape.player, seconds=1.0, aligned=True)


def test_what_is_as_recorded_is_clean(tape: Tape) -> None:
    found = _judged(tape, *RECORDED.values())
    assert (found.clean, found.records, found.inputs) == (True, 2 * len(SEQUENCE), 2)
    assert (found.differs, found.first, found.operators, found.mismatch) == ({}, None, (), None)


def test_the_first_difference_is_of_the_first_step_that_has_one(tape: Tape) -> None:
    found = _judged(tape, RECORDED[0], full_stream(0, 1, 2, differs_from=BLOCK_1_POST))
    assert found.first is not None
    assert (found.first["step"], found.first["site"], found.first["name"]) == (1, "block_post", "blocks.1")
    assert found.differs == {"block_post": 1, "logits": 1, "loss": 1, "grad": 1, "param": 1}


def test_steps_that_only_lead_there_are_not_judged(tape: Tape) -> None:
    request = Request("runs/x", 0, 0, 1, 1, "cpu")
    found = _judged(tape, full_stream(0, 0, 2, differs_from=0), RECORDED[1], request=request)
    assert (found.clean, found.records) == (True, len(SEQUENCE))


def test_operators_since_the_last_equal_record_are_named(tape: Tape) -> None:
    rows = list(full_stream(0, 1, 2, differs_from=BLOCK_1_POST).records)
    names = ["aten.add in norm", "aten.mm in blocks.1", "aten.exp in blocks.1"]
    ran = [record("op", name) for name in names]
    observed = stream_of([*rows[:2], ran[0], *rows[2:BLOCK_1_POST], *ran[1:], *rows[BLOCK_1_POST:]], step=1)
    tape.player.begin()
    found = judged(REQUEST, Seen([RECORDED[0], observed]), RECORDED, tape.player, seconds=1.0, aligned=False)
    assert found.operators == ("aten.mm in blocks.1 (forward)", "aten.exp in blocks.1 (forward)")


def test_of_a_step_that_was_broken_off_what_there_is_is_compared(tape: Tape) -> None:
    half = stream_of(RECORDED[1].records[:4], step=1)
    assert not _judged(tape, RECORDED[0], half).clean
    found = _judged(tape, RECORDED[0], half, ended="stopped")
    assert (found.clean, found.records, found.ended) == (True, len(SEQUENCE) + 4, "stopped")


def test_what_was_sent_is_part_of_what_passes_have_in_common(tape: Tape) -> None:
    """At a level that records no collective, other bits that were sent are seen by the player alone."""
    same = [_judged(tape, *RECORDED.values()).digest for _ in range(2)]
    assert same[0] == same[1]
    other = _judged(tape, *RECORDED.values(), sends=2.0)
    assert (other.clean, other.mismatches, other.records) == (False, 1, 2 * len(SEQUENCE))
    assert other.digest != same[0]
    assert _judged(tape, *RECORDED.values(), parted="another way").digest != same[0]
    assert _judged(tape, RECORDED[0], full_stream(0, 1, 2, differs_from=3)).digest != same[0]


def test_what_is_not_finite_is_noted(tape: Tape) -> None:
    stream = Stream(0, 1, "r1", "xxh3", RECORDED[1].records, {"loss": 1})
    assert _judged(tape, RECORDED[0], stream).notes == ("1 values of loss are not finite in step 1",)


def test_how_a_step_ended_depends_on_the_recording(tape: Tape) -> None:
    step = tape.step(1)
    broken = type(step)(step.paths, step.header, step.calls, False, step.payload_bytes, None)
    seen = Seen([])
    seen.end(UntilError("step 1, call 0: x"), step)
    assert (seen.ended, seen.parted) == ("stopped at step 1, call 0: x", None)
    seen = Seen([])
    seen.end(PartedError("another"), step)
    assert (seen.ended, seen.parted) == (None, "another")
    seen = Seen([])
    seen.end(BeyondError("more than there are"), broken)
    assert (seen.ended, seen.parted) == ("the recording breaks off in step 1, after 1 calls", None)
    # The step in which a rank went down is the one that is looked into.
    for error, recorded in ((PartedError("another"), broken), (BeyondError("another"), step)):
        seen = Seen([])
        seen.end(error, recorded)
        assert (seen.ended, seen.parted) == (None, "another")
