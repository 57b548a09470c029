"""Hooks on modules: in the order of execution, forward, recomputed and backward, and gone when the step is over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial
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
from detsweep.worker.model import Block, RepeatedBlockModel, batch, build, compile_forwards
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
    """A sharded model, hooked, and what its hooks recorded in one forward and backward.

    At level `op` that is what the observer records of it, which has hooks of its own.
    """

    def __init__(self, folder: Path, *overrides: str, submodules: bool, level: str = "module") -> None:
        config = compose("dtype=fp32", "model.num_layers=2", *overrides)
        self.progress = folder / "rank000.progress"
        progress = Progress(self.progress)
        self.model: RepeatedBlockModel = build(config, CPU)
        sharding.shard(self.model, config, CPU)
        compile_forwards(self.model, config)
        self.observer = Observer(
            self.model,
            level=level,
            checksum="xxh3",
            fingerprint=xxh3,
            progress=progress,
            compiled=config["compile"],
        )
        self.hooks = ModuleHooks(self.model, self.observer, progress, submodules=submodules)
        self.ids, self.labels = batch(config, 0, CPU)

    @property
    def blocks(self) -> list[Block]:
        return [block for block in self.model.blocks if isinstance(block, Block)]

    def step(self) -> tuple[Record, ...]:
        with self.observer.observed() if self.observer.level == "op" else self.hooks:
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


def test_operators_outside_of_submodules_are_recomputed_in_their_block(tmp_path: Path) -> None:
    records = _Traced(tmp_path, "checkpointing=block", submodules=True, level="op").step()
    for block in (0, 1):
        inside = [(one.phase, one.name) for one in records if one.site == "op" and one.block == block]
        # Adding up the residuals is in no submodule: twice, forward and again.
        added = [phase for phase, name in inside if name == f"aten.add in blocks.{block}"]
        assert added == ["forward", "forward", "recompute", "recompute"]
        # What FSDP2 gathered for the block stays outside of what is checkpointed.
        own = [place for place in inside if place[1] != f"aten.copy_ in blocks.{block}"]
        forward, again = ([name for phase, name in own if phase == one] for one in ("forward", "recompute"))
        assert forward == again
    assert {one.phase for one in records if one.site == "op" and one.block is None} == {"forward", "backward"}


def test_operators_are_recomputed_to_the_bits_that_they_had(tmp_path: Path) -> None:
    traced = _Traced(tmp_path, *DROPPED, submodules=True, level="op")
    with traced.observer.observed():
        traced.forward_backward()
    stream = traced.observer.finish(rank=0, step=0, run="r1")
    assert list(recomputed(stream)) == []
    assert any(one.phase == "recompute" and one.site == "op" for one in stream.records)


def test_what_goes_back_through_a_block_is_no_recomputation(tmp_path: Path) -> None:
    kept = _Traced(tmp_path, submodules=True, level="op").step()
    again = _Traced(tmp_path, "checkpointing=block", submodules=True, level="op").step()
    names = (Counter(one.name for one in records if _goes_back(one)) for records in (kept, again))
    assert next(names) == next(names)


def _goes_back(one: Record) -> bool:
    # Checkpointing detaches what it keeps, once more for each block.
    return (one.site, one.phase) == ("op", "backward") and "detach" not in one.name


# --- where execution is ----------------------------------------------------------------------------------------------


class _Watch(torch.autograd.Function):
    """The identity, which asks in forward and in backward where execution is."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, hooks: ModuleHooks, seen: list[tuple[str, str]]) -> Tensor:
        ctx.hooks, ctx.seen = hooks, seen
        seen.append(hooks.position())
        return tensor.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        ctx.seen.append(ctx.hooks.position())
        return gradient, None, None


def _watch(tensor: Tensor, hooks: ModuleHooks, seen: list[tuple[str, str]]) -> Tensor:
    return _Watch.apply(tensor, hooks, seen)  # type: ignore[no-any-return,no-untyped-call]


@pytest.mark.parametrize("name", ["blocks.0.attention", "blocks.1.ffn.up", "blocks.1.ffn_norm", "norm"])
def test_position_names_the_module_that_runs_forward_and_backward(tmp_path: Path, name: str) -> None:
    traced = _Traced(tmp_path, submodules=True)
    seen: list[tuple[str, str]] = []
    module = traced.model.get_submodule(name)
    compute = module.forward
    module.forward = lambda *tensors: _watch(compute(*tensors), traced.hooks, seen)
    traced.step()
    assert seen == [(name, "forward"), (name, "backward")]


def test_position_names_the_phase_of_what_is_recomputed(tmp_path: Path) -> None:
    traced = _Traced(tmp_path, "checkpointing=block", submodules=True)
    seen: list[tuple[str, str]] = []
    module = traced.model.get_submodule("blocks.1.ffn")
    compute = module.forward
    module.forward = lambda *tensors: _watch(compute(*tensors), traced.hooks, seen)
    traced.step()
    # It keeps nothing for backward: what does, further in, is the first to need what is recomputed.
    assert seen == [("blocks.1.ffn", phase) for phase in ("forward", "backward", "recompute")]


