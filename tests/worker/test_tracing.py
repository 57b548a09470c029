"""Hooks on modules: in the order of execution, forward, recomputed and backward, and gone when the step is over."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from detsweep.capture import Record
from detsweep.compare import recomputed
from detsweep.failures import position
from detsweep.fingerprints import local, xxh3
from detsweep.worker import sharding
from detsweep.worker.model import RepeatedBlockModel, batch, build
from detsweep.worker.observe import Observer
from detsweep.worker.progress import Progress
from detsweep.worker.tracing import ROOT, ModuleHooks, block_of
from tests.support import compose, one_rank

CPU = torch.device("cpu")
MODULES = (
    "attention_norm",
    "attention.qkv",
    "attention.out",
    "attention",
    "ffn_norm",
    "ffn.gate",
    "ffn.up",
    "ffn.down",
    "ffn",
)
"""What a dense block's forward leaves, in order."""


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    with one_rank():
        yield


class _Traced:
    """A sharded model, hooked, and what its hooks recorded in one forward and backward."""

    def __init__(self, folder: Path, *overrides: str, submodules: bool) -> None:
        config = compose("dtype=fp32", "model.num_layers=2", *overrides)
        self.progress = folder / "rank000.progress"
        progress = Progress(self.progress)
        self.model: RepeatedBlockModel = build(config, CPU)
        sharding.shard(self.model, config, CPU)
        self.observer = Observer(self.model, level="module", checksum="xxh3", fingerprint=xxh3, progress=progress)
        self.hooks = ModuleHooks(self.model, self.observer, progress, submodules=submodules)
        self.ids, self.labels = batch(config, 0, CPU)

    def step(self) -> tuple[Record, ...]:
        with self.hooks:
            self.forward_backward()
        return self.observer.finish(rank=0, step=0, run="r1").records

    def forward_backward(self) -> None:
        self.observer.phase = "forward"
        logits = self.model(self.ids)
        loss = F.cross_entropy(logits.flatten(0, 1), self.labels.flatten())
        self.observer.phase = "backward"
        loss.backward()


def _places(records: tuple[Record, ...]) -> list[tuple[str, str, str]]:
    return [(one.phase, one.site, one.name) for one in records]


def _hooks(model: RepeatedBlockModel) -> dict[str, int]:
    """How many forward hooks each module has, FSDP2's own among them."""
    return {name: len(module._forward_hooks) + len(module._forward_pre_hooks) for name, module in model.named_modules()}


# --- blocks ----------------------------------------------------------------------------------------------------------


def test_blocks_are_recorded_forward_and_backward(tmp_path: Path) -> None:
    records = _Traced(tmp_path, submodules=False).step()
    assert _places(records) == [
        ("forward", "block_pre", "blocks.0"),
        ("forward", "block_post", "blocks.0"),
        ("forward", "block_pre", "blocks.1"),
        ("forward", "block_post", "blocks.1"),
        ("backward", "block_grad_out", "blocks.1"),
        ("backward", "block_grad_in", "blocks.1"),
        ("backward", "block_grad_out", "blocks.0"),
        ("backward", "block_grad_in", "blocks.0"),
    ]
    assert [one.block for one in records] == [0, 0, 1, 1, 1, 1, 0, 0]


def test_records_are_of_what_really_flows(tmp_path: Path) -> None:
    traced = _Traced(tmp_path, submodules=False)
    model = build(compose("dtype=fp32", "model.num_layers=2"), CPU)
    hidden: list[Tensor] = [model.embedding(traced.ids)]
    hidden[0].retain_grad()
    for block in model.blocks:
        hidden.append(block(hidden[-1]))
        hidden[-1].retain_grad()
    logits = F.linear(model.norm(hidden[-1]), model.embedding.weight)
    F.cross_entropy(logits.flatten(0, 1), traced.labels.flatten()).backward()
    first, middle, last = hidden
    assert first.grad is not None
    assert middle.grad is not None
    assert last.grad is not None
    expected = [first, middle, middle, last, last.grad, middle.grad, middle.grad, first.grad]
    assert [one.digest for one in traced.step()] == [xxh3(tensor) for tensor in expected]


def test_where_nothing_is_learned_there_is_no_gradient_to_record(tmp_path: Path) -> None:
    traced = _Traced(tmp_path, submodules=True)
    with traced.hooks, torch.no_grad():
        traced.model(traced.ids)
    sites = {one.site for one in traced.observer.finish(rank=0, step=0, run="r1").records}
    assert sites == {"block_pre", "block_post", "module"}


def test_a_rank_says_which_block_it_is_in(tmp_path: Path) -> None:
    traced = _Traced(tmp_path, submodules=False)
    traced.step()
    place = position(traced.progress)
    assert place is not None
    assert place.block == 1


# --- submodules ------------------------------------------------------------------------------------------------------


