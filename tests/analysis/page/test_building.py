"""The whole page as values: every cell with its details, what cannot be read, and large sweeps."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from detsweep import load
from detsweep.analysis.page import build
from detsweep.analysis.page.model import Detail, Page, Part
from detsweep.paths import write_json
from tests.pages import HOSTILE, every_verdict
from tests.support import BLOCK_0_POST, as_planned, plan_of, trial_of, write_cells, write_trial


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Page:
    return build(every_verdict(tmp_path_factory.mktemp("every")))


def _part(detail: Detail, title: str) -> Part:
    (found,) = [part for part in detail.parts if part.title == title]
    return found


def _titles(detail: Detail) -> list[str]:
    return [part.title for part in detail.parts]


def test_the_header_says_what_the_exit_code_means_and_how_it_was_run(page: Page) -> None:
    assert page.outcome == "Exit code 1: something diverged."
    assert page.summary[0].startswith("8 trials of 8 cells: 2 pass, ")
    facts = {fact.name: fact.text for fact in page.facts}
    assert facts["Command"] == "python -m detsweep -m"
    assert "torch " in facts["Versions"]
    assert " UTC, on " in facts["Started"]
    assert page.unread == ()


def test_each_cell_has_details_and_paper_has_those_that_did_not_pass(page: Page) -> None:
    assert [detail.mark.split()[1] for detail in page.details][:3] == ["pass", "diverged", "error"]
    printed = {detail.mark for detail in page.details if detail.printed}
    assert printed == {"✗ diverged", "! error", "~ timeout", "≠ invalid"}
    assert [detail.anchor for detail in page.details] == [
        field.href[1:] for row in page.matrix.rows for field in row.fields if field.href
    ]
    assert [detail.back for detail in page.details] == [row.anchor for row in page.matrix.rows]
    assert all({"Statistics", "Beside the baseline", "Run it again"} <= set(_titles(one)) for one in page.details)


def test_a_diverged_cell_says_where_why_and_in_which_order(page: Page) -> None:
    detail = page.details[1]
    assert _titles(detail)[:5] == [
        "Where it diverges first",
        "Look closer, with observe=op",
        "Which records differ from r1, the first run",
        "Order of events around the first difference",
        "Statistics",
    ]
    first = _part(detail, "Where it diverges first")
    assert first.lines == ("Ranks 0, 1: compute (an operator gave other bits for the same inputs).",)
    assert [[field.text for field in row[:6]] for row in first.grids[0].rows] == [
        ["rank 0", "0", "r2", "r1", "block_post", "blocks.1"],
        ["rank 1", "0", "r2", "r1", "block_post", "blocks.0"],
    ]
    events = _part(detail, "Order of events around the first difference")
    assert [grid.caption.split(":")[0] for grid in events.grids] == [
        "Rank 1, step 0 r2, beside r1, the first run",
        "Rank 0, step 0 r2, beside r1, the first run",
    ]
    statistics = {row[0].text: row[1].text for row in _part(detail, "Statistics").grids[0].rows}
    assert statistics["diverged replays"] == "1/1, 100% (95% interval 2.5% to 100%)"


def test_a_failed_cell_shows_the_ends_of_its_logs(page: Page) -> None:
    part = _part(page.details[2], "Why it has no verdict")
    assert part.lines == (f"error: rank 1: {HOSTILE}",)
    (log,) = part.logs
    assert log.name.startswith("cells/")
    assert log.name.endswith("trial0/log/rank001.log")
    assert log.text == f"first\n{HOSTILE}"


def test_effects_stand_with_their_evidence(page: Page) -> None:
    (grid,) = _part(page.details[7], "What became of its mitigations").grids
    assert [field.text for field in grid.rows[0]] == [
        "recipe", "cudnn_deterministic", "inert", "cudnn_deterministic is inert", "0",
    ]  # fmt: skip


def test_faults_are_told_from_findings(tmp_path: Path) -> None:
    plan = plan_of(["fault=bit_flip"], common=["fault.rank=1"])
    cell = plan.cells[0]
    trial = trial_of(write_cells(tmp_path, plan), cell)
    write_trial(trial, cell, differs={1: {(0, 2): BLOCK_0_POST}}, injected=as_planned(cell))
    detail = build(load(tmp_path)).details[0]
    assert _part(detail, "Faults that were put in").lines == ("1 fault put in on purpose: this cell is no finding.",)


def test_several_trials_are_all_there(tmp_path: Path) -> None:
    plan = plan_of(["seed=1"], common=["trials=3"])
    cell, paths = plan.cells[0], write_cells(tmp_path, plan)
    write_trial(trial_of(paths, cell, 0), cell, 0)
    write_trial(trial_of(paths, cell, 1), cell, 1, differs={1: {(0, 2): BLOCK_0_POST}})
    _, trials = _part(build(load(tmp_path)).details[0], "Statistics").grids
    assert [[field.text for field in row][:3] for row in trials.rows] == [
        ["0", "✓ pass", ""],
        ["1", "✗ diverged", "block_post of block 0, rank 1, step 0 r2"],
        ["2", "? none yet", ""],
    ]


def _diverged(folder: Path) -> None:
    plan = plan_of(["seed=1"], ["seed=2"])
    paths = write_cells(folder, plan)
    for cell in plan.cells:
        write_trial(trial_of(paths, cell), cell, differs={1: {(0, 2): BLOCK_0_POST}})


def test_of_a_large_sweep_records_are_left_out_and_it_is_said(tmp_path: Path) -> None:
    _diverged(tmp_path)
    page = build(load(tmp_path), most_bytes=1000)
    (said,) = page.left_out
    assert said.startswith("Heat maps and the order of events are not here")
    assert f"python -m detsweep.analysis report {tmp_path.name}" in said
    assert "Order of events around the first difference" not in _titles(page.details[0])
    assert _part(page.details[0], "Which records differ").lines == (
        "Not shown here: see the note at the head of this page.",
    )
    assert len(_part(page.details[0], "Where it diverges first").grids[0].rows) == 1
    assert build(load(tmp_path), most_bytes=10**9).left_out == ()


def test_what_cannot_be_read_is_named_and_all_the_rest_is_there(tmp_path: Path) -> None:
    _diverged(tmp_path)
    cells = sorted((tmp_path / "cells").iterdir())
    (cells[0] / "cell.json").write_text('{"schema": 2, "id"')
    (tmp_path / "cells" / "notes.txt").write_text("x")
    (cells[1] / "trial0" / "environment-rank000.json").write_text("")
    page = build(load(tmp_path))
    assert any(line.startswith(f"cells/{cells[0].name}/cell.json cannot be read") for line in page.unread)
    assert "cells/notes.txt is no folder of a cell" in page.unread
    assert any("environment-rank000.json cannot be read" in line for line in page.unread)
    assert sorted(detail.mark for detail in page.details) == ["! error", "✗ diverged"]
    (broken,) = [detail for detail in page.details if detail.mark == "! error"]
    assert _part(broken, "Where it lies").lines == (f"cells/{cells[0].name}",)


def test_without_sweep_json_it_is_still_a_page(tmp_path: Path) -> None:
    _diverged(tmp_path)
    (tmp_path / "sweep.json").unlink()
    page = build(load(tmp_path))
    assert page.facts[0].text == "not known: sweep.json names none"
    assert "sweep.json is missing" in page.unread


def test_a_lost_trial_folder_and_a_drill_do_not_break_it(tmp_path: Path) -> None:
    plan = plan_of(["seed=1"])
    paths, cell = write_cells(tmp_path, plan), plan.cells[0]
    write_trial(trial_of(paths, cell), cell, differs={1: {(0, 2): BLOCK_0_POST}})
    closer = cell.closer()
    assert closer is not None
    write_json(paths.cell(closer.slug, closer.id).cell, closer.to_json())
    write_trial(trial_of(paths, closer), closer, differs={0: {(0, 2): BLOCK_0_POST}})
    detail = build(load(tmp_path)).details[0]
    look = _part(detail, "A closer look, a launch with observe=op")
    assert [row[0].text for row in look.grids[0].rows] == ["rank 0"]
    assert [row[0].text for row in _part(detail, "Where it diverges first").grids[0].rows] == ["rank 1"]
    assert "Closer look: Order of events around the first difference" in _titles(detail)
    assert not [title for title in _titles(detail) if title.startswith("Look closer")]
    shutil.rmtree(trial_of(paths, closer).folder)
    assert "Where it diverges first" in _titles(build(load(tmp_path)).details[0])


def test_of_very_many_cells_those_that_did_not_pass_have_details(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("detsweep.analysis.page.building.MOST_DETAILS", 6)
    page = build(every_verdict(tmp_path))
    assert [detail.mark for detail in page.details] == [
        "✓ pass", "✗ diverged", "! error", "~ timeout", "≠ invalid", "- unsupported",
    ]  # fmt: skip
    assert page.left_out == ("2 cells have no details here: 6 have them, those that did not pass first.",)
    assert len(page.matrix.rows) == 8
    assert [bool(field.href) for row in page.matrix.rows for field in row.fields if field.style.startswith("mark")] == [
        True, True, True, True, True, True, False, False,
    ]  # fmt: skip


def test_a_launch_that_parts_from_another_is_shown_beside_one_that_parts_from_itself(tmp_path: Path) -> None:
    plan = plan_of(["seed=1"], common=["mode=relaunch", "trials=3"])
    cell, paths = plan.cells[0], write_cells(tmp_path, plan)
    for number in range(3):
        write_trial(trial_of(paths, cell, number), cell, number, differs={1: {(0, 2): BLOCK_0_POST + (number > 0)}})
    detail = build(load(tmp_path)).details[0]
    assert [title for title in _titles(detail) if "Which records" in title] == [
        "Trial 0: Which records differ from r1, the first run",
        "Trial 1: Which records differ from the same run of trial 0",
        "Trial 1: Which records differ from r1, the first run",
    ]