@pytest.mark.parametrize("submodules", [True, False])
def test_position_in_a_block_but_in_no_submodule_is_the_block_when_recomputed_too(
    tmp_path: Path, submodules: bool
) -> None:
    traced = _Traced(tmp_path, "checkpointing=block", submodules=submodules)
    seen: dict[str, list[tuple[str, str]]] = {"blocks.0": [], "blocks.1": []}
    for block, own in zip(traced.blocks, seen.values(), strict=True):
        block.inside = _watched(block, traced.hooks, own)  # type: ignore[method-assign]
    traced.step()
    for name, own in seen.items():
        # Before its first submodule and after its last, forward and again; its output is gone back through first.
        phases = ["forward", "forward", "backward", "recompute", "recompute", "backward"]
        assert own == [(name, phase) for phase in phases]


def _watched(block: Block, hooks: ModuleHooks, seen: list[tuple[str, str]]) -> Any:
    inside = block.inside
    return lambda hidden: _watch(inside(_watch(hidden, hooks, seen)), hooks, seen)


def test_each_micro_batch_goes_back_from_the_root(tmp_path: Path) -> None:
    traced = _Traced(tmp_path, submodules=True)
    seen: list[tuple[str, str]] = []
    with traced.hooks:
        for _ in range(3):
            traced.observer.phase = "forward"
            watched = _watch(traced.model(traced.ids), traced.hooks, seen)
            traced.observer.phase = "backward"
            watched.float().sum().backward()
    assert seen == [(ROOT, "forward"), (ROOT, "backward")] * 3


@pytest.mark.parametrize("overrides", [(), ("checkpointing=block",)], ids=["kept", "again"])
def test_operators_of_every_micro_batch_are_in_the_same_places(tmp_path: Path, overrides: tuple[str, ...]) -> None:
    traced = _Traced(tmp_path, *overrides, submodules=True, level="op")
    places = []
    with traced.observer.observed():
        for micro in range(3):
            traced.forward_backward()
            records = traced.observer.finish(rank=0, step=0, run=f"r{micro + 1}").records
            # The first has no gradients yet to add its own to.
            names = [(one.name, one.phase) for one in records if not one.name.startswith("aten.add_ ")]
            places.append(names)
    assert places[1] == places[2] == places[0]
    assert next(name for name, phase in places[1] if phase == "backward").endswith(f" in {ROOT}")


def test_position_without_submodules_is_that_of_blocks(tmp_path: Path) -> None:
    traced = _Traced(tmp_path, submodules=False)
    seen: list[tuple[str, str]] = []
    module = traced.model.get_submodule("blocks.1.ffn")
    compute = module.forward
    module.forward = lambda *tensors: _watch(compute(*tensors), traced.hooks, seen)
    traced.step()
    assert seen == [("blocks.1", "forward"), ("blocks.1", "backward")]


def test_position_outside_of_modules_is_the_model(tmp_path: Path) -> None:
    traced = _Traced(tmp_path, submodules=True)
    with traced.hooks:
        traced.observer.phase = "forward"
        logits = traced.model(traced.ids)
        assert traced.hooks.position() == (ROOT, "forward")
        seen: list[tuple[str, str]] = []
        watched = _watch(logits, traced.hooks, seen)
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
    traced = _Traced(tmp_path, "checkpointing=block", submodules=True)
    before = _hooks(traced.model)
    with pytest.raises(IndexError), traced.hooks:
        traced.model(torch.full((1, 4), 10_000))
    assert _hooks(traced.model) == before
    assert not any("inside" in vars(block) for block in traced.blocks)


@pytest.mark.parametrize("checkpointing", ["none", "block"])
def test_only_what_is_recomputed_is_wrapped_and_only_while_it_is_observed(tmp_path: Path, checkpointing: str) -> None:
    traced = _Traced(tmp_path, f"checkpointing={checkpointing}", submodules=False)
    with traced.hooks:
        assert {"inside" in vars(block) for block in traced.blocks} == {checkpointing == "block"}
        traced.forward_backward()
    assert not any("inside" in vars(block) for block in traced.blocks)
    # Observing once more is another pair of hooks, as an observer makes them.
    with traced.observer.observed():
        traced.forward_backward()
    assert not any("inside" in vars(block) for block in traced.blocks)


def test_a_recomputation_that_fails_leaves_the_block(tmp_path: Path) -> None:
    traced = _Traced(tmp_path, "checkpointing=block", submodules=True)
    block = traced.blocks[1]
    inside, calls = block.inside, Counter[str]()

    def failing(hidden: Tensor) -> Tensor:
        calls[traced.observer.phase] += 1
        if traced.observer.phase == "backward":
            raise ZeroDivisionError
        return inside(hidden)

    block.inside = failing  # type: ignore[method-assign]
    with traced.hooks:
        with pytest.raises(ZeroDivisionError):
            traced.forward_backward()
        assert traced.hooks.position()[1] == "backward"
    assert calls == {"forward": 1, "backward": 1}
    assert vars(block)["inside"] is failing


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


