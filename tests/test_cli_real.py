"""Nondeterminism that nobody put in: CPU threads racing in an accumulating index_put, and what cures it.

On CPU the race exists for float32 only, with at least two threads and 32768 elements; two addends commute, so it takes
three experts for a token. Races are not counted here: at least one in the budget, none in the controls.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

import detsweep as package
from tests.conftest import Ran, Run, clean_environment

LAUNCHES = 4
"""How often a race may be given another chance to show."""
COMPILERS = ("c++", "g++", "clang++")
INDEX_PUT = "aten.index_put in embedding"


def until_it_shows(detsweep: Run, *arguments: str) -> Ran:
    """Launch a cell until it diverges, and where it is drilled its closer look too, or the budget is used up."""
    for _ in range(LAUNCHES):
        ran = detsweep(*arguments)
        assert ran.code in (0, 1), ran.out + ran.err
        drills = package.load(ran.folder).drills.values()
        if ran.code == 1 and all(drill.verdict == "diverged" for drill in drills):
            break
    return ran


@pytest.fixture(scope="module")
def race(detsweep: Run) -> Ran:
    return detsweep(
        "-m",
        "dtype=fp32",
        "experts=8",
        "moe=topk",
        "top_k=2,4",
        "mitigation=none,recipe",
        "world.threads_per_rank=2",
        "model.seq_len=128",
        "steps=15",
    )


@pytest.fixture(scope="module")
def indexed(detsweep: Run) -> Ran:
    return until_it_shows(detsweep, "case=indexed_embedding", "steps=10", "drill=true")


@pytest.fixture(scope="module")
def relaunched(detsweep: Run) -> Ran:
    # A launch has nothing to compare within itself.
    return until_it_shows(
        detsweep, "case=indexed_embedding", "mode=relaunch", "steps=10", "runs=1", "trials=2", "+env.NCCL_ALGO=Tree"
    )


def test_four_addends_race_and_two_do_not(race: Ran) -> None:
    wide = package.load(race.folder).matrix(rows="top_k", columns="mitigation")
    assert wide.loc[4, "none"] == "diverged"
    assert wide.loc[2, "none"] == wide.loc[2, "recipe"] == "pass"
    assert race.code == 1


def test_deterministic_algorithms_cure_it(race: Ran) -> None:
    assert package.load(race.folder).matrix(rows="top_k", columns="mitigation").loc[4, "recipe"] == "pass"


def test_the_first_difference_is_a_blocks_output_not_its_input(race: Ran) -> None:
    divergences = package.load(race.folder).divergences
    assert not divergences.empty
    # What differs first is what the combine produced, or, where it came out equal in r1 and r2, a gradient of it.
    assert set(divergences["site"]) <= {"block_post", "grad"}
    assert "block_post" in set(divergences["site"])


def test_an_indexed_embedding_races_in_its_backward_alone(indexed: Ran) -> None:
    assert indexed.code == 1, indexed.out + indexed.err
    sweep = package.load(indexed.folder)
    trial = sweep.trials.iloc[0]
    assert (trial["first_site"], trial["first_name"]) == ("grad", "embedding.weight")
    # It is seen after its reduction: whether that or what went into it differs takes a closer look.
    assert pd.isna(trial["cause"])
    assert trial["closer"] == "op"
    # One gradient, on both ranks where its reduction mixes them; no output, no loss, no other gradient.
    differing = sweep.differing(cell=trial["cell"])
    assert set(zip(differing["site"], differing["name"], strict=True)) == {("grad", "embedding.weight")}
    assert set(differing["kind"]) == {"value"}
    assert str(trial["loss"]).startswith("0/")


def test_a_closer_look_names_the_operator_that_races(indexed: Ran) -> None:
    sweep = package.load(indexed.folder)
    (drill,) = sweep.drills.values()
    assert (drill.verdict, drill.first["cause"]) == ("diverged", "compute")
    assert (drill.first["first_site"], drill.first["first_name"]) == ("op", INDEX_PUT)
    assert drill.first["first_phase"] == "backward"
    assert f"compute: op {INDEX_PUT} (backward), rank" in indexed.out
    # Every rank races for itself, or has it from the other by the reduction.
    closer = sweep.divergences[sweep.divergences["level"] == "op"]
    assert set(closer["cause"]) <= {"compute", "upstream"}
    assert set(closer.loc[closer["cause"] == "compute", "name"]) == {INDEX_PUT}


def test_an_embedding_that_is_a_module_does_not_race(detsweep: Run) -> None:
    ran = detsweep("case=embedding", "steps=10")
    assert ran.code == 0, ran.out + ran.err
    assert "0/20" in ran.out


def test_it_shows_between_launches_too(relaunched: Ran) -> None:
    assert relaunched.code == 1, relaunched.out + relaunched.err
    sweep = package.load(relaunched.folder)
    assert list(map(str, sweep.trials["verdict"])) == ["pass", "diverged"]
    assert set(sweep.divergences["name"]) == {"embedding.weight"}
    assert set(sweep.divergences["reference"]) == {"trial0"}
    assert "against trial 0" in relaunched.out


@pytest.mark.parametrize("which", ["race", "relaunched"])
def test_the_command_for_a_closer_look_can_be_run(which: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    ran: Ran = request.getfixturevalue(which)
    (command,) = re.findall(r"look closer: (python -m detsweep .*)", ran.out)
    program, *arguments = shlex.split(command)
    assert program == "python"
    assert "observe=op" in arguments
    assert ("++env.NCCL_ALGO=Tree" in arguments, "trials=2" in arguments) == ((which == "relaunched"),) * 2
    done = subprocess.run(
        [sys.executable, *arguments, "dry_run=true"],
        cwd=tmp_path,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("1 cells, ")


def test_how_experts_are_combined_decides_whether_it_races(detsweep: Run) -> None:
    ran = until_it_shows(detsweep, "-m", "case=moe_top4", "steps=8", "moe.combine=index_put,index_add,ordered")
    verdicts = package.load(ran.folder).trials.set_index("moe.combine")["verdict"]
    assert dict(verdicts) == {"index_put": "diverged", "index_add": "pass", "ordered": "pass"}


@pytest.mark.skipif(not any(map(shutil.which, COMPILERS)), reason=f"torch.compile needs one of {', '.join(COMPILERS)}")
def test_compiled_an_embedding_races_though_as_a_module_it_does_not(detsweep: Run) -> None:
    # Compiled once for all the launches that it may take.
    ran = until_it_shows(detsweep, "case=compiled_embedding", "steps=10", "kernel_cache=shared")
    assert ran.code == 1, ran.out + ran.err
    sweep = package.load(ran.folder)
    differing = sweep.differing()
    assert set(zip(differing["site"], differing["name"], strict=True)) == {("grad", "embedding.weight")}
    assert "what is compiled cannot be looked into; compare it with compile=false" in ran.out
