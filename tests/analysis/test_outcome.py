"""What the exit code of a sweep says in words is what it left with."""

from __future__ import annotations

from pathlib import Path

import pytest

from detsweep import load
from detsweep.analysis.outcome import outcome
from tests.support import BLOCK_0_POST, plan_of, trial_of, write_cells, write_trial


@pytest.mark.parametrize(
    ("common", "differs", "words", "style"),
    [
        ((), False, "Exit code 0: every cell passed, unsupported ones aside.", "pass"),
        ((), True, "Exit code 1: something diverged.", "diverged"),
        (
            (),
            None,
            "Exit code 3: nothing diverged, but a cell has an error or no verdict, or all are unsupported.",
            "error",
        ),
        (("positive_control=true",), False, "Exit code 0: positive control: every cell is as it should be.", "pass"),
        (("positive_control=true",), True, "Exit code 1: positive control: a cell is not as it should be.", "diverged"),
    ],
)
def test_it_is_said_what_the_code_means(
    common: tuple[str, ...], differs: bool | None, words: str, style: str, tmp_path: Path
) -> None:
    plan = plan_of(["seed=1"], common=common)
    paths, cell = write_cells(tmp_path, plan), plan.cells[0]
    if differs is not None:
        write_trial(trial_of(paths, cell), cell, differs={0: {(0, 2): BLOCK_0_POST}} if differs else {})
    assert outcome(load(tmp_path)) == (words, style)
