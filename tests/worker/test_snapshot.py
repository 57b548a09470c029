"""What is put aside comes back: parameters, buffers and every random state."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from detsweep.fingerprints import local
from detsweep.worker.snapshot import RandomState, Snapshot
from tests.support import group_of_one, random_bytes

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
    before = random_bytes()
    draw()
    after = random_bytes()
    assert before.keys() == after.keys() == {"python", "python_gauss", "numpy", "numpy_gauss", "torch"}
    assert {name for name in before if before[name] != after[name]} == names


@pytest.mark.parametrize("cached", [True, False], ids=["a second normal waits", "none waits"])
def test_a_state_is_the_same_again_from_its_tensors(cached: bool) -> None:
    random.seed(3)
    np.random.seed(3)
    if cached:
        random.gauss(0, 1)
        np.random.standard_normal()
    state = RandomState.now(CPU)
    assert (state.python[2] is None) is not cached
    again = RandomState.from_tensors(state.tensors())
    assert {name: tensor.numpy().tobytes() for name, tensor in again.tensors().items()} == random_bytes()
    assert again.python == state.python
    expected = _draws()
    again.restore(CPU)
    assert _draws() == expected


def test_tensors_of_a_state_are_on_the_cpu_and_of_plain_types() -> None:
    tensors = RandomState.now(CPU).tensors()
    assert {tensor.device.type for tensor in tensors.values()} == {"cpu"}
    assert {str(tensor.dtype) for tensor in tensors.values()} == {"torch.int64", "torch.float64", "torch.uint8"}


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


def test_all_but_the_random_state_can_be_brought_back() -> None:
    model = _model()
    weight = model.get_parameter("1.weight").detach().clone()
    snapshot = Snapshot.take(model, CPU)
    _draws()
    moved = random_bytes()
    with torch.no_grad():
        model.get_parameter("1.weight").add_(1.0)
    snapshot.restore(random=False)
    assert torch.equal(model.get_parameter("1.weight"), weight)
    assert random_bytes() == moved


@pytest.mark.parametrize("source", DRAWS)
def test_a_draw_of_any_source_is_a_random_state_that_moved(source: str) -> None:
    snapshot = Snapshot.take(_model(), CPU)
    assert not snapshot.random_moved()
    DRAWS[source][0]()
    assert snapshot.random_moved()
    snapshot.restore()
    assert not snapshot.random_moved()


def test_an_optimizer_is_without_state_again() -> None:
    model = _model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    snapshot = Snapshot.take(model, CPU, optimizer)
    expected = []
    for _ in range(2):
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(8, 4).cumsum(0)).sum().backward()
            optimizer.step()
        assert optimizer.state
        expected.append(model.get_parameter("1.weight").detach().clone())
        snapshot.restore()
        assert not optimizer.state
    assert torch.equal(*expected)


def test_an_optimizer_that_has_taken_steps_is_brought_back_as_it_was() -> None:
    model = _model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)

    def step() -> list[Tensor]:
        optimizer.zero_grad()
        model(torch.ones(8, 4).cumsum(0)).sum().backward()
        optimizer.step()
        state = [value for own in optimizer.state.values() for value in own.values()]
        return [tensor.detach().clone() for tensor in (*model.parameters(), *state)]

    step()
    snapshot = Snapshot.take(model, CPU, optimizer)
    first = step()
    snapshot.restore()
    assert all(torch.equal(one, other) for one, other in zip(first, step(), strict=True))


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
