"""Sharding: which parts are units of their own, over which ranks, and that neither changes what is computed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch._C._distributed_c10d import HashStore
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard

# Registers the backend `fake`, whose collectives do nothing: one process is a rank of many. torch has no public one.
from torch.testing._internal.distributed import fake_pg  # noqa: F401

from detsweep.fingerprints import local
from detsweep.worker import sharding
from detsweep.worker.model import RepeatedBlockModel, batch, build, compile_forwards
from tests.support import compose, group_of_one, one_thread

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


@contextmanager
def _rank_of_four() -> Iterator[None]:
    dist.init_process_group("fake", store=HashStore(), rank=1, world_size=4)
    try:
        yield
    finally:
        dist.destroy_process_group()


def _sharded(*overrides: str) -> RepeatedBlockModel:
    config = compose("dtype=fp32", "model.num_layers=2", *overrides)
    model = build(config, CPU)
    sharding.shard(model, config, CPU)
    return model


def _units(model: RepeatedBlockModel) -> list[str]:
    return [name for name, module in model.named_modules() if isinstance(module, FSDPModule)]


def _step(model: RepeatedBlockModel) -> dict[str, Tensor]:
    """Loss and this rank's own gradients of one step from a random state that is always the same."""
    ids, labels = batch(compose(), 0, CPU)
    torch.manual_seed(5)
    loss = F.cross_entropy(model(ids).flatten(0, 1), labels.flatten())
    loss.backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    return {"loss": loss.detach(), **{name: local(one) for name, one in gradients.items() if one is not None}}


def _assert_equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    assert [name for name in one if not torch.equal(one[name], other[name])] == []


@pytest.mark.parametrize("experts", [1, 2])
@pytest.mark.parametrize(
    ("wrap", "expected"),
    [
        ("block", ["", "blocks.0", "blocks.1"]),
        (
            "module",
            ["", *(f"blocks.{number}{part}" for number in (0, 1) for part in ("", ".attention", ".ffn"))],
        ),
        ("root", [""]),
    ],
)
def test_wrap_names_the_units(wrap: str, expected: list[str], experts: int) -> None:
    with group_of_one():
        model = _sharded(f"wrap={wrap}", f"experts={experts}")
    assert _units(model) == expected
    assert all(isinstance(parameter, DTensor) for parameter in model.parameters())


# The experts' sum is a view, which FSDP2 warns of; nothing is done to it in place.
@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")
@pytest.mark.parametrize("wrap", ["module", "root"])
@pytest.mark.parametrize("overrides", [(), ("experts=2",), ("checkpointing=block",)], ids=["dense", "moe", "again"])
def test_units_do_not_change_what_is_computed(wrap: str, overrides: tuple[str, ...]) -> None:
    with group_of_one():
        one = _step(_sharded("wrap=block", *overrides))
        _assert_equal(one, _step(_sharded(f"wrap={wrap}", *overrides)))


@pytest.mark.parametrize(
    ("shard_ranks", "shape", "names", "placements", "rows"),
    [
        ("null", (4,), None, (Shard(0),), 128),
        ("1", (4, 1), ("replicate", "shard"), (Replicate(), Shard(0)), 512),
        ("2", (2, 2), ("replicate", "shard"), (Replicate(), Shard(0)), 256),
        ("4", (1, 4), ("replicate", "shard"), (Replicate(), Shard(0)), 128),
    ],
)
def test_shard_ranks_says_how_many_ranks_share_a_copy(
    shard_ranks: str,
    shape: tuple[int, ...],
    names: tuple[str, ...] | None,
    placements: tuple[Placement, ...],
    rows: int,
) -> None:
    with _rank_of_four():
        model = _sharded(f"world.shard_ranks={shard_ranks}", "world.nproc_per_node=4", "wrap=module")
    for parameter in model.parameters():
        assert isinstance(parameter, DTensor)
        assert (parameter.placements, parameter.device_mesh.shape) == (placements, shape)
        assert parameter.device_mesh.mesh_dim_names == names
    assert local(model.embedding.weight).shape == (rows, 64)


def test_a_copy_on_ranks_that_are_left_over_is_no_copy() -> None:
    with _rank_of_four(), pytest.raises(AssertionError):
        _sharded("world.shard_ranks=3", "world.nproc_per_node=4")


def test_copies_do_not_change_what_is_computed() -> None:
    with group_of_one():
        one, other = _sharded(), _sharded("world.shard_ranks=1")
        _assert_equal(_step(one), _step(other))


@pytest.mark.parametrize("wrap", ["block", "module", "root"])
def test_checkpointed_blocks_are_hooked_once_and_what_is_inside_twice(wrap: str) -> None:
    with group_of_one():
        expected = _step(_sharded())
        model = _sharded(f"wrap={wrap}", "checkpointing=block")
        calls: Counter[str] = Counter()
        for name in ("blocks.1", "blocks.1.attention", "blocks.1.ffn", "blocks.1.ffn.down"):
            module = model.get_submodule(name)
            module.register_forward_pre_hook(lambda *_, name=name: calls.update([f"before {name}"]))
            module.register_forward_hook(lambda *_, name=name: calls.update([f"after {name}"]))
        _assert_equal(expected, _step(model))
    for moment in ("before", "after"):
        assert calls.pop(f"{moment} blocks.1") == 1
    assert set(calls.values()) == {2}


def test_nothing_is_compiled_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch, "compile")
    with group_of_one():
        model = _sharded()
    compile_forwards(model, compose())
    assert not {"forward", "inside", "_head"} & {*vars(model), *vars(model.embedding), *vars(model.blocks[0])}


def test_each_part_is_compiled_on_its_own_and_in_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[object] = []

    def compile_part(part: object, *, dynamic: bool) -> object:
        compiled.append(part)
        return f"compiled {len(compiled)}"

    monkeypatch.setattr(torch, "compile", compile_part)
    with group_of_one():
        model = _sharded()
    expected = [model.embedding.forward, *(block.inside for block in model.blocks), model._head]
    compile_forwards(model, compose("compile=true"))
    assert compiled == expected
    assert [vars(block)["inside"] for block in model.blocks] == ["compiled 2", "compiled 3"]
    # A block's own forward, around which hooks and the recomputation are, stays what it was.
    assert not any("forward" in vars(block) for block in model.blocks)


@pytest.mark.parametrize(
    "overrides",
    [(), ("checkpointing=block", "wrap=module"), ("experts=4", "moe=topk", "checkpointing=block", "model.dropout=0.1")],
    ids=["plain", "again", "moe"],
)
def test_compiled_parts_keep_hooks_outside_and_compute_the_same(
    monkeypatch: pytest.MonkeyPatch, overrides: tuple[str, ...]
) -> None:
    # Traced as for any backend, but run by torch's own kernels: making others takes a C++ compiler many seconds.
    graphs: list[str] = []

    def backend(graph: torch.fx.GraphModule, _: object) -> torch.fx.GraphModule:
        graphs.append(graph.code)
        return graph

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    with group_of_one():
        expected = _step(_sharded(*overrides))
        model = _sharded(*overrides)
        compile_forwards(model, compose("compile=true", *overrides))
        traced: list[bool] = []
        for block in model.blocks:
            block.register_forward_hook(lambda *_: traced.append(torch.compiler.is_compiling()))
        _assert_equal(expected, _step(model))
    assert traced == [False, False]
    for part in ("embedding(", "layer_norm(", "softmax(", "silu("):
        assert any(part in code for code in graphs), part
