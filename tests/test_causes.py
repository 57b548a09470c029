"""Causes: from small streams of two or three ranks to who started it, with what, and who only received it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from detsweep.capture import LEVELS, Record, Stream
from detsweep.causes import CAUSES, attribute, collective_name, group_of
from detsweep.compare import Divergence
from tests.support import record, stream_of

GATHER = f"{collective_name('c10d._allgather_base_', 0, 'mesh')} in blocks.0"
REDUCE = f"{collective_name('c10d._reduce_scatter_base_', 1, 'mesh')} in blocks.0"
STEP = (
    record("rng", "torch", phase="before"),
    record("input", "input_ids", phase="before"),
    record("param", "w", phase="before"),
    record("buffer", "b", phase="before"),
    record("block_pre", "blocks.0", block=0),
    record("rng", "blocks.0.attention_dropout", block=0),
    record("block_post", "blocks.0", block=0),
    record("block_pre", "blocks.1", block=1),
    record("block_post", "blocks.1", block=1),
    record("logits", "logits"),
    record("loss", "loss"),
    record("block_grad_out", "blocks.1", block=1, phase="backward"),
    record("block_grad_in", "blocks.1", block=1, phase="backward"),
    record("global", "loss^output", phase="backward"),
    record("grad", "w", phase="backward"),
    record("norm", "grad_norm", phase="optimizer"),
)
REPLAYED = (*STEP, record("param", "w", phase="after"), record("rng", "torch", phase="after"))
TRAINED = (
    *STEP,
    record("optim", "w.exp_avg", phase="after"),
    record("param", "w", phase="after"),
    record("rng", "torch", phase="after"),
)
COLLECTIVES = (
    record("collective_in", GATHER, block=0),
    record("collective_out", GATHER, block=0),
    record("block_post", "blocks.0", block=0),
    record("collective_in", REDUCE, block=0, phase="backward"),
    record("collective_out", REDUCE, block=0, phase="backward"),
    record("grad", "w", phase="backward"),
)
OPERATORS = (
    record("param", "w", phase="before"),
    record("op", "aten.mm in blocks.0", inputs=5, block=0),
    record("op", "aten.add in blocks.0", inputs=6, block=0),
    record("module", "blocks.0.ffn", block=0),
    record("grad", "w", phase="backward"),
)
Place = tuple[str, str]
"""Site and phase; all records there differ."""


def _with(records: Sequence[Record], *places: Place) -> list[Record]:
    return [replace(r, digest=99) if (r.site, r.phase) in places else r for r in records]


def _pair(records: Sequence[Record], *places: Place) -> tuple[Stream, Stream]:
    """A rank's reference, and its second run that differs at these places."""
    return stream_of(records), stream_of(_with(records, *places), run="r2")


def _of(rank: int, reference: Stream, other: Stream) -> tuple[Stream, Stream]:
    return replace(reference, rank=rank), replace(other, rank=rank)


def _attributed(
    records: Sequence[Record], places: Mapping[int, Sequence[Place]], level: str = "block", **options: Any
) -> dict[int, Divergence]:
    """What three ranks diverge by, where these ranks differ at these places."""
    pairs = {rank: _of(rank, *_pair(records, *places.get(rank, ()))) for rank in range(3)}
    return attribute(pairs, level=level, **options)


def _only(
    records: Sequence[Record], *places: Place, level: str = "block", restored: bool = False
) -> tuple[str | None, str | None]:
    """Cause and closer of rank 1, the only one that differs."""
    found = _attributed(records, {1: places}, level, restored=restored)
    assert list(found) == [1]
    assert (found[1].rank, found[1].origin) == (1, None)
    return found[1].cause, found[1].closer


def test_ranks_that_repeat_have_no_divergence() -> None:
    assert _attributed(REPLAYED, {}) == {}


