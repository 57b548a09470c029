"""Faults one by one: which were put in, which were found, whether in their place, and what was clean beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from detsweep.analysis.injected import INJECTION_COLUMNS, Clean, clean, injections
from detsweep.capture import Record
from detsweep.compare import Divergence
from detsweep.injections import ledger
from detsweep.paths import TrialPaths
from tests.support import compose, one_cell, record, struck, write_recorded

Found = tuple[int, int, str, int, str, int | None]
"""Step, run, site, place in the stream, name and block of a divergence."""
AT_BLOCK_1: Found = (0, 2, "block_post", 5, "blocks.1", 1)
AT_LOSS: Found = (0, 2, "loss", 7, "loss", None)


def _divergence(rank: int, found: Found, cause: str | None = "compute") -> dict[str, Any]:
    step, run, site, seq, name, block = found
    return Divergence(rank, step, f"r{run}", seq, site, block, name, "forward", "value", cause=cause).to_json()


def _result(
    injected: dict[int, list[dict[str, Any]]],
    divergences: Mapping[int, Sequence[Found]],
    *,
    replayed: Mapping[int, Sequence[Found]] | None = None,
    ranks: int = 2,
) -> dict[str, Any]:
    """A trial's result, as far as faults are concerned."""
    return {
        "verdict": "diverged",
        "ranks": [
            {
                "rank": rank,
                "injected": injected.get(rank, []),
                "divergences": [_divergence(rank, found) for found in divergences.get(rank, ())],
                "replay_divergences": [_divergence(rank, found) for found in (replayed or {}).get(rank, ())],
            }
            for rank in range(ranks)
        ],
    }


BIT_FLIP = ("fault=bit_flip", "fault.rank=1", "fault.block=1", "runs=3")
HIT = {1: [struck("bit_flip")]}


def _only(config: dict[str, Any], result: dict[str, Any]) -> dict[str, Any]:
    (row,) = injections(config, result)
    return row


# --- one fault -------------------------------------------------------------------------------------------------------


def test_a_fault_that_was_found_in_its_place_has_a_row_that_says_so() -> None:
    row = _only(compose(*BIT_FLIP), _result(HIT, {1: [AT_BLOCK_1], 0: [AT_LOSS]}))
    assert row == {
        "mode": "replay",
        "persistence": "transient",
        "kind": "bit_flip",
        "ranks": (1,),
        "step": 0,
        "run": "r2",
        "site": "block_post",
        "block": 1,
        "name": "blocks.1",
        "detected": True,
        "placed": True,
        "caused": True,
        "detected_by_replay": True,
        "found_cause": "compute",
    }
    assert {"cell", "trial", *row} == set(INJECTION_COLUMNS)


@pytest.mark.parametrize(
    ("divergences", "detected", "placed"),
    [
        ({}, False, False),
        ({1: [AT_BLOCK_1]}, True, True),
        ({1: [AT_BLOCK_1], 0: [AT_LOSS]}, True, True),
        ({0: [AT_BLOCK_1]}, True, False),
        ({0: [AT_BLOCK_1], 1: [AT_BLOCK_1]}, True, False),
        ({1: [AT_LOSS]}, True, False),
        ({1: [AT_BLOCK_1], 0: [(0, 2, "input", 1, "input_ids", None)]}, True, False),
        ({1: [(0, 2, "block_post", 3, "blocks.0", 0)]}, True, False),
        ({1: [(0, 2, "block_post", 5, "blocks.1", 0)]}, True, False),
        ({1: [(0, 2, "block_post", 5, "another", 1)]}, True, False),
        ({1: [(0, 3, *AT_BLOCK_1[2:])]}, False, False),
        ({1: [(1, 2, *AT_BLOCK_1[2:])]}, False, False),
    ],
    ids=["not at all", "in place", "another rank later", "another rank", "every rank", "another site",
         "another rank before it", "the block before", "another block", "another name", "another run", "another step"],
)  # fmt: skip
def test_a_fault_is_placed_where_the_earliest_divergence_is_what_was_put_in(
    divergences: dict[int, Sequence[Found]], detected: bool, placed: bool
) -> None:
    row = _only(compose(*BIT_FLIP, "steps=2"), _result(HIT, divergences))
    assert (row["detected"], row["placed"]) == (detected, placed)


