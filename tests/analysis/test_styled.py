"""The matrix as a notebook shows it, and the values of its fields in every form."""

from __future__ import annotations

import io

import pandas as pd
import pytest
from rich.console import Console

from detsweep import load
from detsweep.analysis.celltable import cell_table
from detsweep.analysis.frames import Sweep
from detsweep.analysis.marks import MARKS, mark
from detsweep.analysis.report import print_report, write_report
from detsweep.analysis.styled import NO_CELL, NO_VALUE, as_text
from tests.support import BLOCK_0_POST, plan_of, trial_of, write_cells, write_failure, write_trial


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    """Every verdict, one cell each: of one 3 of 10 replays diverged, of one nothing read the mitigation."""
    folder = tmp_path_factory.mktemp("every")
    plan = plan_of(
        ["seed=1"], ["seed=2"], ["seed=3"], ["seed=4"], ["seed=5"], ["seed=6", "mitigation=[recipe]"], ["seed=7"],
        ["seed=8"], common=["steps=10"],
    )  # fmt: skip
    paths = write_cells(folder, plan)
    passed, diverged, failed, late, foreign, idle, absent, _ = plan.cells
    write_trial(trial_of(paths, passed), passed)
    write_trial(trial_of(paths, diverged), diverged, differs={1: {(step, 2): BLOCK_0_POST for step in (1, 4, 7)}})
    write_failure(trial_of(paths, failed), failed, error="rank 1 failed")
    write_failure(trial_of(paths, late), late, verdict="timeout", error="no end after 30 minutes")
    write_failure(trial_of(paths, foreign), foreign, verdict="unsupported", error="not on this platform")
    write_trial(trial_of(paths, idle), idle, effects={"recipe": {"A": "inert"}})
    write_trial(trial_of(paths, absent), absent, lost={0: ["A should be 1, is unset"]})
    return load(folder)


EXPECTED = {1: "pass", 2: "diverged", 3: "error", 4: "timeout", 5: "unsupported", 6: "inert", 7: "invalid", 8: "none"}


def test_a_verdict_looks_the_same_on_the_terminal_in_markdown_in_csv_and_styled(sweep: Sweep) -> None:
    marks = {seed: MARKS[shown] for seed, shown in EXPECTED.items()}
    assert {row["seed"]: mark(row) for row in cell_table(sweep).to_dict("records")} == marks
    out = io.StringIO()
    print_report(sweep, Console(file=out, width=300))
    for seed, words in marks.items():
        assert any(line.startswith(f"{seed} ") and words in line for line in out.getvalue().splitlines())
    write_report(sweep)
    lines = (sweep.folder / "matrix.md").read_text().splitlines()
    for seed, words in marks.items():
        assert any(line.startswith(f"| {seed} |") and f"| {words} |" in line for line in lines)
    csv = pd.read_csv(sweep.folder / "matrix.csv").set_index("seed")
    verdicts = {seed: "pass" if shown == "inert" else shown for seed, shown in EXPECTED.items()}
    assert dict(csv["verdict"]) == verdicts
    assert dict(as_text(sweep.styled(rows="seed", columns=[]))["verdict"]) == marks


def test_three_of_ten_is_the_same_in_every_form(sweep: Sweep) -> None:
    (row,) = cell_table(sweep).query("seed == 2").to_dict("records")
    assert row["replays"] == "3/10"
    assert sweep.matrix(rows="seed", columns=[], value="replays").loc[2, "replays"] == "3/10"
    assert as_text(sweep.styled(rows="seed", columns=[], value="replays")).loc[2, "replays"] == "3/10"
    assert sweep.matrix(rows="seed", columns=[], value="rate").loc[2, "rate"] == "1/1"
    # One-sided at 95%, as published for 3 of 10: 0.6066.
    assert sweep.matrix(rows="seed", columns=[], value="bound").loc[2, "bound"] == pytest.approx(0.6066, abs=1e-4)
    assert sweep.matrix(rows="seed", columns=[], value="bound").loc[1, "bound"] == pytest.approx(1 - 0.05**0.1)
    assert pd.isna(sweep.matrix(rows="seed", columns=[], value="bound").loc[3, "bound"])
    assert "block_post of block 0, rank 1" in sweep.matrix(rows="seed", columns=[], value="first").loc[2, "first"]


def test_a_field_without_a_cell_says_so(sweep: Sweep) -> None:
    shown = as_text(sweep.styled(rows="mitigation", columns="seed"))
    assert shown.loc["recipe", 6] == MARKS["inert"]
    assert shown.loc["recipe", 1] == NO_CELL
    assert shown.loc["none", 8] == MARKS["none"]
    assert as_text(sweep.styled(rows="seed", columns=[], value="bound")).loc[3, "bound"] == NO_VALUE
    assert f">{NO_VALUE}<" in sweep.styled(rows="seed", columns=[], value="bound").to_html()


def test_a_styled_matrix_is_html_with_words_and_with_colours(sweep: Sweep) -> None:
    html = sweep.styled(rows="mitigation", columns="seed").to_html()
    for shown in EXPECTED.values():
        assert MARKS[shown] in html
    assert NO_CELL in html
    assert html.count("background-color") >= 5
    with pytest.raises(KeyError, match="no column and no configuration key 'rows'"):
        sweep.styled(value="rows")
