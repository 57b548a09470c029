"""Corruptions: exactly the bits that a kind says, in every width, and gradients that do not notice."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from detsweep.injections import ACTIVATIONS, KINDS, Injection
from detsweep.worker.corruptions import PLANTED, STRIDE, corrupt, corrupted

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
WIDTHS = {torch.bfloat16: 16, torch.float16: 16, torch.float32: 32, torch.float64: 64}
TENSOR_KINDS = [kind for kind, sites in KINDS.items() if {*sites} & {*ACTIVATIONS, "param", "collective_out"}]
TENSOR_KINDS.remove("reordered_collectives")


def _injection(kind: str, *, element: int = 0, bit: int = 0) -> Injection:
    return Injection(kind, 0, 0, 2, KINDS[kind][0], 0, element, bit, 0)


def _words(tensor: Tensor) -> list[int]:
    """Every element's bits as an unsigned number."""
    integer = {2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    mask = (1 << 8 * tensor.element_size()) - 1
    return [word & mask for word in tensor.detach().contiguous().view(-1).view(integer).tolist()]


def _changed(one: Tensor, other: Tensor) -> dict[int, int]:
    """The bits in which each element differs, of those that do."""
    pairs = zip(_words(one), _words(other), strict=True)
    return {place: a ^ b for place, (a, b) in enumerate(pairs) if a != b}


def _clean(dtype: torch.dtype, count: int = 24) -> Tensor:
    """Numbers that all have other bits, none of them zero."""
    return torch.linspace(-2, 2, count).to(dtype)


# --- bits ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "bit"), [(dtype, bit) for dtype in DTYPES for bit in range(WIDTHS[dtype])], ids=str)
@pytest.mark.parametrize("kind", ["bit_flip", "collective_flip"])
def test_exactly_the_bit_asked_for_is_flipped(kind: str, dtype: torch.dtype, bit: int) -> None:
    tensor = _clean(dtype).view(2, 3, 4)
    before = tensor.clone()
    flipped = corrupted(tensor, _injection(kind, element=17, bit=bit))
    assert _changed(tensor, flipped) == {17: 1 << bit}
    assert (flipped.shape, flipped.dtype) == (tensor.shape, dtype)
    assert _changed(tensor, before) == {}


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64], ids=str)
def test_the_last_bit_is_the_sign(dtype: torch.dtype) -> None:
    flipped = corrupted(
        torch.tensor([1.5, -2.0], dtype=dtype), _injection("bit_flip", element=1, bit=WIDTHS[dtype] - 1)
    )
    assert flipped.tolist() == [1.5, 2.0]


def test_a_bit_or_element_beyond_the_end_counts_from_the_start() -> None:
    tensor = _clean(torch.bfloat16)
    assert _changed(tensor, corrupted(tensor, _injection("bit_flip", element=24 + 5, bit=16 + 3))) == {5: 1 << 3}


def test_an_element_is_counted_in_row_major_order_whatever_the_strides() -> None:
    transposed = torch.arange(12.0).view(3, 4).t()
    flipped = corrupted(transposed, _injection("bit_flip", element=1, bit=31))
    assert flipped[0, 1] == -4.0
    assert _changed(transposed, flipped) == {1: 1 << 31}


def test_a_flip_twice_is_none() -> None:
    tensor, injection = torch.randn(5), _injection("bit_flip", element=2, bit=9)
    assert torch.equal(corrupted(corrupted(tensor, injection), injection), tensor)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("element", [0, 7, STRIDE - 1, STRIDE, 5 * STRIDE + 7])
def test_a_stride_flip_is_in_one_lane_of_all(dtype: torch.dtype, element: int) -> None:
    tensor = _clean(dtype, 3 * STRIDE + 8)
    flipped = corrupted(tensor, _injection("stride_flip", element=element, bit=6))
    # An element beyond the end counts from the start, before its lane is taken.
    lane = element % len(tensor) % STRIDE
    assert _changed(tensor, flipped) == dict.fromkeys(range(lane, len(tensor), STRIDE), 1 << 6)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("place", [3, 23])
def test_of_an_ulp_pair_one_goes_up_and_the_next_one_down(dtype: torch.dtype, place: int) -> None:
    tensor = _clean(dtype)
    found = corrupted(tensor, _injection("ulp_pair", element=place))
    neighbour = (place + 1) % 24
    assert _changed(tensor, found).keys() == {place, neighbour}
    one, other = _words(tensor), _words(found)
    assert (other[place] - one[place], other[neighbour] - one[neighbour]) == (1, -1)
    assert sum(one) == sum(other)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_drifted_parameter_is_one_ulp_off_in_one_element(dtype: torch.dtype) -> None:
    tensor = _clean(dtype)
    drifted = corrupted(tensor, _injection("param_drift", element=20))
    one, other = _words(tensor), _words(drifted)
    assert other[20] - one[20] == 1
    assert _changed(tensor, drifted).keys() == {20}
    # For a positive number the next bits are the next number.
    assert drifted[20] == torch.nextafter(tensor[20].float(), torch.tensor(9.0)) or dtype != torch.float32


# --- places ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("place", [0, 9, 23])
def test_a_swap_exchanges_an_element_with_the_next_one(dtype: torch.dtype, place: int) -> None:
    tensor = _clean(dtype).view(4, 6)
    swapped = corrupted(tensor, _injection("swap", element=place))
    expected = tensor.flatten().tolist()
    other = (place + 1) % 24
    expected[place], expected[other] = expected[other], expected[place]
    assert swapped.flatten().tolist() == expected


