"""The training step: observed or not it does the same, and it trains what it says it trains."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from detsweep.capture import LEVELS, Stream, to_line
from detsweep.fingerprints import local, xxh3
from detsweep.worker import model as models
from detsweep.worker.model import RepeatedBlockModel
from detsweep.worker.snapshot import Snapshot
from detsweep.worker.step import TrainingStep, backward_order
from detsweep.worker.tracing import block_of
from tests.support import compose, one_rank, prepared

CPU = torch.device("cpu")
TRAIN = ("mode=train", "dtype=fp32", "lr=0.05")


@pytest.fixture(autouse=True)
def _group() -> Iterator[None]:
    with one_rank():
        yield


def _parameters(step: TrainingStep) -> dict[str, Tensor]:
    return {name: local(parameter).clone() for name, parameter in step.model.named_parameters()}


def _gradients(step: TrainingStep) -> dict[str, Tensor]:
    gradients = {}
    for name, parameter in step.model.named_parameters():
        assert parameter.grad is not None
        gradients[name] = local(parameter.grad).clone()
    return gradients


def _equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def _sites(stream: Stream, phase: str) -> list[str]:
    return list(dict.fromkeys(one.site for one in stream.records if one.phase == phase))


# --- observed and plain ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("overrides", [(), ("experts=4", "moe=topk"), ("checkpointing=block",)], ids=str)
def test_at_every_level_the_step_is_the_plain_one(tmp_path: Path, level: str, overrides: tuple[str, ...]) -> None:
    cell = ("model.dropout=0.1", *overrides)
    plain, observed = prepared(tmp_path, *cell), prepared(tmp_path, f"observe={level}", *cell)
    for step in (plain, observed):
        torch.manual_seed(5)
        _ = step.plain(0) if step is plain else step.observed(0, 1)
    assert torch.equal(plain.loss, observed.loss)
    assert _equal(_gradients(plain), _gradients(observed))


@pytest.mark.parametrize("level", LEVELS)
def test_at_every_level_a_step_repeats(tmp_path: Path, level: str) -> None:
    step = prepared(tmp_path, f"observe={level}", "model.dropout=0.1", "experts=2", "checkpointing=block")
    snapshot = Snapshot.take(step.model, CPU)
    streams = []
    for run in (1, 2):
        snapshot.restore()
        streams.append(step.observed(0, run).stream)
    assert streams[0].records == streams[1].records
    assert (streams[0].run, streams[1].run, streams[0].rank, streams[0].nonfinite) == ("r1", "r2", 0, {})


def test_each_closer_level_has_all_that_block_has(tmp_path: Path) -> None:
    places = {}
    for level in LEVELS:
        stream = prepared(tmp_path, f"observe={level}").observed(0, 1).stream
        places[level] = {(one.site, one.name, one.phase): one.digest for one in stream.records}
    # In a group of one FSDP2 has nothing to send.
    assert places["collective"] == places["block"]
    assert places["off"].items() < places["block"].items() < places["module"].items() < places["op"].items()


def test_every_parameter_has_a_gradient_on_record(tmp_path: Path) -> None:
    step = prepared(tmp_path, "experts=4")
    names = [name for name, _ in step.model.named_parameters()]
    records = step.observed(0, 1).stream.records
    assert sorted(one.name for one in records if one.site == "grad") == sorted(names)
    for phase in ("before", "after"):
        assert [one.name for one in records if (one.site, one.phase) == ("param", phase)] == names


def test_records_are_of_what_is_really_there(tmp_path: Path) -> None:
    step = prepared(tmp_path)
    parameters = _parameters(step)
    stream = step.observed(0, 1).stream
    gradients = _gradients(step)
    for one in stream.records:
        if one.site == "grad":
            assert one.digest == xxh3(gradients[one.name])
        if one.site == "param":
            assert one.digest == xxh3(parameters[one.name])
    assert stream.digests("loss") == [int(step.loss.view(torch.int32))]


def _sha256sum(tensor: Tensor) -> str:
    """By numpy, which has no bfloat16: its bits are read as those of an integer."""
    numbers = tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor
    return hashlib.sha256(np.ascontiguousarray(numbers.numpy()).tobytes()).hexdigest()


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("clip", ["null", "0.01"])
def test_gradients_on_record_are_the_sha256_of_what_backward_left(tmp_path: Path, clip: str, dtype: str) -> None:
    cell = (f"dtype.param={dtype}", f"clip={clip}", "optimizer=sgd", "checksum=sha256")
    step = prepared(tmp_path, "mode=train", "dtype=fp32", *cell)
    left: dict[str, Tensor] = {}
    update = step._update

    def looked_at() -> Tensor | None:
        left.update(_gradients(step))
        return update()

    step._update = looked_at  # type: ignore[method-assign]
    before = _parameters(step)
    line = json.loads(to_line(step.observed(0, 1).stream, world_size=1))
    assert {one.dtype for one in left.values()} == {{"fp32": torch.float32, "bf16": torch.bfloat16}[dtype]}
    assert line["grads"] == {name: _sha256sum(gradient) for name, gradient in left.items()}
    assert line["params"] == {name: _sha256sum(parameter) for name, parameter in _parameters(step).items()}
    assert line["params"] != {name: _sha256sum(parameter) for name, parameter in before.items()}
    assert line["loss_bits"] == int(step.loss.view(torch.int32))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_line_has_the_sha256_of_what_lies_in_memory_in_any_order_and_of_nothing(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    observer = prepared(tmp_path, "checksum=sha256").observer
    whole = torch.linspace(-3, 5, 24 * 35).to(dtype).view(24, 35)
    gradients = {"whole": whole, "turned": whole.t(), "strided": whole[1::3, 2:30:4], "empty": whole[:0]}
    for name, gradient in gradients.items():
        observer.record("grad", name, gradient)
    line = json.loads(to_line(observer.finish(rank=0, step=0, run="r1"), world_size=1))
    assert line["grads"] == {name: _sha256sum(gradient) for name, gradient in gradients.items()}
    assert line["grads"]["empty"] == hashlib.sha256(b"").hexdigest()
    assert len(set(line["grads"].values())) == len(gradients)


def test_without_an_optimizer_a_step_changes_no_parameter(tmp_path: Path) -> None:
    step = prepared(tmp_path)
    before = _parameters(step)
    step.observed(0, 1)
    assert step.optimizer is None
    assert _equal(before, _parameters(step))


def test_what_is_not_finite_is_counted(tmp_path: Path) -> None:
    step = prepared(tmp_path)
    with torch.no_grad():
        local(step.model.get_parameter("norm.bias")).view(-1)[3] = torch.inf
    nonfinite = step.observed(0, 1).stream.nonfinite
    assert nonfinite["loss"] == 1
    assert nonfinite["blocks.0.ffn.up.weight"] == 176 * 64


def test_gradients_are_listed_from_the_last_block_to_the_root() -> None:
    model: RepeatedBlockModel = models.build(compose("model.num_layers=12"), CPU)
    blocks = [block_of(name) for name, _ in backward_order(model)]
    assert len(blocks) == len(list(model.named_parameters()))
    in_blocks = [number for number in blocks if number is not None]
    assert in_blocks == sorted(in_blocks, reverse=True)
    assert set(in_blocks) == set(range(12))
    assert blocks[len(in_blocks) :] == [None] * 3


# --- training --------------------------------------------------------------------------------------------------------


def test_phases_of_a_training_step_come_in_order(tmp_path: Path) -> None:
    step = prepared(tmp_path, *TRAIN, "clip=0.1")
    step.observed(0, 1)
    stream = step.observed(1, 1).stream
    phases = list(dict.fromkeys(one.phase for one in stream.records))
    assert phases == ["before", "forward", "backward", "optimizer", "after"]
    assert _sites(stream, "before") == ["rng", "input", "optim", "param"]
    assert _sites(stream, "optimizer") == ["norm"]
    assert _sites(stream, "after") == ["optim", "param", "rng"]


@pytest.mark.parametrize(
    ("optimizer", "keys"), [("adamw", {"exp_avg", "exp_avg_sq", "step"}), ("sgd", {"momentum_buffer"})]
)
def test_the_optimizers_state_is_on_record(tmp_path: Path, optimizer: str, keys: set[str]) -> None:
    step = prepared(tmp_path, *TRAIN, f"optimizer={optimizer}")
    first, second = (step.observed(number, 1).stream for number in (0, 1))
    names = {name for name, _ in step.model.named_parameters()}
    assert _sites(first, "before") == ["rng", "input", "param"]
    for stream, phase in ((first, "after"), (second, "before")):
        found = {one.name for one in stream.records if (one.site, one.phase) == ("optim", phase)}
        assert found == {f"{name}.{key}" for name in names for key in keys}

    def digests(stream: Stream, phase: str) -> list[int]:
        return [one.digest for one in stream.records if (one.site, one.phase) == ("optim", phase)]

    assert digests(first, "after") == digests(second, "before") != digests(second, "after")


def test_sgd_takes_the_gradients_times_the_learning_rate(tmp_path: Path) -> None:
    step = prepared(tmp_path, *TRAIN, "optimizer=sgd")
    before = _parameters(step)
    step.observed(0, 1)
    gradients = _gradients(step)
    expected = {name: before[name].add(gradients[name], alpha=-0.05) for name in before}
    assert _equal(_parameters(step), expected)


def test_adamw_is_that_of_torch(tmp_path: Path) -> None:
    step = prepared(tmp_path, *TRAIN)
    own = {name: torch.nn.Parameter(tensor) for name, tensor in _parameters(step).items()}
    optimizer = torch.optim.AdamW(own.values(), lr=0.05)
    for number in range(3):
        step.observed(number, 1)
        for name, gradient in _gradients(step).items():
            own[name].grad = gradient
        optimizer.step()
    assert _equal(_parameters(step), {name: tensor.detach() for name, tensor in own.items()})


def test_a_plain_step_trains_as_an_observed_one_does(tmp_path: Path) -> None:
    plain, observed = (prepared(tmp_path, *TRAIN, "observe=op", "clip=0.1", "accum=2") for _ in range(2))
    for number in range(2):
        plain.plain(number)
        observed.observed(number, 1)
    assert _equal(_parameters(plain), _parameters(observed))


@pytest.mark.parametrize("clip", [0.01, 1e6])
def test_gradients_are_clipped_to_the_norm_asked_for(tmp_path: Path, clip: float) -> None:
    free, clipped = prepared(tmp_path, *TRAIN), prepared(tmp_path, *TRAIN, f"clip={clip}")
    free.observed(0, 1)
    stream = clipped.observed(0, 1).stream
    norm = torch.stack([gradient.norm() for gradient in _gradients(free).values()]).norm()
    found = torch.stack([gradient.norm() for gradient in _gradients(clipped).values()]).norm()
    assert 0.01 < float(norm) < 1e6
    torch.testing.assert_close(found, torch.minimum(norm, torch.tensor(clip)), rtol=1e-3, atol=0)
    # On record is the norm before clipping, and before it the gradients as backward left them.
    (record,) = (one for one in stream.records if one.site == "norm")
    assert (record.name, record.dtype, record.shape) == ("grad_norm", "float32", ())
    grads = {one.name: one.digest for one in stream.records if one.site == "grad"}
    assert grads == {name: xxh3(gradient) for name, gradient in _gradients(free).items()}


def test_without_a_clip_there_is_no_norm(tmp_path: Path) -> None:
    assert prepared(tmp_path, *TRAIN).observed(0, 1).stream.digests("norm") == []


# --- micro-batches ---------------------------------------------------------------------------------------------------


def test_each_micro_batch_has_records_of_its_own(tmp_path: Path) -> None:
    step = prepared(tmp_path, *TRAIN, "accum=3")
    stream = step.observed(0, 1).stream
    for site, names in (("input", 6), ("block_post", 6), ("logits", 3), ("loss", 3), ("block_grad_in", 6)):
        assert len(set(stream.digests(site))) == names, site
    # All gradients are of the whole step: one each.
    assert len(stream.digests("grad")) == len(_parameters(step))
    order = [one.site for one in stream.records if one.site in ("logits", "loss", "block_grad_out")]
    assert order == ["logits", "loss", "block_grad_out", "block_grad_out"] * 3


def test_two_equal_micro_batches_are_one(tmp_path: Path) -> None:
    # Halving and adding two equal halves are exact: bit for bit what one micro-batch gives.
    one, two = prepared(tmp_path, *TRAIN), prepared(tmp_path, *TRAIN, "accum=2")
    data = models.batch(compose(), 0, CPU)
    for step in (one, two):
        step._data = lambda *_: data
        step.observed(0, 1)
    assert torch.equal(one.loss, two.loss)
    assert _equal(_gradients(one), _gradients(two))
    assert _equal(_parameters(one), _parameters(two))


def test_micro_batches_add_up_to_the_mean_of_their_gradients(tmp_path: Path) -> None:
    step = prepared(tmp_path, *TRAIN, "accum=2")
    step.observed(0, 1)
    both = _gradients(step)
    halves = []
    for micro in range(2):
        single = prepared(tmp_path, *TRAIN)
        single._data = lambda number, _, micro=micro: models.batch(compose(), 0, CPU, step=number, micro=micro)
        single.observed(0, 1)
        halves.append(_gradients(single))
    expected = {name: halves[0][name] / 2 + halves[1][name] / 2 for name in both}
    assert _equal(both, expected)
    assert not _equal(halves[0], halves[1])


def test_gradients_of_the_step_before_are_gone(tmp_path: Path) -> None:
    step = prepared(tmp_path)
    step.observed(0, 1)
    step.observed(1, 1)
    other = prepared(tmp_path)
    other.observed(1, 1)
    assert _equal(_gradients(step), _gradients(other))
