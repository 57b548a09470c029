"""Replay: every run starts where the first one did, and what is unobserved leaves no trace."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from detsweep.fingerprints import local, select
from detsweep.worker import model as models
from detsweep.worker import sharding
from detsweep.worker.faults import Fault
from detsweep.worker.model import RepeatedBlockModel
from detsweep.worker.observe import Observer
from detsweep.worker.progress import Progress
from detsweep.worker.replay import Replay, backward_order, block_of
from detsweep.worker.snapshot import RandomState
from tests.support import compose, group_of_one, one_thread

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _group() -> Iterator[None]:
    state = RandomState.now(CPU)
    with group_of_one(), one_thread():
        yield
    state.restore(CPU)


def _replay(folder: Path, *overrides: str) -> tuple[RepeatedBlockModel, Replay]:
    config: dict[str, Any] = compose("model.num_layers=2", *overrides)
    model = models.build(config, CPU)
    sharding.shard(model, config, CPU)
    progress = Progress(folder / "rank000.progress")
    name, fingerprint = select(config["checksum"], "cpu")
    replay = Replay(
        model,
        models.batch(config, 0, CPU),
        observer=Observer(
            model, level=config["observe"]["name"], checksum=name, fingerprint=fingerprint, progress=progress
        ),
        fault=Fault(config["fault"], rank=0, vocab_size=config["model"]["vocab_size"]),
        progress=progress,
        device=CPU,
        checksum_mode=config["checksum_mode"],
    )
    return model, replay


def _parameters(model: RepeatedBlockModel) -> list[Tensor]:
    return [local(parameter).clone() for parameter in model.parameters()]


def _random() -> dict[str, Tensor]:
    return RandomState.now(CPU).tensors()


def _draw_in_forward(model: RepeatedBlockModel) -> None:
    """As dropout does: each forward takes numbers of the global state, and its output depends on them."""
    model.blocks[1].register_forward_hook(lambda _, __, output: output * (1 + torch.rand(()).to(output.dtype)))


def test_a_model_that_draws_random_numbers_repeats(tmp_path: Path) -> None:
    model, replay = _replay(tmp_path)
    _draw_in_forward(model)
    replay.warm_up(1)
    (step,) = replay.steps(1, 3, cold=False)
    first, *others = (run.stream for run in step.runs)
    assert len(others) == 2
    assert all(other.records == first.records for other in others)
    # It did draw: the states before and after the step are not the same.
    assert first.digests("rng")[4] != first.digests("rng")[-1]


def test_a_module_with_a_memory_of_its_own_diverges(tmp_path: Path) -> None:
    model, replay = _replay(tmp_path)
    calls: list[None] = []

    def count(_: Any, __: Any, output: Tensor) -> Tensor:
        calls.append(None)
        return output + len(calls)

    model.blocks[1].register_forward_hook(count)
    (step,) = replay.steps(1, 2, cold=False)
    assert step.runs[0].stream.records != step.runs[1].stream.records


def test_warming_up_leaves_parameters_and_random_state_as_they_were(tmp_path: Path) -> None:
    model, replay = _replay(tmp_path)
    _draw_in_forward(model)
    parameters, state = _parameters(model), _random()
    replay.warm_up(2)
    assert all(map(torch.equal, _parameters(model), parameters))
    assert all(torch.equal(tensor, state[name]) for name, tensor in _random().items())


def test_a_replayed_step_leaves_parameters_and_random_state_as_they_were(tmp_path: Path) -> None:
    model, replay = _replay(tmp_path)
    _draw_in_forward(model)
    parameters, state = _parameters(model), _random()
    assert len(list(replay.steps(2, 2, cold=False))) == 2
    assert all(map(torch.equal, _parameters(model), parameters))
    assert all(torch.equal(tensor, state[name]) for name, tensor in _random().items())


def test_a_step_has_a_plain_run_before_and_after_the_observed_ones(tmp_path: Path) -> None:
    model, replay = _replay(tmp_path)
    hooked: list[bool] = []
    model.embedding.register_forward_hook(lambda *_: hooked.append(bool(_observers(model))))
    (step,) = replay.steps(1, 3, cold=False)
    assert hooked == [False, True, True, True, False]
    assert len(step.plain_milliseconds) == 2
    assert min(*step.plain_milliseconds, *(run.milliseconds for run in step.runs)) > 0


def test_cold_the_first_run_of_all_is_an_observed_one(tmp_path: Path) -> None:
    model, replay = _replay(tmp_path)
    hooked: list[bool] = []
    model.embedding.register_forward_hook(lambda *_: hooked.append(bool(_observers(model))))
    first, second = replay.steps(2, 2, cold=True)
    assert hooked == [True, True, False, False, True, True, False]
    assert [len(step.plain_milliseconds) for step in (first, second)] == [1, 2]
    assert first.runs[0].stream.records == first.runs[1].stream.records


def _observers(model: RepeatedBlockModel) -> list[Any]:
    return [hook for hook in model.blocks[0]._forward_hooks.values() if "Observer" in getattr(hook, "__qualname__", "")]


def test_every_parameter_has_a_gradient_on_record(tmp_path: Path) -> None:
    model, replay = _replay(tmp_path, "experts=4")
    (step,) = replay.steps(1, 2, cold=False)
    names = {name for name, _ in model.named_parameters()}
    records = step.runs[0].stream.records
    assert {record.name for record in records if record.site == "grad"} == names
    assert {record.name for record in records if record.site == "param"} == names


def test_gradients_are_listed_from_the_last_block_to_the_root() -> None:
    model = models.build(compose("model.num_layers=12"), CPU)
    blocks = [block_of(name) for name, _ in backward_order(model)]
    assert len(blocks) == len(list(model.named_parameters()))
    in_blocks = [number for number in blocks if number is not None]
    assert in_blocks == sorted(in_blocks, reverse=True)
    assert set(in_blocks) == set(range(12))
    assert blocks[len(in_blocks) :] == [None] * 3


@pytest.mark.parametrize(
    ("name", "block"), [("blocks.11.ffn.up.weight", 11), ("norm.weight", None), ("embedding.weight", None)]
)
def test_a_parameter_belongs_to_its_block(name: str, block: int | None) -> None:
    assert block_of(name) == block


def test_a_gpu_that_is_not_there_is_an_error_and_no_fall_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "999")
    with pytest.raises(RuntimeError, match=r"device=cuda, but torch .* for local rank 999"):
        sharding.open_device("cuda")
    assert sharding.open_device("cpu") == CPU


@pytest.mark.parametrize("minutes", [0.5, 30.0])
def test_a_collective_waits_longer_than_the_trial_may_take(monkeypatch: pytest.MonkeyPatch, minutes: float) -> None:
    asked: dict[str, Any] = {}
    monkeypatch.setattr(dist, "init_process_group", lambda backend, **options: asked.update(options, backend=backend))
    sharding.open_group(CPU, minutes)
    assert asked["timeout"] > timedelta(minutes=minutes)
    assert (asked["backend"], asked["device_id"]) == ("gloo", None)


def test_every_parameter_is_sharded(tmp_path: Path) -> None:
    model, _ = _replay(tmp_path)
    assert all(type(parameter.data).__name__ == "DTensor" for parameter in model.parameters())