def test_a_fault_on_several_ranks_must_be_found_on_all_of_them() -> None:
    config = compose("fault=input_flip")
    injected = {rank: [struck("input_flip", block=None)] for rank in range(2)}
    at_input: Found = (0, 2, "input", 1, "input_ids", None)
    assert _only(config, _result(injected, {0: [at_input], 1: [at_input]}))["ranks"] == (0, 1)
    assert _only(config, _result(injected, {0: [at_input], 1: [at_input]}))["placed"]
    assert not _only(config, _result(injected, {0: [at_input]}))["placed"]


def test_what_no_record_names_is_in_place_at_any_of_its_site() -> None:
    hit = {**struck("bit_flip"), "name": None, "block": None}
    row = _only(compose(*BIT_FLIP), _result({1: [hit]}, {1: [AT_BLOCK_1]}))
    assert row["placed"]
    # The site is known all the same.
    assert not _only(compose(*BIT_FLIP), _result({1: [hit]}, {1: [AT_LOSS]}))["placed"]


def test_the_cause_is_that_of_the_earliest_divergence() -> None:
    result = _result(HIT, {0: [AT_LOSS], 1: [AT_BLOCK_1]})
    result["ranks"][0]["divergences"] = [_divergence(0, AT_LOSS, "upstream")]
    assert _only(compose(*BIT_FLIP), result)["found_cause"] == "compute"
    assert _only(compose(*BIT_FLIP), _result(HIT, {}))["found_cause"] is None


@pytest.mark.parametrize(
    ("overrides", "cause", "caused"),
    [
        ((), "compute", True),
        ((), "memory", False),
        ((), "upstream", False),
        ((), None, False),
        (("observe=op",), "memory", True),
        (("observe=op",), "compute", False),
    ],
    ids=str,
)
def test_a_fault_is_caused_where_the_cause_is_that_of_its_kind(
    overrides: tuple[str, ...], cause: str | None, caused: bool
) -> None:
    result = _result(HIT, {})
    result["ranks"][1]["divergences"] = [_divergence(1, AT_BLOCK_1, cause)]
    result["ranks"][0]["divergences"] = [_divergence(0, AT_LOSS, "compute" if cause != "compute" else "upstream")]
    row = _only(compose(*BIT_FLIP, *overrides), result)
    assert (row["placed"], row["caused"], row["found_cause"]) == (True, caused, cause)


def test_a_gradient_at_the_level_of_blocks_has_no_cause_and_is_caused_so() -> None:
    hit = {**struck("bit_flip"), "site": "grad", "name": "w", "block": None}
    for cause, caused in ((None, True), ("compute", False)):
        result = _result({1: [hit]}, {})
        result["ranks"][1]["divergences"] = [_divergence(1, (0, 2, "grad", 9, "w", None), cause)]
        row = _only(compose(*BIT_FLIP, "fault.site=grad"), result)
        assert (row["detected"], row["placed"], row["caused"], row["found_cause"]) == (True, True, caused, cause)
    # No cause is not that of a fault that was not found at all.
    row = _only(compose(*BIT_FLIP, "fault.site=grad"), _result({1: [hit]}, {}))
    assert (row["detected"], row["placed"], row["caused"]) == (False, False, False)


