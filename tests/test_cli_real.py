"""Nondeterminism that nobody put in: CPU threads racing in an accumulating index_put, and what cures it.

On CPU the race exists for float32 only, with at least two threads and 32768 elements; two addends commute, so it takes
three experts for a token. Races are not counted here: at least one in the budget, none in the controls.
"""

from __future__ import annotations

import pytest

import detsweep as package
from tests.conftest import Ran, Run


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
        "steps=40",
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
