"""Injections: the same for everyone who reads the configuration, and only what a cell has to be struck."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from detsweep.capture import Record, Stream
from detsweep.causes import CAUSES, attribute
from detsweep.injections import (
    EVERY_RANK,
    KINDS,
    SITES,
    Injection,
    can_strike,
    cannot_strike,
    expected_cause,
    ledger,
    misrouted_at,
    site_of,
)
from tests.support import compose

ALL = ("observe=op", "experts=2", "model.dropout=0.1", "world.nproc_per_node=3")
"""A cell in which every kind can strike, given two steps."""


def _campaign(*overrides: str) -> tuple[Injection, ...]:
    return ledger(compose("fault=campaign", *ALL, *overrides))


# --- one fault -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("overrides", [(), ("fault=rank_failure",)], ids=str)
def test_without_a_corruption_nothing_is_injected(overrides: tuple[str, ...]) -> None:
    assert ledger(compose(*overrides)) == ()


def test_a_fault_is_injected_as_it_is_written() -> None:
    places = ("fault.rank=1", "fault.step=2", "fault.block=3", "fault.element=77", "fault.bit=5", "fault.number=9")
    found = ledger(compose("fault=bit_flip", "steps=3", *places))
    assert found == (Injection("bit_flip", 1, 2, 2, "block_post", 3, 77, 5, 9),)


def test_without_a_step_there_is_a_fault_in_each() -> None:
    assert [one.step for one in ledger(compose("fault=swap", "steps=4", "fault.step=null"))] == [0, 1, 2, 3]


@pytest.mark.parametrize(("persistence", "run"), [("transient", 3), ("persistent", None)])
def test_a_persistent_fault_is_in_every_run(persistence: str, run: int | None) -> None:
    overrides = ("runs=3", "fault.run=3", f"fault.persistence={persistence}")
    (found,) = ledger(compose("fault=bit_flip", *overrides))
    assert found.run == run
    assert [found.strikes(0, 0, number) for number in (1, 2, 3)] == [run is None, run is None, True]


CURE = ("+fault.unless.NCCL_ALGO=Ring", "+fault.unless.TORCH_COMPILE_DISABLE='1'")


@pytest.mark.parametrize(
    ("overrides", "struck"),
    [
        ((), True),
        (("mitigation=[nccl_ring]",), True),
        (("mitigation=[no_compile]",), True),
        (("+env.NCCL_ALGO=Ring",), True),
        (("mitigation=[no_compile]", "+env.NCCL_ALGO=Tree"), True),
        (("mitigation=[no_compile]", "+env.NCCL_ALGO=null"), True),
        (("mitigation=[no_compile]", "+env.NCCL_ALGO=Ring"), False),
        (("mitigation=[nccl_ring,no_compile]",), False),
        (("mitigation=[primus]",), False),
        (("+env.NCCL_ALGO=Ring", "+env.TORCH_COMPILE_DISABLE=1"), False),
    ],
    ids=str,
)
@pytest.mark.parametrize("fault", ["bit_flip", "campaign"])
def test_a_fault_strikes_unless_all_variables_that_cure_it_are_there(
    fault: str, overrides: tuple[str, ...], struck: bool
) -> None:
    found = ledger(compose(f"fault={fault}", "steps=2", *CURE, *overrides))
    assert bool(found) is struck


def test_a_cure_changes_nothing_of_a_fault_that_strikes() -> None:
    assert _campaign("steps=9", *CURE) == _campaign("steps=9")


@pytest.mark.parametrize("kind", EVERY_RANK)
def test_what_would_hang_the_group_is_on_every_rank(kind: str) -> None:
    (found,) = ledger(compose(f"fault={kind}", "observe=collective", "fault.rank=1"))
    assert found.rank is None
    everywhere = {one.kind for one in _campaign("steps=60") if one.rank is None}
    assert everywhere == set(EVERY_RANK)


@pytest.mark.parametrize(
    ("injection", "struck"),
    [
        (Injection("swap", 1, 2, 3, "block_post", 0, 0, 0, 0), {(1, 2, 3)}),
        (Injection("swap", None, 2, 3, "block_post", 0, 0, 0, 0), {(0, 2, 3), (1, 2, 3), (2, 2, 3)}),
        (Injection("swap", 1, None, 3, "block_post", 0, 0, 0, 0), {(1, 1, 3), (1, 2, 3)}),
        (Injection("swap", 1, 2, None, "block_post", 0, 0, 0, 0), {(1, 2, 1), (1, 2, 2), (1, 2, 3)}),
    ],
    ids=["named", "every rank", "every step", "every run"],
)
def test_an_injection_strikes_where_it_says(injection: Injection, struck: set[tuple[int, int, int]]) -> None:
    places = {(rank, step, run) for rank in range(3) for step in (1, 2) for run in (1, 2, 3)}
    assert {place for place in places if injection.strikes(*place)} == struck


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("asked", SITES)
def test_a_kind_strikes_where_it_is_asked_to_where_it_can(kind: str, asked: str) -> None:
    assert site_of(kind, asked) == (asked if asked in KINDS[kind] else KINDS[kind][0])


# --- campaigns -------------------------------------------------------------------------------------------------------


def test_a_campaign_is_the_same_for_everyone_and_of_the_seed() -> None:
    assert _campaign("steps=40") == _campaign("steps=40")
    assert _campaign("steps=40") != _campaign("steps=40", "seed=7")


def test_a_longer_campaign_begins_as_a_shorter_one() -> None:
    assert _campaign("steps=40")[:20] == _campaign("steps=21")


def test_there_is_one_fault_in_each_step_after_the_first() -> None:
    assert [one.step for one in _campaign("steps=30")] == list(range(1, 30))
    assert _campaign("steps=1") == ()


def test_kinds_take_turns() -> None:
    kinds = [one.kind for one in _campaign(f"steps={2 * len(KINDS) + 1}")]
    assert kinds == [*KINDS, *KINDS]


def test_a_campaign_has_the_kinds_that_are_named() -> None:
    assert [one.kind for one in _campaign("steps=4", "fault.kinds=[swap,param_drift]")] == [
        "swap",
        "param_drift",
        "swap",
    ]


def test_a_campaign_has_no_kind_that_its_cell_cannot_have() -> None:
    kinds = {one.kind for one in ledger(compose("fault=campaign", "steps=60"))}
    assert kinds == KINDS.keys() - {
        "rng_not_restored",
        "collective_flip",
        "reordered_collectives",
        "misrouted_expert",
    }


def test_places_are_drawn_within_the_cell() -> None:
    found = _campaign("steps=400")
    assert {one.rank for one in found} == {0, 1, 2, None}
    assert {one.block for one in found} == {0, 1, 2, 3}
    assert {one.bit for one in found} == set(range(16))
    assert all(one.site in KINDS[one.kind] for one in found)
    assert {one.site for one in found if one.kind == "bit_flip"} == set(KINDS["bit_flip"])
    assert len({one.element for one in found}) > 390
    assert {one.run for one in found} == {2}


def test_wider_numbers_have_more_bits_to_flip() -> None:
    found = ledger(compose("fault=campaign", "dtype=fp32", "steps=400"))
    assert {one.bit for one in found} == set(range(32))


def test_operators_are_struck_only_where_they_are_seen() -> None:
    found = ledger(compose("fault=campaign", "steps=400"))
    assert "op" not in {one.site for one in found}
    assert "op" in {one.site for one in _campaign("steps=400")}


@pytest.mark.parametrize("fault", ["campaign", "bit_flip"])
@pytest.mark.parametrize(("rate", "least", "most"), [("0", 0, 0), ("1", 199, 200), ("0.25", 25, 75)])
def test_a_rate_is_the_chance_of_each(fault: str, rate: str, least: int, most: int) -> None:
    config = compose(f"fault={fault}", "steps=200", "fault.step=null", f"fault.rate={rate}")
    assert least <= len(ledger(config)) <= most


def test_the_rate_takes_away_and_moves_nothing() -> None:
    some = _campaign("steps=100", "fault.rate=0.5")
    assert set(some) < set(_campaign("steps=100"))


def test_a_persistent_campaign_is_in_every_run() -> None:
    assert {one.run for one in _campaign("steps=30", "fault.persistence=persistent")} == {None}


def test_kinds_come_as_often_as_each_other() -> None:
    counts = Counter(one.kind for one in _campaign(f"steps={5 * len(KINDS) + 1}"))
    assert set(counts.values()) == {5}


# --- what a cell cannot have -----------------------------------------------------------------------------------------


def _reason(kind: str, *overrides: str) -> str | None:
    config: dict[str, Any] = compose(*overrides)
    assert can_strike(kind, config) is (cannot_strike(kind, config) is None)
    return cannot_strike(kind, config)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_can_strike_in_a_cell_that_has_it_all(kind: str) -> None:
    assert _reason(kind, *ALL, "steps=2") is None


DRAWS = "needs a step that draws random numbers: model.dropout=0.1"
SEEN = "needs observe=collective or observe=op"
ALL_THE_SAME = "needs fault.persistence=transient: ranks that all do the same differ from nothing"
GATHERED = "needs all-gathers of several blocks: wrap=block, and world.shard_ranks other than 1"
LATER = "needs steps of at least 2: the tensor is stale from the step before"


@pytest.mark.parametrize(
    ("kind", "missing", "reason"),
    [
        ("misrouted_expert", "experts=1", "needs experts of at least 2"),
        ("rng_not_restored", "model.dropout=0", DRAWS),
        ("collective_flip", "observe=block", SEEN),
        ("collective_flip", "observe=module", SEEN),
        ("reordered_collectives", "observe=block", SEEN),
        ("reordered_collectives", "model.num_layers=2", "needs model.num_layers of at least 3"),
        ("reordered_collectives", "fault.persistence=persistent", ALL_THE_SAME),
        ("reordered_collectives", "wrap=root", GATHERED),
        ("reordered_collectives", "world.shard_ranks=1", GATHERED),
        ("stale_tensor", "steps=1", LATER),
    ],
)
def test_a_kind_says_what_it_is_missing(kind: str, missing: str, reason: str) -> None:
    assert _reason(kind, *ALL, "steps=2", missing) == reason


@pytest.mark.parametrize("kind", KINDS)
def test_operators_that_are_not_seen_are_not_struck(kind: str) -> None:
    cell = ("experts=2", "model.dropout=0.1", "steps=2", "observe=collective", "fault.site=op")
    assert _reason(kind, *cell) == ("fault.site=op needs observe=op" if "op" in KINDS[kind] else None)


# --- the cause that a fault should be found to have ------------------------------------------------------------------

LEVELS = ("off", "block", "module", "collective", "op")
MODES = ("replay", "relaunch", "train", "resume", "lockstep")
OF_ITS_KIND = {
    "input_flip": "input",
    "zeroed_shard": "memory",
    "param_drift": "memory",
    "rng_not_restored": "rng",
    "collective_flip": "collective",
    "reordered_collectives": "sequence",
}
"""Kinds whose cause is the same at every level; that of a random state depends on the mode."""
OF_ITS_SITE: dict[str, tuple[str | None, ...]] = {
    "block_post": (None, "compute", "compute", "compute", "memory"),
    "block_grad_in": (None, "compute", "compute", "compute", "memory"),
    "logits": (None, "compute", "compute", "compute", "memory"),
    "router": (None, "compute", "compute", "compute", "memory"),
    "grad": (None, None, None, "compute", "memory"),
    "op": ("compute",) * 5,
}
"""At each level the cause of what strikes a site."""


def _cell(level: str, mode: str = "replay") -> dict[str, Any]:
    return {"observe": {"name": level}, "mode": {"name": mode}, "steps": 4, "moe": {"dispatch": "local"}}


EVERYWHERE = [(kind, site) for kind, sites in KINDS.items() for site in sites]


@pytest.mark.parametrize(("kind", "site"), EVERYWHERE)
def test_every_fault_has_the_cause_of_its_kind_or_site(kind: str, site: str) -> None:
    for mode in MODES:
        causes = (OF_ITS_KIND[kind],) * len(LEVELS) if kind in OF_ITS_KIND else OF_ITS_SITE[site]
        if (kind, mode) == ("rng_not_restored", "resume"):
            causes = ("checkpoint",) * len(LEVELS)
        assert tuple(expected_cause(kind, site, _cell(level, mode)) for level in LEVELS) == causes
        assert set(causes) <= {None, *CAUSES}


@pytest.mark.parametrize("kind", ["zeroed_shard", "param_drift"])
def test_state_that_is_wrong_at_the_break_is_taken_for_a_checkpoint_that_is(kind: str) -> None:
    cell = {**_cell("block", "resume"), "steps": 4}
    assert [expected_cause(kind, "param", cell, step) for step in range(4)] == [
        "memory",
        "memory",
        "checkpoint",
        "memory",
    ]
    assert expected_cause("input_flip", "input", cell, 2) == "input"


_PHASE = {"input": "before", "rng": "before", "param": "before", "block_grad_in": "backward", "grad": "backward"}
_COLLECTIVE = "c10d.x_ #{} group pg in blocks.0"


def _struck_pair(kind: str, site: str) -> tuple[Stream, Stream]:
    """Two runs of a rank, of which the second has a fault at this site and nothing else."""
    if kind == "reordered_collectives":
        names = [(_COLLECTIVE.format(0), _COLLECTIVE.format(1)), (_COLLECTIVE.format(1), _COLLECTIVE.format(0))]
        rows = [[("collective_out", name, 1) for name in run] for run in names]
    elif site == "collective_out":
        name = _COLLECTIVE.format(0)
        rows = [[("collective_in", name, 1), (site, name, digest)] for digest in (1, 2)]
    else:
        rows = [[("block_pre", "blocks.0", 1), (site, "x", digest)] for digest in (1, 2)]

    def stream(run: int) -> Stream:
        records = (
            Record(seq, at, name, None, "float32", (2,), digest, _PHASE.get(at, "forward"), 5 if at == "op" else None)
            for seq, (at, name, digest) in enumerate(rows[run])
        )
        return Stream(0, 0, f"r{run + 1}", "xxh3", tuple(records))

    return stream(0), stream(1)


@pytest.mark.parametrize(("kind", "site"), EVERYWHERE)
def test_the_expected_cause_is_that_which_is_found_where_only_the_fault_differs(kind: str, site: str) -> None:
    for level in LEVELS if site != "op" else ("op",):
        found = attribute({0: _struck_pair(kind, site)}, level=level)
        assert (found[0].cause, found[0].site) == (expected_cause(kind, site, _cell(level)), site), level


def test_a_random_state_that_a_checkpoint_did_not_restore_is_found_as_its_cause() -> None:
    found = attribute({0: _struck_pair("rng_not_restored", "rng")}, level="block", restored=True)
    assert found[0].cause == expected_cause("rng_not_restored", "rng", _cell("block", "resume"))


@pytest.mark.parametrize(("kind", "site"), [pair for pair in EVERYWHERE if pair[1] != "op"])
@pytest.mark.parametrize("level", LEVELS)
def test_so_it_is_where_activations_cross_ranks(kind: str, site: str, level: str) -> None:
    cell = {**_cell(level), "moe": {"dispatch": "all_to_all"}}
    found = attribute({0: _struck_pair(kind, site)}, level=level, exchanges=True)
    assert found[0].cause == expected_cause(kind, site, cell)


def test_a_misrouted_token_shows_first_in_what_ranks_tell_each_other_of_it() -> None:
    dealt = ("experts=4", "moe.dispatch=all_to_all")
    for level in LEVELS:
        for overrides in (dealt, ("experts=4",)):
            site, name = misrouted_at(compose(f"observe={level}", *overrides), 1)
            if level in ("module", "op"):
                assert (site, name) == ("module", "blocks.1.ffn.router")
            elif level == "collective" and overrides == dealt:
                assert (site, name) == ("collective_in", None)
            else:
                assert (site, name) == ("block_post", "blocks.1")
