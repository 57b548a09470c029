"""The model under test: causal, the same weights whatever surrounds them, and a batch of each rank's own."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from detsweep.worker.model import Attention, RepeatedBlockModel, batch, build
from tests.support import compose

CPU = torch.device("cpu")


def _build(*overrides: str) -> RepeatedBlockModel:
    return build(compose("dtype=fp32", *overrides), CPU)


def _parameters(model: RepeatedBlockModel) -> dict[str, Tensor]:
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


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


def test_attention_is_that_of_torch() -> None:
    torch.manual_seed(1)
    attention = Attention(16, 4).double()
    hidden = torch.randn(2, 7, 16, dtype=torch.float64)
    query, key, value = (
        part.view(2, 7, 4, 4).transpose(1, 2) for part in (hidden @ attention.qkv.weight.T).chunk(3, dim=-1)
    )
    mixed = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    expected = mixed.transpose(1, 2).reshape(2, 7, 16) @ attention.out.weight.T
    # Its softmax is in fp32, whatever the dtype of the rest.
    torch.testing.assert_close(attention(hidden), expected, rtol=1e-5, atol=1e-7)


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


def test_ids_are_of_the_vocabulary_and_the_shape_asked_for() -> None:
    ids, labels = batch(compose("model.vocab_size=5", "model.batch_size=3", "model.seq_len=50"), 0, CPU)
    assert ids.shape == labels.shape == (3, 50)
    assert set(ids.flatten().tolist()) == set(range(5))