@pytest.mark.parametrize(
    ("site", "struck_name", "found_name", "placed"),
    [
        ("collective_out", "c10d.x_ #1 group pg", "c10d.x_ #1 group pg in blocks.0", True),
        ("collective_out", "c10d.x_ #1 group pg", "c10d.x_ #1 group pg", True),
        ("collective_out", "c10d.x_ #1 group pg", "c10d.x_ #2 group pg in blocks.0", False),
        ("collective_out", "c10d.x_ #1 group pg", "c10d.x_ #10 group pg in blocks.0", False),
        ("collective_out", "c10d.x_ #10 group pg", "c10d.x_ #1 group pg in blocks.0", False),
        ("collective_out", "c10d.x_ #1 group pg", "c10d.x_ #1 group pg2 in blocks.0", False),
        ("collective_out", "c10d.x_ #1 group pg", "c10d.y_ #1 group pg in blocks.0", False),
        ("op", "aten.mm", "aten.mm in blocks.0.ffn", True),
        ("op", "aten.mm", "aten.mm.out in blocks.0.ffn", False),
        ("op", "aten.mm", "aten.bmm in blocks.0.ffn", False),
    ],
)
def test_a_named_fault_is_placed_only_at_what_has_its_name(
    site: str, struck_name: str, found_name: str, placed: bool
) -> None:
    hit = {**struck("bit_flip"), "site": site, "name": struck_name, "block": None}
    row = _only(compose(*BIT_FLIP, "observe=op"), _result({1: [hit]}, {1: [(0, 2, site, 5, found_name, None)]}))
    assert (row["detected"], row["placed"]) == (True, placed)


def test_a_fault_that_strikes_several_times_in_a_run_is_one() -> None:
    hits = [struck("bit_flip"), struck("bit_flip")]
    row = _only(compose(*BIT_FLIP), _result({1: hits}, {1: [AT_BLOCK_1]}))
    assert row["ranks"] == (1,)


@pytest.mark.parametrize(("run", "shows"), [(1, 2), (2, 2), (3, 3)])
def test_a_fault_in_the_first_run_is_looked_for_in_the_run_after_it(run: int, shows: int) -> None:
    config = compose(*BIT_FLIP, f"fault.run={run}")
    injected = {1: [struck("bit_flip", run=run)]}
    row = _only(config, _result(injected, {1: [(0, shows, *AT_BLOCK_1[2:])]}))
    assert (row["run"], row["detected"], row["placed"]) == (f"r{run}", True, True)


def test_a_fault_that_was_planned_and_struck_nothing_is_not_put_in() -> None:
    config = compose(*BIT_FLIP, "steps=3", "fault.step=null")
    rows = list(injections(config, _result({1: [struck("bit_flip", step=1)]}, {1: [(1, *AT_BLOCK_1[1:])]})))
    assert [(row["step"], row["run"], row.get("detected"), row["ranks"]) for row in rows] == [
        (1, "r2", True, (1,)),
        (0, None, None, ()),
        (2, None, None, ()),
    ]
    missing = rows[1]
    assert (missing["kind"], missing["site"], missing["block"], missing["name"]) == ("bit_flip", "block_post", 1, None)
    assert "placed" not in missing


def test_of_a_campaign_every_planned_fault_has_a_row() -> None:
    config = compose("fault=campaign", "steps=6", "fault.kinds=[bit_flip,swap]")
    planned = ledger(config)
    put_in = [one for one in planned if one.kind == "bit_flip"]
    assert 0 < len(put_in) < len(planned)
    injected: dict[int, list[dict[str, Any]]] = {}
    for one in put_in:
        assert one.rank is not None
        assert one.step is not None
        injected.setdefault(one.rank, []).append(struck(one.kind, one.step, block=one.block))
    rows = list(injections(config, _result(injected, {})))
    assert sorted(row["step"] for row in rows) == [1, 2, 3, 4, 5]
    assert {row["kind"]: row.get("detected") for row in rows} == {"bit_flip": False, "swap": None}


def test_without_a_fault_there_is_no_row() -> None:
    assert list(injections(compose(), _result({}, {0: [AT_LOSS]}))) == []
    assert list(injections(compose("fault=rank_failure"), _result({}, {}))) == []