def test_a_swap_passes_over_elements_with_the_same_bits() -> None:
    tensor = torch.tensor([1.0, 2.0, 2.0, 2.0, 3.0])
    assert corrupted(tensor, _injection("swap", element=1)).tolist() == [1.0, 3.0, 2.0, 2.0, 2.0]
    assert corrupted(tensor, _injection("swap", element=4)).tolist() == [3.0, 2.0, 2.0, 2.0, 1.0]


def test_zeros_of_either_sign_have_other_bits_to_swap() -> None:
    tensor = torch.tensor([0.0, -0.0])
    assert _changed(tensor, corrupted(tensor, _injection("swap"))) == {0: 1 << 31, 1: 1 << 31}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_zeroed_shard_is_zeros(dtype: torch.dtype) -> None:
    assert set(_words(corrupted(_clean(dtype), _injection("zeroed_shard")))) == {0}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_stale_tensor_is_the_other_tensor(dtype: torch.dtype) -> None:
    tensor, stale = _clean(dtype).view(4, 6), (_clean(dtype) * 3).view(4, 6)
    found = corrupted(tensor, _injection("stale_tensor"), stale=stale.t().contiguous().t())
    assert _changed(found, stale) == {}
    assert found.data_ptr() != stale.data_ptr()


# --- values that are planted ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_zeros_sign_is_the_only_bit_between_a_planted_and_a_struck_one(dtype: torch.dtype) -> None:
    injection = _injection("zero_sign", element=5)
    planted, struck = (corrupted(_clean(dtype), injection, strikes=strikes) for strikes in (False, True))
    assert _changed(planted, struck) == {5: 1 << (WIDTHS[dtype] - 1)}
    # No comparison of values sees it.
    assert torch.equal(planted, struck)
    assert planted[5] == 0
    assert _changed(_clean(dtype), planted).keys() == {5}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_payload_is_the_only_bit_between_a_planted_nan_and_a_struck_one(dtype: torch.dtype) -> None:
    injection = _injection("nan_payload", element=5)
    planted, struck = (corrupted(_clean(dtype), injection, strikes=strikes) for strikes in (False, True))
    assert _changed(planted, struck) == {5: 1}
    assert all(math.isnan(float(tensor[5])) for tensor in (planted, struck))
    assert not torch.isnan(planted[:5]).any()
    assert _changed(_clean(dtype), planted).keys() == {5}


def test_only_what_needs_a_rare_value_is_planted() -> None:
    assert PLANTED == ("zero_sign", "nan_payload")


# --- nothing to change -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", TENSOR_KINDS)
def test_an_empty_tensor_cannot_be_corrupted(kind: str) -> None:
    assert corrupt(torch.empty(0, 4), _injection(kind), stale=torch.empty(0, 4)) is False


@pytest.mark.parametrize("kind", TENSOR_KINDS)
def test_whatever_can_be_corrupted_is_and_is_said_to_be(kind: str) -> None:
    for dtype in DTYPES:
        tensor = _clean(dtype).view(4, 6)
        before = tensor.clone()
        assert corrupt(tensor, _injection(kind, element=3, bit=2), stale=before + 1) is True
        assert _changed(tensor, before) != {}


@pytest.mark.parametrize(
    ("kind", "tensor"),
    [
        ("swap", torch.full((2, 3), 1.5)),
        ("swap", torch.tensor([2.0])),
        ("ulp_pair", torch.tensor([2.0])),
        ("stale_tensor", torch.tensor([2.0])),
    ],
    ids=["all equal", "swap one", "ulp of one", "nothing stale"],
)
def test_where_there_is_nothing_to_change_nothing_is(kind: str, tensor: Tensor) -> None:
    before = tensor.clone()
    assert corrupt(tensor, _injection(kind)) is False
    assert _changed(tensor, before) == {}


def test_a_stale_tensor_of_another_shape_is_not_put_in() -> None:
    tensor = _clean(torch.float32).view(4, 6)
    assert corrupt(tensor, _injection("stale_tensor"), stale=torch.zeros(6, 4)) is False
    assert _changed(tensor, _clean(torch.float32)) == {}


def test_what_corrupts_no_tensor_is_refused() -> None:
    with pytest.raises(AssertionError, match="input_flip does not corrupt a tensor"):
        corrupt(torch.ones(3), _injection("input_flip"))


# --- gradients -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", TENSOR_KINDS)
def test_gradients_flow_through_a_corruption_unchanged(kind: str) -> None:
    weight = torch.linspace(1, 4, 4).requires_grad_()
    factors = torch.tensor([1.0, 10.0, 100.0, 1000.0])
    (corrupted(weight * 3, _injection(kind, element=1, bit=20), stale=factors) * factors).sum().backward()
    assert weight.grad is not None
    assert torch.equal(weight.grad, 3 * factors)


def test_a_tensor_in_the_graph_is_corrupted_in_place_without_a_trace() -> None:
    weight = torch.linspace(1, 4, 4).requires_grad_()
    product = weight * 3
    assert corrupt(product, _injection("zeroed_shard"))
    assert product.tolist() == [0.0] * 4
    product.sum().backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [3.0] * 4


def test_a_parameter_is_corrupted_in_place() -> None:
    parameter = torch.nn.Parameter(torch.ones(2, 3))
    assert corrupt(parameter, _injection("param_drift", element=4))
    assert _changed(parameter, torch.ones(2, 3)) == {4: 1}