def test_a_divergence_is_the_first_of_its_rank_with_place_and_reference() -> None:
    (found,) = _attributed(REPLAYED, {2: [("loss", "forward"), ("block_post", "forward")]}).values()
    assert found == Divergence(
        rank=2,
        step=0,
        run="r2",
        seq=6,
        site="block_post",
        block=0,
        name="blocks.0",
        phase="forward",
        kind="value",
        reference="r1",
        cause="compute",
        closer="op",
    )


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    ("records", "place", "cause"),
    [
        (REPLAYED, ("input", "before"), "input"),
        (REPLAYED, ("rng", "before"), "rng"),
        (REPLAYED, ("rng", "forward"), "rng"),
        (REPLAYED, ("rng", "after"), "rng"),
        (REPLAYED, ("param", "before"), "memory"),
        (REPLAYED, ("buffer", "before"), "memory"),
        (REPLAYED, ("param", "after"), "memory"),
        (TRAINED, ("param", "after"), "optimizer"),
        (TRAINED, ("optim", "after"), "optimizer"),
        (TRAINED, ("norm", "optimizer"), "optimizer"),
    ],
    ids=str,
)
def test_state_and_data_name_their_cause_at_every_level(
    records: Sequence[Record], place: Place, cause: str, level: str
) -> None:
    assert _only(records, place, level=level) == (cause, None)


@pytest.mark.parametrize("level", ["off", "block", "module", "collective"])
@pytest.mark.parametrize(
    "place",
    [
        ("block_pre", "forward"),
        ("block_post", "forward"),
        ("logits", "forward"),
        ("loss", "forward"),
        ("block_grad_out", "backward"),
        ("block_grad_in", "backward"),
    ],
    ids=str,
)
def test_other_bits_inside_a_step_are_computed_and_operators_say_more(place: Place, level: str) -> None:
    # Where nothing inside was looked at, a loss that differs may be whatever the step did before it.
    assert _only(REPLAYED, place, level=level) == (None if level == "off" else "compute", "op")


@pytest.mark.parametrize(
    ("level", "cause"), [("off", None), ("block", None), ("module", None), ("collective", "compute")]
)
@pytest.mark.parametrize("place", [("grad", "backward"), ("global", "backward")], ids=str)
def test_what_is_left_of_a_reduction_has_no_cause_where_no_collective_was_seen(
    place: Place, level: str, cause: str | None
) -> None:
    assert _only(REPLAYED, place, level=level) == (cause, "op")


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("place", [("input", "before"), ("block_post", "forward"), ("grad", "backward")], ids=str)
@pytest.mark.parametrize("change", [{"shape": (6,)}, {"dtype": "bfloat16"}], ids=str)
def test_another_layout_is_another_program(change: dict[str, Any], place: Place, level: str) -> None:
    other = [replace(r, **change) if (r.site, r.phase) == place else r for r in REPLAYED]
    (found,) = attribute({0: (stream_of(REPLAYED), stream_of(other, run="r2"))}, level=level).values()
    assert (found.site, found.kind, found.cause, found.closer) == (place[0], "layout", "sequence", None)


def test_another_layout_is_received_from_nobody() -> None:
    own = [replace(r, shape=(6,)) if r.site == "grad" else r for r in REPLAYED]
    pairs = {0: (stream_of(REPLAYED), stream_of(own, run="r2")), 1: _pair(REPLAYED, ("block_post", "forward"))}
    found = attribute({rank: _of(rank, *pair) for rank, pair in pairs.items()}, level="block")
    assert (found[0].cause, found[0].origin) == ("sequence", None)


@pytest.mark.parametrize("place", [("param", "before"), ("rng", "before"), ("buffer", "before")])
def test_what_a_restored_step_starts_from_was_loaded(place: Place) -> None:
    assert _only(TRAINED, place, restored=True) == ("checkpoint", None)


@pytest.mark.parametrize(
    ("place", "cause"),
    [
        (("input", "before"), "input"),
        (("rng", "forward"), "rng"),
        (("block_post", "forward"), "compute"),
        (("optim", "after"), "optimizer"),
    ],
)
def test_what_a_restored_step_does_after_that_is_its_own(place: Place, cause: str) -> None:
    assert _only(TRAINED, place, restored=True)[0] == cause


@pytest.mark.parametrize("level", LEVELS)
def test_other_records_in_another_order_are_a_cause_of_their_own(level: str) -> None:
    reference = stream_of(REPLAYED)
    other = stream_of([*REPLAYED[:4], *REPLAYED[5:]], run="r2")
    (found,) = attribute({0: (reference, other)}, level=level).values()
    assert (found.kind, found.cause, found.closer, found.seq) == ("sequence", "sequence", None, 4)


