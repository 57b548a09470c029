"""What a replay came to, in lines: bit for bit, or where it is not; and whether it repeats."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from detsweep.replayreport import OPERATORS_SHOWN, lines
from detsweep.replays import Pass, Request

REQUEST = Request("runs/x", 3, 17, 17, 17, "cpu")
CLEAN = Pass(120, {}, None, (), 14, 0, None, None, None, (), 0.5, "aa")
FIRST = {
    "step": 17,
    "site": "block_post",
    "block": 1,
    "name": "blocks.1",
    "phase": "forward",
    "kind": "value",
}
DIFFERS = replace(CLEAN, differs={"block_post": 2, "grad": 7}, first=FIRST, digest="bb")
MISMATCH = replace(
    CLEAN, mismatches=3, mismatch={"words": "step 17, call 4: the input of c10d.allreduce_ (backward)"}, digest="cc"
)


def _lines(*passes: Pass, request: Request = REQUEST) -> Sequence[str]:
    return list(lines(request, passes, 1.25))


@pytest.mark.parametrize(
    ("start", "first", "last", "words"),
    [
        (17, 17, 17, "rank 3, step 17"),
        (17, 17, 19, "rank 3, steps 17 to 19"),
        (10, 17, 17, "rank 3, step 17 (from the snapshot at step 10)"),
        (10, 17, 18, "rank 3, steps 17 to 18 (from the snapshot at step 10)"),
    ],
)
def test_a_clean_replay_is_one_line(start: int, first: int, last: int, words: str) -> None:
    request = replace(REQUEST, start=start, first=first, last=last)
    expected = f"{words}: bit for bit as recorded, 120 records and 14 inputs of collectives, in 1.2 s"
    assert _lines(CLEAN, request=request) == [expected]


NOT = "rank 3, step 17: not as recorded, in 1.2 s"
PLACE = "  first difference: step 17, block_post of block 1: blocks.1 (forward, value)"
COUNTED = "  of 120 records differ: 2 block_post, 7 grad"


def test_the_first_difference_is_told_with_its_place() -> None:
    assert _lines(DIFFERS) == [NOT, PLACE, COUNTED]
    outside = replace(DIFFERS, first={**FIRST, "block": None, "site": "logits", "name": "logits"})
    assert _lines(outside)[1] == "  first difference: step 17, logits: logits (forward, value)"


@pytest.mark.parametrize("count", [1, OPERATORS_SHOWN, OPERATORS_SHOWN + 3])
def test_the_last_operators_before_it_are_named(count: int) -> None:
    names = tuple(f"aten.mm in blocks.{number}" for number in range(count))
    more = f"{count - OPERATORS_SHOWN} more, " if count > OPERATORS_SHOWN else ""
    shown = ", ".join(names[-OPERATORS_SHOWN:])
    assert _lines(replace(DIFFERS, operators=names)) == [
        NOT,
        PLACE,
        f"  since the last record that is equal ran: {more}{shown}",
        COUNTED,
    ]


def test_a_collective_that_is_given_other_bits_is_told() -> None:
    assert _lines(MISMATCH) == [
        NOT,
        "  first collective that is given something else: step 17, call 4: the input of c10d.allreduce_ (backward)",
        "  of 14 inputs of collectives differ: 3",
    ]


def test_a_program_that_goes_another_way_is_told() -> None:
    assert _lines(replace(CLEAN, parted="step 17: 2 recorded calls did not come, the first x")) == [
        NOT,
        "  the program goes another way: step 17: 2 recorded calls did not come, the first x",
    ]


def test_where_it_stopped_and_what_else_stands_out_are_told_of_a_clean_one_too() -> None:
    ended = replace(CLEAN, ended="stopped at step 17, call 3: x", notes=("5 values of loss are not finite in step 17",))
    assert _lines(ended)[1:] == ["  5 values of loss are not finite in step 17", "  stopped at step 17, call 3: x"]
    assert _lines(ended)[0].startswith("rank 3, step 17: bit for bit as recorded, ")


def test_passes_that_are_all_alike_repeat() -> None:
    assert _lines(CLEAN, CLEAN, CLEAN)[1:] == ["  3 replays are all alike: this rank's compute repeats here"]
    # Alike, and yet none is as recorded: it was another machine, or another program.
    assert _lines(DIFFERS, DIFFERS) == [
        NOT,
        PLACE,
        COUNTED,
        "  2 replays are all alike: this rank's compute repeats here",
    ]


def test_passes_that_are_not_alike_do_not_repeat_and_the_first_difference_is_shown() -> None:
    assert _lines(CLEAN, DIFFERS, CLEAN, MISMATCH) == [
        NOT,
        PLACE,
        COUNTED,
        "  4 replays gave 3 different results, 2 of them as recorded: this rank's own compute does not repeat here",
    ]


@pytest.mark.parametrize(
    ("one", "clean"),
    [
        (CLEAN, True),
        (replace(CLEAN, ended="stopped"), True),
        (replace(CLEAN, notes=("x",)), True),
        (DIFFERS, False),
        (MISMATCH, False),
        (replace(CLEAN, parted="x"), False),
    ],
)
def test_what_is_clean(one: Pass, clean: bool) -> None:
    assert one.clean is clean


@pytest.mark.parametrize("one", [CLEAN, DIFFERS, replace(MISMATCH, operators=("a", "b"), notes=("c",), ended="d")])
def test_a_pass_comes_back_from_json(one: Pass) -> None:
    assert Pass.from_json(json.loads(json.dumps(one.to_json()))) == one


def test_a_request_comes_back_from_json() -> None:
    settings: dict[str, dict[str, Any]] = {"env": {"A": "1"}, "torch": {"threads": 1}}
    request = replace(REQUEST, observe="op", repeat=3, until=5, stop=True, faulty=True, settings=settings)
    assert Request(**json.loads(json.dumps(request.to_json()))) == request
