"""Real sweeps held against each other, and against a golden file of one of them, through the command line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Ran, Run, clean_environment

CELL = ("dtype=fp32", "model.num_layers=2")


@pytest.fixture(scope="module")
def plain(detsweep: Run) -> Ran:
    return detsweep(*CELL)


@pytest.fixture(scope="module")
def again(detsweep: Run) -> Ran:
    """The same from another shell, whose variables do not reach a trial."""
    return detsweep(*CELL, MKL_CBWR="AVX2", NCCL_PROTO="LL")


@pytest.fixture(scope="module")
def one_variable(detsweep: Run) -> Ran:
    return detsweep(*CELL, "+env.MKL_CBWR=COMPATIBLE")


@pytest.fixture(scope="module")
def corrupted(detsweep: Run) -> Ran:
    """Rank 1 is wrong in every run alike, so that the trial repeats itself."""
    fault = ("fault=bit_flip", "fault.persistence=persistent", "fault.rank=1", "fault.block=1", "fault.bit=20")
    return detsweep(*CELL, *fault)


def _run(module: str, *words: Path | str) -> tuple[int, list[str]]:
    done = subprocess.run(
        [sys.executable, "-m", f"detsweep.{module}", *map(str, words)],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, [*done.stdout.splitlines(), *done.stderr.splitlines()]


def _trial(ran: Ran) -> Path:
    (cell,) = ran.cells().values()
    return cell / "trial0"


def test_a_trial_with_itself_is_nothing_but_a_line_that_says_so(plain: Ran) -> None:
    assert plain.code == 0, plain.out + plain.err
    code, (line,) = _run("diff", _trial(plain), _trial(plain))
    assert code == 0
    assert line.startswith("no difference: configuration, environment and bits of 1 trial of 2 ranks in 1 cell, ")


def test_two_launches_of_one_configuration_differ_in_nothing_but_what_the_shells_had(plain: Ran, again: Ran) -> None:
    code, lines = _run("diff", plain.folder, again.folder)
    assert code == 0
    assert lines[2:4] == [
        "reached neither: launch: kept out MKL_CBWR: not there -> AVX2",
        "reached neither: launch: kept out NCCL_PROTO: not there -> LL",
    ]
    assert lines[4].startswith("no other difference: ")


def test_two_sweeps_that_differ_in_one_variable_name_exactly_it(plain: Ran, one_variable: Ran) -> None:
    code, lines = _run("diff", plain.folder, one_variable.folder)
    assert code == 1
    told = [line for line in lines if line.startswith(("configuration", "environment", "asked", "only", "not "))]
    assert told == [
        "configuration: env.MKL_CBWR: unset -> COMPATIBLE",
        "environment: variables: MKL_CBWR: not there -> COMPATIBLE",
    ]


def test_a_persistent_corruption_is_placed_on_its_rank_with_its_cause(plain: Ran, corrupted: Ran) -> None:
    code, lines = _run("diff", _trial(plain), _trial(corrupted))
    assert code == 1
    assert "first difference of rank 1: block_post of block 1, step 0 r1, cause compute" in lines
    (other,) = (line for line in lines if line.startswith("first difference of rank 0: "))
    # Rank 0 computed nothing else: it has the other rank's part of a gradient.
    assert "cause upstream from rank 1" in other


def test_a_golden_file_of_one_launch_holds_for_another_and_is_refused_elsewhere(
    plain: Ran, again: Ran, one_variable: Ran, corrupted: Ran, tmp_path: Path
) -> None:
    file = tmp_path / "golden.json.gz"
    assert _run("golden", "save", plain.folder, "-o", file)[0] == 0
    code, lines = _run("golden", "check", file, again.folder)
    assert (code, lines[-1].endswith("in 1 trial of 1 cell, 2 ranks: all bits equal")) == (0, True)
    code, (line,) = _run("golden", "check", file, one_variable.folder)
    assert code == 2
    assert line.endswith("the golden file is of another configuration: env.MKL_CBWR: unset -> COMPATIBLE")
    code, lines = _run("golden", "save", corrupted.folder, "-o", tmp_path / "no.json")
    assert (code, lines[0].endswith("fault=bit_flip was put in on purpose")) == (2, True)
    assert _run("diff", file, again.folder)[0] == 0
