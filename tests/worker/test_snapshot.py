"""What is put aside comes back: parameters, buffers and every random state."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from detsweep.fingerprints import local
from detsweep.worker.snapshot import RandomState, Snapshot
from tests.support import group_of_one

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _random_states_of_other_tests() -> Iterator[None]:
    state = RandomState.now(CPU)
    yield
    state.restore(CPU)


def _draws() -> list[float]:
    """The next numbers of each source, the second normal of each being one that is kept from the first."""
    return [
        random.random(),
        random.gauss(0, 1),
        random.gauss(0, 1),
        float(np.random.random()),
        float(np.random.standard_normal()),
        float(np.random.standard_normal()),
        float(torch.rand(())),
        float(torch.randn(())),
    ]


def test_every_random_state_comes_back() -> None:
    # One normal number each, so that a second one is waiting.
    random.gauss(0, 1)
    np.random.standard_normal()
    state = RandomState.now(CPU)
    expected = _draws()
    assert _draws() != expected
    state.restore(CPU)
    assert _draws() == expected


DRAWS: dict[str, tuple[Callable[[], Any], set[str]]] = {
    "python": (random.random, {"python"}),
    "numpy": (np.random.random, {"numpy"}),
    "torch": (lambda: torch.rand(()), {"torch"}),
    "python's second normal": (lambda: random.gauss(0, 1), {"python_gauss"}),
    "numpy's second normal": (np.random.standard_normal, {"numpy", "numpy_gauss"}),
}


@pytest.mark.parametrize("source", DRAWS)
def test_a_draw_shows_in_the_tensors_of_its_own_state(source: str) -> None:
    draw, names = DRAWS[source]
    random.seed(1)
    np.random.seed(1)
    if "second" in source:
        draw()
    before = RandomState.now(CPU).tensors()
    draw()
    after = RandomState.now(CPU).tensors()
    assert before.keys() == after.keys() == {"python", "python_gauss", "numpy", "numpy_gauss", "torch"}
    assert {name for name in before if not torch.equal(before[name], after[name])} == names


def _model() -> nn.Module:
    return nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 6))


def test_parameters_and_buffers_come_back_in_place() -> None:
    model = _model()
    saved = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    addresses = {name: tensor.data_ptr() for name, tensor in model.state_dict().items()}
    snapshot = Snapshot.take(model, CPU)
    model(torch.randn(8, 4)).sum().backward()
    torch.optim.SGD(model.parameters(), lr=1.0).step()
    changed = {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, saved[name])}
    assert {"0.running_mean", "0.num_batches_tracked", "1.weight", "1.bias"} <= changed
    snapshot.restore()
    assert all(torch.equal(tensor, saved[name]) for name, tensor in model.state_dict().items())
    assert {name: tensor.data_ptr() for name, tensor in model.state_dict().items()} == addresses


def test_restoring_also_brings_the_random_state_back() -> None:
    snapshot = Snapshot.take(_model(), CPU)
    expected = _draws()
    snapshot.restore()
    assert _draws() == expected


def test_a_snapshot_can_be_restored_again_and_again() -> None:
    model = nn.Linear(2, 2)
    weight = model.weight.detach().clone()
    snapshot = Snapshot.take(model, CPU)
    for _ in range(2):
        with torch.no_grad():
            model.weight.add_(1.0)
        snapshot.restore()
        assert torch.equal(model.weight, weight)


def test_a_sharded_models_own_shards_come_back() -> None:
    with group_of_one():
        model = _model()
        fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
        saved = [local(parameter).clone() for parameter in model.parameters()]
        snapshot = Snapshot.take(model, CPU)
        with torch.no_grad():
            for parameter in model.parameters():
                local(parameter).add_(1.0)
        snapshot.restore()
        assert all(torch.equal(local(one), own) for one, own in zip(model.parameters(), saved, strict=True))
