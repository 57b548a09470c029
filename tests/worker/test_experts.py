"""Experts that are dealt out to ranks: on real ranks the same sums, and gradients, as where every rank has all."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import HashStore
from torch.distributed.tensor import DTensor

# Registers the backend `fake`, whose collectives do nothing: one process is a rank of many. torch has no public one.
from torch.testing._internal.distributed import fake_pg  # noqa: F401

from detsweep.worker import gradients, sharding
from detsweep.worker.experts import DispatchedExperts, _transposed, own_experts
from detsweep.worker.model import RepeatedBlockModel, build
from detsweep.worker.moe import MixtureOfExperts
from tests.conftest import clean_environment
from tests.support import compose, group_of_one, one_thread
from tests.worker.expert_ranks import CASES, TRAIN

CPU = torch.device("cpu")
ROOT = Path(__file__).resolve().parents[2]
TRAINED = [name for name, overrides in CASES.items() if TRAIN[0] in overrides]
EXACT = [name for name in CASES if name != "bf16_mixed"]
Outcomes = dict[str, list[dict[str, dict[str, Any]]]]
"""Of each case what each rank has, by dispatch."""


def _ran(folder: Path, ranks: int, *names: str) -> Outcomes:
    """The cases on real ranks: processes of torchrun that talk over gloo."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    done = subprocess.run(
        [sys.executable, *launcher, "-m", "tests.worker.expert_ranks", str(folder), *names],
        cwd=ROOT,
        env={**clean_environment(), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return {
        name: [torch.load(folder / f"{name}.{rank}.pt", weights_only=False) for rank in range(ranks)] for name in names
    }


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    return _ran(tmp_path_factory.mktemp("two"), 2, *CASES)


def _assert_close(dealt: dict[str, Tensor], local: dict[str, Tensor], tolerance: float = 5e-6) -> None:
    """Every tensor is the other's, up to a part of the other's largest value."""
    for name, tensor in dealt.items():
        largest = float(local[name].abs().max())
        torch.testing.assert_close(
            tensor, local[name], rtol=0, atol=tolerance * largest, msg=lambda text, name=name: f"{name}: {text}"
        )


def _assert_the_same_work(outcomes: list[dict[str, dict[str, Any]]], tolerance: float = 5e-6) -> None:
    names: set[str] = set()
    for one in outcomes:
        dealt, local = one["all_to_all"], one["local"]
        torch.testing.assert_close(dealt["loss"], local["loss"], rtol=1e-6, atol=0)
        for what in ("gradients", "parameters"):
            _assert_close(dealt[what], local[what], tolerance)
        names |= dealt["gradients"].keys()
    # Together the ranks have all that each of them has where none is dealt out.
    assert names == set(outcomes[0]["local"]["gradients"])


@pytest.mark.parametrize("name", EXACT)
def test_loss_and_every_gradient_are_those_of_local_experts(two_ranks: Outcomes, name: str) -> None:
    _assert_the_same_work(two_ranks[name])


def test_in_less_precision_they_agree_up_to_its_rounding(two_ranks: Outcomes) -> None:
    _assert_the_same_work(two_ranks["bf16_mixed"], tolerance=0.02)


def test_each_rank_has_its_own_experts_under_their_numbers(two_ranks: Outcomes) -> None:
    for rank, one in enumerate(two_ranks["plain"]):
        own = [name for name in one["all_to_all"]["gradients"] if ".experts." in name]
        numbers = {int(name.split(".")[4]) for name in own}
        assert (len(own), numbers) == (2 * 2 * 3, {2 * rank, 2 * rank + 1})
        assert len(one["all_to_all"]["own"]) == len(own)
        assert one["local"]["own"] == []


@pytest.mark.parametrize(
    ("name", "without"), [("none_at_home_of_rank_1", {2, 3}), ("none_for_expert_0", {0}), ("plain", set())]
)
def test_experts_without_tokens_have_gradients_of_zeros(two_ranks: Outcomes, name: str, without: set[int]) -> None:
    zeros = set()
    for one in two_ranks[name]:
        for parameter, gradient in one["all_to_all"]["gradients"].items():
            if not gradient.any():
                assert ".experts." in parameter
                zeros.add(int(parameter.split(".")[4]))
    assert zeros == without


@pytest.mark.parametrize("name", TRAINED)
def test_the_norm_is_one_for_all_ranks_and_what_gradients_are_cut_to(two_ranks: Outcomes, name: str) -> None:
    limit = compose(*CASES[name])["clip"]
    norms = {tuple(one["all_to_all"]["norms"]) for one in two_ranks[name]}
    assert len(norms) == 1
    assert len(norms.pop()) == 2
    together = {key: g for one in two_ranks[name] for key, g in one["all_to_all"]["gradients"].items()}
    norm = torch.stack([gradient.norm() for gradient in together.values()]).norm()
    torch.testing.assert_close(float(norm), limit, rtol=1e-4, atol=0)


def test_with_three_ranks_gradients_are_the_mean_over_three(tmp_path: Path) -> None:
    _assert_the_same_work(_ran(tmp_path, 3, "train")["train"])


# --- in one process --------------------------------------------------------------------------------------------------


@contextmanager
def _rank_of_four() -> Iterator[None]:
    dist.init_process_group("fake", store=HashStore(), rank=1, world_size=4)
    try:
        yield
    finally:
        dist.destroy_process_group()


def _model(*overrides: str, sharded: bool = True) -> RepeatedBlockModel:
    config = compose("experts=8", "moe=top2", "model.num_layers=2", "world.nproc_per_node=4", *overrides)
    model = build(config, CPU)
    if sharded:
        sharding.shard(model, config, CPU)
    return model


def test_each_parameter_begins_as_it_does_where_every_rank_has_it() -> None:
    with _rank_of_four():
        dealt = dict(_model("moe.dispatch=all_to_all", sharded=False).named_parameters())
    local = dict(_model(sharded=False).named_parameters())
    assert {name for name in local if name not in dealt} == {
        name for name in local if ".experts." in name and int(name.split(".")[4]) not in (2, 3)
    }
    assert all(torch.equal(parameter, local[name]) for name, parameter in dealt.items())


@pytest.mark.parametrize("wrap", ["block", "module", "root"])
@pytest.mark.parametrize(("shard_ranks", "shared"), [("null", (4,)), ("2", (2, 2)), ("1", (4, 1))])
def test_experts_are_on_a_mesh_of_one_rank_and_the_rest_where_it_was(
    wrap: str, shard_ranks: str, shared: tuple[int, ...]
) -> None:
    with _rank_of_four():
        model = _model(
            "moe.dispatch=all_to_all", f"wrap={wrap}", f"world.shard_ranks={shard_ranks}", "dtype=bf16_mixed"
        )
        own = {id(one) for experts in own_experts(model) for one in experts.parameters()}
        meshes: dict[str, set[tuple[int, ...]]] = {"own": set(), "shared": set()}
        for parameter in model.parameters():
            assert isinstance(parameter, DTensor)
            meshes["own" if id(parameter) in own else "shared"].add(tuple(parameter.device_mesh.mesh.shape))
        groups = gradients.parameter_groups(model)
    assert meshes == {"own": {(1,)}, "shared": {shared}}
    assert len(own) == 2 * 2 * 3
    assert [len(group["params"]) for group in groups if isinstance(group, dict)] == [
        len(list(model.parameters())) - 12,
        12,
    ]


def test_without_dealt_out_experts_torch_has_all_parameters_together() -> None:
    with group_of_one():
        model = _model("world.nproc_per_node=1")
        assert gradients.parameter_groups(model) == list(model.parameters())
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        gradients.average_own(model)
        assert isinstance(gradients.clip(model, 1.0), DTensor)


def _layers(top_k: int, routing: str, combine: str) -> tuple[DispatchedExperts, MixtureOfExperts]:
    """Both layers with the same weights, for a group of one."""
    torch.manual_seed(3)
    local = MixtureOfExperts(8, 12, experts=4, top_k=top_k, routing=routing, combine=combine)
    dealt = DispatchedExperts(8, 12, experts=4, top_k=top_k, routing=routing, combine=combine, rank=0, ranks=1)
    dealt.load_state_dict(local.state_dict())
    return dealt, local


@pytest.mark.parametrize("combine", ["index_put", "index_add", "scatter_add", "ordered"])
@pytest.mark.parametrize(("top_k", "routing"), [(1, "learned"), (3, "learned"), (3, "even")])
def test_alone_in_its_group_a_rank_has_the_sum_of_local_experts(top_k: int, routing: str, combine: str) -> None:
    dealt, local = _layers(top_k, routing, combine)
    hidden = torch.randn(2, 6, 8, generator=torch.Generator().manual_seed(4))
    one, other = hidden.clone().requires_grad_(), hidden.clone().requires_grad_()
    with group_of_one(), one_thread():
        output = dealt(one)
        output.square().sum().backward()
    expected = local(other)
    expected.square().sum().backward()
    torch.testing.assert_close(output, expected, rtol=1e-5, atol=1e-8)
    torch.testing.assert_close(one.grad, other.grad, rtol=1e-5, atol=1e-7)
    for (name, mine), (_, its) in zip(dealt.named_parameters(), local.named_parameters(), strict=True):
        torch.testing.assert_close(mine.grad, its.grad, rtol=1e-5, atol=1e-7, msg=name)


def test_an_expert_sees_its_rows_in_the_order_of_tokens_and_slots() -> None:
    dealt, _ = _layers(2, "learned", "ordered")
    seen: dict[int, Tensor] = {}
    for number, expert in enumerate(dealt.experts.children()):
        expert.register_forward_pre_hook(lambda _, inputs, number=number: seen.update({number: inputs[0]}))
    tokens = torch.randn(12, 8, generator=torch.Generator().manual_seed(4))
    chosen, _ = dealt.router(tokens)
    with group_of_one():
        dealt(tokens)
    assert all(torch.equal(rows, tokens[torch.where(chosen == number)[0]]) for number, rows in seen.items())
    assert sorted(seen) == [0, 1, 2, 3]


def test_pieces_are_transposed_and_back() -> None:
    counts = [[1, 0, 2], [3, 1, 0]]
    rows = torch.arange(7.0).unsqueeze(1)
    by_column = _transposed(rows, counts)
    assert by_column.flatten().tolist() == [0, 3, 4, 5, 6, 1, 2]
    assert torch.equal(_transposed(by_column, [list(column) for column in zip(*counts, strict=True)]), rows)