def test_of_other_programs_the_order_is_no_cause() -> None:
    reference, other = stream_of(REPLAYED), stream_of([*REPLAYED[:4], *REPLAYED[5:]], run="r2")
    assert attribute({0: (reference, other)}, level="block", aligned=False) == {}
    differing = stream_of(_with(other.records, ("loss", "forward")), run="r2")
    assert attribute({0: (reference, differing)}, level="block", aligned=False)[0].cause == "compute"


# --- operators -------------------------------------------------------------------------------------------------------


def test_an_operator_that_gives_other_bits_for_equal_inputs_computed_them() -> None:
    assert _only(OPERATORS, ("op", "forward"), level="op") == ("compute", None)


@pytest.mark.parametrize("digest", [1, 99])
def test_an_operator_that_read_what_nobody_wrote_read_changed_memory(digest: int) -> None:
    records = list(OPERATORS)
    records[1] = replace(records[1], inputs=55, digest=digest)
    (found,) = attribute({0: (stream_of(OPERATORS), stream_of(records, run="r2"))}, level="op").values()
    assert (found.name, found.cause, found.closer) == ("aten.mm in blocks.0", "memory", None)


@pytest.mark.parametrize("place", [("module", "forward"), ("grad", "backward")])
def test_what_no_operator_wrote_is_memory_where_all_operators_were_seen(place: Place) -> None:
    assert _only(OPERATORS, place, level="op") == ("memory", None)


# --- what comes from other ranks, seen without collectives -----------------------------------------------------------


@pytest.mark.parametrize("level", ["off", "block", "module"])
def test_reduced_gradients_bring_the_divergence_of_another_rank(level: str) -> None:
    own, reduced = ("block_post", "forward"), ("grad", "backward")
    found = _attributed(REPLAYED, {0: [reduced], 1: [own, reduced], 2: [reduced]}, level)
    assert {rank: (d.cause, d.origin, d.closer) for rank, d in found.items()} == {
        0: ("upstream", 1, "collective"),
        1: (None if level == "off" else "compute", None, "op"),
        2: ("upstream", 1, "collective"),
    }


@pytest.mark.parametrize(
    "place", [("norm", "optimizer"), ("optim", "after"), ("param", "after"), ("global", "backward")]
)
def test_whatever_is_made_of_reduced_gradients_is_received(place: Place) -> None:
    found = _attributed(TRAINED, {0: [place], 2: [("block_post", "forward")]})
    assert (found[0].cause, found[0].origin) == ("upstream", 2)


def test_gathered_parameters_bring_the_divergence_of_another_rank() -> None:
    found = _attributed(REPLAYED, {0: [("block_post", "forward")], 2: [("param", "before"), ("block_post", "forward")]})
    assert (found[0].cause, found[0].origin, found[0].closer) == ("upstream", 2, "collective")
    assert (found[2].cause, found[2].origin) == ("memory", None)


def test_activations_never_come_from_other_ranks() -> None:
    found = _attributed(REPLAYED, {0: [("block_post", "forward")], 1: [("logits", "forward")]})
    assert {rank: (d.cause, d.origin) for rank, d in found.items()} == {0: ("compute", None), 1: ("compute", None)}


def test_the_state_before_a_step_comes_from_no_other_rank_of_this_step() -> None:
    found = _attributed(REPLAYED, {0: [("input", "before")], 1: [("param", "before")]})
    assert {rank: (d.cause, d.origin) for rank, d in found.items()} == {0: ("input", None), 1: ("memory", None)}


def test_ranks_that_differ_at_one_place_started_together() -> None:
    place = ("block_grad_out", "backward")
    found = _attributed(REPLAYED, {0: [place], 1: [place]})
    assert {rank: (d.cause, d.origin) for rank, d in found.items()} == {0: ("compute", None), 1: ("compute", None)}


def test_of_ranks_that_all_differ_by_what_was_reduced_none_is_named() -> None:
    found = _attributed(REPLAYED, {rank: [("grad", "backward")] for rank in range(3)})
    assert {(d.cause, d.origin, d.closer) for d in found.values()} == {(None, None, "op")}


