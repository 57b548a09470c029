"""A fleet: one cell for each node or GPU, those that are away with their reason, and a fault that one node has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from detsweep import environment, fleet
from detsweep.nodes import Node
from detsweep.plan import Plan, make_plan
from tests.dispatch.slurm.commands import Cluster, on_path
from tests.support import compose

SLURM = ("launch=slurm", "fleet=nodes")
UP = "main*|n1|idle|none\nmain*|n2|idle|none\nmain*|n3|mixed|none"


@pytest.fixture(autouse=True)
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster(tmp_path / "slurm")
    made.set(sinfo=UP)
    monkeypatch.setenv("PATH", on_path(made.folder))
    return made


def _plan(*points: tuple[str, ...]) -> Plan:
    return make_plan([(list(point), compose(*point)) for point in points])


def _places(plan: Plan) -> list[Any]:
    return [(cell.config["world"]["node"], cell.config["world"]["gpu"]) for cell in plan.cells]


def test_without_a_fleet_a_cell_is_one_and_nobody_is_asked(cluster: Cluster) -> None:
    plan = _plan(("launch=slurm",))
    assert (len(plan.cells), cluster.calls) == (1, [])


def test_each_node_has_a_cell_of_its_own_that_names_it() -> None:
    plan = _plan((*SLURM, "seed=1"), (*SLURM, "seed=2"))
    assert plan.problems == ()
    assert _places(plan) == [("n1", None), ("n2", None), ("n3", None)] * 2
    assert [plan.label(cell) for cell in plan.cells[:2]] == ["seed=1 world.node=n1", "seed=1 world.node=n2"]
    assert len({cell.id for cell in plan.cells}) == 6
    assert plan.repeated == 0


def test_nodes_are_asked_for_once_whatever_the_number_of_cells(cluster: Cluster) -> None:
    _plan(*((*SLURM, f"seed={seed}") for seed in range(5)))
    assert cluster.count() == {"sinfo": 1}


def test_each_gpu_of_each_node_has_one() -> None:
    words = ("launch=slurm", "fleet=gpus", "launch.gpus_per_node=2", "device=cuda", "world.nproc_per_node=1")
    assert _places(_plan(words)) == [(node, gpu) for node in ("n1", "n2", "n3") for gpu in (0, 1)]


def test_on_this_machine_each_of_its_gpus_has_one(monkeypatch: pytest.MonkeyPatch, cluster: Cluster) -> None:
    monkeypatch.setattr(environment, "visible_gpus", lambda: ("0", "1", "2"))
    plan = _plan(("fleet=gpus", "device=cuda", "world.nproc_per_node=1"))
    assert (_places(plan), cluster.calls) == ([(None, 0), (None, 1), (None, 2)], [])


def test_a_node_that_is_away_is_unsupported_with_its_reason(cluster: Cluster) -> None:
    cluster.set(sinfo=UP.replace("n2|idle|none", "n2|down*|fan failed"))
    plan = _plan(SLURM)
    assert [cell.unsupported for cell in plan.cells] == [None, "node n2 is down (fan failed)", None]


def test_a_node_that_comes_back_is_the_same_cell(cluster: Cluster) -> None:
    before = [cell.id for cell in _plan(SLURM).cells]
    cluster.set(sinfo=UP.replace("n2|idle", "n2|down"))
    assert [cell.id for cell in _plan(SLURM).cells] == before


def test_a_partition_that_is_not_there_is_a_problem(cluster: Cluster) -> None:
    cluster.set(sinfo="high|n1|idle|none")
    (line,) = _plan(SLURM).problems
    assert line.startswith("no default partition; valid: ")


# --- a fault of one node ---------------------------------------------------------------------------------------------

FAULT = (*SLURM, "fault=bit_flip", "fault.node=n2")


def test_a_fault_of_one_node_is_in_that_nodes_cell_alone() -> None:
    plan = _plan(FAULT)
    assert plan.problems == ()
    assert [cell.config["fault"]["kind"] for cell in plan.cells] == ["none", "bit_flip", "none"]


def test_the_cells_of_other_nodes_are_those_of_a_clean_sweep() -> None:
    clean, faulty = ([cell.id for cell in _plan(words).cells] for words in (SLURM, FAULT))
    assert [one == other for one, other in zip(clean, faulty, strict=True)] == [True, False, True]


def test_a_fault_of_a_node_that_no_cell_is_on_is_a_problem() -> None:
    (line,) = _plan((*SLURM, "fault=bit_flip", "fault.node=n9")).problems
    assert line == "fault.node=n9: no cell is pinned to it; valid: n1, n2, n3"


def test_a_fault_of_a_node_needs_cells_that_have_one() -> None:
    (line, *_) = _plan(("launch=slurm", "fault=bit_flip", "fault.node=n2")).problems
    assert line == "fault.node=n2: needs cells that are pinned to nodes (fleet=nodes); else use fault.rank"


def test_a_cell_that_is_pinned_by_hand_has_the_fault_of_its_node() -> None:
    words = ("launch=slurm", "fault=bit_flip", "fault.node=n2")
    plan = _plan((*words, "world.node=n1"), (*words, "world.node=n2"))
    assert plan.problems == ()
    assert [cell.config["fault"]["kind"] for cell in plan.cells] == ["none", "bit_flip"]


@pytest.mark.parametrize(
    ("node", "pinned", "struck"),
    [(None, None, True), (None, "a", True), ("a", None, True), ("a", "a", True), ("a", "b", False)],
)
def test_where_a_fault_may_strike(node: str | None, pinned: str | None, struck: bool) -> None:
    assert fleet.struck({"fault": {"node": node}, "world": {"node": pinned}}) is struck


def test_a_place_changes_nothing_of_the_configuration_that_it_is_made_from() -> None:
    config = compose(*SLURM)
    points = fleet.spread(SLURM, config, lambda _: [Node("n1", None)], gpus=0)
    assert config["world"]["node"] is None
    assert points[0][1]["world"] == {**config["world"], "node": "n1"}
