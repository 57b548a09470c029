"""The comparison of two streams, or of several ranks with each other: what differs first, of which kind, and how."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from detsweep.capture import Record, Stream
from detsweep.causes import attribute
from detsweep.compare import (
    NO_MAJORITY,
    Comparison,
    Divergence,
    compare,
    differences,
    keyed,
    partners,
    recomputed,
    vote,
)
from tests.support import record, stream, stream_of


def _first(comparison: Comparison) -> Divergence:
    assert comparison.first is not None
    return comparison.first


def _reference() -> Stream:
    return stream(
        ("rng", "torch", 1),
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


def _changed(place: int, **changes: Any) -> Stream:
    """The reference again as r2, with one record changed."""
    records = list(_reference().records)
    records[place] = replace(records[place], **changes)
    return replace(_reference(), run="r2", records=tuple(records))


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
    other = replace(_changed(3, digest=40, block=1), rank=3, step=7, run="r5")
    comparison = compare(_reference(), other)
    assert comparison.first == Divergence(
        rank=3,
        step=7,
        run="r5",
        seq=3,
        site="block_post",
        block=1,
        name="blocks.1",
        phase="forward",
        kind="value",
        reference="r1",
    )
    assert comparison.compared == 6


def test_all_that_differs_is_counted_by_site() -> None:
    comparison = compare(_reference(), _other(blocks__0=30, blocks__1=40, a__weight=60))
    assert comparison.differs == {"block_post": 2, "grad": 1}


@pytest.mark.parametrize("name", ["torch", "input_ids", "blocks__0", "loss"])
def test_two_streams_alone_name_no_cause(name: str) -> None:
    first = _first(compare(_reference(), _other(**{name: 99})))
    assert (first.kind, first.cause, first.origin, first.closer) == ("value", None, None, None)


# --- kinds -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", [{"shape": (3, 2)}, {"dtype": "bfloat16"}])
def test_another_shape_or_dtype_is_a_layout_divergence_even_with_equal_bits(change: dict[str, Any]) -> None:
    comparison = compare(_reference(), _changed(1, **change))
    assert (_first(comparison).seq, _first(comparison).kind) == (1, "layout")
    assert comparison.differs == {"input": 1}


def test_layout_comes_before_bits_and_bits_before_inputs() -> None:
    reference = stream_of([record("op", "aten.mm in model", 1, inputs=5)])
    kinds = [
        _first(compare(reference, stream_of([replace(reference.records[0], **change)]))).kind
        for change in ({"inputs": 6}, {"inputs": 6, "digest": 2}, {"inputs": 6, "digest": 2, "shape": (6,)})
    ]
    assert kinds == ["inputs", "value", "layout"]


@pytest.mark.parametrize("inputs", [6, None])
def test_an_operator_that_read_other_bits_and_wrote_the_same_is_a_divergence(inputs: int | None) -> None:
    reference = stream_of([record("op", "aten.relu in model", 1, inputs=5)])
    other = stream_of([record("op", "aten.relu in model", 1, inputs=inputs)], run="r2")
    comparison = compare(reference, other)
    assert (_first(comparison).kind, comparison.differs) == ("inputs", {"op": 1})


def test_the_block_is_no_part_of_what_is_compared() -> None:
    assert compare(_reference(), _changed(2, block=7)).first is None


# --- broken sequences ------------------------------------------------------------------------------------------------


def _renumbered(other: Stream, *names: str) -> Stream:
    by_name = {one.name: one for one in (*_reference().records, *other.records)}
    return stream_of([by_name[name] for name in names], run="r2")


NAMES = tuple(one.name for one in _reference().records)


@pytest.mark.parametrize("place", range(len(NAMES)))
def test_a_missing_record_is_named_itself_at_the_place_where_it_is_not(place: int) -> None:
    other = _renumbered(_other(), *NAMES[:place], *NAMES[place + 1 :])
    comparison = compare(_reference(), other)
    first = _first(comparison)
    assert (first.seq, first.name, first.kind, first.run) == (place, NAMES[place], "sequence", "r2")
    assert comparison.differs == {"sequence": 1}
    assert comparison.compared == 5


@pytest.mark.parametrize("place", range(len(NAMES) + 1))
def test_an_added_record_is_named_itself(place: int) -> None:
    extra = replace(_reference().records[0], name="b.weight")
    other = _renumbered(stream_of([extra]), *NAMES[:place], "b.weight", *NAMES[place:])
    comparison = compare(_reference(), other)
    first = _first(comparison)
    assert (first.seq, first.name, first.kind) == (place, "b.weight", "sequence")
    assert (comparison.differs, comparison.compared) == ({"sequence": 1}, 6)


def test_of_several_missing_records_the_first_is_named_where_the_gap_is() -> None:
    other = _renumbered(_other(), "torch", "input_ids", "loss", "a.weight")
    first = _first(compare(_reference(), other))
    assert (first.seq, first.name, first.block) == (2, "blocks.0", None)


def test_a_missing_turn_of_a_repeated_name_is_where_the_other_stream_has_one_less() -> None:
    reference = stream(("op", "mm", 1), ("op", "mm", 1), ("op", "add", 1))
    first = _first(compare(reference, stream(("op", "mm", 1), ("op", "add", 1), run="r2")))
    assert (first.seq, first.name, first.kind) == (1, "mm", "sequence")


def test_a_record_in_the_place_of_another_is_an_added_one() -> None:
    extra = replace(_reference().records[0], name="b.weight")
    other = _renumbered(stream_of([extra]), "torch", "input_ids", "b.weight", "blocks.1", "loss", "a.weight")
    first = _first(compare(_reference(), other))
    assert (first.seq, first.name, first.kind) == (2, "b.weight", "sequence")


def test_a_missing_last_record_is_named_itself() -> None:
    other = replace(_other(), records=_other().records[:-1])
    first = _first(compare(_reference(), other))
    assert (first.seq, first.site, first.name, first.kind, first.run) == (5, "grad", "a.weight", "sequence", "r2")


def test_reordered_records_with_equal_bits_are_a_finding_of_their_own() -> None:
    other = _renumbered(_other(), "torch", "input_ids", "blocks.1", "blocks.0", "loss", "a.weight")
    comparison = compare(_reference(), other)
    first = _first(comparison)
    assert (first.seq, first.name, first.kind) == (2, "blocks.1", "sequence")
    assert comparison.differs == {"sequence": 1}
    assert comparison.compared == 6


@pytest.mark.parametrize(
    "names",
    [
        ("blocks.0", "torch", "input_ids", "blocks.1", "loss", "a.weight"),
        ("torch", "input_ids", "blocks.1", "loss", "blocks.0", "a.weight"),
        ("torch", "input_ids", "blocks.0", "a.weight", "blocks.1", "loss"),
    ],
)
def test_a_record_that_moved_is_named_as_what_stands_in_the_place_of_another(names: tuple[str, ...]) -> None:
    place = next(n for n, (one, other) in enumerate(zip(NAMES, names, strict=True)) if one != other)
    first = _first(compare(_reference(), _renumbered(_other(), *names)))
    assert (first.seq, first.name, first.kind) == (place, names[place], "sequence")


def test_a_gap_comes_before_other_bits_of_what_stands_there_now() -> None:
    other = _renumbered(_other(blocks__1=40), "torch", "input_ids", "blocks.1", "loss", "a.weight")
    found = [(d.record.name, d.record.seq, d.kind) for d in differences(_reference(), other)]
    assert found == [("blocks.0", 2, "sequence"), ("blocks.1", 2, "value")]


def test_other_bits_before_the_sequence_breaks_come_first() -> None:
    other = _renumbered(_other(input_ids=20), "torch", "input_ids", "blocks.1", "blocks.0", "loss", "a.weight")
    comparison = compare(_reference(), other)
    assert (_first(comparison).name, _first(comparison).kind) == ("input_ids", "value")
    assert comparison.differs == {"input": 1, "sequence": 1}


def test_at_one_place_the_broken_sequence_comes_before_the_bits() -> None:
    other = _renumbered(_other(blocks__1=40), "torch", "input_ids", "blocks.1", "blocks.0", "loss", "a.weight")
    comparison = compare(_reference(), other)
    assert (_first(comparison).seq, _first(comparison).kind) == (2, "sequence")
    assert comparison.differs == {"block_post": 1, "sequence": 1}


def test_records_after_a_gap_are_still_compared_with_their_own() -> None:
    other = _renumbered(_other(a__weight=60), "torch", "input_ids", "blocks.1", "loss", "a.weight")
    assert compare(_reference(), other).differs == {"grad": 1, "sequence": 1}


def test_every_difference_comes_in_order_with_its_partner() -> None:
    other = _renumbered(_other(input_ids=20, loss=50), "torch", "input_ids", "blocks.1", "blocks.0", "loss", "a.weight")
    found = [(d.record.name, d.kind, d.partner.digest if d.partner else None) for d in differences(_reference(), other)]
    assert found == [("input_ids", "value", 2), ("blocks.1", "sequence", None), ("loss", "value", 5)]


# --- what is the partner of what -------------------------------------------------------------------------------------


def test_the_same_name_under_another_site_is_another_record() -> None:
    comparison = compare(stream(("grad", "w", 1), ("param", "w", 2)), stream(("grad", "w", 1), ("param", "w", 3)))
    assert (_first(comparison).site, comparison.differs) == ("param", {"param": 1})


def test_the_same_name_in_another_phase_is_another_record() -> None:
    before, after = record("param", "w", 1, phase="before"), record("param", "w", 2, phase="after")
    reference = stream_of([before, after])
    assert compare(reference, stream_of([before, after], run="r2")).first is None
    first = _first(compare(reference, stream_of([before, replace(after, digest=1)], run="r2")))
    assert (first.seq, first.phase, first.kind) == (1, "after", "value")


def test_a_record_in_another_phase_is_out_of_sequence() -> None:
    comparison = compare(_reference(), _changed(2, phase="backward"))
    assert (_first(comparison).seq, _first(comparison).kind, comparison.compared) == (2, "sequence", 5)


def test_of_a_repeated_name_each_is_compared_with_its_own_turn() -> None:
    reference = stream(("buffer", "x", 1), ("buffer", "x", 2), ("buffer", "x", 3))
    assert compare(reference, stream(("buffer", "x", 1), ("buffer", "x", 2), ("buffer", "x", 3))).first is None
    comparison = compare(reference, stream(("buffer", "x", 1), ("buffer", "x", 3), ("buffer", "x", 2)))
    assert (_first(comparison).seq, comparison.differs) == (1, {"buffer": 2})


def test_turns_are_counted_by_site_name_and_phase() -> None:
    records = [
        record("op", "mm", phase="forward"),
        record("op", "mm", phase="backward"),
        record("op", "add", phase="forward"),
        record("module", "mm", phase="forward"),
        record("op", "mm", phase="forward"),
    ]
    assert [key for key, _ in keyed(stream_of(records))] == [
        ("op", "mm", "forward", 0),
        ("op", "mm", "backward", 0),
        ("op", "add", "forward", 0),
        ("module", "mm", "forward", 0),
        ("op", "mm", "forward", 1),
    ]


def test_a_name_repeated_once_more_is_a_broken_sequence() -> None:
    comparison = compare(stream(("buffer", "x", 1)), stream(("buffer", "x", 1), ("buffer", "x", 1)))
    first = _first(comparison)
    assert (first.seq, first.kind, comparison.compared) == (1, "sequence", 1)


@pytest.mark.parametrize("checksum", ["bitsum", "sha256"])
def test_another_checksum_is_refused(checksum: str) -> None:
    with pytest.raises(ValueError, match=f"checksum xxh3 cannot be compared with {checksum}"):
        compare(stream(("loss", "loss", 1)), stream(("loss", "loss", 1), checksum=checksum))


@pytest.mark.parametrize("bit", [0, 64, 255])
def test_every_bit_of_a_sha256_is_compared(bit: int) -> None:
    digest = (1 << 255) + 5
    one, other = (stream(("grad", "w", own), checksum="sha256") for own in (digest, digest ^ (1 << bit)))
    assert _first(compare(one, other)).kind == "value"
    assert compare(one, one).first is None


def test_a_divergence_is_plain_json() -> None:
    divergence = _first(compare(_reference(), _other(loss=50)))
    assert Divergence(**json.loads(json.dumps(divergence.to_json()))) == divergence


# --- programs that need not do the same ------------------------------------------------------------------------------


def _module(name: str, digest: int, phase: str = "forward") -> Record:
    return record("module", name, digest, phase=phase)


def test_of_other_programs_only_what_both_have_is_compared() -> None:
    reference = stream_of([_module("a", 1), _module("b", 2), _module("c", 3)])
    other = stream_of([_module("c", 3), _module("x", 9), _module("b", 2)], run="r2")
    assert compare(reference, other, aligned=False) == Comparison(2, None, {})
    assert _first(compare(reference, other)).kind == "sequence"


def test_of_other_programs_the_first_is_that_in_the_others_own_order() -> None:
    reference = stream_of([_module("a", 1), _module("b", 2)])
    comparison = compare(reference, stream_of([_module("b", 20), _module("a", 10)], run="r2"), aligned=False)
    assert (_first(comparison).seq, _first(comparison).name, comparison.differs) == (0, "b", {"module": 2})


def test_what_another_program_recomputes_is_held_against_what_was_computed_once() -> None:
    reference = stream_of([_module("a", 1), _module("b", 2)])
    recomputing = [_module("a", 1), _module("b", 2), _module("a", 1, "recompute"), _module("b", 7, "recompute")]
    comparison = compare(reference, stream_of(recomputing, run="r2"), aligned=False)
    first = _first(comparison)
    assert (first.seq, first.name, first.phase, first.kind) == (3, "b", "recompute", "value")
    assert (comparison.compared, comparison.differs) == (4, {"module": 1})


def test_where_both_recompute_each_is_held_against_the_same_phase() -> None:
    reference = stream_of([_module("a", 1), _module("a", 5, "recompute")])
    other = stream_of([_module("a", 1), _module("a", 5, "recompute")], run="r2")
    assert compare(reference, other, aligned=False).first is None


def test_what_is_recomputed_has_no_partner_in_a_program_that_must_be_the_same() -> None:
    reference = stream_of([_module("a", 1)])
    other = stream_of([_module("a", 1), _module("a", 1, "recompute")], run="r2")
    assert len(list(partners(reference, other))) == 1
    assert _first(compare(reference, other)).kind == "sequence"


def test_turns_of_what_is_recomputed_are_those_of_forward() -> None:
    # Two micro-batches: the second recomputation belongs to the second forward.
    reference = stream_of([_module("a", 1), _module("a", 2)])
    rows = [_module("a", 1), _module("a", 1, "recompute"), _module("a", 2), _module("a", 2, "recompute")]
    assert compare(reference, stream_of(rows), aligned=False) == Comparison(4, None, {})


@pytest.mark.parametrize("site", ["collective_in", "collective_out"])
@pytest.mark.parametrize("change", [{"digest": 9}, {"shape": (7,)}, {"dtype": "bfloat16"}], ids=str)
def test_collectives_of_other_programs_are_not_the_same(site: str, change: dict[str, Any]) -> None:
    rows = [record(site, "c10d.x #0 group mesh in blocks.0"), _module("a", 1)]
    reference, other = stream_of(rows), stream_of([replace(rows[0], **change), rows[1]], run="r2")
    assert compare(reference, other, aligned=False) == Comparison(1, None, {})
    assert [record.site for record, _ in partners(reference, other, aligned=False)] == ["module"]
    assert _first(compare(reference, other)).site == site


# --- recomputation within one stream ---------------------------------------------------------------------------------


def test_a_recomputation_to_other_bits_is_found_in_one_stream_alone() -> None:
    rows = [
        _module("a", 1),
        _module("b", 2),
        _module("b", 2, "recompute"),
        _module("a", 3, "recompute"),
        _module("c", 4, "recompute"),
        _module("a", 9, "backward"),
    ]
    (difference,) = recomputed(stream_of(rows))
    assert (difference.record.name, difference.record.digest, difference.kind) == ("a", 3, "value")
    assert difference.partner is not None
    assert difference.partner.digest == 1


def test_each_recomputation_is_held_against_the_forward_of_its_own_turn() -> None:
    rows = [_module("a", 1), _module("a", 1, "recompute"), _module("a", 2), _module("a", 2, "recompute")]
    assert list(recomputed(stream_of(rows))) == []
    rows[3] = _module("a", 1, "recompute")
    assert [one.record.seq for one in recomputed(stream_of(rows))] == [3]


def test_nothing_is_recomputed_without_checkpointing() -> None:
    assert list(recomputed(_reference())) == []


# --- the vote of all ranks -------------------------------------------------------------------------------------------


def _all(_: Record) -> bool:
    return True


def _voted(*streams: Stream) -> dict[int, tuple[Stream, Stream]]:
    return vote({rank: replace(one, rank=rank) for rank, one in enumerate(streams)}, _all)


def _differing(*streams: Stream) -> dict[int, list[tuple[str, str]]]:
    """Name and kind of all that differs from the vote, by rank."""
    pairs = _voted(*streams)
    return {rank: [(d.record.name, d.kind) for d in differences(*pair)] for rank, pair in pairs.items()}


def test_ranks_that_agree_differ_from_no_vote() -> None:
    assert _differing(_reference(), _reference(), _reference()) == {0: [], 1: [], 2: []}


@pytest.mark.parametrize("odd", [0, 1, 2])
def test_of_three_ranks_the_odd_one_is_named(odd: int) -> None:
    streams = [_other(blocks__1=40, loss=50) if rank == odd else _reference() for rank in range(3)]
    expected = [("blocks.1", "value"), ("loss", "value")]
    assert _differing(*streams) == {rank: expected if rank == odd else [] for rank in range(3)}


def test_each_record_has_a_vote_of_its_own() -> None:
    differing = _differing(_other(blocks__0=30), _other(blocks__1=40), _other(loss=50))
    assert differing == {0: [("blocks.0", "value")], 1: [("blocks.1", "value")], 2: [("loss", "value")]}


def test_of_two_ranks_that_differ_none_is_right() -> None:
    assert _differing(_reference(), _other(loss=50)) == {0: [("loss", "value")], 1: [("loss", "value")]}
    (elected, _), _ = _voted(_reference(), _other(loss=50)).values()
    assert [one.digest for one in elected.records if one.name == "loss"] == [NO_MAJORITY]
    assert NO_MAJORITY not in range(-(1 << 63), 1 << 256)


def test_of_three_values_none_is_right() -> None:
    differing = _differing(_other(loss=50), _other(loss=51), _other(loss=52))
    assert differing == {rank: [("loss", "value")] for rank in range(3)}


@pytest.mark.parametrize(
    ("digests", "odd"), [((5, 5, 6, 6), {0, 1, 2, 3}), ((5, 5, 5, 6), {3}), ((6, 7, 5, 5), {0, 1, 2, 3})]
)
def test_half_of_the_ranks_are_no_majority(digests: tuple[int, ...], odd: set[int]) -> None:
    differing = _differing(*(_other(loss=digest) for digest in digests))
    assert {rank for rank, found in differing.items() if found} == odd


def test_a_vote_is_about_shape_dtype_and_inputs_too() -> None:
    rows = [record("op", "mm", 1, inputs=5), record("op", "mm", 1, inputs=6), record("op", "mm", 1, inputs=5)]
    assert _differing(*(stream_of([one]) for one in rows)) == {0: [], 1: [("mm", "inputs")], 2: []}
    rows = [record("op", "mm", 1), record("op", "mm", 1), record("op", "mm", 1, shape=(6,))]
    assert _differing(*(stream_of([one]) for one in rows)) == {0: [], 1: [], 2: [("mm", "layout")]}


def test_a_rank_with_another_sequence_is_the_odd_one() -> None:
    swapped = _renumbered(_other(), "torch", "input_ids", "blocks.1", "blocks.0", "loss", "a.weight")
    assert _differing(swapped, _reference(), _reference()) == {0: [("blocks.1", "sequence")], 1: [], 2: []}


def test_a_rank_that_left_something_out_does_not_silence_the_others() -> None:
    short = replace(_reference(), records=_reference().records[:-1])
    assert _differing(_reference(), short, _other(loss=50)) == {
        0: [],
        1: [("a.weight", "sequence")],
        2: [("loss", "value")],
    }


def _tied(*streams: Stream) -> dict[int, tuple[str, int]]:
    """Of ranks without a majority for any order: name and place of what each differs by first, without a cause."""
    pairs = _voted(*streams)
    for elected, own in pairs.values():
        first = next(differences(elected, own))
        assert first.partner is not None
        assert (first.kind, first.partner.digest, elected.run, own.run) == ("value", NO_MAJORITY, "vote", "r1")
    found = attribute(pairs, level="block")
    assert {(d.cause, d.origin, d.closer, d.reference) for d in found.values()} == {(None, None, None, "vote")}
    return {rank: (d.name, d.seq) for rank, d in found.items()}


def _ordered(*names: str) -> Stream:
    return stream(*(("module", name, 1) for name in names))


def test_of_two_ranks_in_two_orders_none_is_right() -> None:
    one, other = _ordered("a", "b", "c", "d"), _ordered("a", "c", "b", "d")
    assert _tied(one, other) == {0: ("b", 1), 1: ("c", 1)}
    assert _tied(other, one) == {0: ("c", 1), 1: ("b", 1)}


def test_of_three_orders_none_is_right() -> None:
    # Ranks 0 and 1 part after rank 2 did.
    streams = _ordered("a", "b", "c", "d"), _ordered("a", "b", "d", "c"), _ordered("a", "c", "b", "d")
    assert _tied(*streams) == {0: ("b", 1), 1: ("b", 1), 2: ("c", 1)}


def test_half_of_the_ranks_are_no_majority_of_orders() -> None:
    one, other = _ordered("a", "b", "c"), _ordered("a", "c", "b")
    assert _tied(one, one, other, other) == {0: ("b", 1), 1: ("b", 1), 2: ("c", 1), 3: ("c", 1)}
    third = _ordered("c", "a", "b")
    assert _tied(one, one, other, third) == {0: ("a", 0), 1: ("a", 0), 2: ("a", 0), 3: ("c", 0)}
    assert _differing(one, one, one, other) == {0: [], 1: [], 2: [], 3: [("c", "sequence")]}


def test_a_rank_whose_records_end_differs_by_its_last() -> None:
    assert _tied(_ordered("a", "b", "c"), _ordered("a", "b")) == {0: ("c", 2), 1: ("b", 1)}
    streams = _ordered("a"), _ordered("a", "b"), _ordered("a", "b", "c")
    assert _tied(*streams) == {0: ("a", 0), 1: ("b", 1), 2: ("b", 1)}


def test_the_turn_of_a_repeated_name_is_part_of_an_order() -> None:
    assert _tied(_ordered("a", "a", "b"), _ordered("a", "b", "a")) == {0: ("a", 1), 1: ("b", 1)}


def test_an_order_is_of_what_can_be_compared_alone() -> None:
    one, other = _ordered("x", "a", "b"), _ordered("a", "x", "b")
    pairs = vote({0: one, 1: other, 2: _ordered("a", "b", "x")}, lambda record: record.name != "x")
    assert [compare(*pair).first for pair in pairs.values()] == [None, None, None]


def test_only_what_can_be_compared_has_a_vote_and_is_numbered_anew() -> None:
    streams = {rank: replace(_other(torch=rank, blocks__0=30 + rank), rank=rank) for rank in range(3)}
    pairs = vote(streams, lambda one: one.site not in ("rng", "block_post"))
    for rank, (elected, own) in pairs.items():
        assert [(one.seq, one.name) for one in own.records] == [(0, "input_ids"), (1, "loss"), (2, "a.weight")]
        assert [one.seq for one in elected.records] == [0, 1, 2]
        assert compare(elected, own).first is None
        assert (elected.run, own.run, own.rank) == ("vote", "r2", rank)


def test_what_parts_from_the_vote_says_so() -> None:
    pairs = _voted(_reference(), _reference(), _other(loss=50))
    first = _first(compare(*pairs[2]))
    assert (first.rank, first.run, first.reference) == (2, "r2", "vote")