def test_the_origin_is_the_rank_that_differed_first_of_all() -> None:
    places = {0: [("grad", "backward")], 1: [("logits", "forward")], 2: [("input", "before")]}
    assert _attributed(REPLAYED, places)[0].origin == 2
    places[1] = [("input", "before")]
    assert _attributed(REPLAYED, places)[0].origin == 1


def test_a_broken_sequence_is_received_from_nobody() -> None:
    early = _pair(REPLAYED, ("block_post", "forward"))
    late = stream_of(REPLAYED), stream_of(REPLAYED[:-2], run="r2")
    found = attribute({0: early, 1: _of(1, *late)}, level="block")
    assert (found[1].cause, found[1].origin) == ("sequence", None)


# --- activations that cross ranks, seen without the all-to-alls that bring them --------------------------------------

LAYERS = (
    record("param", "w", phase="before"),
    record("module", "blocks.0.ffn.router", block=0),
    record("module", "blocks.0.ffn.experts.2.gate", block=0),
    record("module", "blocks.0.ffn", block=0),
    record("block_post", "blocks.0", block=0),
    record("logits", "logits"),
    record("module_grad_in", "blocks.0.ffn", block=0, phase="backward"),
    record("block_grad_in", "blocks.0", block=0, phase="backward"),
    record("grad", "w", phase="backward"),
)


def _layers(
    places: Mapping[int, str], level: str = "module", *, shape: tuple[int, ...] = (2, 3)
) -> dict[int, Divergence]:
    """What ranks diverge by that first differ in these modules, where activations cross ranks; `shape`: rank 1's."""
    pairs = {}
    for rank, name in places.items():
        changed = [
            replace(r, digest=99, shape=shape if rank == 1 else r.shape) if r.name == name else r for r in LAYERS
        ]
        pairs[rank] = _of(rank, stream_of(LAYERS), stream_of(changed, run="r2"))
    return attribute(pairs, level=level, exchanges=True)


@pytest.mark.parametrize("place", [("block_post", "forward"), ("block_grad_in", "backward")])
@pytest.mark.parametrize("ranks", [(1,), (0, 1)])
def test_whose_work_the_output_of_a_block_is_is_open_where_experts_are_of_other_ranks(
    place: Place, ranks: tuple[int, ...]
) -> None:
    found = _attributed(REPLAYED, {rank: [place] for rank in ranks}, exchanges=True)
    assert {rank: (d.cause, d.origin, d.closer) for rank, d in found.items()} == dict.fromkeys(
        ranks, (None, None, "op")
    )
    assert _attributed(REPLAYED, {1: [place]})[1].cause == "compute"


@pytest.mark.parametrize(
    "place", [("block_pre", "forward"), ("logits", "forward"), ("loss", "forward"), ("block_grad_out", "backward")]
)
def test_what_a_rank_makes_of_its_own_is_its_own_where_activations_cross_ranks(place: Place) -> None:
    found = _attributed(REPLAYED, {1: [place], 2: [("input", "before")]}, exchanges=True)
    assert (found[1].cause, found[1].origin) == ("compute", None)


@pytest.mark.parametrize("place", [("block_post", "forward"), ("block_grad_in", "backward"), ("grad", "backward")])
def test_activations_bring_the_divergence_of_a_rank_that_began_earlier(place: Place) -> None:
    found = _attributed(REPLAYED, {0: [place], 2: [("block_pre", "forward")]}, exchanges=True)
    assert (found[0].cause, found[0].origin, found[0].closer) == ("upstream", 2, "collective")
    assert (found[2].cause, found[2].origin) == ("compute", None)


@pytest.mark.parametrize("shape", [(2, 3), (3, 3)], ids=["other rows", "more rows"])
def test_experts_are_given_what_another_rank_sends_them(shape: tuple[int, ...]) -> None:
    found = _layers({0: "blocks.0.ffn.router", 1: "blocks.0.ffn.experts.2.gate"}, shape=shape)
    assert (found[0].cause, found[0].origin) == ("compute", None)
    assert (found[1].cause, found[1].origin, found[1].closer) == ("upstream", 0, "collective")


