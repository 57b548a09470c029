"""The mixture of experts: its sum, its routing, and gradients for experts that no token chose."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from detsweep.worker.moe import COMBINES, FeedForward, MixtureOfExperts, Router

HIDDEN, FFN = 8, 12
SUMS = tuple(name for name in COMBINES if name != "unwritten")
"""The ways to combine that are the sum they are meant to be."""


def _moe(experts: int, top_k: int, routing: str = "learned", combine: str = "index_put") -> MixtureOfExperts:
    torch.manual_seed(3)
    return MixtureOfExperts(HIDDEN, FFN, experts=experts, top_k=top_k, routing=routing, combine=combine).double()


def _hidden(batch: int = 2, seq: int = 6) -> Tensor:
    return torch.randn(batch, seq, HIDDEN, generator=torch.Generator().manual_seed(4), dtype=torch.float64)


def _probabilities(moe: MixtureOfExperts, token: Tensor) -> Tensor:
    return torch.softmax(token @ moe.router.weight.T, dim=-1, dtype=torch.float32)


def _one_token_at_a_time(moe: MixtureOfExperts, hidden: Tensor) -> Tensor:
    """The sum that the layer stands for, written as plainly as can be."""
    rows = []
    for number, token in enumerate(hidden.reshape(-1, HIDDEN)):
        probabilities = _probabilities(moe, token)
        if moe.router.routing == "even":
            chosen = [(number * moe.router.top_k + slot) % len(moe.experts) for slot in range(moe.router.top_k)]
        else:
            chosen = probabilities.argsort(descending=True)[: moe.router.top_k].tolist()
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


@pytest.mark.parametrize("combine", SUMS)
@pytest.mark.parametrize("routing", ["learned", "even"])
@pytest.mark.parametrize(("experts", "top_k"), [(2, 1), (4, 1), (4, 2), (5, 3), (4, 4)])
def test_the_output_is_the_weighted_sum_over_each_tokens_experts(
    experts: int, top_k: int, routing: str, combine: str
) -> None:
    moe, hidden = _moe(experts, top_k, routing, combine), _hidden()
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
    chosen, _ = _moe(4, top_k, "even").router(_hidden().view(12, HIDDEN))
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


@pytest.mark.parametrize("combine", SUMS)
def test_every_gradient_is_that_of_the_plain_sum(combine: str) -> None:
    moe, hidden = _moe(experts=4, top_k=3, combine=combine), _hidden()
    moe(hidden).square().sum().backward()
    gradients = {name: parameter.grad for name, parameter in moe.named_parameters()}
    moe.zero_grad(set_to_none=True)
    _one_token_at_a_time(moe, hidden).square().sum().backward()
    for name, parameter in moe.named_parameters():
        torch.testing.assert_close(gradients[name], parameter.grad, rtol=1e-6, atol=1e-8, msg=name)


@pytest.mark.parametrize("combine", SUMS)
def test_the_combine_keeps_shape_and_dtype(combine: str) -> None:
    moe = _moe(experts=4, top_k=3, combine=combine).bfloat16()
    output = moe(_hidden().bfloat16())
    assert (output.shape, output.dtype) == ((2, 6, HIDDEN), torch.bfloat16)


def _sum_in_order(combine: str, order: Tensor) -> Tensor:
    """The combine of 12 tokens with 4 rows each, which come in a given order; addends differ in size by far."""
    rows = torch.randn(48, HIDDEN, generator=torch.Generator().manual_seed(6))
    rows *= 10.0 ** torch.arange(48).remainder(4).unsqueeze(-1)
    token, slot = torch.arange(48) // 4, torch.arange(48) % 4
    return COMBINES[combine](torch.zeros(12, HIDDEN), rows[order], token[order], slot[order])


def test_ordered_adds_slot_after_slot_in_whatever_order_rows_come() -> None:
    orders = [torch.randperm(48, generator=torch.Generator().manual_seed(seed)) for seed in range(5)]
    expected = _sum_in_order("ordered", torch.arange(48))
    assert all(torch.equal(_sum_in_order("ordered", order), expected) for order in orders)
    # The same rows in the same orders tell the others apart from it.
    assert not all(torch.equal(_sum_in_order("index_add", order), expected) for order in orders)


def test_ordered_repeats_with_several_threads_forward_and_backward() -> None:
    torch.manual_seed(7)
    moe = MixtureOfExperts(64, 16, experts=4, top_k=4, routing="learned", combine="ordered")
    # As many elements as the CPU's kernels share out among threads.
    hidden, outcomes = torch.randn(1, 256, 64).requires_grad_(), []
    for _ in range(5):
        output = moe(hidden)
        output.backward(torch.ones_like(output))
        assert hidden.grad is not None
        outcomes.append((output.detach(), hidden.grad))
        hidden.grad = None
    assert all(torch.equal(one, outcomes[0][0]) and torch.equal(two, outcomes[0][1]) for one, two in outcomes)


@pytest.mark.parametrize("combine", SUMS)
def test_a_token_sent_twice_to_one_expert_counts_twice(combine: str) -> None:
    moe, hidden = _moe(4, 2, combine=combine), _hidden()
    moe.router.register_forward_hook(lambda _, __, output: (torch.zeros_like(output[0]), output[1]))
    expected = 2 * moe.experts[0](hidden) * _probabilities(moe, hidden)[..., :1].double()
    torch.testing.assert_close(moe(hidden), expected, rtol=1e-12, atol=1e-14)


@pytest.fixture
def _fresh_memory_is_filled() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("_fresh_memory_is_filled")
def test_unwritten_adds_to_memory_that_nobody_has_written() -> None:
    moe, hidden = _moe(experts=4, top_k=3, combine="unwritten"), _hidden()
    # Where torch writes NaN into fresh memory, whatever is added to it stays NaN.
    assert bool(moe(hidden).isnan().all())


@pytest.mark.usefixtures("_fresh_memory_is_filled")
@pytest.mark.parametrize("combine", SUMS)
def test_the_others_read_nothing_that_was_not_written(combine: str) -> None:
    moe, hidden = _moe(experts=4, top_k=3, combine=combine), _hidden()
    torch.testing.assert_close(moe(hidden), _one_token_at_a_time(moe, hidden), rtol=1e-12, atol=1e-14)


def test_unwritten_differs_from_the_sum_in_its_forward_alone() -> None:
    moe, hidden = _moe(experts=4, top_k=3, combine="unwritten"), _hidden().requires_grad_()
    weight = torch.randn(2, 6, HIDDEN, generator=torch.Generator().manual_seed(8), dtype=torch.float64)
    moe(hidden).backward(weight)
    assert hidden.grad is not None
    gradient, hidden.grad = hidden.grad, None
    _one_token_at_a_time(moe, hidden).backward(weight)
    torch.testing.assert_close(gradient, hidden.grad, rtol=1e-6, atol=1e-8)


def test_the_router_gives_what_was_chosen_and_the_probabilities() -> None:
    moe, tokens = _moe(experts=5, top_k=3), _hidden().view(12, HIDDEN)
    assert isinstance(moe.router, Router)
    assert [name for name, _ in moe.named_parameters() if "router" in name] == ["router.weight"]
    chosen, probabilities = moe.router(tokens)
    assert (chosen.shape, chosen.dtype) == ((12, 3), torch.int64)
    assert (probabilities.shape, probabilities.dtype) == ((12, 5), torch.float32)
    assert torch.equal(chosen, probabilities.topk(3).indices)


def test_a_hook_on_the_router_changes_where_tokens_go_and_with_what_weight() -> None:
    moe, hidden = _moe(experts=4, top_k=1), _hidden()

    def to_the_next(_: object, __: object, output: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return (output[0] + 1) % 4, output[1] / 2

    before = _tokens_of_experts(moe, hidden)
    chosen, probabilities = moe.router(hidden.view(12, HIDDEN))
    moe.router.register_forward_hook(to_the_next)
    assert _tokens_of_experts(moe, hidden) == [before[-1], *before[:-1]]
    rows = [
        moe.experts[number](token) * probability[number].double() / 2
        for token, probability, number in zip(
            hidden.view(12, HIDDEN), probabilities, (chosen.view(-1) + 1) % 4, strict=True
        )
    ]
    torch.testing.assert_close(moe(hidden).view(12, HIDDEN), torch.stack(rows), rtol=1e-12, atol=1e-14)


def test_the_dense_layer_is_a_gated_unit() -> None:
    torch.manual_seed(5)
    dense, hidden = FeedForward(HIDDEN, FFN).double(), _hidden()
    gate, up, down = (layer.weight for layer in (dense.gate, dense.up, dense.down))
    gated = hidden @ gate.T
    expected = (gated * gated.sigmoid() * (hidden @ up.T)) @ down.T
    torch.testing.assert_close(dense(hidden), expected, rtol=1e-12, atol=1e-14)
