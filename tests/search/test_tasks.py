"""From a cell to what is searched: its candidates or axes, the cells of their sets, and what does not go together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from detsweep.mitigations import Preset, load_presets
from detsweep.paths import conf_dir
from detsweep.plan import Cell, make_plan
from detsweep.search import Task, contradictions, task_of
from tests.support import compose, one_cell, plan_of

PRESETS: Mapping[str, Preset] = load_presets([conf_dir()])


def task(*overrides: str) -> tuple[Task, list[str]]:
    """The task of the cell that these overrides make, as the command line would compose its sets."""
    return task_of(one_cell(*overrides), PRESETS, lambda changes: _composed(overrides, changes))


def _composed(overrides: tuple[str, ...], changes: Mapping[str, str]) -> Cell:
    kept = [word for word in overrides if word.lstrip("+").partition("=")[0] not in changes]
    words = [*kept, *(f"{key}={value}" for key, value in changes.items())]
    plan = make_plan([(words, compose(*words))])
    if plan.problems:
        raise ValueError("\n".join(plan.problems))
    return plan.cells[0]


def minimal(*overrides: str, candidates: str) -> tuple[Task, list[str]]:
    return task("search=minimal", f"search.candidates=[{candidates}]", *overrides)


# --- minimal: candidates ---------------------------------------------------------------------------------------------


def test_candidates_are_those_with_a_place_on_the_platform() -> None:
    found, notes = minimal(candidates="torch_det,nccl_ring,seeded,gdr_flush")
    assert found.name == "minimal"
    assert found.items == ("torch_det", "seeded")
    assert notes == ["left out, without a place on cpu: nccl_ring, gdr_flush"]


def test_forced_candidates_are_taken_wherever_they_have_their_place() -> None:
    found, notes = minimal("mitigation_force=true", candidates="torch_det,nccl_ring,seeded")
    assert (found.items, notes) == (("torch_det", "nccl_ring", "seeded"), [])


def test_a_candidate_counts_once_and_the_control_is_none() -> None:
    found, notes = minimal(candidates="seeded,none,torch_det,seeded")
    assert found.items == ("seeded", "torch_det")
    assert notes == ["left out, without a place on cpu: none"]


def test_what_the_cell_has_already_is_no_candidate_and_in_every_set() -> None:
    found, notes = minimal("mitigation=[seeded]", candidates="seeded,torch_det,nccl_ring")
    assert found.items == ("torch_det",)
    assert notes == [
        "left out, the cell has them already: seeded",
        "left out, without a place on cpu: nccl_ring",
    ]
    assert list(found.cell_of(["torch_det"]).config["mitigation"]) == ["seeded", "torch_det"]
    assert list(found.cell_of([]).config["mitigation"]) == ["seeded"]


def test_a_candidate_that_contradicts_the_cell_is_left_out_in_its_own_words() -> None:
    found, notes = minimal("+env.OMP_NUM_THREADS=2", candidates="seeded,cpu_1thread,mkl_1thread")
    assert found.items == ("seeded", "mkl_1thread")
    line = "left out: OMP_NUM_THREADS cannot be both 1 (mitigation 'cpu_1thread') and 2 (your env)"
    assert notes == [line]
    found, notes = minimal("mitigation=[torch_det]", candidates="seeded,torch_det_nofill")
    assert found.items == ("seeded",)
    (line,) = notes
    assert line.startswith("left out: fill_uninitialized_memory cannot be both ")


@pytest.mark.parametrize(
    ("candidates", "line"),
    [
        ("nccl_ring,no_sdma", "search.candidates=nccl_ring,no_sdma: none of them has a place here (cpu)"),
        ("", "search.candidates=: none of them has a place here (cpu)"),
        ("none", "search.candidates=none: none of them has a place here (cpu)"),
        ("seeded,torch_dat", "search.candidates=torch_dat: no such mitigation; did you mean torch_det?; valid: "),
    ],
)
def test_without_a_candidate_there_is_nothing_to_search(candidates: str, line: str) -> None:
    with pytest.raises(ValueError, match=r"^search\.candidates=") as raised:
        minimal(candidates=candidates)
    assert str(raised.value).startswith(line)
    assert "\n" not in str(raised.value)


def test_the_packaged_candidates_all_exist_and_some_have_a_place_here() -> None:
    found, _ = task("search=minimal")
    assert {"torch_det", "torch_det_nofill", "cpu_1thread", "seeded"} <= set(found.items)
    assert set(found.items) <= set(one_cell("search=minimal").config["search"]["candidates"])


# --- minimal: sets ---------------------------------------------------------------------------------------------------


def test_the_cell_of_a_set_is_the_one_of_the_command_line_with_these_mitigations() -> None:
    found, _ = minimal("dtype=fp16", "steps=3", candidates="seeded,torch_det")
    assert (
        found.cell_of(["seeded", "torch_det"]).id
        == one_cell("dtype=fp16", "steps=3", "mitigation=[torch_det,seeded]").id
    )
    assert found.cell_of([]).id == one_cell("dtype=fp16", "steps=3").id


def test_candidates_go_together_where_they_ask_for_the_same_or_for_something_else() -> None:
    found, _ = minimal("+env.A=1", candidates="torch_det,torch_det_nofill,torch_strict,seeded")
    assert found.together(["torch_det", "torch_strict", "seeded"])
    assert not found.together(["torch_det", "torch_det_nofill"])
    assert not found.together(["seeded", "torch_det", "torch_det_nofill"])


def test_candidates_that_contradict_what_the_cell_has_go_together_with_nothing() -> None:
    found, _ = minimal("mitigation=[torch_det]", "+env.OMP_NUM_THREADS=2", candidates="seeded,omp_not_dynamic")
    assert found.together(["seeded", "omp_not_dynamic"])
    assert not found.together(["seeded", "torch_det_nofill"])
    assert not found.together(["seeded", "omp_1thread"])


def test_parts_of_a_union_are_those_with_a_place_here_that_the_cell_does_not_have() -> None:
    found, _ = minimal(candidates="cpu_1thread,recipe,seeded")
    assert list(found.parts("cpu_1thread")) == ["omp_1thread", "mkl_1thread", "torch_1thread"]
    # A workspace of cuBLAS is nothing that a CPU could have.
    assert "cublas_ws" in PRESETS["recipe"].members
    assert "torch_warn" in found.parts("recipe")
    assert "cublas_ws" not in found.parts("recipe")
    assert list(found.parts("seeded")) == []
    found, _ = minimal("mitigation=[omp_1thread]", candidates="cpu_1thread")
    assert list(found.parts("cpu_1thread")) == ["mkl_1thread", "torch_1thread"]
    found, _ = minimal("mitigation_force=true", candidates="gdr_flush")
    assert list(found.parts("gdr_flush")) == ["nccl_gdr_flush", "rccl_gdr_plain_flush"]


def test_a_cure_that_nothing_reads_is_believed_of_a_fault_that_looks_at_it_itself() -> None:
    assert minimal(candidates="seeded")[0].believable_only_if_read
    assert not minimal("case=cured_by_a_pair", candidates="seeded")[0].believable_only_if_read


def test_how_many_trials_a_cell_should_have_does_not_apply() -> None:
    line = "trials=3 does not apply: a search makes as many launches as it takes (search.max_trials)"
    assert minimal("trials=3", candidates="seeded")[1] == [line]
    assert task("search=culprit", "trials=3")[1] == [line]
    # Launches that are compared with each other cannot be asked for otherwise.
    assert minimal("trials=3", "mode=relaunch", candidates="seeded")[1] == []


# --- culprit ---------------------------------------------------------------------------------------------------------


def test_axes_are_those_on_which_the_cell_is_not_harmless() -> None:
    found, notes = task("search=culprit", "case=indexed_embedding")
    assert found.name == "culprit"
    assert found.items == (
        "dtype=fp32",
        "model.embedding=index",
        "world.threads_per_rank=2",
        "world.nproc_per_node=2",
    )
    assert notes == []
    assert found.together(found.items)
    assert list(found.parts("dtype=fp32")) == []


def test_a_set_has_the_cells_own_values_and_all_else_is_harmless() -> None:
    found, _ = task("search=culprit", "case=indexed_embedding")
    assert found.cell_of(found.items).id == one_cell("case=indexed_embedding").id
    harmless = found.cell_of([]).config
    assert (harmless["dtype"]["name"], harmless["model"]["embedding"]) == ("bf16", "module")
    assert (harmless["world"]["threads_per_rank"], harmless["world"]["nproc_per_node"]) == (1, 1)
    # What is no axis stays.
    assert (harmless["steps"], harmless["model"]["hidden_size"]) == (25, 128)
    mixed = found.cell_of(["model.embedding=index", "world.threads_per_rank=2"]).config
    assert (mixed["dtype"]["name"], mixed["model"]["embedding"]) == ("bf16", "index")
    assert (mixed["world"]["threads_per_rank"], mixed["world"]["nproc_per_node"]) == (2, 1)


def test_a_value_on_the_command_line_gives_way_to_the_harmless_one() -> None:
    found, _ = task("search=culprit", "dtype=fp32", "model.embedding=index", "compile=true", "stress=jitter")
    names = ("dtype=fp32", "model.embedding=index", "compile=true", "world.nproc_per_node=2", "stress=jitter")
    assert found.items == names
    config = found.cell_of(["compile=true"]).config
    assert (config["compile"], config["stress"]["name"], config["dtype"]["name"]) == (True, "none", "bf16")
    assert config["model"]["embedding"] == "module"


def test_numbers_are_tried_where_the_cells_own_is_larger() -> None:
    found, _ = task("search=culprit", "experts=4", "moe=topk", "top_k=1", "world.nproc_per_node=1")
    # top_k is 2 where it is harmless.
    assert found.items == ("experts=4", "moe.combine=index_put")


def test_without_experts_nothing_of_them_is_an_axis() -> None:
    found, _ = task("search=culprit", "moe=topk", "top_k=4", "moe.combine=scatter_add")
    assert found.items == ("world.nproc_per_node=2",)


def test_an_axis_that_cannot_be_harmless_here_is_left_out_with_a_note() -> None:
    found, notes = task("search=culprit", "mode=lockstep", "dtype=fp16")
    assert found.items == ("dtype=fp16",)
    (line,) = notes
    assert line.startswith("left out, world.nproc_per_node cannot be 1 here: world.nproc_per_node=1: mode=lockstep")


def test_an_axis_of_ones_own_is_searched_too() -> None:
    axes = ("+search.axes.seed=1", "+search.axes.world.nproc_per_node=2", "+search.axes.model.num_layers=1")
    found, notes = task("search=culprit", "seed=7", "dtype=fp32", *axes)
    # The harmless number of ranks is another one now.
    assert found.items == ("dtype=fp32", "seed=7", "model.num_layers=4")
    assert notes == []
    assert found.cell_of(["seed=7"]).config["model"]["num_layers"] == 1


@pytest.mark.parametrize(
    ("axes", "line"),
    [
        ("+search.axes.dtpye=bf16", "search.axes.dtpye: no such key of the configuration"),
        ("+search.axes.model.hiden_size=1", "search.axes.model.hiden_size: no such key of the configuration"),
        ("+search.axes.seed=few", "search.axes.seed=few: must be a number"),
        ("+search.axes.model.attention=maths", "search.axes.model.attention=maths: valid: math, sdpa, flash, flex"),
    ],
)
def test_an_axis_that_is_misspelt_is_refused(axes: str, line: str) -> None:
    with pytest.raises(ValueError, match=r"^search\.axes\.") as raised:
        task("search=culprit", "model.attention=sdpa", axes)
    assert str(raised.value) == line


def test_without_an_axis_there_is_nothing_to_search() -> None:
    line = "^search=culprit: the cell has the harmless value on every axis of search.axes$"
    with pytest.raises(ValueError, match=line):
        task("search=culprit", "world.nproc_per_node=1")


# --- what does not go with a search ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (["drill=true"], "drill=true: does not go with search=minimal"),
        (["positive_control=true"], "positive_control=true: does not go with search=minimal"),
        (["against=dtype:bf16"], "against=dtype:bf16: does not go with search=minimal"),
        (
            ["launch.fail_fast=true"],
            "launch.fail_fast=true: does not go with search=minimal, in which sets diverge on the way",
        ),
        (
            ["launch.rerun=all"],
            "launch.rerun=all: does not go with search=minimal, which would repeat itself without an end",
        ),
        (
            ["mitigation=[primus]"],
            "search=minimal: the cell cannot run here: mitigation 'primus' is for amd, this is cpu",
        ),
    ],
)
def test_what_does_not_go_with_a_search_is_said(overrides: list[str], line: str) -> None:
    plan = plan_of(overrides, common=["search=minimal"])
    assert list(contradictions(plan.cells)) == [line]


def test_a_search_makes_as_many_launches_as_it_takes() -> None:
    cell = one_cell("search=minimal", "trials=3", "stop_after.divergences=2", "stop_after.bound=0.1")
    assert list(contradictions([cell])) == [
        "stop_after.divergences=2: does not go with search=minimal, which makes as many launches as it takes",
        "stop_after.bound=0.1: does not go with search=minimal, which makes as many launches as it takes",
    ]


def test_a_search_takes_one_cell() -> None:
    cells = plan_of(["seed=1"], ["seed=2"], ["seed=3"], common=["search=culprit"]).cells
    assert list(contradictions(cells)) == ["search=culprit: takes one cell, the command line has 3"]
    assert list(contradictions(cells[:1])) == []


def test_everything_that_is_wrong_is_said_at_once() -> None:
    cell = one_cell("search=culprit", "drill=true", "launch.fail_fast=true")
    assert len(list(contradictions([cell, replace(cell, id="other")]))) == 3
