"""What a search found, in words, from its folder alone; and the exit code that goes with it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from detsweep import Sweep, load
from detsweep.analysis import exit_code
from detsweep.analysis.report import summary
from detsweep.analysis.searched import search_lines
from detsweep.capture import SCHEMA
from detsweep.dispatch.provenance import open_session
from detsweep.paths import SweepPaths, write_json
from detsweep.plan import Cell, Plan
from tests.support import BLOCK_0_POST, plan_of, trial_of, write_cells, write_trial

LINES = ["smallest set that cures: seeded", "verified: 0/20 diverged in 2 launches, 1 of them fresh"]


def _cells(folder: Path, *common: str) -> tuple[Plan, SweepPaths]:
    """The cell itself, which diverges, and the one with its cure, which does not; two trials of each."""
    plan = plan_of(["mitigation=[none]"], ["mitigation=[seeded]"], common=["trials=2", *common])
    sweep = write_cells(folder, plan)
    for number in range(2):
        for cell, struck in zip(plan.cells, ({(0, 2): BLOCK_0_POST}, {}), strict=True):
            milliseconds = 3.0 if struck else 6.0
            write_trial(trial_of(sweep, cell, number), cell, number, differs={0: struck}, milliseconds=milliseconds)
    return plan, sweep


def _tried(cell: Cell, came_to: str, compared: int, diverged: int) -> dict[str, Any]:
    evidence = {"launches": 2, "compared": compared, "diverged": diverged, "error": None}
    members = [name for name in cell.config["mitigation"] if name != "none"]
    return {"members": members, "why": "x", "cell": cell.id, "came_to": came_to, "evidence": evidence}


def _search(plan: Plan, sweep: SweepPaths, *, compared: int = 20, name: str = "minimal", **more: Any) -> Sweep:
    """The folder after a search: by default one that found the cure."""
    bare, cured = plan.cells
    state = {
        "schema": SCHEMA,
        "items": ["seeded", "torch_det"],
        "path": [_tried(bare, "diverged", compared, 2), _tried(cured, "clean", compared, 0)],
        "launches": 4,
        "answer": ["seeded"],
        "found": True,
        "verified": True,
        "baseline_cell": bare.id,
        "answer_cell": cured.id,
        "lines": LINES,
        "state": "done",
    }
    _opened(sweep, plan, name)
    write_json(sweep.search, {**state, "name": name, **more})
    return load(sweep.folder)


def _opened(sweep: SweepPaths, plan: Plan, search: str) -> None:
    """Another command on the folder, with this search."""
    named = [
        replace(cell, config={**cell.config, "search": {**cell.config["search"], "name": search}})
        for cell in plan.cells
    ]
    open_session(sweep, Plan(tuple(named), (), 0), [])


def test_an_answer_is_told_with_its_bound_and_its_cost(tmp_path: Path) -> None:
    sweep = _search(*_cells(tmp_path, "steps=10"))
    *told, bound, cost = search_lines(sweep)
    assert told == ["", *(f"search=minimal: {line}" for line in LINES)]
    # 1 - 0.05^(1/20)
    assert bound == "search=minimal: with it the rate is below 13.9% per replay (95% confidence)"
    assert cost.startswith("search=minimal: its cost: ")
    assert cost.endswith(", a step against one without it, 2 pairs of launches")
    assert exit_code(sweep) == 0
    assert set(told) <= set(summary(sweep))


def test_the_bound_counts_what_the_search_has_counted(tmp_path: Path) -> None:
    # An earlier command may have launched more.
    plan, sweep = _cells(tmp_path, "steps=10")
    bound = "search=minimal: with it the rate is below 25.9% per replay (95% confidence)"
    assert bound in search_lines(_search(plan, sweep, compared=10))


def test_of_a_mode_that_trains_the_bound_is_one_of_trajectories(tmp_path: Path) -> None:
    plan, sweep = _cells(tmp_path, "mode=train", "steps=10", "runs=3")
    bound = "search=minimal: with it the rate is below 52.7% per trajectory (95% confidence)"
    assert bound in search_lines(_search(plan, sweep, compared=4))


def test_without_a_cure_only_that_is_told(tmp_path: Path) -> None:
    plan, sweep = _cells(tmp_path)
    line = "no set of these 2 mitigations cures it"
    found = _search(plan, sweep, answer=[], found=False, answer_cell="", lines=[line])
    assert list(search_lines(found)) == ["", f"search=minimal: {line}"]
    assert exit_code(found) == 1


def test_without_an_answer_only_why_is_told(tmp_path: Path) -> None:
    plan, sweep = _cells(tmp_path)
    found = _search(plan, sweep, answer=[], found=False, verified=False, answer_cell="", lines=["it does not diverge"])
    assert list(search_lines(found)) == ["", "search=minimal: it does not diverge"]
    assert exit_code(found) == 3


def test_a_search_that_is_not_at_its_end_says_how_far_it_is(tmp_path: Path) -> None:
    plan, sweep = _cells(tmp_path)
    found = _search(plan, sweep, answer=None, found=False, verified=False, answer_cell="", lines=[], state="running")
    assert list(search_lines(found)) == ["", "search=minimal: not at its end; 2 sets tried so far"]
    assert exit_code(found) == 3


def test_settings_have_neither_bound_nor_cost(tmp_path: Path) -> None:
    plan, sweep = _cells(tmp_path)
    found = _search(plan, sweep, name="culprit", answer=["seed=2"], lines=["it takes: seed=2"])
    assert list(search_lines(found)) == ["", "search=culprit: it takes: seed=2"]
    assert exit_code(found) == 0


def test_an_answer_of_an_earlier_command_is_not_told_again(tmp_path: Path) -> None:
    plan, sweep = _cells(tmp_path)
    _search(plan, sweep)
    _opened(sweep, plan, "none")
    found = load(tmp_path)
    assert found.search is None
    assert list(search_lines(found)) == []
    assert not any("search=" in line for line in summary(found))
    # The cell itself diverged, and nobody asks for a cure any more.
    assert exit_code(found) == 1


def test_what_is_searched_is_not_looked_at_closer(tmp_path: Path) -> None:
    plan, sweep = _cells(tmp_path)
    assert any("look closer" in line for line in summary(load(tmp_path)))
    assert not any("look closer" in line for line in summary(_search(plan, sweep)))


def test_a_cell_that_is_gone_keeps_no_answer_from_being_told(tmp_path: Path) -> None:
    plan, sweep = _cells(tmp_path, "steps=10")
    cured = plan.cells[1]
    sweep.cell(cured.slug, cured.id).cell.unlink()
    told = list(search_lines(_search(plan, sweep)))
    assert told[1:] == [
        *(f"search=minimal: {line}" for line in LINES),
        "search=minimal: with it the rate is below 13.9% per replay (95% confidence)",
    ]