def test_more_rows_from_nobody_are_another_program() -> None:
    found = _layers({1: "blocks.0.ffn.experts.2.gate"}, shape=(3, 3))
    assert (found[1].kind, found[1].cause) == ("layout", "sequence")


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("blocks.0.ffn.router", "compute"),
        ("blocks.0.ffn.experts.2.gate", None),
        ("blocks.0.ffn", None),
        # Inside of the block the layer is looked at: what the block adds to it is its own.
        ("blocks.0", "compute"),
    ],
)
def test_between_modules_only_experts_and_their_layer_are_open(name: str, cause: str | None) -> None:
    assert _layers({1: name})[1].cause == cause


def test_where_all_to_alls_are_seen_nothing_is_open() -> None:
    found = _attributed(COLLECTIVES, {1: [("block_post", "forward")]}, "collective", exchanges=True)
    assert (found[1].cause, found[1].closer) == ("compute", "op")


# --- collectives -----------------------------------------------------------------------------------------------------

GROUPS = {rank: {"mesh": (0, 1, 2)} for rank in range(3)}


@pytest.mark.parametrize("level", ["collective", "op"])
def test_a_collective_that_delivers_other_bits_of_equal_inputs_is_the_cause(level: str) -> None:
    found = _attributed(COLLECTIVES, {1: [("collective_out", "forward")]}, level, groups=GROUPS)
    assert {rank: (d.cause, d.origin, d.closer) for rank, d in found.items()} == {1: ("collective", None, None)}


@pytest.mark.parametrize("level", ["collective", "op"])
def test_what_another_rank_sent_is_upstream_of_that_rank(level: str) -> None:
    sent, delivered = ("collective_in", "backward"), ("collective_out", "backward")
    places = {0: [delivered], 1: [("block_post", "forward"), sent, delivered], 2: [delivered]}
    found = _attributed(COLLECTIVES, places, level, groups=GROUPS)
    assert {rank: (d.cause, d.origin, d.closer) for rank, d in found.items()} == {
        0: ("upstream", 1, None),
        1: ("compute" if level == "collective" else "memory", None, "op" if level == "collective" else None),
        2: ("upstream", 1, None),
    }


def test_only_the_same_collective_brings_bits() -> None:
    # Rank 1 sent other bits into the all-gather, and yet it is the reduce-scatter that delivered some to rank 0.
    places = {0: [("collective_out", "backward")], 1: [("collective_in", "forward")]}
    assert _attributed(COLLECTIVES, places, "collective", groups=GROUPS)[0].cause == "collective"


@pytest.mark.parametrize(
    ("members", "expected"), [((0, 1), ("upstream", 1)), ((0, 2), ("collective", None)), (None, ("upstream", 1))]
)
def test_a_rank_outside_the_group_sent_nothing(
    members: tuple[int, ...] | None, expected: tuple[str, int | None]
) -> None:
    groups = {0: {} if members is None else {"mesh": members}}
    places = {0: [("collective_out", "backward")], 1: [("collective_in", "backward")]}
    found = _attributed(COLLECTIVES, places, "collective", groups=groups)
    assert (found[0].cause, found[0].origin) == expected


def test_of_several_senders_the_first_to_differ_is_the_origin() -> None:
    sent = ("collective_in", "backward")
    places = {0: [("collective_out", "backward")], 1: [sent], 2: [("block_post", "forward"), sent]}
    assert _attributed(COLLECTIVES, places, "collective", groups=GROUPS)[0].origin == 2


def test_where_collectives_were_seen_gradients_bring_nothing_by_themselves() -> None:
    places = {0: [("grad", "backward")], 1: [("block_post", "forward"), ("grad", "backward")]}
    found = _attributed(COLLECTIVES, places, "collective", groups=GROUPS)
    assert (found[0].cause, found[0].origin, found[0].closer) == ("compute", None, "op")


def test_what_this_rank_itself_sent_is_no_excuse() -> None:
    places = {0: [("collective_in", "backward"), ("collective_out", "backward")]}
    found = _attributed(COLLECTIVES, places, "collective", groups=GROUPS)
    assert (found[0].site, found[0].cause, found[0].origin) == ("collective_in", "compute", None)


# --- from rank to rank to rank ---------------------------------------------------------------------------------------

