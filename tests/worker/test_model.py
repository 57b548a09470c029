"""The model under test: causal, the same weights whatever surrounds them, its variants, a batch of each rank's own."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from detsweep.worker.model import Block, RepeatedBlockModel, batch, build
from tests.support import compose, one_thread

CPU = torch.device("cpu")
AGAIN = "checkpointing=block"


def _build(*overrides: str) -> RepeatedBlockModel:
    return build(compose("dtype=fp32", *overrides), CPU)


def _parameters(model: RepeatedBlockModel) -> dict[str, Tensor]:
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def _step(model: RepeatedBlockModel) -> dict[str, Tensor]:
    """Loss and every gradient of one step from a random state that is always the same."""
    ids, labels = batch(compose(), 0, CPU)
    torch.manual_seed(5)
    with one_thread():
        loss = F.cross_entropy(model(ids).flatten(0, 1), labels.flatten())
        loss.backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    assert all(gradient is not None for gradient in gradients.values())
    return {"loss": loss.detach(), **gradients}  # type: ignore[dict-item]


def _differ(one: dict[str, Tensor], other: dict[str, Tensor]) -> list[str]:
    assert one.keys() == other.keys()
    return [name for name in one if not torch.equal(one[name], other[name])]


def test_logits_are_over_the_vocabulary() -> None:
    ids, _ = batch(compose(), 0, CPU)
    assert _build()(ids).shape == (2, 32, 512)


def test_a_token_sees_none_after_it() -> None:
    model = _build("experts=4")
    ids, _ = batch(compose(), 0, CPU)
    changed = ids.clone()
    changed[:, 20:] = (changed[:, 20:] + 1) % 512
    one, other = model(ids), model(changed)
    torch.testing.assert_close(one[:, :20], other[:, :20])
    assert not torch.allclose(one[:, 20], other[:, 20])


def test_the_head_is_tied_to_the_embedding() -> None:
    names = set(_parameters(_build()))
    assert "embedding.weight" in names
    assert not any("head" in name for name in names)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("model.num_layers=2",), ("model.num_layers=4",)),
        (("experts=2", "model.num_layers=1"), ("experts=4", "model.num_layers=2")),
    ],
    ids=["layers", "experts"],
)
def test_a_weight_does_not_depend_on_how_many_others_there_are(one: tuple[str, ...], other: tuple[str, ...]) -> None:
    few, many = _parameters(_build(*one)), _parameters(_build(*other))
    routers = {name for name in few if "router" in name}
    assert few.keys() < many.keys()
    assert [name for name in few.keys() - routers if not torch.equal(few[name], many[name])] == []


def test_weights_are_those_of_the_seed_and_nothing_else() -> None:
    torch.manual_seed(1)
    one = _parameters(_build())
    torch.manual_seed(2)
    other = _parameters(_build())
    assert all(torch.equal(one[name], other[name]) for name in one)
    reseeded = _parameters(_build("seed=7"))
    assert not torch.equal(one["blocks.0.attention.qkv.weight"], reseeded["blocks.0.attention.qkv.weight"])


def test_no_two_layers_have_the_same_weights() -> None:
    weights = _parameters(_build())
    assert not torch.equal(weights["blocks.0.ffn.up.weight"], weights["blocks.1.ffn.up.weight"])
    assert not torch.equal(weights["blocks.0.ffn.up.weight"], weights["blocks.0.ffn.gate.weight"])


def test_norms_start_as_the_identity_and_weights_small() -> None:
    for name, weight in _parameters(_build()).items():
        if name.endswith("norm.weight"):
            assert torch.equal(weight, torch.ones_like(weight)), name
        elif name.endswith("norm.bias"):
            assert torch.equal(weight, torch.zeros_like(weight)), name
        else:
            assert 0.018 < float(weight.std()) < 0.022, name


def test_one_expert_is_the_dense_layer() -> None:
    assert not any("experts" in name for name in _parameters(_build("experts=1")))
    assert sum(".router." in name for name in _parameters(_build("experts=2"))) == 4


@pytest.mark.parametrize(
    "variant",
    [
        ("model.embedding=index",),
        ("model.attention=sdpa",),
        ("model.attention=flash",),
        ("moe.combine=index_add",),
        ("moe.combine=scatter_add",),
        ("moe.combine=ordered",),
    ],
    ids=lambda variant: variant[0],
)
def test_a_variant_has_the_same_weights_loss_and_gradients_up_to_rounding(variant: tuple[str, ...]) -> None:
    model, other = _build("experts=4", "moe=topk"), _build("experts=4", "moe=topk", *variant)
    assert _differ(_parameters(model), _parameters(other)) == []
    expected, found = _step(model), _step(other)
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-3, atol=1e-6, msg=name)


def test_embeddings_are_looked_up_by_another_kernel_in_backward() -> None:
    ids, _ = batch(compose(), 0, CPU)
    names = {kind: _build(f"model.embedding={kind}").embedding(ids).grad_fn.name() for kind in ("module", "index")}
    assert names == {"module": "EmbeddingBackward0", "index": "IndexBackward0"}


@pytest.mark.parametrize(
    ("combine", "kernel"),
    [("index_put", "IndexPut"), ("index_add", "IndexAdd"), ("scatter_add", "ScatterAdd"), ("ordered", "Add")],
)
def test_experts_are_combined_by_the_kernel_asked_for(combine: str, kernel: str) -> None:
    block = _build("experts=2", "top_k=2", "moe=top2", f"moe.combine={combine}").get_submodule("blocks.0")
    node = block.get_submodule("ffn")(torch.randn(2, 32, 64)).grad_fn
    # The sum of each token's rows, in the shape of the input.
    assert [node.name(), node.next_functions[0][0].name()] == ["ViewBackward0", f"{kernel}Backward0"]


def test_dropout_is_there_only_when_asked_for() -> None:
    assert not any(isinstance(module, nn.Dropout) for module in _build().modules())
    model = _build("model.dropout=0.25", "model.num_layers=1")
    found = {name: module.p for name, module in model.named_modules() if isinstance(module, nn.Dropout)}
    assert found == {"blocks.0.attention_dropout": 0.25, "blocks.0.ffn_dropout": 0.25}


def test_dropout_zeroes_its_share_of_both_branches_anew_each_time() -> None:
    block = _build("model.dropout=0.25", "model.num_layers=1").get_submodule("blocks.0")
    seen: dict[str, list[Tensor]] = {"attention_dropout": [], "ffn_dropout": []}
    for name, zeros in seen.items():
        block.get_submodule(name).register_forward_hook(
            lambda _, __, output, zeros=zeros: zeros.append(output.detach() == 0)
        )
    hidden = torch.randn(2, 32, 64)
    block(hidden)
    block(hidden)
    assert {name: len(zeros) for name, zeros in seen.items()} == {"attention_dropout": 2, "ffn_dropout": 2}
    masks = [zeros for both in seen.values() for zeros in both]
    assert all(0.2 < float(zeros.float().mean()) < 0.3 for zeros in masks)
    assert len({tuple(zeros.flatten().tolist()) for zeros in masks}) == 4


@pytest.mark.parametrize("overrides", [(), ("experts=4", "moe=topk"), ("model.dropout=0.1",)], ids=str)
def test_recomputing_activations_changes_no_bit(overrides: tuple[str, ...]) -> None:
    assert _differ(_step(_build(*overrides)), _step(_build(*overrides, AGAIN))) == []


@pytest.mark.parametrize("checkpointing", ["none", "block"])
def test_what_is_inside_a_block_is_looked_up_each_time_it_runs(checkpointing: str) -> None:
    # An observer puts itself around it while it looks.
    block = _build(f"checkpointing={checkpointing}", "model.num_layers=1").blocks[0]
    assert isinstance(block, Block)
    assert block.checkpointed is (checkpointing == "block")
    inside, calls = block.inside, Counter[str]()
    hidden = torch.randn(2, 32, 64, requires_grad=True)

    def counted(tensor: Tensor) -> Tensor:
        calls["inside"] += 1
        return inside(tensor)

    expected = block(hidden)
    block.inside = counted  # type: ignore[method-assign,assignment]
    output = block(hidden)
    assert torch.equal(output, expected)
    assert calls["inside"] == 1
    output.sum().backward()
    assert calls["inside"] == (2 if checkpointing == "block" else 1)


def test_without_the_random_state_other_units_are_dropped_when_recomputing() -> None:
    kept = _step(_build("model.dropout=0.1", AGAIN))
    differ = _differ(kept, _step(_build("model.dropout=0.1", AGAIN, "preserve_rng_state=false")))
    assert "loss" not in differ
    assert {"blocks.0.ffn.up.weight", "blocks.3.attention.qkv.weight"} < set(differ)


@pytest.mark.parametrize(("dtype", "expected"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_parameters_have_the_cells_dtype_and_the_default_is_brought_back(dtype: str, expected: torch.dtype) -> None:
    model = build(compose(f"dtype={dtype}"), CPU)
    assert {parameter.dtype for parameter in model.parameters()} == {expected}
    assert torch.get_default_dtype() == torch.float32


def test_the_default_dtype_is_brought_back_after_a_failure() -> None:
    config = compose("dtype=fp16")
    config["model"]["vocab_size"] = -1
    with pytest.raises(RuntimeError):
        build(config, CPU)
    assert torch.get_default_dtype() == torch.float32


def test_labels_are_the_ids_shifted_by_one() -> None:
    ids, labels = batch(compose(), 0, CPU)
    assert torch.equal(labels[:, :-1], ids[:, 1:])
    assert torch.equal(labels[:, -1], ids[:, 0])
    assert not torch.equal(labels, ids)


def test_each_rank_has_a_batch_of_its_own() -> None:
    batches = [batch(compose(), rank, CPU)[0] for rank in range(4)]
    assert all(not torch.equal(batches[a], batches[b]) for a in range(4) for b in range(a))


def test_a_batch_is_the_same_every_time_and_of_the_seed() -> None:
    assert torch.equal(batch(compose(), 1, CPU)[0], batch(compose(), 1, CPU)[0])
    assert not torch.equal(batch(compose(), 1, CPU)[0], batch(compose("seed=7"), 1, CPU)[0])


def test_each_step_and_micro_batch_has_a_batch_of_its_own() -> None:
    batches = [
        batch(compose(), rank, CPU, step=step, micro=micro)[0]
        for rank in range(2)
        for step in range(3)
        for micro in range(2)
    ]
    assert len({tuple(ids.flatten().tolist()) for ids in batches}) == 12
    again = batch(compose(), 1, CPU, step=2, micro=1)
    assert torch.equal(again[0], batches[-1])
    assert torch.equal(again[1], batches[-1].roll(-1, dims=1))
    assert not torch.equal(again[0], batch(compose("seed=7"), 1, CPU, step=2, micro=1)[0])


def test_the_first_batch_is_that_of_seed_and_rank_alone() -> None:
    expected = torch.randint(512, (2, 32), generator=torch.Generator().manual_seed(1234 + 3))
    assert torch.equal(batch(compose(), 3, CPU)[0], expected)
    assert torch.equal(batch(compose(), 3, CPU, step=0, micro=0)[0], expected)


def test_ids_are_of_the_vocabulary_and_the_shape_asked_for() -> None:
    ids, labels = batch(compose("model.vocab_size=5", "model.batch_size=3", "model.seq_len=50"), 0, CPU)
    assert ids.shape == labels.shape == (3, 50)
    assert set(ids.flatten().tolist()) == set(range(5))