# --- lockstep --------------------------------------------------------------------------------------------------------

LOCKSTEP = ("mode=lockstep", "world.nproc_per_node=3")


def test_in_lockstep_ranks_find_what_runs_of_one_process_do_not() -> None:
    config = compose(*LOCKSTEP, *BIT_FLIP, "fault.persistence=persistent")
    injected = {1: [struck("bit_flip", run=run) for run in (1, 2, 3)]}
    found = {1: [(0, run, *AT_BLOCK_1[2:]) for run in (1, 2, 3)]}
    rows = list(injections(config, _result(injected, found, ranks=3)))
    keys = ("run", "detected", "placed", "caused", "detected_by_replay")
    assert [tuple(row[key] for key in keys) for row in rows] == [("r1, r2, r3", True, True, True, False)]


ELSEWHERE: Found = (0, 2, "block_post", 3, "blocks.0", 0)


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        (None, (False, False, False)),
        ((AT_BLOCK_1, "compute"), (True, True, True)),
        ((AT_BLOCK_1, "memory"), (True, True, False)),
        ((ELSEWHERE, "compute"), (True, False, True)),
        ((ELSEWHERE, None), (True, False, False)),
    ],
    ids=["missed", "as the others", "another cause", "another place", "neither"],
)
@pytest.mark.parametrize("odd", [1, 2, 3])
def test_a_persistent_fault_is_found_only_as_in_the_worst_of_its_runs(
    odd: int, second: tuple[Found, str | None] | None, expected: tuple[bool, bool, bool]
) -> None:
    config = compose(*LOCKSTEP, *BIT_FLIP, "fault.persistence=persistent")
    result = _result({1: [struck("bit_flip", run=run) for run in (1, 2, 3)]}, {}, ranks=3)
    found = [_divergence(1, (0, run, *AT_BLOCK_1[2:])) for run in (1, 2, 3) if run != odd]
    if second is not None:
        place, cause = second
        found.append(_divergence(1, (0, odd, *place[2:]), cause))
    result["ranks"][1]["divergences"] = found
    row = _only(config, result)
    assert (row["run"], row["ranks"]) == ("r1, r2, r3", (1,))
    assert (row["detected"], row["placed"], row["caused"]) == expected


def test_persistent_faults_of_several_steps_are_several_faults() -> None:
    config = compose(*LOCKSTEP, *BIT_FLIP, "fault.persistence=persistent", "steps=2", "fault.step=null")
    injected = {1: [struck("bit_flip", step, run) for step in (0, 1) for run in (1, 2, 3)]}
    found = {1: [(step, run, *AT_BLOCK_1[2:]) for step in (0, 1) for run in (1, 2, 3) if (step, run) != (1, 2)]}
    rows = list(injections(config, _result(injected, found, ranks=3)))
    assert [(row["step"], row["run"], row["detected"]) for row in rows] == [
        (0, "r1, r2, r3", True),
        (1, "r1, r2, r3", False),
    ]


def test_one_run_that_a_replay_finds_is_enough_for_replay() -> None:
    config = compose(*LOCKSTEP, *BIT_FLIP, "fault.persistence=persistent")
    injected = {1: [struck("bit_flip", run=run) for run in (1, 2, 3)]}
    result = _result(injected, {}, replayed={1: [(0, 3, *AT_BLOCK_1[2:])]}, ranks=3)
    row = _only(config, result)
    assert (row["detected"], row["detected_by_replay"]) == (False, True)


def test_in_lockstep_what_replay_finds_is_counted_beside_it() -> None:
    config = compose(*LOCKSTEP, *BIT_FLIP)
    result = _result(HIT, {1: [AT_BLOCK_1]}, replayed={1: [AT_BLOCK_1]}, ranks=3)
    assert _only(config, result)["detected_by_replay"]
    # Nor does a replay find anything for the vote.
    result = _result(HIT, {}, replayed={1: [AT_BLOCK_1]}, ranks=3)
    assert not _only(config, result)["detected"]


