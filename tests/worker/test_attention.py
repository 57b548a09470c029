"""Attention: causal, every kernel the same function, and the one that was asked for."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from detsweep.worker.attention import Attention, mix_of

HIDDEN, HEADS, SEQ = 16, 4, 7
KERNELS = ("math", "sdpa", "flash")


def _attention(variant: str) -> Attention:
    torch.manual_seed(1)
    return Attention(HIDDEN, HEADS, seq_len=SEQ, variant=variant)


def _hidden() -> Tensor:
    return torch.randn(2, SEQ, HIDDEN, generator=torch.Generator().manual_seed(2))


def _step(variant: str) -> dict[str, Tensor]:
    """Output and every gradient of one forward and backward."""
    attention, hidden = _attention(variant), _hidden().requires_grad_()
    output = attention(hidden)
    output.square().sum().backward()
    assert hidden.grad is not None
    gradients = {name: parameter.grad for name, parameter in attention.named_parameters()}
    assert all(gradient is not None for gradient in gradients.values())
    return {"output": output.detach(), "hidden": hidden.grad, **gradients}


def test_it_is_the_attention_of_torch() -> None:
    attention, hidden = _attention("math").double(), _hidden().double()
    query, key, value = (
        part.view(2, SEQ, HEADS, -1).transpose(1, 2) for part in (hidden @ attention.qkv.weight.T).chunk(3, dim=-1)
    )
    mixed = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    expected = mixed.transpose(1, 2).reshape(2, SEQ, HIDDEN) @ attention.out.weight.T
    # Its softmax is in fp32, whatever the dtype of the rest.
    torch.testing.assert_close(attention(hidden), expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("variant", ["sdpa", "flash"])
def test_every_kernel_gives_the_same_output_and_gradients_up_to_rounding(variant: str) -> None:
    one, other = _step("math"), _step(variant)
    assert one.keys() == other.keys() >= {"qkv.weight", "out.weight"}
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize("variant", KERNELS)
def test_a_token_sees_none_after_it(variant: str) -> None:
    attention, hidden = _attention(variant), _hidden()
    changed = hidden.clone()
    changed[:, 4:] += 1.0
    torch.testing.assert_close(attention(hidden)[:, :4], attention(changed)[:, :4])
    assert not torch.allclose(attention(hidden)[:, 4:], attention(changed)[:, 4:])


@pytest.mark.parametrize("variant", KERNELS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_short_dtypes_stay_what_they_are(variant: str, dtype: torch.dtype) -> None:
    output = _attention(variant).to(dtype)(_hidden().to(dtype))
    assert output.dtype == dtype
    torch.testing.assert_close(output.float(), _step("math")["output"], rtol=0.02, atol=0.02)


@pytest.mark.parametrize(("variant", "name"), [("flash", "Flash"), ("sdpa", "Safe"), ("math", "Safe")])
def test_flash_is_flash_whatever_is_allowed_around_it(variant: str, name: str) -> None:
    with sdpa_kernel(SDPBackend.MATH):
        output = _attention(variant)(_hidden())
    nodes, seen = [output.grad_fn], set()
    while nodes:
        node = nodes.pop()
        if node is not None and node not in seen:
            seen.add(node)
            nodes += [following for following, _ in node.next_functions]
    assert any("FlashAttention" in node.name() for node in seen) == (name == "Flash")


@pytest.mark.filterwarnings("ignore:Flash attention kernel not used", "ignore:All fused kernels require")
def test_flash_never_falls_back() -> None:
    # No kernel of flash attention takes rows whose elements do not lie side by side; written out it is nothing special.
    query = torch.randn(1, HEADS, 4, SEQ).transpose(-2, -1)
    assert mix_of("sdpa", SEQ)(query, query, query).shape == query.shape
    with pytest.raises(RuntimeError, match="No available kernel"):
        mix_of("flash", SEQ)(query, query, query)


def test_flex_is_the_same_function(monkeypatch: pytest.MonkeyPatch) -> None:
    # It is compiled for its kernel, which takes seconds; what it computes can be seen without. No backward: torch has
    # none of it on the CPU.
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    with torch.no_grad():
        torch.testing.assert_close(_attention("flex")(_hidden()), _attention("math")(_hidden()), rtol=1e-4, atol=1e-6)
