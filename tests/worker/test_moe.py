"""The mixture of experts: its sum, its routing, and gradients for experts that no token chose."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from detsweep.worker.moe import FeedForward, MixtureOfExperts

HIDDEN, FFN = 8, 12


def _moe(experts: int, top_k: int, routing: str = "learned") -> MixtureOfExperts:
    torch.manual_seed(3)
    return MixtureOfExperts(HIDDEN, FFN, experts=experts, top_k=top_k, routing=routing).double()


def _hidden(batch: int = 2, seq: int = 6) -> Tensor:
    return torch.randn(batch, seq, HIDDEN, generator=torch.Generator().manual_seed(4), dtype=torch.float64)


def _probabilities(moe: MixtureOfExperts, token: Tensor) -> Tensor:
    return torch.softmax(moe.router(token), dim=-1, dtype=torch.float32)


def _one_token_at_a_time(moe: MixtureOfExperts, hidden: Tensor) -> Tensor:
    """The sum that the layer stands for, written as plainly as can be."""
    rows = []
    for number, token in enumerate(hidden.reshape(-1, HIDDEN)):
        probabilities = _probabilities(moe, token)
        if moe.routing == "even":
            chosen = [(number * moe.top_k + slot) % len(moe.experts) for slot in range(moe.top_k)]
        else:
            chosen = probabilities.argsort(descending=True)[: moe.top_k].tolist()
        rows.append(sum(moe.experts[one](token) * probabilities[one].double() for one in chosen))
    return torch.stack(rows).view_as(hidden)


def _tokens_of_experts(moe: MixtureOfExperts, hidden: Tensor) -> list[int]:
    counts = [0] * len(moe.experts)
    handles = []
    for number, expert in enumerate(moe.experts):

        def count(_: object, inputs: tuple[Tensor], __: Tensor, number: int = number) -> None:
            counts[number] += len(inputs[0])

        handles.append(expert.register_forward_hook(count))
    moe(hidden)
    for handle in handles:
        handle.remove()
    return counts


@pytest.mark.parametrize("routing", ["learned", "even"])
@pytest.mark.parametrize(("experts", "top_k"), [(2, 1), (4, 1), (4, 2), (5, 3), (4, 4)])
def test_the_output_is_the_weighted_sum_over_each_tokens_experts(experts: int, top_k: int, routing: str) -> None:
    moe, hidden = _moe(experts, top_k, routing), _hidden()
    torch.testing.assert_close(moe(hidden), _one_token_at_a_time(moe, hidden), rtol=1e-12, atol=1e-14)


def test_with_one_expert_per_token_the_output_is_that_experts_weighted() -> None:
    moe, hidden = _moe(experts=4, top_k=1), _hidden(1, 1)
    probabilities = _probabilities(moe, hidden.view(-1))
    best = int(probabilities.argmax())
    expected = moe.experts[best](hidden) * probabilities[best].double()
    torch.testing.assert_close(moe(hidden), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(("experts", "top_k"), [(4, 1), (4, 2), (3, 2), (6, 4)])
def test_even_routing_gives_every_expert_the_same_number_of_tokens(experts: int, top_k: int) -> None:
    moe = _moe(experts, top_k, "even")
    counts = _tokens_of_experts(moe, _hidden())
    assert counts == [12 * top_k // experts] * experts


def test_learned_routing_sends_each_token_to_top_k_experts() -> None:
    counts = _tokens_of_experts(_moe(4, 3), _hidden())
    assert sum(counts) == 12 * 3
    assert len(set(counts)) > 1


@pytest.mark.parametrize("top_k", [2, 4])
def test_even_routing_never_sends_a_token_twice_to_one_expert(top_k: int) -> None:
    chosen = _moe(4, top_k, "even")._route(torch.zeros(12, 4))
    assert all(len(set(row)) == top_k for row in chosen.tolist())


def test_an_expert_without_tokens_still_gets_a_gradient_of_zeros() -> None:
    moe, hidden = _moe(experts=3, top_k=1), _hidden().abs()
    with torch.no_grad():
        # With positive inputs expert 1 always has the largest logit.
        moe.router.weight.copy_(torch.tensor([0.0, 1.0, 0.0]).view(3, 1).expand(3, HIDDEN))
    assert _tokens_of_experts(moe, hidden) == [0, 12, 0]
    moe(hidden).sum().backward()
    for number, expert in enumerate(moe.experts):
        for parameter in expert.parameters():
            assert parameter.grad is not None
            assert bool(parameter.grad.abs().sum() > 0) == (number == 1)


def test_every_gradient_is_that_of_the_plain_sum() -> None:
    moe, hidden = _moe(experts=4, top_k=3), _hidden()
    moe(hidden).square().sum().backward()
    gradients = {name: parameter.grad for name, parameter in moe.named_parameters()}
    moe.zero_grad(set_to_none=True)
    _one_token_at_a_time(moe, hidden).square().sum().backward()
    for name, parameter in moe.named_parameters():
        torch.testing.assert_close(gradients[name], parameter.grad, rtol=1e-6, atol=1e-8, msg=name)


def test_the_combine_keeps_shape_and_dtype() -> None:
    moe = _moe(experts=4, top_k=3).bfloat16()
    output = moe(_hidden().bfloat16())
    assert (output.shape, output.dtype) == ((2, 6, HIDDEN), torch.bfloat16)


def test_the_dense_layer_is_a_gated_unit() -> None:
    torch.manual_seed(5)
    dense, hidden = FeedForward(HIDDEN, FFN).double(), _hidden()
    gate, up, down = (layer.weight for layer in (dense.gate, dense.up, dense.down))
    gated = hidden @ gate.T
    expected = (gated * gated.sigmoid() * (hidden @ up.T)) @ down.T
    torch.testing.assert_close(dense(hidden), expected, rtol=1e-12, atol=1e-14)
