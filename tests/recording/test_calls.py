"""Lines of a recording: every field comes back, and what says nothing takes no room."""

from __future__ import annotations

import json
from dataclasses import fields, replace

import pytest
import xxhash

from detsweep.recording import Call, Side, StepHeader
from detsweep.recording.calls import COLLECTIVE, DATA, FORMAT, VERSION, end_line

KEPT = Side("bfloat16", (2, 3), (1 << 64) - 1, 128, 12, "00000000000000ff")
DIGEST = Side("float32", (), -(1 << 63))
FULL = Call(
    7,
    COLLECTIVE,
    "c10d._reduce_scatter_base_",
    "c10d._reduce_scatter_base_ #2 group default_pg in blocks.1",
    "backward",
    "default_pg",
    (0, 2, 5),
    "sum",
    True,
    {"root_rank": 0, "input_split_sizes": [1, 2], "wait": False, "tag": "x"},
    (KEPT, DIGEST),
    (replace(KEPT, offset=0), Side("int64", (0, 4), 0, 0, 0, "2d06800538d394c2")),
)
BARE = Call(0, DATA, "", "batch 0", "", "", (), None, None, {}, (), ())


@pytest.mark.parametrize("call", [FULL, BARE, replace(FULL, asynchronous=False, reduce=None)])
@pytest.mark.parametrize("strong", [False, True])
def test_a_call_comes_back_from_its_line(call: Call, strong: bool) -> None:
    if strong:
        # A SHA-256 has no sign.
        call = replace(call, inputs=tuple(replace(side, digest=abs(side.digest)) for side in call.inputs))
    line = call.to_line(strong=strong)
    assert (line.count(b"\n"), line[-1:]) == (1, b"\n")
    assert Call.from_json(json.loads(line)) == call


@pytest.mark.parametrize("name", [field.name for field in fields(Call)])
def test_no_field_of_a_call_is_lost(name: str) -> None:
    """A call that differs in one field alone has another line, and comes back as another call."""
    other = replace(BARE, **{name: getattr(FULL, name)})
    assert other.to_line() != BARE.to_line()
    assert Call.from_json(json.loads(other.to_line())) == other != BARE


@pytest.mark.parametrize("name", [field.name for field in fields(Side)])
def test_no_field_of_a_side_is_lost(name: str) -> None:
    mine, theirs = KEPT, Side("int8", (9,), 3, 4, 5, "0123456789abcdef")
    other = replace(mine, **{name: getattr(theirs, name)})
    assert Side.from_json(json.loads(json.dumps(other.to_json()))) == other != mine


def test_what_says_nothing_takes_no_room() -> None:
    assert json.loads(BARE.to_line()) == {"seq": 0, "kind": "data", "name": "batch 0"}
    assert json.loads(replace(BARE, seq=3, asynchronous=False).to_line())["async"] is False
    assert DIGEST.to_json() == ["float32", [], -(1 << 63)]


def test_a_sha256_is_the_64_digits_of_sha256sum() -> None:
    side = Side("uint8", (0,), int.from_bytes(bytes.fromhex("00" + "e3b0c442" * 7 + "b7852b"), "big"))
    assert side.to_json(strong=True)[2] == "00" + "e3b0c442" * 7 + "b7852b"
    assert Side.from_json(side.to_json(strong=True)) == side


@pytest.mark.parametrize("snapshot", [None, "0123456789abcdef"])
def test_a_header_comes_back_from_its_line(snapshot: str | None) -> None:
    header = StepHeader(3, 17, "xxh3", "outputs", "zlib", snapshot)
    found = json.loads(header.to_line())
    assert StepHeader.from_json(found) == header
    assert (found["format"], found["version"]) == (FORMAT, VERSION)


def test_a_header_may_say_more_and_is_read_all_the_same() -> None:
    header = StepHeader(0, 0, "xxh3", "outputs", "none", extra={"host": "n1"})
    found = json.loads(header.to_line())
    assert found["host"] == "n1"
    assert StepHeader.from_json(found) == replace(header, extra={})


@pytest.mark.parametrize("complete", [False, True])
def test_the_last_line_counts_the_others_and_has_their_digest(complete: bool) -> None:
    lines = b"one\ntwo\n"
    assert json.loads(end_line(lines, calls=1, payload_bytes=34, complete=complete)) == {
        "end": True,
        "calls": 1,
        "payload_bytes": 34,
        "complete": complete,
        "records_xxh3": None,
        "lines_xxh3": xxhash.xxh3_64_hexdigest(lines),
    }
