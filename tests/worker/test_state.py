"""The state of a step in a file: a model, its optimizer and random numbers go on as if nothing had been."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from detsweep.fingerprints import local
from detsweep.recording import RecordingError
from detsweep.recording.reading import file_digest
from detsweep.worker import state
from tests.collectives import bits
from tests.support import one_rank, random_bytes

CPU = torch.device("cpu")
Optimizer = torch.optim.Optimizer
OPTIMIZERS: dict[str, Callable[[nn.Module], Optimizer]] = {
    "adamw": lambda model: torch.optim.AdamW(model.parameters(), lr=0.1),
    "amsgrad": lambda model: torch.optim.Adam(model.parameters(), lr=0.1, amsgrad=True),
    "momentum": lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
    "sgd": lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
    "groups": lambda model: torch.optim.AdamW(
        cast(Any, [{"params": [*model.parameters()][:1], "lr": 0.5}, {"params": [*model.parameters()][1:]}]), lr=0.1
    ),
    "tensor lr": lambda model: torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.1), foreach=False),
}


@pytest.fixture(autouse=True)
def _group() -> Iterator[None]:
    with one_rank():
        yield


def _model(*, sharded: bool, seed: int = 0, hidden: int = 6) -> nn.Module:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, hidden), nn.BatchNorm1d(hidden), nn.Dropout(0.3), nn.Linear(hidden, 3))
    if sharded:
        fully_shard(model[0])
        fully_shard(model)
    return model


def _step(model: nn.Module, optimizer: Optimizer | None) -> float:
    """A step that uses every random state."""
    data = torch.rand(5, 4) + random.random() + float(np.random.rand()) + random.gauss(0, 1)
    model.zero_grad()
    loss: Tensor = model(data).square().sum()
    loss.backward()
    if optimizer is not None:
        optimizer.step()
        optimizer.param_groups[0]["lr"] *= 0.5
        if "betas" in optimizer.param_groups[0]:
            optimizer.param_groups[0]["betas"] = (optimizer.param_groups[0]["betas"][0] * 0.9, 0.99)
    return float(loss.detach())


def _everything(model: nn.Module, optimizer: Optimizer | None) -> dict[str, object]:
    found: dict[str, object] = {name: bits(local(value)) for name, value in model.state_dict().items()}
    if optimizer is not None:
        for number, (parameter, values) in enumerate(optimizer.state.items()):
            for key, value in values.items():
                found[f"{number}.{key}"] = bits(local(value)) if isinstance(value, Tensor) else value
                found[f"{number}.{key} is"] = (type(value), getattr(value, "shape", None), type(parameter))
        found["groups"] = [
            {
                key: bits(value) if isinstance(value, Tensor) else value
                for key, value in group.items()
                if key != "params"
            }
            for group in optimizer.param_groups
        ]
    return {**found, **random_bytes()}


@pytest.mark.parametrize("sharded", [False, True], ids=["plain", "FSDP2"])
@pytest.mark.parametrize("steps", [0, 1, 3])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_another_model_goes_on_as_the_one_that_was_saved(tmp_path: Path, kind: str, steps: int, sharded: bool) -> None:
    model = _model(sharded=sharded)
    optimizer = OPTIMIZERS[kind](model)
    for _ in range(steps):
        _step(model, optimizer)
    path = tmp_path / "state.safetensors"
    assert state.save(path, steps, model, optimizer, CPU) == file_digest(path)
    saved = _everything(model, optimizer)
    losses = [_step(model, optimizer) for _ in range(2)]
    ended = _everything(model, optimizer)
    other = _model(sharded=sharded, seed=1)
    its = OPTIMIZERS[kind](other)
    # It may have gone another way before: nothing of that is left.
    for _ in range(2):
        _step(other, its)
    assert _everything(other, its) != saved
    state.load(path, other, its, CPU)
    assert _everything(other, its) == saved
    assert [_step(other, its) for _ in range(2)] == losses
    assert _everything(other, its) == ended


def test_the_same_model_can_go_back_again_and_again(tmp_path: Path) -> None:
    model = _model(sharded=True)
    optimizer = OPTIMIZERS["adamw"](model)
    _step(model, optimizer)
    path = tmp_path / "state.safetensors"
    state.save(path, 0, model, optimizer, CPU)
    losses = []
    for _ in range(3):
        state.load(path, model, optimizer, CPU)
        losses.append(_step(model, optimizer))
    assert len(set(losses)) == 1


def test_saving_changes_nothing(tmp_path: Path) -> None:
    model = _model(sharded=True)
    optimizer = OPTIMIZERS["adamw"](model)
    _step(model, optimizer)
    before = _everything(model, optimizer)
    state.save(tmp_path / "a", 0, model, optimizer, CPU)
    assert _everything(model, optimizer) == before
    state.save(tmp_path / "b", 0, model, optimizer, CPU)
    one, other = (load_file(str(tmp_path / name)) for name in "ab")
    assert {name: bits(value) for name, value in one.items()} == {name: bits(value) for name, value in other.items()}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


@pytest.mark.parametrize("sharded", [False, True], ids=["plain", "FSDP2"])
def test_any_program_can_read_the_file(tmp_path: Path, sharded: bool) -> None:
    model = _model(sharded=sharded)
    optimizer = OPTIMIZERS["adamw"](model)
    _step(model, optimizer)
    path = tmp_path / "state.safetensors"
    state.save(path, 7, model, optimizer, CPU)
    tensors = load_file(str(path))
    for name, parameter in model.named_parameters():
        assert bits(tensors[f"param.{name}"]) == bits(local(parameter))
        for key, value in optimizer.state[parameter].items():
            assert bits(tensors[f"optim.{name}.{key}"]) == bits(local(value))
    assert bits(tensors["buffer.1.running_mean"]) == bits(dict(model.named_buffers())["1.running_mean"])
    assert bits(tensors["random.torch"]) == bits(torch.get_rng_state())
    with safe_open(str(path), framework="pt") as file:
        metadata = file.metadata()
    assert (metadata["format"], metadata["version"], metadata["step"]) == ("detsweep-recording", "1", "7")
    (group,) = json.loads(metadata["about"])["groups"]
    assert group["params"] == [name for name, _ in model.named_parameters()]
    assert group["settings"]["lr"] == 0.05
    # By bytes alone, as its format has it: a length, a header of JSON, and the tensors.
    raw = path.read_bytes()
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    start, end = header["param.3.bias"]["data_offsets"]
    data = raw[8 + int.from_bytes(raw[:8], "little") :][start:end]
    assert np.frombuffer(data, np.float32).tolist() == local(dict(model.named_parameters())["3.bias"]).tolist()


def test_without_an_optimizer_there_is_none(tmp_path: Path) -> None:
    model = _model(sharded=False)
    path = tmp_path / "state.safetensors"
    state.save(path, 0, model, None, CPU)
    saved = _everything(model, None)
    loss = _step(model, None)
    state.load(path, model, None, CPU)
    assert _everything(model, None) == saved
    assert _step(model, None) == loss


def test_parameters_that_share_memory_are_saved_and_come_back(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    model[1].weight = model[0].weight
    optimizer = OPTIMIZERS["momentum"](model)
    _step_of_three(model, optimizer)
    path = tmp_path / "state.safetensors"
    state.save(path, 0, model, optimizer, CPU)
    saved = _everything(model, optimizer)
    _step_of_three(model, optimizer)
    state.load(path, model, optimizer, CPU)
    assert _everything(model, optimizer) == saved


def _step_of_three(model: nn.Module, optimizer: Optimizer) -> None:
    model.zero_grad()
    model(torch.rand(2, 3)).sum().backward()
    optimizer.step()


def test_an_optimizer_that_keeps_numbers_and_shards_gets_them_back_as_they_were(tmp_path: Path) -> None:
    model = _model(sharded=True)
    optimizer = OPTIMIZERS["adamw"](model)
    _step(model, optimizer)
    first = next(iter(model.parameters()))
    optimizer.state[first]["count"] = 3
    path = tmp_path / "state.safetensors"
    state.save(path, 0, model, optimizer, CPU)
    optimizer.state[first]["count"] = 4
    state.load(path, model, optimizer, CPU)
    own = optimizer.state[first]
    assert own["count"] == 3
    assert isinstance(own["exp_avg"], DTensor)
    assert isinstance(first, DTensor)
    assert (own["exp_avg"].placements, own["exp_avg"].shape) == (first.placements, first.shape)


@pytest.mark.parametrize(
    ("other", "line"),
    [
        (lambda: nn.Linear(4, 3), "param.0.bias is only in the recording"),
        (lambda: nn.Sequential(nn.Linear(4, 3, bias=False)), "param.0.bias is only in the recording"),
        (
            lambda: nn.Sequential(nn.Linear(5, 3)),
            "param.0.weight is torch.float32 (3, 5), the recording has torch.float32 (3, 4)",
        ),
        (
            lambda: nn.Sequential(nn.Linear(4, 3)).double(),
            "param.0.weight is torch.float64 (3, 4), the recording has torch.float32 (3, 4)",
        ),
        (
            lambda: nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)),
            "buffer.1.num_batches_tracked is not in the recording",
        ),
    ],
    ids=["name", "fewer", "shape", "dtype", "more"],
)
def test_another_model_is_refused(tmp_path: Path, other: Callable[[], nn.Module], line: str) -> None:
    path = tmp_path / "state.safetensors"
    state.save(path, 0, nn.Sequential(nn.Linear(4, 3)), None, CPU)
    model = other()
    before = _everything(model, None)
    with pytest.raises(RecordingError, match=f"^{re.escape(f'{path}: this is another model: {line}')}$"):
        state.load(path, model, None, CPU)
    assert _everything(model, None) == before


def _others(model: nn.Module) -> dict[str, tuple[Optimizer | None, str]]:
    halves = [*model.parameters()][:3], [*model.parameters()][3:]
    return {
        "kind": (OPTIMIZERS["sgd"](model), "AdamW, the recording has SGD"),
        "none": (None, "AdamW, the recording has none"),
        "groups": (OPTIMIZERS["groups"](model), "its groups have [6] parameters, in the recording [1, 5]"),
        "order": (
            torch.optim.AdamW([*halves[1], *halves[0]]),
            "its groups have other parameters than in the recording",
        ),
    }


@pytest.mark.parametrize("other", ["kind", "none", "groups", "order"])
def test_another_optimizer_is_refused(tmp_path: Path, other: str) -> None:
    model = _model(sharded=False)
    path = tmp_path / "state.safetensors"
    saved, line = _others(model)[other]
    state.save(path, 0, model, saved, CPU)
    optimizer = OPTIMIZERS["adamw"](model)
    _step(model, optimizer)
    before = _everything(model, optimizer)
    with pytest.raises(RecordingError, match=f"^{re.escape(f'{path}: this is another optimizer: {line}')}$"):
        state.load(path, model, optimizer, CPU)
    assert _everything(model, optimizer) == before


def test_an_optimizer_of_parameters_that_are_not_the_models_is_refused(tmp_path: Path) -> None:
    model = _model(sharded=False)
    optimizer = torch.optim.SGD([*model.parameters(), nn.Parameter(torch.zeros(2, 5))])
    line = r"^the optimizer has a parameter of shape \(2, 5\) that the model does not have$"
    with pytest.raises(RecordingError, match=line):
        state.save(tmp_path / "state.safetensors", 0, model, optimizer, CPU)


def test_a_scheduler_goes_on_with_the_learning_rate_that_was_saved(tmp_path: Path) -> None:
    model = _model(sharded=True)
    optimizer = OPTIMIZERS["tensor lr"](model)
    rate = optimizer.param_groups[0]["lr"]
    path = tmp_path / "state.safetensors"
    state.save(path, 0, model, optimizer, CPU)
    rate.fill_(5.0)
    state.load(path, model, optimizer, CPU)
    assert optimizer.param_groups[0]["lr"] is rate
    assert float(rate) == float(torch.tensor(0.1))
