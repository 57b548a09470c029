"""Records on disk: what is written is read again, and what cannot be read is named by file and line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import xxhash

from detsweep.capture import SCHEMA, Record, Stream, from_line, read_streams, to_line, write_streams
from detsweep.paths import FileError
from tests.support import full_stream, stream


def _example() -> Stream:
    records = (
        Record(0, "input", "input_ids", None, "int64", (2, 32), 2**64 - 1),
        Record(1, "block_pre", "blocks.0", 0, "bfloat16", (2, 32, 64), 5),
        Record(2, "block_post", "blocks.0", 0, "bfloat16", (2, 32, 64), 6),
        Record(3, "block_pre", "blocks.1", 1, "bfloat16", (2, 32, 64), 6),
        Record(4, "block_post", "blocks.1", 1, "bfloat16", (2, 32, 64), -7),
        Record(5, "logits", "logits", None, "bfloat16", (2, 32, 512), 8),
        Record(6, "loss", "loss", None, "float32", (), 1086904115),
        Record(7, "global", "loss^output", None, "float32", (), 9, "backward"),
        Record(8, "op", "aten.mm in blocks.0", 0, "bfloat16", (64, 64), 12, "recompute", 2**64 - 2),
        Record(9, "op", "aten.mul in blocks.0", 0, "bfloat16", (64, 64), 13, "backward", 0),
        Record(10, "grad", "norm.weight", None, "bfloat16", (64,), 10, "backward"),
        Record(11, "param", "norm.weight", None, "bfloat16", (64,), 11, "after"),
    )
    return Stream(3, 1, "r2", "mixed", records, {"loss": 1, "norm.weight": 64})


def test_a_line_holds_its_stream_whole() -> None:
    assert from_line(to_line(_example(), world_size=4)) == _example()


def test_a_record_without_inputs_of_its_own_takes_no_room_for_them() -> None:
    records = json.loads(to_line(_example(), world_size=4))["records"]
    assert records[0] == ["input", "input_ids", None, "int64", [2, 32], 2**64 - 1, "forward"]
    assert records[8][6:] == ["recompute", 2**64 - 2]
    assert records[9][6:] == ["backward", 0]


def _strong() -> Stream:
    """A stream of sha256: the greatest digest, the least, one with leading zeros, and what is no digest."""
    records = (
        Record(0, "block_pre", "blocks.0", 0, "bfloat16", (2,), 2**256 - 1),
        Record(1, "block_post", "blocks.0", 0, "bfloat16", (2,), 0),
        Record(2, "logits", "logits", None, "bfloat16", (2,), 10),
        Record(3, "loss", "loss", None, "float32", (), 1086904115),
        Record(4, "global", "loss^output", None, "int64", (), -9, "backward"),
        Record(5, "op", "aten.mm in blocks.0", 0, "bfloat16", (64, 64), 12, "recompute", 2**255 + 1),
        Record(6, "grad", "norm.weight", None, "bfloat16", (2,), 2**64, "backward"),
        Record(7, "param", "norm.weight", None, "bfloat16", (2,), 2**200, "after"),
    )
    return Stream(0, 0, "r1", "sha256", records)


def test_a_sha256_is_written_in_64_digits_and_read_as_a_number() -> None:
    line = json.loads(to_line(_strong(), world_size=1))
    assert (line["block_pre"], line["block_post"], line["output_bits"]) == (["f" * 64], ["0" * 64], f"{10:064x}")
    assert line["grads"] == {"norm.weight": f"{2**64:064x}"}
    assert line["params"] == {"norm.weight": f"{2**200:064x}"}
    assert line["records"][0][5] == "f" * 64
    assert line["records"][5][5:] == [f"{12:064x}", "recompute", f"{2**255 + 1:064x}"]
    assert from_line(json.dumps(line)) == _strong()


def test_what_is_no_digest_stays_a_number_beside_a_sha256() -> None:
    line = json.loads(to_line(_strong(), world_size=1))
    assert (line["loss_bits"], line["global_bits"]) == (1086904115, -9)
    assert [row[5] for row in line["records"][3:5]] == [1086904115, -9]
    assert line["order_bits"] == _strong().order_bits()


def test_a_sha256_is_shown_in_64_digits_and_everything_else_in_16() -> None:
    shown = [one.hexadecimal("sha256") for one in _strong().records]
    assert shown[0] == "f" * 64
    assert shown[3:5] == ["0000000040c8d733", "fffffffffffffff7"]
    assert {len(one) for place, one in enumerate(shown) if place not in (3, 4)} == {64}
    assert replace(_strong().records[0], digest=-1).hexadecimal("mixed") == "f" * 16


@pytest.mark.parametrize("digest", ["f" * 63, "f" * 65, "g" * 64, "", None, 1.5, [1]])
@pytest.mark.parametrize("key", ["digest", "inputs"])
def test_what_is_no_digest_of_any_kind_is_refused(tmp_path: Path, key: str, digest: object) -> None:
    line = json.loads(to_line(_strong(), world_size=1))
    line["records"][5][5 if key == "digest" else 7] = digest
    path = tmp_path / "rank000.jsonl"
    path.write_text(json.dumps(line) + "\n")
    with pytest.raises(FileError, match=r"rank000\.jsonl line 1 cannot be read: "):
        read_streams(path)


def test_parameters_before_the_step_are_not_those_that_it_left() -> None:
    before, after = (Record(0, "param", "w", None, "float32", (2,), 5, phase) for phase in ("before", "after"))
    params = [
        json.loads(to_line(Stream(0, 0, "r1", "xxh3", (one,)), world_size=1))["params"] for one in (before, after)
    ]
    assert params == [{}, {"w": 5}]


def test_a_line_has_the_keys_of_the_recipe() -> None:
    line = json.loads(to_line(_example(), world_size=4))
    recipe = {
        "rank": 3,
        "step": 1,
        "run": "r2",
        "world_size": 4,
        "loss_bits": 1086904115,
        "output_bits": 8,
        "global_bits": 9,
        "order_bits": _example().order_bits(),
        "nonfinite": {"loss": 1, "norm.weight": 64},
        "block_pre": [5, 6],
        "block_post": [6, -7],
        "grads": {"norm.weight": 10},
        "params": {"norm.weight": 11},
    }
    assert {key: line[key] for key in recipe} == recipe
    assert line["schema"] == SCHEMA
    assert line["checksum"] == "mixed"


def test_a_stream_without_these_sites_has_null_and_empty_keys() -> None:
    line = json.loads(to_line(stream(("input", "input_ids", 1)), world_size=1))
    assert (line["loss_bits"], line["output_bits"], line["global_bits"]) == (None, None, None)
    assert (line["block_pre"], line["block_post"], line["grads"], line["params"]) == ([], [], {}, {})


def test_a_line_is_one_line() -> None:
    assert "\n" not in to_line(stream(("input", "two\nlines", 1)), world_size=1)


def test_order_bits_follow_the_order_alone() -> None:
    reference = stream(("input", "a", 1), ("loss", "b", 2))
    assert reference.order_bits() == xxhash.xxh3_64_intdigest(b"input\ta\tforward\nloss\tb\tforward")
    assert reference.order_bits() == stream(("input", "a", 8), ("loss", "b", 9), rank=1, run="r2").order_bits()
    assert reference.order_bits() != stream(("loss", "b", 2), ("input", "a", 1)).order_bits()
    records = (replace(reference.records[0], phase="before"), reference.records[1])
    assert reference.order_bits() != replace(reference, records=records).order_bits()


def test_digests_come_by_site_in_order() -> None:
    assert _example().digests("block_post") == [6, -7]
    assert _example().digests("buffer") == []


def test_a_file_is_appended_to_and_read_in_its_order(tmp_path: Path) -> None:
    path = tmp_path / "rank000.jsonl"
    first, second, third = full_stream(0, 0, 1), full_stream(0, 0, 2), full_stream(0, 1, 1)
    write_streams(path, [first, second], world_size=2)
    write_streams(path, [third], world_size=2)
    assert read_streams(path) == [first, second, third]
    assert path.read_text().count("\n") == 3


def test_an_empty_file_has_no_streams(tmp_path: Path) -> None:
    (tmp_path / "rank000.jsonl").touch()
    assert read_streams(tmp_path / "rank000.jsonl") == []


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rank007.jsonl"
    with pytest.raises(FileError) as caught:
        read_streams(path)
    assert str(caught.value) == f"{path} is missing"


def _written(path: Path) -> list[str]:
    write_streams(path, [full_stream(0, 0, run) for run in (1, 2, 3)], world_size=1)
    return path.read_text().splitlines(keepends=True)


@pytest.mark.parametrize("kept", [1, 40, -1])
def test_a_last_line_cut_off_is_named_by_file_and_line(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "rank000.jsonl"
    lines = _written(path)
    path.write_text(lines[0] + lines[1] + lines[2][:kept])
    with pytest.raises(FileError) as caught:
        read_streams(path)
    assert str(caught.value) == f"{path} is cut off in line 3"


@pytest.mark.parametrize(
    "damaged",
    [
        "{\n",
        "[]\n",
        "null\n",
        f'{{"schema": {SCHEMA}}}\n',
        to_line(stream(("loss", "loss", 1)), world_size=1).replace(',1,"forward"]', "]") + "\n",
        to_line(stream(("loss", "loss", 1)), world_size=1).replace('"forward"', '"forward",1,2') + "\n",
        to_line(stream(("loss", "loss", 1)), world_size=1).replace('"nonfinite"', '"finite"') + "\n",
        "\n",
    ],
    ids=["torn", "list", "null", "keys missing", "record too short", "record too long", "no nonfinite", "blank"],
)
def test_a_line_that_is_no_stream_is_named_by_file_and_line(tmp_path: Path, damaged: str) -> None:
    path = tmp_path / "rank000.jsonl"
    lines = _written(path)
    path.write_text(lines[0] + damaged + lines[2])
    with pytest.raises(FileError) as caught:
        read_streams(path)
    assert str(caught.value).startswith(f"{path} line 2 cannot be read: ")


def test_a_foreign_schema_is_named_with_its_number(tmp_path: Path) -> None:
    path = tmp_path / "rank000.jsonl"
    lines = _written(path)
    path.write_text("".join(lines).replace(f'"schema":{SCHEMA}', '"schema":99'))
    with pytest.raises(FileError) as caught:
        read_streams(path)
    expected = f"{path} line 1 cannot be read: schema 99, this version reads schema {SCHEMA}"
    assert str(caught.value) == expected


def test_bytes_that_are_no_text_are_named_by_file(tmp_path: Path) -> None:
    path = tmp_path / "rank000.jsonl"
    path.write_bytes(b'{"schema": 1, "\xff\xfe": 0}\n')
    with pytest.raises(FileError) as caught:
        read_streams(path)
    assert str(caught.value).startswith(f"{path} cannot be read: ")
