"""Positive controls: a fault must be found, in its place, and nothing else."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from detsweep import load
from detsweep.analysis import exit_code
from detsweep.analysis.control import PLACED, campaign, judge
from detsweep.capture import Record
from tests.support import (
    BLOCK_0_POST,
    BLOCK_1_POST,
    INPUT,
    LOSS,
    as_planned,
    plan_of,
    record,
    struck,
    trial_of,
    write_cells,
    write_failure,
    write_recorded,
    write_trial,
)

COMMON = ("positive_control=true", "runs=3", "steps=2")
EVERYONE_AT_INPUT = {rank: {(0, 2): INPUT} for rank in range(2)}


def _judged(
    folder: Path, fault: list[str], *trials: Any, common: tuple[str, ...] = COMMON, injected: Any = None
) -> str:
    """The judgement over a cell with this fault, whose trials differed as given (None: an error).

    `injected`: what each rank put in, all that was planned unless said.
    """
    plan = plan_of(fault, common=[*common, f"trials={len(trials)}"])
    put_in = as_planned(plan.cells[0]) if injected is None else injected
    sweep = write_cells(folder, plan)
    for number, differs in enumerate(trials):
        if differs is None:
            write_failure(trial_of(sweep, plan.cells[0], number), plan.cells[0], number)
        else:
            trial = trial_of(sweep, plan.cells[0], number)
            write_trial(trial, plan.cells[0], number, differs=differs, injected=put_in)
    return judge(load(folder), plan.cells[0].id)


@pytest.mark.parametrize(
    ("trials", "expected"),
    [
        (({},), "clean"),
        (({}, {}), "clean"),
        (({0: {(0, 2): LOSS}},), "false alarm"),
        (({}, {0: {(0, 2): LOSS}}), "false alarm"),
        ((None,), "no verdict"),
        (({}, None), "no verdict"),
    ],
)
def test_a_cell_without_a_fault_must_be_clean(tmp_path: Path, trials: tuple[Any, ...], expected: str) -> None:
    assert _judged(tmp_path, ["fault=none"], *trials) == expected


@pytest.mark.parametrize(
    ("differs", "expected"),
    [
        (EVERYONE_AT_INPUT, "found in place"),
        ({}, "missed"),
        ({0: {(0, 2): INPUT}}, "misplaced"),
        ({rank: {(0, 2): INPUT + 1} for rank in range(2)}, "misplaced"),
        ({rank: {(0, 3): INPUT} for rank in range(2)}, "missed"),
        ({rank: {(1, 2): INPUT} for rank in range(2)}, "missed"),
    ],
    ids=["in place", "missed", "one rank only", "another site", "another run", "another step"],
)
def test_a_flipped_input_must_be_found_on_every_rank(tmp_path: Path, differs: Any, expected: str) -> None:
    assert _judged(tmp_path, ["fault=input_flip"], differs) == expected


@pytest.mark.parametrize(
    ("differs", "expected"),
    [
        ({1: {(0, 2): BLOCK_1_POST}}, "found in place"),
        ({1: {(0, 2): BLOCK_1_POST}, 0: {(0, 2): LOSS}}, "found in place"),
        ({1: {(0, 2): BLOCK_0_POST}}, "misplaced"),
        ({1: {(0, 2): LOSS}}, "misplaced"),
        ({0: {(0, 2): BLOCK_1_POST}}, "misplaced"),
        ({0: {(0, 2): BLOCK_1_POST}, 1: {(0, 2): BLOCK_1_POST}}, "misplaced"),
    ],
    ids=["in place", "others follow", "another block", "another site", "another rank", "every rank"],
)
def test_a_flipped_bit_must_be_found_in_its_rank_and_block(tmp_path: Path, differs: Any, expected: str) -> None:
    assert _judged(tmp_path, ["fault=bit_flip", "fault.rank=1", "fault.block=1"], differs) == expected


@pytest.mark.parametrize(
    ("kind", "level", "expected"),
    [
        ("bit_flip", "block", "found in place"),
        ("bit_flip", "op", "found in place"),
        # What differs is held to be computed, at the level of operators to be changed in memory.
        ("param_drift", "block", "wrong cause"),
        ("param_drift", "op", "found in place"),
        ("input_flip", "block", "wrong cause"),
        ("input_flip", "op", "wrong cause"),
    ],
)
def test_a_fault_that_is_taken_for_another_has_the_wrong_cause(
    tmp_path: Path, kind: str, level: str, expected: str
) -> None:
    injected = {0: [struck(kind, block=1)]}
    in_place = {0: {(0, 2): BLOCK_1_POST}}
    assert _judged(tmp_path, [f"fault={kind}", f"observe={level}"], in_place, injected=injected) == expected


def test_a_wrong_cause_is_a_failed_control(tmp_path: Path) -> None:
    plan = plan_of(["fault=input_flip"], common=COMMON)
    sweep = write_cells(tmp_path, plan)
    injected = {0: [struck("input_flip", block=1)]}
    trial = trial_of(sweep, plan.cells[0])
    write_trial(trial, plan.cells[0], differs={0: {(0, 2): BLOCK_1_POST}}, injected=injected)
    assert exit_code(load(tmp_path)) == 1


def test_what_is_misplaced_is_said_before_its_cause_and_its_cause_before_false_alarms(tmp_path: Path) -> None:
    injected = {0: [struck("input_flip", block=1)]}
    fault = ["fault=input_flip"]
    assert _judged(tmp_path / "place", fault, {0: {(0, 2): BLOCK_0_POST}}, injected=injected) == "misplaced"
    differs = {0: {(0, 2): BLOCK_1_POST, (1, 2): LOSS}}
    assert _judged(tmp_path / "cause", fault, differs, injected=injected) == "wrong cause"


@pytest.mark.parametrize(
    ("differs", "expected"),
    [
        ({2: {(0, run): BLOCK_1_POST for run in (1, 2, 3)}}, "found in place"),
        ({2: {(0, run): BLOCK_1_POST for run in (2, 3)}}, "missed"),
        ({2: {(0, 1): BLOCK_1_POST, (0, 2): BLOCK_1_POST, (0, 3): BLOCK_0_POST}}, "misplaced"),
        ({}, "missed"),
    ],
    ids=["in each", "missed in one", "misplaced in one", "missed in all"],
)
def test_a_persistent_fault_must_be_found_in_each_of_its_runs(tmp_path: Path, differs: Any, expected: str) -> None:
    cell = ["mode=lockstep", "world.nproc_per_node=3", "fault=bit_flip", "fault.block=1"]
    injected = {2: [struck("bit_flip", run=run) for run in (1, 2, 3)]}

    def records(rank: int, step: int, run: int) -> list[Record]:
        place = differs.get(rank, {}).get((step, run))
        return [
            record("block_post", "blocks.0", 7 if place == BLOCK_0_POST else 1, block=0),
            record("block_post", "blocks.1", 1 if place is None else 7, block=1),
        ]

    plan = plan_of([*cell, "fault.rank=2", "fault.persistence=persistent"], common=["positive_control=true", "runs=3"])
    sweep = write_cells(tmp_path, plan)
    write_recorded(trial_of(sweep, plan.cells[0]), plan.cells[0], records=records, injected=injected)
    assert judge(load(tmp_path), plan.cells[0].id) == expected


@pytest.mark.parametrize(("run", "found"), [(1, 2), (2, 2), (3, 3)])
def test_a_fault_in_the_reference_shows_in_the_run_after_it(tmp_path: Path, run: int, found: int) -> None:
    differs = {rank: {(0, found): INPUT} for rank in range(2)}
    assert _judged(tmp_path, ["fault=input_flip", f"fault.run={run}"], differs) == "found in place"


def test_found_in_one_trial_and_not_in_another_is_missed(tmp_path: Path) -> None:
    assert _judged(tmp_path, ["fault=input_flip"], EVERYONE_AT_INPUT, {}) == "missed"


def test_found_but_once_in_the_wrong_place_is_misplaced(tmp_path: Path) -> None:
    assert _judged(tmp_path, ["fault=input_flip"], EVERYONE_AT_INPUT, {0: {(0, 2): LOSS}}) == "misplaced"


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({}, 0),
        ({"fault=none": {0: {(0, 2): LOSS}}}, 1),
        ({"fault=input_flip": {}}, 1),
        ({"fault=bit_flip": {0: {(0, 2): LOSS}}}, 1),
        ({"fault=none": "error"}, 3),
        ({"fault=none": "error", "fault=input_flip": {}}, 1),
    ],
    ids=["all good", "false alarm", "missed", "misplaced", "no verdict", "no verdict and missed"],
)
def test_the_exit_code_of_a_positive_control(tmp_path: Path, changes: dict[str, Any], code: int) -> None:
    plan = plan_of(["fault=none"], ["fault=input_flip"], ["fault=bit_flip"], common=COMMON)
    sweep = write_cells(tmp_path, plan)
    found = {"fault=none": {}, "fault=input_flip": EVERYONE_AT_INPUT, "fault=bit_flip": {0: {(0, 2): BLOCK_0_POST}}}
    for cell in plan.cells:
        differs = {**found, **changes}[cell.label.split()[-1]]
        trial = trial_of(sweep, cell)
        if differs == "error":
            write_failure(trial, cell)
        else:
            write_trial(trial, cell, differs=differs, injected=as_planned(cell))
    assert exit_code(load(tmp_path)) == code


def test_a_broken_cell_of_a_positive_control_has_no_verdict(tmp_path: Path) -> None:
    plan = plan_of(["fault=none"], ["fault=input_flip"], common=COMMON)
    sweep = write_cells(tmp_path, plan)
    write_trial(trial_of(sweep, plan.cells[0]), plan.cells[0])
    sweep.cell(plan.cells[1].slug, plan.cells[1].id).cell.write_text("{")
    loaded = load(tmp_path)
    assert judge(loaded, plan.cells[1].id) == "no verdict"
    assert exit_code(loaded) == 3


def test_a_cell_of_a_positive_control_that_is_gone_has_no_verdict(tmp_path: Path) -> None:
    plan = plan_of(["fault=none"], ["fault=input_flip"], common=COMMON)
    sweep = write_cells(tmp_path, plan)
    write_trial(trial_of(sweep, plan.cells[0]), plan.cells[0])
    shutil.rmtree(sweep.cell(plan.cells[1].slug, plan.cells[1].id).folder)
    loaded = load(tmp_path)
    assert [judge(loaded, cell.id) for cell in plan.cells] == ["clean", "no verdict"]
    assert exit_code(loaded) == 3


# --- faults one by one -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("injected", "differs", "expected"),
    [
        ({}, {}, "not put in"),
        ({}, {0: {(0, 2): BLOCK_0_POST}}, "not put in"),
        ({0: [struck("bit_flip", 0, block=0)]}, {0: {(0, 2): BLOCK_0_POST}}, "not put in"),
        ({0: [struck("bit_flip", step, block=0) for step in (0, 1)]}, {0: {(0, 2): BLOCK_0_POST}}, "missed"),
        (
            {0: [struck("bit_flip", step, block=0) for step in (0, 1)]},
            {0: {(step, 2): BLOCK_0_POST for step in (0, 1)}},
            "found in place",
        ),
        (
            {0: [struck("bit_flip", step, block=0) for step in (0, 1)]},
            {0: {(0, 2): BLOCK_0_POST, (1, 2): LOSS}},
            "misplaced",
        ),
        (
            {0: [struck("bit_flip", step, block=0) for step in (0, 1)]},
            {0: {(0, 2): BLOCK_0_POST, (1, 2): BLOCK_0_POST, (1, 3): LOSS}},
            "false alarm",
        ),
    ],
    ids=[
        "none struck",
        "none struck and one seen",
        "one struck",
        "one missed",
        "all found",
        "one misplaced",
        "one more",
    ],
)
def test_each_fault_of_a_cell_is_judged(tmp_path: Path, injected: Any, differs: Any, expected: str) -> None:
    assert _judged(tmp_path, ["fault=bit_flip", "fault.step=null"], differs, injected=injected) == expected


def test_a_fault_without_a_verdict_about_it_is_not_put_in(tmp_path: Path) -> None:
    # A rank that fails on purpose corrupts nothing, and a trial that passes after it proves nothing.
    assert _judged(tmp_path, ["fault=rank_failure"], {}) == "not put in"
    assert _judged(tmp_path / "failed", ["fault=rank_failure"], None) == "no verdict"


@pytest.mark.parametrize(("steps", "expected"), [(100, "found in place"), (99, "misplaced"), (20, "misplaced")])
def test_one_fault_in_a_hundred_may_be_out_of_its_place(tmp_path: Path, steps: int, expected: str) -> None:
    assert PLACED == 0.99
    differs = {0: {(step, 2): BLOCK_0_POST if step else LOSS for step in range(steps)}}
    common = ("positive_control=true", f"steps={steps}", "world.nproc_per_node=1")
    assert _judged(tmp_path, ["fault=bit_flip", "fault.step=null"], differs, common=common) == expected


# --- campaigns -------------------------------------------------------------------------------------------------------

COUNTS = ["put_in", "detected", "placed", "cause", "missed", "by_replay"]


def test_a_campaign_is_counted_by_mode_persistence_and_kind(tmp_path: Path) -> None:
    kinds = "fault.kinds=[bit_flip,swap]"
    common = ["fault=campaign", kinds, "steps=5", "world.nproc_per_node=3"]
    plan = plan_of(["mode=replay"], ["mode=lockstep", "fault.persistence=persistent"], common=common)
    sweep = write_cells(tmp_path, plan)
    faults = [("bit_flip", 1), ("swap", 2), ("bit_flip", 3)]
    for cell in plan.cells:
        persistent = cell.config["fault"]["persistence"] == "persistent"
        runs = (1, 2) if persistent else (2,)
        injected = {1: [struck(kind, step, run) for kind, step in faults for run in runs]}

        def records(rank: int, step: int, run: int, runs: tuple[int, ...] = runs) -> list[Record]:
            # The fault of step 1 is found in its place, that of step 2 on another rank, that of step 3 nowhere.
            hit = run in runs and (rank, step) in ((1, 1), (0, 2))
            return [record("block_post", "blocks.1", 7 if hit else 1, block=1)]

        write_recorded(trial_of(sweep, cell), cell, records=records, injected=injected)
    table = campaign(load(tmp_path))
    assert table[["mode", "persistence", "kind"]].to_numpy().tolist() == [
        ["replay", "transient", "bit_flip"],
        ["replay", "transient", "swap"],
        ["lockstep", "persistent", "bit_flip"],
        ["lockstep", "persistent", "swap"],
    ]
    # Step 4 was to have a swap and had none: it is in no count. What is in every run is one fault, and no replay can
    # see it.
    assert table[COUNTS].to_numpy().tolist() == [
        [2, 1, 1, 1, 1, 1],
        [1, 1, 0, 1, 0, 1],
        [2, 1, 1, 1, 1, 0],
        [1, 1, 0, 1, 0, 0],
    ]


def test_a_campaign_counts_causes_beside_places(tmp_path: Path) -> None:
    plan = plan_of(["fault=campaign", "fault.kinds=[bit_flip,param_drift]", "steps=3"])
    sweep = write_cells(tmp_path, plan)
    injected = {0: [struck("bit_flip", 1), struck("param_drift", 2)]}
    # Both are where they were put in; that the second was a change of memory was not seen.
    differs = {0: {(step, 2): BLOCK_1_POST for step in (1, 2)}}
    write_trial(trial_of(sweep, plan.cells[0]), plan.cells[0], differs=differs, injected=injected)
    table = campaign(load(tmp_path)).set_index("kind")[COUNTS]
    assert table.loc["bit_flip"].tolist() == [1, 1, 1, 1, 0, 1]
    assert table.loc["param_drift"].tolist() == [1, 1, 1, 0, 0, 1]


def test_without_a_fault_a_campaign_is_empty(tmp_path: Path) -> None:
    write_cells(tmp_path, plan_of(["fault=campaign", "steps=2"]))
    table = campaign(load(tmp_path))
    assert (len(table), list(table.columns)) == (0, ["mode", "persistence", "kind", *COUNTS[:4], "by_replay", "missed"])