def test_every_submodule_is_recorded_in_the_order_of_execution(tmp_path: Path) -> None:
    records = _Traced(tmp_path, submodules=True).step()
    forward = [(one.site, one.name) for one in records if one.phase == "forward"]
    assert forward == [
        ("module", "embedding"),
        ("block_pre", "blocks.0"),
        *(("module", f"blocks.0.{name}") for name in MODULES),
        ("block_post", "blocks.0"),
        ("block_pre", "blocks.1"),
        *(("module", f"blocks.1.{name}") for name in MODULES),
        ("block_post", "blocks.1"),
        ("module", "norm"),
    ]
    assert {one.block for one in records if one.name.startswith("blocks.1")} == {1}
    assert {one.block for one in records if one.name in ("norm", "embedding")} == {None}


def test_every_submodule_has_both_its_gradients(tmp_path: Path) -> None:
    traced = _Traced(tmp_path, submodules=True)
    records = traced.step()
    names = {f"blocks.{block}.{name}" for block in (0, 1) for name in MODULES} | {"norm"}
    assert {one.name for one in records if one.site == "module_grad_out"} == names | {"embedding"}
    # An embedding's input are numbers without a gradient.
    assert {one.name for one in records if one.site == "module_grad_in"} == names
    backward = [one.name for one in records if one.phase == "backward"]
    assert len(backward) == 2 * (len(names) + 2) + 1
    # What runs later in forward comes earlier in backward.
    outs = [one.name for one in records if one.site == "module_grad_out"]
    assert outs[0] == "norm"
    assert outs[-1] == "embedding"
    assert outs.index("blocks.1.ffn.down") < outs.index("blocks.1.attention.qkv") < outs.index("blocks.0.ffn.down")


def test_all_tensors_of_a_module_are_recorded(tmp_path: Path) -> None:
    records = _Traced(tmp_path, "experts=2", submodules=True).step()
    forward = [(one.name, one.dtype) for one in records if one.phase == "forward" and "blocks.0.ffn.router" in one.name]
    assert forward == [("blocks.0.ffn.router", "int64"), ("blocks.0.ffn.router[1]", "float32")]
    assert "blocks.0.ffn.router[1]" in {one.name for one in records if one.site == "module_grad_out"}


def test_the_random_state_is_recorded_before_each_draw(tmp_path: Path) -> None:
    traced = _Traced(tmp_path, "model.dropout=0.1", submodules=False)
    torch.manual_seed(1)
    state = xxh3(torch.get_rng_state())
    records = traced.step()
    random = [one for one in records if one.site == "rng"]
    assert [one.name for one in random] == [
        f"blocks.{block}.{name}_dropout" for block in (0, 1) for name in ("attention", "ffn")
    ]
    assert random[0].digest == state
    assert len({one.digest for one in random}) == 4
    places = [(one.site, one.name) for one in records]
    assert places[:4] == [
        ("block_pre", "blocks.0"),
        ("rng", "blocks.0.attention_dropout"),
        ("rng", "blocks.0.ffn_dropout"),
        ("block_post", "blocks.0"),
    ]


# --- recomputation ---------------------------------------------------------------------------------------------------

DROPPED = ("checkpointing=block", "model.dropout=0.1")


def test_what_checkpointing_recomputes_is_a_phase_of_its_own(tmp_path: Path) -> None:
    records = _Traced(tmp_path, *DROPPED, submodules=True).step()
    inside = [(one.site, one.name) for one in records if one.phase == "forward" and one.site in ("module", "rng")]
    again = [(one.site, one.name) for one in records if one.phase == "recompute"]
    for block in (0, 1):
        own = [place for place in inside if place[1].startswith(f"blocks.{block}.")]
        assert [place for place in again if place[1].startswith(f"blocks.{block}.")] == own
        assert len(own) == len(MODULES) + 4
    assert [name.split(".")[1] for _, name in again] == ["1"] * 13 + ["0"] * 13
    # A block itself runs once.
    sites = [one.site for one in records]
    assert sites.count("block_pre") == sites.count("block_post") == sites.count("block_grad_out") == 2


def test_what_is_recomputed_has_the_bits_of_forward(tmp_path: Path) -> None:
    traced = _Traced(tmp_path, *DROPPED, submodules=True)
    with traced.hooks:
        traced.forward_backward()
    assert list(recomputed(traced.observer.finish(rank=0, step=0, run="r1"))) == []


def test_without_the_random_state_what_is_recomputed_is_not_what_forward_had(tmp_path: Path) -> None:
    traced = _Traced(tmp_path, *DROPPED, "preserve_rng_state=false", submodules=True)
    with traced.hooks:
        traced.forward_backward()
    first = next(recomputed(traced.observer.finish(rank=0, step=0, run="r1")))
    assert (first.record.site, first.record.name) == ("rng", "blocks.1.attention_dropout")