def test_in_lockstep_a_fault_in_the_first_run_is_found_in_it() -> None:
    config = compose(*LOCKSTEP, *BIT_FLIP, "fault.run=1")
    row = _only(config, _result({1: [struck("bit_flip", run=1)]}, {1: [(0, 1, *AT_BLOCK_1[2:])]}, ranks=3))
    assert (row["detected"], row["placed"]) == (True, True)


# --- what was clean --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "compared"),
    [
        ((), 2),
        (("runs=3", "steps=2"), 8),
        (("runs=3", "steps=2", "mode=train"), 8),
        (("steps=2", "mode=resume"), 4),
        (("runs=3", "steps=2", "mode=lockstep"), 12),
        (("runs=1", "mode=lockstep"), 2),
    ],
    ids=str,
)
def test_without_a_fault_every_comparison_of_a_rank_is_clean(overrides: tuple[str, ...], compared: int) -> None:
    assert clean(compose(*overrides), _result({}, {})) == Clean(compared, 0)


def test_a_divergence_without_a_fault_in_its_run_is_a_false_alarm() -> None:
    config = compose(*BIT_FLIP, "steps=2")
    found = {1: [AT_BLOCK_1, (0, 3, *AT_BLOCK_1[2:])], 0: [AT_LOSS, (1, 2, *AT_LOSS[2:])]}
    # Four comparisons of two ranks; that of the fault is not clean, whoever saw it.
    assert clean(config, _result(HIT, found)) == Clean(6, 2)


def test_nothing_is_clean_beside_a_fault_in_the_first_run_of_a_step() -> None:
    config = compose(*BIT_FLIP, "steps=2", "fault.run=1")
    found = {1: [(0, run, *AT_BLOCK_1[2:]) for run in (2, 3)]}
    assert clean(config, _result({1: [struck("bit_flip", run=1)]}, found)) == Clean(4, 0)


@pytest.mark.parametrize(
    ("run", "compared", "alarms"),
    [
        # Of run 2 the steps before it are clean, of run 3 all.
        (2, 2 * 1 + 2 * 3, 1),
        (3, 2 * 3 + 2 * 1, 2),
        # What the first run is after it, every run is held against.
        (1, 2 * 1 + 2 * 1, 0),
    ],
)
def test_in_a_trajectory_what_follows_a_fault_is_not_clean(run: int, compared: int, alarms: int) -> None:
    config = compose("fault=bit_flip", "mode=train", "steps=3", "runs=3", f"fault.run={run}", "fault.step=1")
    found = {1: [(1, 2, *AT_BLOCK_1[2:]), (2, 2, *AT_BLOCK_1[2:]), (1, 3, *AT_BLOCK_1[2:])]}
    assert clean(config, _result({1: [struck("bit_flip", 1, run)]}, found)) == Clean(compared, alarms)


RECORDS = (record("input", "input_ids", phase="before"), record("block_post", "blocks.1", block=1))


@pytest.mark.parametrize(("run", "compared"), [(1, 0), (2, 2 * 3)])
def test_in_lockstep_a_fault_raises_no_alarm_in_the_other_runs(tmp_path: Path, run: int, compared: int) -> None:
    cell = one_cell(*LOCKSTEP, *BIT_FLIP, f"fault.run={run}")

    def records(rank: int, step: int, number: int) -> list[Record]:
        return [replace(one, digest=7) if (rank, number) == (1, run) and one.block == 1 else one for one in RECORDS]

    trial = TrialPaths(tmp_path / f"x-{cell.id}" / "trial0")
    result = write_recorded(trial, cell, records=records, injected={1: [struck("bit_flip", run=run)]})
    assert clean(cell.config, result) == Clean(compared, 0)
    row = _only(dict(cell.config), result)
    assert (row["placed"], row["detected_by_replay"]) == (True, run == 2)