# Two copies of the model on two ranks each: gradients are reduced within a copy first, and then between the copies.
COPIES = {
    rank: {"shard": (0, 1) if rank < 2 else (2, 3), "replicate": (0, 2) if rank % 2 == 0 else (1, 3)}
    for rank in range(4)
}
SCATTER = f"{collective_name('c10d._reduce_scatter_base_', 0, 'shard')} in blocks.0"
REDUCE_ALL = f"{collective_name('c10d.allreduce_', 0, 'replicate')} in blocks.0"
TWICE_REDUCED = (
    record("block_post", "blocks.0", block=0),
    record("collective_in", SCATTER, phase="backward"),
    record("collective_out", SCATTER, phase="backward"),
    record("collective_in", REDUCE_ALL, phase="backward"),
    record("collective_out", REDUCE_ALL, phase="backward"),
    record("grad", "w", phase="backward"),
)


def _changed(places: Sequence[tuple[str, str]], records: Sequence[Record] = TWICE_REDUCED) -> tuple[Stream, Stream]:
    """A rank's reference, and its second run that differs at these sites and names."""
    other = [replace(r, digest=99) if (r.site, r.name) in places else r for r in records]
    return stream_of(records), stream_of(other, run="r2")


def _reduced_twice(*starters: int) -> dict[int, tuple[Stream, Stream]]:
    """What four ranks saw where these ranks computed other bits."""
    first = [("block_post", "blocks.0"), ("collective_in", SCATTER)]
    scattered, final = [("collective_out", SCATTER), ("collective_in", REDUCE_ALL)], [("collective_out", REDUCE_ALL)]
    pairs = {}
    for rank in range(4):
        reached = any(starter in COPIES[rank]["shard"] for starter in starters)
        places = [*(first if rank in starters else ()), *(scattered if reached else ()), *final, ("grad", "w")]
        pairs[rank] = _of(rank, *_changed(places))
    return pairs


@pytest.mark.parametrize("starter", range(4))
@pytest.mark.parametrize(("level", "cause"), [("collective", "compute"), ("op", "memory")])
def test_the_origin_is_the_rank_that_started_it_and_not_the_one_that_passed_it_on(
    starter: int, level: str, cause: str
) -> None:
    found = attribute(_reduced_twice(starter), level=level, groups=COPIES)
    assert found.pop(starter).cause == cause
    assert {rank: (d.cause, d.origin) for rank, d in found.items()} == dict.fromkeys(found, ("upstream", starter))
    # Of the other copy one rank has no group in common with the starter.
    assert len(found) == 3


def test_where_two_ranks_started_each_copy_names_its_own() -> None:
    found = attribute(_reduced_twice(1, 2), level="collective", groups=COPIES)
    assert {rank: d.origin for rank, d in found.items()} == {0: 1, 1: None, 2: None, 3: 2}


def test_a_rank_whose_own_collective_failed_is_an_origin_too() -> None:
    pairs = {
        2: _changed([("collective_out", SCATTER), ("collective_in", REDUCE_ALL), ("collective_out", REDUCE_ALL)]),
        0: _changed([("collective_out", REDUCE_ALL)]),
    }
    found = attribute({rank: _of(rank, *pair) for rank, pair in pairs.items()}, level="collective", groups=COPIES)
    assert {rank: (d.cause, d.origin) for rank, d in found.items()} == {2: ("collective", None), 0: ("upstream", 2)}


def test_ranks_that_only_ever_received_from_each_other_have_an_end() -> None:
    # No program does this: each of three ranks first got what another had first got from the next.
    names = [f"{collective_name('c10d.allreduce_', number, 'all')} in blocks.0" for number in range(3)]
    pairs = {}
    for rank in range(3):
        got, sent = names[rank], names[(rank + 1) % 3]
        rows = [record("collective_out", got), record("collective_in", sent)]
        pairs[rank] = _of(rank, *_changed([("collective_out", got), ("collective_in", sent)], rows))
    groups = {rank: {"all": (0, 1, 2)} for rank in range(3)}
    found = attribute(pairs, level="collective", groups=groups)
    assert {rank: (d.cause, d.origin) for rank, d in found.items()} == dict.fromkeys(range(3), ("collective", None))