def test_gradients_are_those_of_the_graph_that_is_gone_back_through(tmp_path: Path) -> None:
    kept = _Traced(tmp_path, submodules=True).step()
    again = _Traced(tmp_path, "checkpointing=block", submodules=True).step()
    digests = {(one.site, one.name): one.digest for one in kept if one.phase == "backward"}
    others = [((one.site, one.name), one.digest) for one in again if one.phase == "backward"]
    assert len(others) == len(digests)
    assert dict(others) == digests


# --- where execution is ----------------------------------------------------------------------------------------------


class _Watch(torch.autograd.Function):
    """The identity, which asks in forward and in backward where execution is."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, hooks: ModuleHooks, seen: list[tuple[str, str]]) -> Tensor:
        ctx.hooks, ctx.seen = hooks, seen
        seen.append(hooks.position())
        return tensor.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        ctx.seen.append(ctx.hooks.position())
        return gradient, None, None


@pytest.mark.parametrize("name", ["blocks.0.attention", "blocks.1.ffn.up", "blocks.1.ffn_norm", "norm"])
def test_position_names_the_module_that_runs_forward_and_backward(tmp_path: Path, name: str) -> None:
    traced = _Traced(tmp_path, submodules=True)
    seen: list[tuple[str, str]] = []
    module = traced.model.get_submodule(name)
    compute = module.forward
    module.forward = lambda *tensors: _Watch.apply(compute(*tensors), traced.hooks, seen)  # type: ignore[method-assign]
    traced.step()
    assert seen == [(name, "forward"), (name, "backward")]


def test_position_names_the_phase_of_what_is_recomputed(tmp_path: Path) -> None:
    traced = _Traced(tmp_path, "checkpointing=block", submodules=True)
    seen: list[tuple[str, str]] = []
    module = traced.model.get_submodule("blocks.1.ffn")
    compute = module.forward
    module.forward = lambda *tensors: _Watch.apply(compute(*tensors), traced.hooks, seen)  # type: ignore[method-assign]
    traced.step()
    # It keeps nothing for backward: what does, further in, is the first to need what is recomputed.
    assert seen == [("blocks.1.ffn", phase) for phase in ("forward", "backward", "recompute")]


def test_position_without_submodules_is_that_of_blocks(tmp_path: Path) -> None:
    traced = _Traced(tmp_path, submodules=False)
    seen: list[tuple[str, str]] = []
    module = traced.model.get_submodule("blocks.1.ffn")
    compute = module.forward
    module.forward = lambda *tensors: _Watch.apply(compute(*tensors), traced.hooks, seen)  # type: ignore[method-assign]
    traced.step()
    assert seen == [("blocks.1", "forward"), ("blocks.1", "backward")]


def test_position_outside_of_modules_is_the_model(tmp_path: Path) -> None:
    traced = _Traced(tmp_path, submodules=True)
    with traced.hooks:
        traced.observer.phase = "forward"
        logits = traced.model(traced.ids)
        assert traced.hooks.position() == (ROOT, "forward")
        seen: list[tuple[str, str]] = []
        watched = _Watch.apply(logits, traced.hooks, seen)
        traced.observer.phase = "backward"
        watched.float().sum().backward()
    assert seen == [(ROOT, "forward"), (ROOT, "backward")]


# --- before and after ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("submodules", [True, False])
def test_hooks_are_gone_after_the_step(tmp_path: Path, submodules: bool) -> None:
    traced = _Traced(tmp_path, "model.dropout=0.1", submodules=submodules)
    before = _hooks(traced.model)
    with traced.hooks:
        hooked = {name for name, count in _hooks(traced.model).items() if count > before[name]}
        assert {"blocks.0", "blocks.1", "blocks.1.ffn_dropout"} <= hooked
        assert ("norm" in hooked) is submodules
    assert _hooks(traced.model) == before
    traced.forward_backward()
    assert traced.observer.finish(rank=0, step=0, run="r1").records == ()


def test_hooks_are_gone_even_where_the_step_failed(tmp_path: Path) -> None:
    traced = _Traced(tmp_path, submodules=True)
    before = _hooks(traced.model)
    with pytest.raises(IndexError), traced.hooks:
        traced.model(torch.full((1, 4), 10_000))
    assert _hooks(traced.model) == before


def test_hooked_or_not_the_gradients_are_the_same(tmp_path: Path) -> None:
    plain, hooked = (_Traced(tmp_path, "model.dropout=0.1", submodules=True) for _ in range(2))
    torch.manual_seed(1)
    plain.forward_backward()
    torch.manual_seed(1)
    hooked.step()
    for one, other in zip(plain.model.parameters(), hooked.model.parameters(), strict=True):
        assert one.grad is not None
        assert other.grad is not None
        assert torch.equal(local(one.grad), local(other.grad))


@pytest.mark.parametrize(
    ("name", "block"), [("blocks.11.ffn.up.weight", 11), ("blocks.2", 2), ("norm.weight", None), ("blocks", None)]
)
def test_a_module_or_parameter_belongs_to_its_block(name: str, block: int | None) -> None:
    assert block_of(name) == block
