"""What a recording is kept for: runs that differ, what is not finite, and what is far from usual."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from detsweep.capture import Stream
from detsweep.worker.noticed import LEAST, USUAL, Noticed
from tests.support import LOSS, full_stream, one_rank, prepared, record, stream_of

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _group() -> Iterator[None]:
    with one_rank():
        yield


def _stream(step: int = 0, run: int = 1) -> Stream:
    return full_stream(0, step, run)


def _model(norm: float = 1.0) -> nn.Module:
    """A model whose gradients have this norm, over two parameters; a third has none."""
    model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1, bias=False))
    for parameter, part in zip(list(model.parameters())[:2], (0.6, 0.8), strict=True):
        parameter.grad = torch.full_like(parameter, part * norm)
    return model


def _steps(noticed: Noticed, losses: list[float], norms: list[float] | None = None) -> list[str | None]:
    norms = norms or [1.0] * len(losses)
    return [
        noticed.in_step([_stream(step)], loss, _model(norm))
        for step, (loss, norm) in enumerate(zip(losses, norms, strict=True))
    ]


def test_runs_that_are_equal_are_nothing() -> None:
    assert Noticed(None, CPU).in_step([_stream(3, run) for run in (1, 2, 3)], 1.0, _model()) is None


def test_the_run_that_differs_is_named_with_its_first_record() -> None:
    runs = [_stream(3, 1), _stream(3, 2), full_stream(0, 3, 3, differs_from=LOSS), _stream(3, 4)]
    assert Noticed(None, CPU).in_step(runs, 1.0, _model()) == "step 3: r3 differs from r1 at loss loss"


def test_what_is_not_finite_is_counted() -> None:
    stream = replace(_stream(2), nonfinite={"blocks.0.ffn.up.weight": 5, "loss": 1})
    expected = "step 2: 5 values of blocks.0.ffn.up.weight are not finite"
    assert Noticed(None, CPU).in_step([stream], 1.0, _model()) == expected
    # That a run differs says more.
    other = stream_of([record("loss", "loss", 5)], step=2, run="r2")
    assert (Noticed(None, CPU).in_step([stream, other], 1.0, _model()) or "").startswith("step 2: r2 differs ")


def test_a_loss_that_is_no_number_is_noticed_in_a_real_step(tmp_path: Path) -> None:
    step = prepared(tmp_path, "mode=record")
    noticed = Noticed(100.0, CPU)
    assert noticed.in_step([step.observed(0, 1).stream], float(step.loss), step.model) is None
    with torch.no_grad():
        next(step.model.parameters()).fill_(math.nan)
    stream = step.observed(1, 1).stream
    assert math.isnan(float(step.loss))
    assert noticed.in_step([stream], float(step.loss), step.model) == "step 1: 1 values of loss are not finite"


def test_a_loss_far_above_the_usual_is_a_spike() -> None:
    losses = [2.0, 2.1, 1.9, 2.0, 2.2, 6.0, 6.25]
    found = _steps(Noticed(3.0, CPU), losses)
    assert found == [None] * 6 + ["step 6: the loss is 6.25, usually 2.05"]


def test_gradients_far_above_the_usual_are_a_spike() -> None:
    found = _steps(Noticed(3.0, CPU), [2.0] * 7, [0.5] * 6 + [1.75])
    assert found == [None] * 6 + ["step 6: the gradients' norm is 1.75, usually 0.5"]


def test_a_loss_far_below_zero_is_a_spike_too() -> None:
    assert _steps(Noticed(2.0, CPU), [-1.0] * 5 + [-2.5, 2.5])[5:] == [
        "step 5: the loss is -2.5, usually -1",
        "step 6: the loss is 2.5, usually -1",
    ]


@pytest.mark.parametrize("steps", range(LEAST + 1))
def test_nothing_is_a_spike_before_it_is_known_what_is_usual(steps: int) -> None:
    (*_, last) = _steps(Noticed(3.0, CPU), [1.0] * steps + [1000.0])
    assert (last is not None) is (steps >= LEAST)


def test_a_spike_is_not_usual_and_what_was_long_ago_is_not_either() -> None:
    noticed = Noticed(3.0, CPU)
    assert _steps(noticed, [1.0] * USUAL + [100.0] * 30)[-1] == f"step {USUAL + 29}: the loss is 100, usually 1"
    assert _steps(noticed, [2.5] * USUAL)[-1] is None
    assert _steps(noticed, [7.0, 7.6]) == [None, "step 1: the loss is 7.6, usually 2.5"]


def test_unasked_for_nothing_is_a_spike() -> None:
    assert _steps(Noticed(None, CPU), [1.0] * 10 + [1e9]) == [None] * 11


def test_what_this_rank_noticed_is_what_it_says() -> None:
    noticed = Noticed(None, CPU)
    assert noticed.look([_stream(0)], 1.0, _model()) is None
    assert noticed.first is None
    reason = "step 1: r2 differs from r1 at loss loss"
    assert noticed.look([_stream(1), full_stream(0, 1, 2, differs_from=LOSS)], 1.0, _model()) == reason
    assert noticed.first == reason
