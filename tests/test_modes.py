"""Modes: which runs a trial has and in which order, in how many launches, and what ranks have in common."""

from __future__ import annotations

import pytest

from detsweep.capture import SITES
from detsweep.causes import collective_name
from detsweep.modes import (
    clean_verdict,
    comparable_between_ranks,
    exchanges,
    expected_runs,
    fed,
    launches,
    records,
    replays,
    resumed_at,
    trains,
    trajectories,
)
from tests.support import compose, record

MODES = ("replay", "relaunch", "lockstep", "train", "resume", "record", "playback")


@pytest.mark.parametrize("mode", ["replay", "relaunch", "lockstep", "record", "playback"])
def test_the_runs_of_a_step_follow_each_other(mode: str) -> None:
    config = compose(f"mode={mode}", "steps=2", "runs=3")
    assert expected_runs(config) == [(0, "r1"), (0, "r2"), (0, "r3"), (1, "r1"), (1, "r2"), (1, "r3")]


@pytest.mark.parametrize("mode", ["train", "resume"])
def test_the_steps_of_a_trajectory_follow_each_other(mode: str) -> None:
    config = compose(f"mode={mode}", "steps=3", "runs=2")
    assert expected_runs(config) == [(0, "r1"), (1, "r1"), (2, "r1"), (0, "r2"), (1, "r2"), (2, "r2")]


@pytest.mark.parametrize("mode", MODES)
def test_every_run_but_the_first_of_its_step_is_a_replay(mode: str) -> None:
    config = compose(f"mode={mode}", "steps=4", "runs=3")
    assert replays(config) == 8 == sum(run != "r1" for _, run in expected_runs(config))
    assert replays(compose(f"mode={mode}", "runs=1")) == 0


def test_what_trains_what_is_a_trajectory_and_what_is_launched_twice() -> None:
    assert {mode for mode in MODES if trains(compose(f"mode={mode}"))} == {"train", "resume", "record", "playback"}
    assert {mode for mode in MODES if trajectories(compose(f"mode={mode}"))} == {"train", "resume"}
    assert {mode for mode in MODES if records(compose(f"mode={mode}"))} == {"record", "playback"}
    assert {mode: launches(compose(f"mode={mode}")) for mode in MODES} == {
        **dict.fromkeys(MODES, 1),
        "resume": 2,
    }


@pytest.mark.parametrize("mode", ["record", "playback"])
def test_without_an_optimizer_a_recorded_step_trains_nothing(mode: str) -> None:
    assert [trains(compose(f"mode={mode}", f"optimizer={kind}")) for kind in ("adamw", "sgd", "none")] == [
        True,
        True,
        False,
    ]


def test_of_a_playback_every_second_run_is_fed() -> None:
    assert [fed(compose("mode=playback"), run) for run in range(1, 6)] == [False, True, False, True, False]
    for mode in MODES[:-1]:
        assert not any(fed(compose(f"mode={mode}"), run) for run in range(1, 4))


def test_where_nothing_was_compared_nothing_has_passed() -> None:
    verdicts = {mode: clean_verdict(compose(f"mode={mode}")) for mode in MODES}
    assert verdicts == {**dict.fromkeys(MODES, "pass"), "record": "recorded"}
    assert clean_verdict(compose("mode=record", "runs=2")) == "pass"
    # A lockstep compares ranks.
    assert clean_verdict(compose("mode=lockstep", "runs=1")) == "pass"


@pytest.mark.parametrize(("steps", "first"), [(2, 1), (3, 2), (4, 2), (5, 3)])
def test_both_sides_of_the_break_have_a_step(steps: int, first: int) -> None:
    assert resumed_at(compose("mode=resume", f"steps={steps}")) == first
    assert 0 < first < steps


def test_activations_cross_ranks_where_experts_are_dealt_out() -> None:
    assert exchanges(compose("experts=4", "moe.dispatch=all_to_all"))
    config = compose("experts=4")
    assert not exchanges(config)
    # Of an older sweep.
    del config["moe"]["dispatch"]
    assert not exchanges(config)


OWN = {"param", "buffer", "optim", "op", "collective_in", "collective_out", "grad"}


@pytest.mark.parametrize("site", SITES)
def test_ranks_have_in_common_what_is_not_sharded(site: str) -> None:
    config = compose("mode=lockstep", "world.nproc_per_node=3")
    assert comparable_between_ranks(config, record(site, "name")) is (site not in OWN)


@pytest.mark.parametrize("site", SITES)
def test_ranks_that_each_have_the_whole_model_have_all_in_common(site: str) -> None:
    config = compose("mode=lockstep", "world.shard_ranks=1")
    assert comparable_between_ranks(config, record(site, "name"))


@pytest.mark.parametrize(
    ("operator", "common"),
    [
        ("c10d._allgather_base_", "collective_out"),
        ("_c10d_functional.all_gather_into_tensor", "collective_out"),
        ("c10d._reduce_scatter_base_", "collective_in"),
        ("_c10d_functional.reduce_scatter_tensor", "collective_in"),
        ("c10d.allreduce_", None),
    ],
)
def test_of_a_collective_the_whole_side_is_common(operator: str, common: str | None) -> None:
    config, name = compose("mode=lockstep"), collective_name(operator, 3, "mesh") + " in blocks.0"
    sides = ("collective_in", "collective_out")
    assert [site for site in sides if comparable_between_ranks(config, record(site, name))] == [common] * bool(common)
