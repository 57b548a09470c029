"""Files that cannot be read, are cut off or are none of a sweep's: each by name, in the report, too."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from detsweep import load
from detsweep.analysis import print_report, write_report
from detsweep.analysis.unread import unread
from detsweep.paths import foreign
from tests.support import BLOCK_0_POST, plan_of, trial_of, write_cells, write_trial


@pytest.fixture
def trial(tmp_path: Path) -> Path:
    """The folder of one trial of a sweep in which all is well."""
    plan = plan_of(["seed=1"], ["seed=2"])
    paths = write_cells(tmp_path, plan)
    for cell in plan.cells:
        write_trial(trial_of(paths, cell), cell, differs={1: {(0, 2): BLOCK_0_POST}})
    assert unread(load(tmp_path)) == []
    return trial_of(paths, plan.cells[0]).folder


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("result.json", '{"schema": 2, ', "result.json cannot be read"),
        ("result.json", '{"schema": 1}', "result.json has schema 1"),
        ("spec.json", "[]", "spec.json holds list, not a JSON object"),
        ("environment-rank001.json", "\x00", "environment-rank001.json cannot be read"),
        ("rank001.result.json", "", "rank001.result.json has 0 bytes"),
        ("rank000.jsonl", "x", "rank000.jsonl has 1 bytes"),
        ("notes.txt", "x", "notes.txt is no file of a trial"),
        (".rank000.jsonl.abcd1234", "x", ".rank000.jsonl.abcd1234 was left half-written"),
        ("../notes", "x", "notes is no file of a cell"),
        ("../../notes", "x", "cells/notes is no folder of a cell"),
        ("../../../notes", "x", "notes is no file of a sweep"),
        ("../../../search.json", "{", "search.json cannot be read"),
        ("../../../.matrix.md.abcd1234", "{", ".matrix.md.abcd1234 was left half-written"),
    ],
)
def test_each_is_named_once_with_its_place_and_the_rest_is_there(
    name: str, content: str, said: str, trial: Path, tmp_path: Path
) -> None:
    (trial / name).write_text(content)
    lines = unread(load(tmp_path))
    assert len([line for line in lines if said in line]) == 1, lines
    assert not any(str(tmp_path) in line for line in lines)
    sweep = load(tmp_path)
    assert len(sweep.trials) == 2
    write_report(sweep)
    out = io.StringIO()
    print_report(sweep, Console(file=out))
    assert said in out.getvalue()
    assert said in (tmp_path / "matrix.md").read_text()
    assert said in (tmp_path / "matrix.html").read_text()


def test_of_many_the_terminal_says_how_many_more_there_are(trial: Path, tmp_path: Path) -> None:
    for number in range(12):
        (trial / f"notes{number}").write_text("x")
    out = io.StringIO()
    print_report(load(tmp_path), Console(file=out))
    said = [line for line in out.getvalue().splitlines() if line.startswith("file: ")]
    assert len(said) == 9
    assert said[-1] == "file: 4 more, all named in matrix.md and in .problems"


def test_a_trial_that_runs_may_have_files_that_are_not_whole(trial: Path, tmp_path: Path) -> None:
    (trial / "result.json").unlink()
    (trial / ".rank000.progress.abcd1234").write_text("x")
    (trial / "rank000.jsonl").write_text("x")
    assert unread(load(tmp_path)) == []


def test_what_others_fill_is_not_looked_into(trial: Path, tmp_path: Path) -> None:
    for folder in (
        trial / "cache",
        trial.parent / "cache",
        trial / "recording",
        tmp_path / ".jobs",
        tmp_path / "frames",
    ):
        folder.mkdir(exist_ok=True)
        (folder / "whatever").write_text("x")
    (trial.parent / "superseded").mkdir()
    (trial.parent / "trial3-attempt-12.0").mkdir()
    assert list(foreign(tmp_path)) == []