# --- compiled --------------------------------------------------------------------------------------------------------


@pytest.fixture
def _traced_only(monkeypatch: pytest.MonkeyPatch) -> None:
    # Traced as for any backend, but run by torch's own kernels: making others takes a C++ compiler many seconds.
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))


COMPILED = ("compile=true", "model.dropout=0.1")


@pytest.mark.usefixtures("_traced_only")
@pytest.mark.parametrize("overrides", [(), ("checkpointing=block",)], ids=["kept", "again"])
def test_of_a_compiled_block_the_random_state_is_that_before_it(tmp_path: Path, overrides: tuple[str, ...]) -> None:
    torch.manual_seed(1)
    eager = _Traced(tmp_path, "model.dropout=0.1", *overrides, submodules=False).step()
    torch.manual_seed(1)
    records = _Traced(tmp_path, *COMPILED, *overrides, submodules=False).step()
    assert _places(records) == [
        ("forward", "rng", "blocks.0"),
        ("forward", "block_pre", "blocks.0"),
        ("forward", "block_post", "blocks.0"),
        ("forward", "rng", "blocks.1"),
        ("forward", "block_pre", "blocks.1"),
        ("forward", "block_post", "blocks.1"),
        ("backward", "block_grad_out", "blocks.1"),
        ("backward", "block_grad_in", "blocks.1"),
        ("backward", "block_grad_out", "blocks.0"),
        ("backward", "block_grad_in", "blocks.0"),
    ]
    assert [one.block for one in records] == [0, 0, 0, 1, 1, 1, 1, 1, 0, 0]
    # Nothing else draws: of a block that is not compiled it is the state before its first dropout.
    first = {one.name: one.digest for one in eager if one.name.endswith(".attention_dropout")}
    assert [one.digest for one in records if one.site == "rng"] == [
        first[f"blocks.{block}.attention_dropout"] for block in (0, 1)
    ]


@pytest.mark.usefixtures("_traced_only")
def test_compiled_blocks_that_draw_nothing_have_no_random_state(tmp_path: Path) -> None:
    records = _Traced(tmp_path, "compile=true", submodules=False).step()
    assert {one.site for one in records} == {"block_pre", "block_post", "block_grad_out", "block_grad_in"}


@pytest.mark.usefixtures("_traced_only")
def test_dropouts_of_compiled_blocks_are_not_hooked(tmp_path: Path) -> None:
    traced = _Traced(tmp_path, *COMPILED, submodules=False)
    before = _hooks(traced.model)
    with traced.hooks:
        hooked = {name for name, count in _hooks(traced.model).items() if count > before[name]}
    assert hooked == {"blocks.0", "blocks.1"}


@pytest.mark.usefixtures("_traced_only")
@pytest.mark.parametrize("checkpointing", ["none", "block"])
def test_what_is_compiled_is_put_back_as_it_was(tmp_path: Path, checkpointing: str) -> None:
    traced = _Traced(tmp_path, *COMPILED, f"checkpointing={checkpointing}", submodules=False)
    before = [vars(block)["inside"] for block in traced.blocks]
    with traced.hooks:
        wrapped = [vars(block)["inside"] for block in traced.blocks]
        traced.forward_backward()
    assert [one is other for one, other in zip(wrapped, before, strict=True)] == [checkpointing == "none"] * 2
    assert all(vars(block)["inside"] is one for block, one in zip(traced.blocks, before, strict=True))


@pytest.mark.usefixtures("_traced_only")
def test_what_is_compiled_is_recomputed_in_its_block(tmp_path: Path) -> None:
    traced = _Traced(tmp_path, *COMPILED, "checkpointing=block", submodules=False)
    seen: list[tuple[str, str]] = []
    for block in traced.blocks:
        block.inside = _asking(block, traced.hooks, seen)  # type: ignore[method-assign]
    traced.step()
    assert seen == [
        ("blocks.0", "forward"),
        ("blocks.1", "forward"),
        ("blocks.1", "recompute"),
        ("blocks.0", "recompute"),
    ]


def _asking(block: Block, hooks: ModuleHooks, seen: list[tuple[str, str]]) -> Any:
    inside = block.inside

    def run(hidden: Tensor) -> Tensor:
        seen.append(hooks.position())
        return inside(hidden)

    return run


@pytest.mark.usefixtures("_traced_only")
@pytest.mark.parametrize("overrides", [(), ("checkpointing=block",)], ids=["kept", "again"])
def test_compiled_and_hooked_or_not_the_gradients_are_the_same(tmp_path: Path, overrides: tuple[str, ...]) -> None:
    plain, hooked = (_Traced(tmp_path, *COMPILED, *overrides, submodules=False) for _ in range(2))
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