def test_without_collectives_too_the_origin_is_the_rank_that_started_it() -> None:
    # What rank 0 got of the parameters went on by its gradients to rank 2.
    places = {
        0: [("block_post", "forward"), ("grad", "backward")],
        1: [("param", "before"), ("block_post", "forward")],
        2: [("grad", "backward")],
    }
    found = _attributed(REPLAYED, places)
    assert {rank: (d.cause, d.origin) for rank, d in found.items()} == {
        0: ("upstream", 1),
        1: ("memory", None),
        2: ("upstream", 1),
    }


# --- what the step before left ---------------------------------------------------------------------------------------


def _left(**digests: int) -> dict[int, Stream]:
    """Of every rank what it had after the step before; of records that `digests` names other bits than ever."""
    after = [record(r.site, r.name, digests.get(r.name, 1), phase="after") for r in TRAINED if r.phase == "before"]
    state = [*after, record("optim", "w.exp_avg", digests.get("m", 1), phase="after")]
    return {rank: stream_of([*TRAINED[4:16], *state], rank=rank) for rank in range(3)}


@pytest.mark.parametrize("restored", [False, True])
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("site", "name"), [("param", "w"), ("buffer", "b"), ("rng", "torch")])
def test_what_a_step_starts_from_is_what_the_step_before_left(site: str, name: str, level: str, restored: bool) -> None:
    found = _attributed(TRAINED, {1: [(site, "before")]}, level, before=_left(**{name: 99}), restored=restored)
    assert {rank: (d.site, d.cause, d.origin, d.closer) for rank, d in found.items()} == {
        1: (site, "earlier", None, None)
    }


@pytest.mark.parametrize(
    ("site", "restored", "cause"),
    [
        ("param", True, "checkpoint"),
        ("rng", True, "checkpoint"),
        ("buffer", True, "checkpoint"),
        ("param", False, "memory"),
        ("rng", False, "rng"),
    ],
)
@pytest.mark.parametrize("left", [1, 98], ids=["as ever", "other bits"])
def test_what_the_step_before_did_not_leave_has_another_cause(left: int, site: str, restored: bool, cause: str) -> None:
    # Whatever it left, it is not what this step has.
    before = _left(w=left, torch=left, b=left)
    found = _attributed(TRAINED, {1: [(site, "before")]}, before=before, restored=restored)
    assert found[1].cause == cause


def test_each_rank_is_held_against_what_it_itself_left() -> None:
    before = {0: _left()[0], 1: _left(w=99)[1]}
    places = {rank: [("param", "before")] for rank in range(3)}
    found = _attributed(TRAINED, places, before=before, restored=True)
    assert {rank: d.cause for rank, d in found.items()} == {0: "checkpoint", 1: "earlier", 2: "checkpoint"}


def test_only_the_same_state_is_what_was_left() -> None:
    # The bits are there, but of another parameter, and of the same one inside the step.
    left = [record("param", "v", 99, phase="after"), record("buffer", "w", 99, phase="after")]
    before = {1: stream_of([record("param", "w", 99, phase="before"), *left])}
    assert _attributed(TRAINED, {1: [("param", "before")]}, before=before)[1].cause == "memory"


@pytest.mark.parametrize(
    ("place", "cause"), [(("block_post", "forward"), "compute"), (("optim", "after"), "optimizer")], ids=str
)
def test_what_a_step_does_itself_was_not_left_by_another(place: Place, cause: str) -> None:
    assert _attributed(TRAINED, {1: [place]}, before=_left(w=99, m=99))[1].cause == cause


def test_a_rank_that_goes_on_with_what_it_had_is_still_an_origin() -> None:
    places = {0: [("block_post", "forward")], 1: [("param", "before"), ("block_post", "forward")]}
    found = _attributed(TRAINED, places, before=_left(w=99))
    assert {rank: (d.cause, d.origin) for rank, d in found.items()} == {0: ("upstream", 1), 1: ("earlier", None)}


# --- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("group", ["mesh", "mesh_shard", "0", "mesh dim 1"])
def test_a_collectives_name_holds_its_group(group: str) -> None:
    name = collective_name("c10d.allreduce_", 12, group)
    assert (group_of(name), group_of(f"{name} in blocks.0.ffn")) == (group, group)


def test_every_cause_has_its_words() -> None:
    expected = "input rng compute collective upstream optimizer sequence checkpoint memory earlier"
    assert list(CAUSES) == expected.split()
    assert all(CAUSES.values())
