"""Trajectories: they really train, repeat bit for bit, and go on after a break as if there had been none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor

from detsweep.capture import Stream
from detsweep.fingerprints import local
from detsweep.worker.replay import Done, warm_up
from detsweep.worker.step import TrainingStep
from detsweep.worker.train import PLAIN_STEPS, interrupted, resumed, train
from tests.support import one_rank, prepared

CELL = ("model.dropout=0.1", "lr=0.01")


@pytest.fixture(autouse=True)
def _group() -> Iterator[None]:
    with one_rank():
        yield


def _parameters(step: TrainingStep) -> list[Tensor]:
    return [local(parameter).clone() for parameter in step.model.parameters()]


def _after(stream: Stream, site: str) -> list[int]:
    return [one.digest for one in stream.records if (one.site, one.phase) == (site, "after")]


def _before(stream: Stream, site: str) -> list[int]:
    return [one.digest for one in stream.records if (one.site, one.phase) == (site, "before")]


def _trajectories(done: Iterable[Done]) -> list[list[Stream]]:
    """The streams of each run, in order."""
    runs: dict[str, list[Stream]] = {}
    for one in done:
        for run in one.runs:
            runs.setdefault(run.stream.run, []).append(run.stream)
    return list(runs.values())


@pytest.mark.parametrize("overrides", [(), ("optimizer=sgd",), ("accum=2", "clip=0.5"), ("experts=2",)], ids=str)
def test_trajectories_from_one_state_are_equal(tmp_path: Path, overrides: tuple[str, ...]) -> None:
    step = prepared(tmp_path, "mode=train", *CELL, *overrides)
    warm_up(step, 1)
    first, *others = _trajectories(train(step, 4, 3))
    assert [(stream.step, stream.run) for stream in first] == [(number, "r1") for number in range(4)]
    assert len(others) == 2
    for other in others:
        assert [stream.records for stream in other] == [stream.records for stream in first]


def test_every_step_of_a_trajectory_starts_where_the_last_one_ended(tmp_path: Path) -> None:
    step = prepared(tmp_path, "mode=train", *CELL)
    (streams,) = _trajectories(train(step, 4, 1))
    for one, other in pairwise(streams):
        for site in ("param", "optim", "rng"):
            assert _after(one, site) == _before(other, site)
            assert _before(one, site) != _before(other, site)
        # The data are others, and every parameter has moved.
        assert not set(one.digests("input")) & set(other.digests("input"))
        moved = [a != b for a, b in zip(_before(one, "param"), _after(one, "param"), strict=True)]
        assert sum(moved) > 0.9 * len(moved)


def test_training_brings_the_loss_down_on_what_it_has_seen(tmp_path: Path) -> None:
    step = prepared(tmp_path, "mode=train", "dtype=fp32", "lr=0.01")
    data = step._data(0, 0)
    step._data = lambda *_: data
    losses = []
    for number in range(6):
        step.observed(number, 1)
        losses.append(float(step.loss))
    assert losses == sorted(losses, reverse=True)


@pytest.mark.parametrize("steps", [1, PLAIN_STEPS + 3])
def test_a_few_plain_steps_come_first_and_leave_nothing(tmp_path: Path, steps: int) -> None:
    step, other = (prepared(tmp_path, "mode=train", *CELL) for _ in range(2))
    state = torch.get_rng_state()
    done = list(train(step, steps, 2))
    # Step by step, so that nothing is lost of a trajectory that is cut off; their time is told once in each.
    assert [len(one.runs) for one in done] == [1] * (2 * steps)
    told = [len(one.plain_milliseconds) for one in done]
    assert told == [*(min(PLAIN_STEPS, steps) if number == 0 else 0 for number in range(steps))] * 2
    assert all(milliseconds > 0 for one in done for milliseconds in one.plain_milliseconds)
    torch.set_rng_state(state)
    direct = [other.observed(number, 1).stream for number in range(steps)]
    assert [stream.records for stream in direct] == [stream.records for stream in _trajectories(done)[0]]


def test_a_fault_parts_trajectories_from_its_step_on(tmp_path: Path) -> None:
    step = prepared(tmp_path, "mode=train", *CELL, "fault=bit_flip", "fault.step=1", "steps=3", "fault.bit=14")
    one, other = _trajectories(train(step, 3, 2))
    assert [a.records == b.records for a, b in zip(one, other, strict=True)] == [True, False, False]
    assert _before(one[2], "param") != _before(other[2], "param")


def test_a_random_state_that_is_not_restored_parts_trajectories_at_once(tmp_path: Path) -> None:
    step = prepared(tmp_path, "mode=train", *CELL, "fault=rng_not_restored")
    one, other = (done.runs[0].stream for done in train(step, 1, 2))
    assert _before(one, "rng") != _before(other, "rng")
    assert _before(one, "param") == _before(other, "param")


# --- with a break ----------------------------------------------------------------------------------------------------


def _broken(folder: Path, steps: int, middle: int, *overrides: str) -> list[Stream]:
    """Both launches, the second with a model and an optimizer of its own and other random states."""
    cell = ("mode=resume", f"steps={steps}", *CELL, *overrides)
    first = prepared(folder, *cell)
    warm_up(first, 1)
    done = list(interrupted(first, steps, middle, folder / "checkpoint"))
    before = len(done)
    torch.manual_seed(99)
    second = prepared(folder, *cell)
    with torch.no_grad():
        for parameter in second.model.parameters():
            local(parameter).zero_()
    warm_up(second, 1)
    done += resumed(second, steps, middle, folder / "checkpoint")
    assert done[before].plain_milliseconds
    return [run.stream for one in done for run in one.runs]


@pytest.mark.parametrize("overrides", [(), ("optimizer=sgd",), ("accum=2", "clip=0.5", "dtype=bf16_mixed")], ids=str)
def test_a_break_changes_no_bit(tmp_path: Path, overrides: tuple[str, ...]) -> None:
    streams = _broken(tmp_path, 5, 3, *overrides)
    places = [(stream.step, stream.run) for stream in streams]
    assert places == [(number, run) for run in ("r1", "r2") for number in range(5)]
    for whole, broken in zip(streams[:5], streams[5:], strict=True):
        assert whole.records == broken.records


def test_a_random_state_that_is_not_loaded_shows_after_the_break(tmp_path: Path) -> None:
    streams = _broken(tmp_path, 4, 2, "fault=rng_not_restored", "fault.step=2")
    equal = [whole.records == broken.records for whole, broken in zip(streams[:4], streams[4:], strict=True)]
    assert equal == [True, True, False, False]
    assert _before(streams[2], "rng") != _before(streams[6], "rng")
    assert _before(streams[2], "param") == _before(streams[6], "param")


def test_a_checkpoint_of_another_step_is_refused(tmp_path: Path) -> None:
    cell = ("mode=resume", "steps=4", *CELL)
    list(interrupted(prepared(tmp_path, *cell), 4, 1, tmp_path / "checkpoint"))
    with pytest.raises(RuntimeError, match="the checkpoint is of step 1, 2 was saved"):
        list(resumed(prepared(tmp_path, *cell), 4, 2, tmp_path / "checkpoint"))
