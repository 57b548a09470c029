"""Checkpoints: all that the next steps depend on comes back, bit for bit."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from detsweep.fingerprints import local
from detsweep.worker.checkpoint import load, save
from detsweep.worker.step import TrainingStep
from tests.support import one_rank, prepared, random_bytes

CPU = torch.device("cpu")
CELL = ("mode=resume", "steps=4", "model.dropout=0.1", "lr=0.01")


@pytest.fixture(autouse=True)
def _group() -> Iterator[None]:
    with one_rank():
        yield


def _state(step: TrainingStep) -> dict[str, Tensor]:
    """Every parameter and all of the optimizer's state."""
    assert step.optimizer is not None
    state = {}
    for name, parameter in step.model.named_parameters():
        state[name] = local(parameter).clone()
        for key, value in step.optimizer.state.get(parameter, {}).items():
            state[f"{name}.{key}"] = local(value).clone()
    return state


def _equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def _saved(folder: Path, *overrides: str, steps: int = 2) -> TrainingStep:
    """A step that has trained, and its checkpoint."""
    step = prepared(folder, *CELL, *overrides)
    for number in range(steps):
        step.observed(number, 1)
    random.gauss(0, 1)
    np.random.standard_normal()
    assert step.optimizer is not None
    save(folder / "checkpoint", step.model, step.optimizer, CPU, next_step=steps)
    return step


def _load(folder: Path, step: TrainingStep, *, with_random: bool = True) -> int:
    assert step.optimizer is not None
    return load(folder / "checkpoint", step.model, step.optimizer, CPU, random=with_random)


def _other(folder: Path, *overrides: str) -> TrainingStep:
    """The step in a process that has just started: other weights and random states."""
    step = prepared(folder, *CELL, *overrides)
    with torch.no_grad():
        for parameter in step.model.parameters():
            local(parameter).fill_(7.0)
    return step


@pytest.mark.parametrize("overrides", [(), ("optimizer=sgd",), ("dtype=bf16_mixed", "experts=2")], ids=str)
def test_what_was_saved_comes_back(tmp_path: Path, overrides: tuple[str, ...]) -> None:
    saved = _saved(tmp_path, *overrides)
    state, randoms = _state(saved), random_bytes()
    fresh = _other(tmp_path, *overrides)
    assert not _equal(_state(fresh), state)
    assert _load(tmp_path, fresh) == 2
    assert _equal(_state(fresh), state)
    assert random_bytes() == randoms


def test_saving_changes_nothing(tmp_path: Path) -> None:
    step = prepared(tmp_path, *CELL)
    step.observed(0, 1)
    state, randoms = _state(step), random_bytes()
    assert step.optimizer is not None
    save(tmp_path / "checkpoint", step.model, step.optimizer, CPU, next_step=1)
    assert _equal(_state(step), state)
    assert random_bytes() == randoms


@pytest.mark.parametrize("overrides", [(), ("optimizer=sgd", "clip=0.5")], ids=str)
def test_the_next_steps_are_those_that_would_have_come(tmp_path: Path, overrides: tuple[str, ...]) -> None:
    saved = _saved(tmp_path, *overrides)
    expected = [saved.observed(number, 1).stream.records for number in (2, 3)]
    fresh = _other(tmp_path, *overrides)
    first = _load(tmp_path, fresh)
    assert [fresh.observed(number, 1).stream.records for number in (first, first + 1)] == expected


def test_gradients_that_a_backward_left_do_not_become_a_step(tmp_path: Path) -> None:
    saved = _saved(tmp_path)
    expected, randoms = _state(saved), random_bytes()
    record = saved.observed(2, 1).stream.records
    fresh = _other(tmp_path)
    # As a warm-up leaves it: gradients of other weights, an optimizer without state.
    fresh.plain(0)
    assert fresh.optimizer is not None
    fresh.optimizer.state.clear()
    _load(tmp_path, fresh)
    assert _equal(_state(fresh), expected)
    assert random_bytes() == randoms
    assert fresh.observed(2, 1).stream.records == record


def test_a_state_that_there_is_already_is_replaced(tmp_path: Path) -> None:
    expected = _state(_saved(tmp_path))
    busy = _other(tmp_path)
    for number in range(3):
        busy.observed(number, 1)
    assert not _equal(_state(busy), expected)
    _load(tmp_path, busy)
    assert _equal(_state(busy), expected)


def test_random_states_can_be_left_as_they_are(tmp_path: Path) -> None:
    state = _state(_saved(tmp_path))
    fresh = _other(tmp_path)
    torch.manual_seed(77)
    randoms = random_bytes()
    assert _load(tmp_path, fresh, with_random=False) == 2
    assert random_bytes() == randoms
    assert _equal(_state(fresh), state)


def test_options_of_the_optimizer_are_kept(tmp_path: Path) -> None:
    _saved(tmp_path)
    fresh = _other(tmp_path)
    assert fresh.optimizer is not None
    _load(tmp_path, fresh)
    groups: list[dict[str, Any]] = fresh.optimizer.param_groups
    assert [(group["lr"], group["weight_decay"]) for group in groups] == [(0.01, 0.01)]
