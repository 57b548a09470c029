"""The comparison of two streams: the first record that differs, of which kind, and how many."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from detsweep.capture import Stream
from detsweep.compare import Comparison, Divergence, compare
from tests.support import stream


def _first(comparison: Comparison) -> Divergence:
    assert comparison.first is not None
    return comparison.first


def _reference() -> Stream:
    return stream(
        ("rng", "start.torch", 1),
        ("input", "input_ids", 2),
        ("block_post", "blocks.0", 3),
        ("block_post", "blocks.1", 4),
        ("loss", "loss", 5),
        ("grad", "a.weight", 6),
    )


def _other(**digests: int) -> Stream:
    """The reference again as r2, with other digests under the given names (dots written as `__`)."""
    names = {name.replace("__", "."): digest for name, digest in digests.items()}
    records = tuple(replace(r, digest=names.get(r.name, r.digest)) for r in _reference().records)
    return replace(_reference(), run="r2", records=records)


def test_equal_streams_have_no_divergence() -> None:
    assert compare(_reference(), _other()) == Comparison(6, None, {})


def test_an_empty_stream_equals_another() -> None:
    assert compare(stream(), stream(run="r2")) == Comparison(0, None, {})


def test_the_first_is_first_in_execution_and_not_by_name() -> None:
    reference = stream(("block_post", "z", 1), ("grad", "m", 2), ("block_post", "a", 3))
    other = stream(("block_post", "z", 9), ("grad", "m", 2), ("block_post", "a", 9), run="r2")
    first = _first(compare(reference, other))
    assert (first.seq, first.name) == (0, "z")


def test_a_divergence_says_where_of_the_other_stream_it_is() -> None:
    other = replace(_other(blocks__1=40, loss=50), rank=3, step=7, run="r5")
    records = tuple(replace(r, block=1) if r.name == "blocks.1" else r for r in other.records)
    comparison = compare(_reference(), replace(other, records=records))
    assert comparison.first == Divergence(3, 7, "r5", 3, "block_post", 1, "blocks.1", "value", None)
    assert comparison.compared == 6


def test_all_that_differs_is_counted_by_site() -> None:
    comparison = compare(_reference(), _other(blocks__0=30, blocks__1=40, a__weight=60))
    assert comparison.differs == {"block_post": 2, "grad": 1}


@pytest.mark.parametrize(
    ("name", "cause"), [("start__torch", "rng"), ("input_ids", "input"), ("blocks__0", None), ("loss", None)]
)
def test_only_inputs_and_random_states_name_their_cause(name: str, cause: str | None) -> None:
    assert _first(compare(_reference(), _other(**{name: 99}))).cause == cause


@pytest.mark.parametrize("change", [{"shape": (3, 2)}, {"dtype": "bfloat16"}])
def test_another_shape_or_dtype_is_a_layout_divergence_even_with_equal_bits(change: dict[str, object]) -> None:
    records = list(_other().records)
    records[1] = replace(records[1], **change)  # type: ignore[arg-type]
    comparison = compare(_reference(), replace(_other(), records=tuple(records)))
    first = _first(comparison)
    assert (first.seq, first.kind, first.cause) == (1, "layout", None)
    assert comparison.differs == {"input": 1}


def _renumbered(other: Stream, *names: str) -> Stream:
    by_name = {record.name: record for record in (*_reference().records, *other.records)}
    records = tuple(replace(by_name[name], seq=seq) for seq, name in enumerate(names))
    return replace(other, records=records)


def test_a_missing_record_breaks_the_sequence_where_the_next_one_stands() -> None:
    other = _renumbered(_other(), "start.torch", "input_ids", "blocks.1", "loss", "a.weight")
    comparison = compare(_reference(), other)
    first = _first(comparison)
    assert (first.seq, first.name, first.kind, first.cause) == (2, "blocks.1", "sequence", "sequence")
    assert comparison.differs == {"sequence": 1}
    assert comparison.compared == 5


def test_a_missing_last_record_is_named_itself() -> None:
    other = replace(_other(), records=_other().records[:-1])
    first = _first(compare(_reference(), other))
    assert (first.seq, first.site, first.name, first.kind, first.run) == (5, "grad", "a.weight", "sequence", "r2")


def test_an_added_last_record_is_named_itself() -> None:
    extra = replace(_reference().records[-1], seq=6, name="b.weight")
    first = _first(compare(_reference(), replace(_other(), records=(*_other().records, extra))))
    assert (first.seq, first.name, first.kind) == (6, "b.weight", "sequence")


def test_reordered_records_with_equal_bits_are_a_finding_of_their_own() -> None:
    other = _renumbered(_other(), "start.torch", "input_ids", "blocks.1", "blocks.0", "loss", "a.weight")
    comparison = compare(_reference(), other)
    first = _first(comparison)
    assert (first.seq, first.name, first.kind) == (2, "blocks.1", "sequence")
    assert comparison.differs == {"sequence": 1}
    assert comparison.compared == 6


def test_other_bits_before_the_sequence_breaks_come_first() -> None:
    other = _renumbered(_other(input_ids=20), "start.torch", "input_ids", "blocks.1", "blocks.0", "loss", "a.weight")
    comparison = compare(_reference(), other)
    assert (_first(comparison).name, _first(comparison).kind) == ("input_ids", "value")
    assert comparison.differs == {"input": 1, "sequence": 1}


def test_at_one_place_the_broken_sequence_comes_before_the_bits() -> None:
    other = _renumbered(_other(blocks__1=40), "start.torch", "input_ids", "blocks.1", "blocks.0", "loss", "a.weight")
    comparison = compare(_reference(), other)
    assert (_first(comparison).seq, _first(comparison).kind) == (2, "sequence")
    assert comparison.differs == {"block_post": 1, "sequence": 1}


def test_records_after_a_gap_are_still_compared_with_their_own() -> None:
    other = _renumbered(_other(a__weight=60), "start.torch", "input_ids", "blocks.1", "loss", "a.weight")
    assert compare(_reference(), other).differs == {"grad": 1, "sequence": 1}


def test_the_same_name_under_another_site_is_another_record() -> None:
    comparison = compare(stream(("grad", "w", 1), ("param", "w", 2)), stream(("grad", "w", 1), ("param", "w", 3)))
    assert (_first(comparison).site, comparison.differs) == ("param", {"param": 1})


def test_of_a_repeated_name_each_is_compared_with_its_own_turn() -> None:
    reference = stream(("buffer", "x", 1), ("buffer", "x", 2), ("buffer", "x", 3))
    assert compare(reference, stream(("buffer", "x", 1), ("buffer", "x", 2), ("buffer", "x", 3))).first is None
    comparison = compare(reference, stream(("buffer", "x", 1), ("buffer", "x", 3), ("buffer", "x", 2)))
    assert (_first(comparison).seq, comparison.differs) == (1, {"buffer": 2})


def test_a_name_repeated_once_more_is_a_broken_sequence() -> None:
    comparison = compare(stream(("buffer", "x", 1)), stream(("buffer", "x", 1), ("buffer", "x", 1)))
    first = _first(comparison)
    assert (first.seq, first.kind, comparison.compared) == (1, "sequence", 1)


def test_another_checksum_is_refused() -> None:
    with pytest.raises(ValueError, match="checksum xxh3 cannot be compared with bitsum"):
        compare(stream(("loss", "loss", 1)), stream(("loss", "loss", 1), checksum="bitsum"))


def test_a_divergence_is_plain_json() -> None:
    divergence = _first(compare(_reference(), _other(loss=50)))
    assert Divergence(**json.loads(json.dumps(divergence.to_json()))) == divergence
