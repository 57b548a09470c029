"""Findings in words: commands that can be given as they stand, notes, and the table of a campaign."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from detsweep import Sweep, load
from detsweep.analysis.findings import (
    CLOSER_SHOWN,
    NOTES_SHOWN,
    campaign_lines,
    closer_lines,
    mitigation_lines,
    note_lines,
)
from detsweep.capture import Record
from detsweep.paths import read_json, write_json
from detsweep.plan import Cell, Plan, make_plan
from detsweep.results import merge
from tests.support import (
    BLOCK_1_POST,
    INPUT,
    LOSS,
    as_planned,
    compose,
    one_cell,
    plan_of,
    record,
    struck,
    trial_of,
    write_cells,
    write_recorded,
    write_trial,
)

COARSE = {0: {(0, 2): BLOCK_1_POST}}


def _sweep(folder: Path, plan: Plan, differs: Any = COARSE) -> Sweep:
    """A sweep in which every trial of every cell differed so."""
    sweep = write_cells(folder, plan)
    for cell in plan.cells:
        for number in range(cell.trials):
            if cell.config["mode"]["name"] == "lockstep":
                write_recorded(trial_of(sweep, cell, number), cell, number, records=_outvoted)
            else:
                write_trial(trial_of(sweep, cell, number), cell, number, differs=differs)
    return load(folder)


def _outvoted(rank: int, step: int, run: int) -> list[Record]:
    """What ranks that do the same record, where rank 0 does something else in the second run."""
    digest = 7 if (rank, run) == (0, 2) else 1
    return [record("input", "input_ids", phase="before"), record("block_post", "blocks.1", digest, block=1)]


# --- where to look closer --------------------------------------------------------------------------------------------


def _points(lines: Sequence[str]) -> list[list[str]]:
    """The overrides of the commands in these lines, as a shell splits them."""
    commands = [shlex.split(line.partition("look closer: ")[2]) for line in lines]
    assert all(command[:3] == ["python", "-m", "detsweep"] for command in commands)
    return [command[3:] for command in commands]


def test_the_command_that_looks_closer_is_the_cells_own_at_another_level(tmp_path: Path) -> None:
    cell = one_cell("dtype=fp16", "experts=4")
    (line,) = closer_lines(_sweep(tmp_path, plan_of(["dtype=fp16", "experts=4"])))
    assert line == (
        f"{cell.slug}: observed too coarsely to name the operator or collective; "
        f"look closer: python -m detsweep dtype=fp16 experts=4 observe=op"
    )


@pytest.mark.parametrize(
    "overrides",
    [
        ["dtype=fp16", "observe=module"],
        ["mitigation=[recipe,none]"],
        ["+env.A='a b'", "+env.B=null"],
        ["keep_env=[PATH,HOME]"],
        ["mode=relaunch", "trials=2"],
        ["mode=lockstep", "world.nproc_per_node=3"],
        ["mode=lockstep", "world.shard_ranks=1", "world.nproc_per_node=3"],
        ["mitigation=[primus]", "mitigation_force=true"],
        ["trials=2"],
    ],
    ids=" ".join,
)
def test_the_command_is_read_as_the_cell_at_the_closest_level_that_it_can_have(
    tmp_path: Path, overrides: list[str]
) -> None:
    plan = plan_of(overrides)
    (point,) = _points(list(closer_lines(_sweep(tmp_path, plan))))
    own = make_plan([(point, compose(*point))])
    assert own.problems == ()
    expected = plan.cells[0].closer()
    assert expected is not None
    assert own.cells[0].id == expected.id
    assert own.cells[0].unsupported is None


def test_what_only_came_from_another_rank_is_looked_at_by_its_collectives(tmp_path: Path) -> None:
    plan = plan_of(["seed=1"])
    # Rank 1 has other gradients only because rank 0 computed something else before.
    sweep = write_cells(tmp_path, plan)
    differs = {1: {(0, 2): LOSS + 1}, 0: {(0, 2): LOSS}}
    write_trial(trial_of(sweep, plan.cells[0]), plan.cells[0], differs=differs)
    loaded = load(tmp_path)
    assert list(loaded.divergences["closer"].fillna("")) == ["op", "collective"]
    # The trial's own cause is what rank 0 computed: of that the operators say more.
    assert _points(list(closer_lines(loaded))) == [["seed=1", "observe=op"]]


def test_a_gradient_whose_cause_is_open_is_looked_at_by_its_operators(tmp_path: Path) -> None:
    sweep = _sweep(tmp_path, plan_of(["seed=1"]), {0: {(0, 2): LOSS + 1}})
    assert sweep.divergences[["site", "closer"]].to_numpy().tolist() == [["grad", "op"]]
    assert sweep.divergences["cause"].isna().all()
    assert _points(list(closer_lines(sweep))) == [["seed=1", "observe=op"]]


@pytest.mark.parametrize(
    ("overrides", "differs"),
    [
        (["seed=1"], {}),
        (["seed=1"], {0: {(0, 2): INPUT}}),
        (["seed=1", "observe=op"], COARSE),
        (["seed=1", "observe=op"], {0: {(0, 2): LOSS + 1}}),
        (["seed=1", "fault=bit_flip"], COARSE),
        (["mode=lockstep", "observe=collective", "world.nproc_per_node=3"], COARSE),
    ],
    ids=[
        "nothing diverged",
        "the cause is known",
        "the closest there is",
        "a gradient at the closest there is",
        "a fault",
        "the closest of lockstep",
    ],
)
def test_where_nothing_more_can_be_said_nothing_is_proposed(tmp_path: Path, overrides: list[str], differs: Any) -> None:
    sweep = _sweep(tmp_path, plan_of(overrides), differs)
    assert set(sweep.trials["verdict"]) == {"diverged" if differs else "pass"}
    assert list(closer_lines(sweep)) == []


def test_what_is_compiled_is_compared_with_what_is_not(tmp_path: Path) -> None:
    (line,) = closer_lines(_sweep(tmp_path, plan_of(["compile=true"])))
    assert line == "compile-true: what is compiled cannot be looked into; compare it with compile=false"


def test_of_many_cells_three_are_shown_and_the_rest_is_counted(tmp_path: Path) -> None:
    lines = list(closer_lines(_sweep(tmp_path, plan_of(*([f"seed={seed}"] for seed in range(CLOSER_SHOWN + 2))))))
    assert [point[0] for point in _points(lines[:-1])] == ["seed=0", "seed=1", "seed=2"]
    assert lines[-1] == "2 more cells could be looked at closer; drill=true does it for all of them"


def test_a_cell_is_said_once_however_many_of_its_trials_diverged(tmp_path: Path) -> None:
    plan = plan_of(*([f"seed={seed}"] for seed in range(CLOSER_SHOWN)), common=["trials=2"])
    assert len(list(closer_lines(_sweep(tmp_path, plan)))) == CLOSER_SHOWN


def test_what_a_drill_has_looked_at_is_not_proposed_again(tmp_path: Path) -> None:
    plan = plan_of(["seed=1"], ["seed=2"])
    drilled = plan.cells[0].closer()
    assert drilled is not None
    lines = list(closer_lines(_sweep(tmp_path, Plan((*plan.cells, drilled), (), 0))))
    assert [line.partition(":")[0] for line in lines] == ["seed-2"]


# --- notes -----------------------------------------------------------------------------------------------------------


def _noted(folder: Path, cells: Sequence[Cell], **more: Any) -> Sweep:
    sweep = write_cells(folder, Plan(tuple(cells), (), 0))
    for cell in cells:
        write_recorded(trial_of(sweep, cell), cell, records=lambda *_: [record("loss", "loss")], **more)
    return load(folder)


def test_notes_name_their_trial_and_after_four_are_counted(tmp_path: Path) -> None:
    cells = [one_cell(f"seed={seed}") for seed in range(3)]
    lines = list(note_lines(_noted(tmp_path, cells, nonfinite={"loss": 2})))
    assert lines[:2] == [f"seed-0 trial 0: rank {rank}: 2 values of loss are not finite, step 0 r1" for rank in (0, 1)]
    assert len(lines) == NOTES_SHOWN + 1
    assert lines[-1] == "2 more notes of this kind: the column notes of .trials"


def test_exactly_four_notes_are_all_shown(tmp_path: Path) -> None:
    lines = list(note_lines(_noted(tmp_path, [one_cell("seed=0"), one_cell("seed=1")], nonfinite={"loss": 2})))
    assert len(lines) == NOTES_SHOWN
    assert not any("more notes" in line for line in lines)


def test_what_a_campaign_puts_in_is_not_noted(tmp_path: Path) -> None:
    plan = plan_of(["fault=campaign", "fault.kinds=[nan_payload]", "steps=2"])
    sweep = write_cells(tmp_path, plan)
    (cell,) = plan.cells
    lost = {"loss": 1}
    injected = as_planned(cell)
    trial = trial_of(sweep, cell)
    write_recorded(trial, cell, records=lambda *_: [record("loss", "loss")], injected=injected, nonfinite=lost)
    loaded = load(tmp_path)
    assert len(loaded.trials.iloc[0]["notes"]) == 2
    assert list(note_lines(loaded)) == []


def test_faults_that_struck_nothing_are_counted(tmp_path: Path) -> None:
    plan = plan_of(["fault=bit_flip", "fault.step=null", "steps=3"])
    sweep = write_cells(tmp_path, plan)
    injected = {0: [struck("bit_flip", step=1)]}
    write_trial(trial_of(sweep, plan.cells[0]), plan.cells[0], injected=injected)
    assert list(note_lines(load(tmp_path))) == ["2 faults were not put in: there was nothing to change where to strike"]


# --- campaigns -------------------------------------------------------------------------------------------------------


def test_without_a_campaign_there_is_no_table_of_faults(tmp_path: Path) -> None:
    assert campaign_lines(_sweep(tmp_path / "none", plan_of(["seed=1"]))) == []
    plan = plan_of(["fault=bit_flip"])
    sweep = write_cells(tmp_path / "single", plan)
    write_trial(trial_of(sweep, plan.cells[0]), plan.cells[0], injected=as_planned(plan.cells[0]))
    loaded = load(tmp_path / "single")
    assert len(loaded.injections) == 1
    assert campaign_lines(loaded) == []


def test_a_campaign_has_a_row_for_each_kind_a_sum_and_what_was_clean(tmp_path: Path) -> None:
    plan = plan_of(["fault=campaign", "fault.kinds=[bit_flip,swap]", "steps=5"])
    (cell,) = plan.cells
    injected = {0: [struck("bit_flip", 1), struck("swap", 2), struck("bit_flip", 3), struck("swap", 4)]}

    def records(rank: int, step: int, run: int) -> list[Record]:
        # Found in place, found elsewhere, found in place, missed; and a false alarm in the step without a fault.
        place = {0: "loss", 1: "block_post", 2: "loss", 3: "block_post"}.get(step) if (rank, run) == (0, 2) else None
        clean = [record("block_post", "blocks.1", block=1), record("loss", "loss")]
        return [replace(one, digest=9) if one.site == place else one for one in clean]

    write_recorded(trial_of(write_cells(tmp_path, plan), cell), cell, records=records, injected=injected)
    lines = campaign_lines(load(tmp_path))
    assert [re.split(r" {2,}", line) for line in lines] == [
        [""],
        ["mode", "persistence", "kind", "put in", "detected", "placed", "cause", "missed", "by replay"],
        ["replay", "transient", "bit_flip", "2", "2", "2", "2", "0", "2"],
        ["replay", "transient", "swap", "2", "1", "0", "1", "1", "1"],
        ["all", "4", "3", "2", "3", "1", "3"],
        [""],
        ["clean comparisons of a rank: 2, false alarms: 1"],
    ]


def test_faults_that_were_not_put_in_are_in_no_sum(tmp_path: Path) -> None:
    plan = plan_of(["fault=campaign", "fault.kinds=[bit_flip]", "steps=4"])
    sweep = write_cells(tmp_path, plan)
    write_trial(trial_of(sweep, plan.cells[0]), plan.cells[0], injected={1: [struck("bit_flip", 2)]})
    lines = campaign_lines(load(tmp_path))
    assert [line.split() for line in lines if "bit_flip" in line or "all" in line] == [
        ["replay", "transient", "bit_flip", "1", "0", "0", "0", "1", "0"],
        ["all", "1", "0", "0", "0", "1", "0"],
    ]


# --- mitigations -----------------------------------------------------------------------------------------------------


def _effects(folder: Path, *cells: dict[str, dict[str, dict[str, str]]]) -> Sweep:
    """A sweep with a cell for each of these effects, as its ranks report them."""
    plan = plan_of(*([f"seed={number}"] for number, _ in enumerate(cells)))
    sweep = write_cells(folder, plan)
    for cell, became in zip(plan.cells, cells, strict=True):
        trial = trial_of(sweep, cell)
        write_trial(trial, cell)
        for rank in range(cell.world_size):
            write_json(trial.rank_result(rank), {**read_json(trial.rank_result(rank)), "effects": became})
        write_json(trial.result, merge(trial, cell.spec(0), returncode=0, timeout_min=None, seconds=1.0))
    return load(folder)


def _inert(evidence: str) -> dict[str, str]:
    return {"status": "inert", "evidence": evidence}


SET = {"status": "set", "evidence": "there is what reads it: torch"}
NO_NCCL, NO_PRIMUS = "nothing here reads it (no nccl, no rccl)", "nothing here reads it (no primus)"
ON_CPU = "for GPUs, and this is a CPU"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"NCCL_ALGO": _inert(NO_NCCL)}, NO_NCCL),
        ({"NCCL_ALGO": _inert(NO_NCCL), "PRIMUS_DETERMINISTIC": _inert(NO_PRIMUS)}, f"{NO_NCCL}; {NO_PRIMUS}"),
        (
            {"NCCL_ALGO": _inert(NO_NCCL), "NCCL_PROTO": _inert(NO_NCCL), "cudnn_benchmark": _inert(ON_CPU)},
            f"{NO_NCCL}; {ON_CPU}",
        ),
        (
            {"fill_uninitialized_memory": _inert("only read with deterministic algorithms")},
            "only read with deterministic algorithms",
        ),
        (
            {"sdpa_backend": _inert("nothing here calls SDPA: see model.attention")},
            "nothing here calls SDPA: see model.attention",
        ),
    ],
    ids=["one", "two", "said once", "filling", "attention"],
)
def test_a_mitigation_that_nothing_reads_is_said_to_tell_nothing_with_why(
    tmp_path: Path, settings: dict[str, dict[str, str]], said: str
) -> None:
    (line,) = mitigation_lines(_effects(tmp_path, {"mine": settings}))
    assert line == f"mine is inert here, its rows say nothing about it: {said}"


def test_one_that_is_read_in_some_cells_is_said_to_tell_nothing_in_the_others(tmp_path: Path) -> None:
    sweep = _effects(tmp_path, {"mine": {"A": SET}}, {"mine": {"A": _inert(NO_PRIMUS)}})
    assert list(mitigation_lines(sweep)) == [
        f"mine is inert in some cells, those rows say nothing about it: {NO_PRIMUS}"
    ]


def test_one_of_which_a_part_is_read_is_not_inert(tmp_path: Path) -> None:
    assert list(mitigation_lines(_effects(tmp_path, {"mine": {"A": SET, "B": _inert(NO_PRIMUS)}}))) == []


def test_what_the_library_undid_itself_is_said_once(tmp_path: Path) -> None:
    undone = {"status": "set", "evidence": "undone: it was read at import, and then it was not"}
    sweep = _effects(tmp_path, *[{"mine": {"A": undone}}] * 2)
    assert list(mitigation_lines(sweep)) == ["mine: A undone: it was read at import, and then it was not"]


def test_of_a_sweep_without_mitigations_nothing_is_said(tmp_path: Path) -> None:
    assert list(mitigation_lines(_effects(tmp_path, {}))) == []
