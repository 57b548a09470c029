"""Replay: every run starts where the first one did, and what is unobserved leaves no trace."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from detsweep.fingerprints import local
from detsweep.worker.model import RepeatedBlockModel
from detsweep.worker.replay import replay, warm_up
from detsweep.worker.step import TrainingStep
from tests.support import one_rank, prepared, random_bytes

DRAWS = "model.dropout=0.1"


@pytest.fixture(autouse=True)
def _group() -> Iterator[None]:
    with one_rank():
        yield


def _parameters(model: RepeatedBlockModel) -> list[Tensor]:
    return [local(parameter).clone() for parameter in model.parameters()]


def _observed(step: TrainingStep) -> list[bool]:
    """Whether each execution of the model from now on is observed; grows as they come."""
    hooked: list[bool] = []
    before = len(step.model.blocks[0]._forward_hooks)
    step.model.embedding.register_forward_hook(
        lambda *_: hooked.append(len(step.model.blocks[0]._forward_hooks) > before)
    )
    return hooked


def test_a_model_that_draws_random_numbers_repeats(tmp_path: Path) -> None:
    step = prepared(tmp_path, DRAWS)
    warm_up(step, 1)
    (done,) = replay(step, 1, 3, cold=False, plain_steps=1)
    first, *others = (run.stream for run in done.runs)
    assert len(others) == 2
    assert all(other.records == first.records for other in others)
    # It did draw: the states before and after the step are not the same.
    states = {one.phase: one.digest for one in first.records if (one.site, one.name) == ("rng", "torch")}
    assert states["before"] != states["after"]


def test_a_module_with_a_memory_of_its_own_diverges(tmp_path: Path) -> None:
    step = prepared(tmp_path)
    calls: list[None] = []

    def count(_: Any, __: Any, output: Tensor) -> Tensor:
        calls.append(None)
        return output + len(calls)

    step.model.blocks[1].register_forward_hook(count)
    (done,) = replay(step, 1, 2, cold=False, plain_steps=1)
    assert done.runs[0].stream.records != done.runs[1].stream.records


def test_warming_up_leaves_parameters_and_random_state_as_they_were(tmp_path: Path) -> None:
    step = prepared(tmp_path, DRAWS)
    parameters, state = _parameters(step.model), random_bytes()
    executed = _observed(step)
    warm_up(step, 2)
    assert executed == [False, False]
    assert all(map(torch.equal, _parameters(step.model), parameters))
    assert random_bytes() == state


@pytest.mark.parametrize("mode", ["train", "resume"])
def test_warming_up_leaves_an_optimizer_without_state(tmp_path: Path, mode: str) -> None:
    step = prepared(tmp_path, DRAWS, f"mode={mode}", "lr=0.5")
    parameters, state = _parameters(step.model), random_bytes()
    warm_up(step, 2)
    assert step.optimizer is not None
    assert not step.optimizer.state
    assert all(map(torch.equal, _parameters(step.model), parameters))
    assert random_bytes() == state


def test_a_replayed_step_leaves_parameters_and_random_state_as_they_were(tmp_path: Path) -> None:
    step = prepared(tmp_path, DRAWS)
    parameters, state = _parameters(step.model), random_bytes()
    assert len(list(replay(step, 2, 2, cold=False, plain_steps=2))) == 2
    assert all(map(torch.equal, _parameters(step.model), parameters))
    assert random_bytes() == state


def test_a_step_has_a_plain_run_before_and_after_the_observed_ones(tmp_path: Path) -> None:
    step = prepared(tmp_path)
    executed = _observed(step)
    (done,) = replay(step, 1, 3, cold=False, plain_steps=1)
    assert executed == [False, True, True, True, False]
    assert len(done.plain_milliseconds) == 2
    assert min(*done.plain_milliseconds, *(run.milliseconds for run in done.runs)) > 0


def test_cold_the_first_run_of_all_is_an_observed_one(tmp_path: Path) -> None:
    step = prepared(tmp_path)
    executed = _observed(step)
    first, second = replay(step, 2, 2, cold=True, plain_steps=2)
    assert executed == [True, True, False, False, True, True, False]
    assert [len(done.plain_milliseconds) for done in (first, second)] == [1, 2]
    assert first.runs[0].stream.records == first.runs[1].stream.records


def test_only_the_first_steps_have_a_control_arm(tmp_path: Path) -> None:
    step = prepared(tmp_path)
    executed = _observed(step)
    done = list(replay(step, 3, 2, cold=False, plain_steps=1))
    assert executed == [False, True, True, False, True, True, True, True]
    assert [len(one.plain_milliseconds) for one in done] == [2, 0, 0]


def test_every_step_has_data_of_its_own_and_the_same_parameters(tmp_path: Path) -> None:
    step = prepared(tmp_path)
    one, other = (done.runs[0].stream for done in replay(step, 2, 1, cold=True, plain_steps=0))
    assert [one.step, other.step] == [0, 1]
    assert one.digests("param") == other.digests("param")
    assert not set(one.digests("input")) & set(other.digests("input"))


def test_a_random_state_that_is_not_restored_is_found_and_all_else_restored(tmp_path: Path) -> None:
    step = prepared(tmp_path, DRAWS, "fault=rng_not_restored", "runs=3")
    parameters = _parameters(step.model)
    (done,) = replay(step, 1, 3, cold=True, plain_steps=0)
    states = [run.stream.digests("rng") for run in done.runs]
    assert states[0] == states[2] != states[1]
    assert len({tuple(run.stream.digests("input")) for run in done.runs}) == 1
    assert all(map(torch.equal, _parameters(step.model), parameters))


def test_a_random_state_that_nobody_moved_is_no_fault(tmp_path: Path) -> None:
    # Without dropout nothing draws: what is not restored is as it was.
    step = prepared(tmp_path, "fault=rng_not_restored")
    (done,) = replay(step, 1, 2, cold=True, plain_steps=0)
    assert step.faults.struck == []
    assert done.runs[0].stream.records == done.runs[1].stream.records
