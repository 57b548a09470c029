"""Fault campaigns: many faults of every kind, each found by the mode that is meant for it, and in its place."""

from __future__ import annotations

import re

import pytest

import detsweep as package
from detsweep.analysis import Sweep
from detsweep.injections import KINDS
from tests.conftest import Ran, Run

# The packaged positive control with fewer steps: in a campaign each after the first has one fault, kinds taking turns.
STEPS = 2 * len(KINDS) + 1
CASES = ("clean", "campaign_replay", "campaign_replay_3_ranks", "campaign_lockstep", "resume_without_rng")


@pytest.fixture(scope="module")
def self_test(detsweep: Run) -> Ran:
    return detsweep("experiment=self_test", f"steps={STEPS}", "runs=2")


@pytest.fixture(scope="module")
def sweep(self_test: Ran) -> Sweep:
    return package.load(self_test.folder)


def test_every_cell_of_the_positive_control_is_as_it_should_be(self_test: Ran, sweep: Sweep) -> None:
    assert self_test.code == 0, self_test.out + self_test.err
    assert tuple(sweep.trials["case"]) == CASES
    assert list(map(str, sweep.trials["verdict"])) == ["pass"] + 4 * ["diverged"]
    assert "positive control: 5 of 5 cells as they should be" in self_test.out
    assert self_test.out.count("found in place") == 4


def test_every_fault_was_put_in_detected_placed_and_has_its_cause(sweep: Sweep) -> None:
    faults = sweep.injections
    assert len(faults) == 3 * (STEPS - 1) + 1
    assert faults["detected"].notna().all()
    assert faults["detected"].all()
    assert faults["placed"].all()
    assert faults["caused"].all()


def test_every_kind_of_fault_struck_at_least_twice(sweep: Sweep) -> None:
    faults = sweep.injections
    for case in ("campaign_replay", "campaign_replay_3_ranks"):
        kinds = faults.loc[faults["cell"] == cell_of(sweep, case), "kind"]
        assert dict(kinds.value_counts()) == dict.fromkeys(KINDS, 2)
    lockstep = faults.loc[faults["mode"] == "lockstep", "kind"].value_counts()
    # Ranks that all do the same in another order differ from nobody.
    assert set(lockstep.index) == set(KINDS) - {"reordered_collectives"}
    assert lockstep.min() >= 2


def test_faults_are_spread_over_ranks_and_sites(sweep: Sweep) -> None:
    of_three = sweep.injections[sweep.injections["cell"] == cell_of(sweep, "campaign_replay_3_ranks")]
    assert {ranks for ranks in of_three["ranks"] if len(ranks) == 1} == {(0,), (1,), (2,)}
    assert len(set(sweep.injections["site"])) >= 8
    assert len(set(sweep.injections["found_cause"])) >= 6


def test_there_was_no_false_alarm(self_test: Ran, sweep: Sweep) -> None:
    assert sweep.trials["false_alarms"].sum() == 0
    compared = int(sweep.trials["clean_comparisons"].sum())
    # The clean cell's on two ranks, and the first step of each campaign.
    assert compared >= 2 * STEPS + 2 + 3
    assert f"clean comparisons of a rank: {compared}, false alarms: 0" in self_test.out


def test_replay_is_blind_to_what_repeats_itself(sweep: Sweep) -> None:
    persistent = sweep.injections[sweep.injections["persistence"] == "persistent"]
    assert set(persistent["mode"]) == {"lockstep"}
    # One is one fault, however many runs it strikes; where nothing was put back yet, the first run has none.
    assert set(persistent.loc[persistent["kind"] != "rng_not_restored", "run"]) == {"r1, r2"}
    seen = persistent[persistent["detected_by_replay"].astype(bool)]
    # A random state that is never put back is another one in each run.
    assert set(seen["kind"]) == {"rng_not_restored"}


def test_the_table_says_it_for_each_mode_and_kind(self_test: Ran, sweep: Sweep) -> None:
    lines = [re.split(r"\s{2,}", line.strip()) for line in self_test.out.splitlines()]
    names = ["mode", "persistence", "kind", "put in", "detected", "placed", "cause", "missed", "by replay"]
    assert names in lines
    for kind in KINDS:
        assert ["replay", "transient", kind, "4", "4", "4", "4", "0", "4"] in lines
    of_lockstep = sweep.injections.loc[sweep.injections["mode"] == "lockstep", "kind"]
    for name, count in of_lockstep.value_counts().items():
        seen = count if name == "rng_not_restored" else 0
        assert ["lockstep", "persistent", name, *map(str, (count, count, count, count, 0, seen))] in lines
    assert (self_test.folder / "matrix.md").read_text().count("lockstep  persistent") == len(KINDS) - 1


def cell_of(sweep: Sweep, case: str) -> str:
    (cell,) = sweep.trials.loc[sweep.trials["case"] == case, "cell"]
    return str(cell)
