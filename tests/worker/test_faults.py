"""Faults: exactly what was asked for, where and when it was asked for, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from detsweep.worker.faults import Fault, fail, flip_bit
from detsweep.worker.model import batch, build
from tests.support import compose

CPU = torch.device("cpu")
WIDTHS = {torch.bfloat16: 16, torch.float16: 16, torch.float32: 32}


def _words(tensor: Tensor) -> Tensor:
    integer = torch.int32 if tensor.element_size() == 4 else torch.int16
    return tensor.detach().contiguous().view(-1).view(integer).to(torch.int64) & ((1 << 8 * tensor.element_size()) - 1)


def _flipped_bits(one: Tensor, other: Tensor) -> list[tuple[int, int]]:
    """(element, bit) of every bit in which two tensors differ."""
    difference = (_words(one) ^ _words(other)).tolist()
    return [(at, bit) for at, word in enumerate(difference) for bit in range(32) if word >> bit & 1]


@pytest.mark.parametrize(("dtype", "bit"), [(dtype, bit) for dtype in WIDTHS for bit in range(WIDTHS[dtype])], ids=str)
def test_exactly_the_bit_asked_for_is_flipped(dtype: torch.dtype, bit: int) -> None:
    tensor = torch.linspace(-2, 2, 24).to(dtype).view(2, 3, 4)
    before = tensor.clone()
    flipped = flip_bit(tensor, element=17, bit=bit)
    assert _flipped_bits(tensor, flipped) == [(17, bit)]
    assert flipped.shape == tensor.shape
    assert torch.equal(_words(tensor), _words(before))


def test_the_last_bit_is_the_sign() -> None:
    assert flip_bit(torch.tensor([1.5, -2.0]), element=1, bit=31).tolist() == [1.5, 2.0]
    assert flip_bit(torch.tensor([1.5], dtype=torch.bfloat16), element=0, bit=15).tolist() == [-1.5]
    assert flip_bit(torch.tensor([1.5], dtype=torch.float64), element=0, bit=63).tolist() == [-1.5]


def test_an_element_is_counted_in_row_major_order_whatever_the_strides() -> None:
    transposed = torch.arange(12.0).view(3, 4).t()
    flipped = flip_bit(transposed, element=1, bit=31)
    assert flipped[0, 1] == -4.0
    assert _flipped_bits(transposed, flipped) == [(1, 31)]


def test_a_flip_twice_is_none() -> None:
    tensor = torch.randn(5)
    assert torch.equal(flip_bit(flip_bit(tensor, element=2, bit=9), element=2, bit=9), tensor)


def test_gradients_flow_through_a_flip_unchanged() -> None:
    weight = torch.linspace(1, 4, 4).requires_grad_()
    (flip_bit(weight * 3, element=1, bit=31) * torch.tensor([1.0, 10.0, 100.0, 1000.0])).sum().backward()
    assert weight.grad is not None
    assert torch.equal(weight.grad, torch.tensor([3.0, 30.0, 300.0, 3000.0]))


# --- input flips -----------------------------------------------------------------------------------------------------


def _fault(*overrides: str, rank: int = 0) -> Fault:
    config = compose(*overrides)
    return Fault(config["fault"], rank=rank, vocab_size=config["model"]["vocab_size"])


def _changed(fault: Fault, step: int, run: int) -> list[int]:
    ids, _ = batch(compose(), 0, CPU)
    before = ids.clone()
    fault.begin(step, run)
    given = fault.batch(ids)
    fault.end()
    assert torch.equal(ids, before)
    return torch.nonzero((given != ids).flatten()).flatten().tolist()


def test_an_input_flip_changes_one_token_in_its_step_and_run_alone() -> None:
    fault = _fault("fault=input_flip", "steps=3", "fault.step=1", "runs=3", "fault.run=2", "fault.element=33")
    changed = {(step, run): _changed(fault, step, run) for step in range(3) for run in range(1, 4)}
    assert changed == {place: [33] if place == (1, 2) else [] for place in changed}


def test_a_flipped_token_stays_in_the_vocabulary() -> None:
    fault = Fault(compose("fault=input_flip")["fault"], rank=0, vocab_size=5)
    fault.begin(0, 2)
    assert fault.batch(torch.tensor([[4, 4]])).tolist() == [[0, 4]]
    assert fault.batch(torch.tensor([[2, 4]])).tolist() == [[3, 4]]


def test_after_the_run_the_input_is_clean_again() -> None:
    fault = _fault("fault=input_flip")
    ids, _ = batch(compose(), 0, CPU)
    fault.begin(0, 2)
    assert fault.batch(ids) is not ids
    fault.end()
    assert fault.batch(ids) is ids


@pytest.mark.parametrize(("chosen", "hit"), [("0", [0]), ("1", [1]), ("null", [0, 1, 2])])
def test_a_fault_is_in_its_rank_alone_or_in_all(chosen: str, hit: list[int]) -> None:
    overrides = ("fault=input_flip", "world.nproc_per_node=3", f"fault.rank={chosen}")
    assert [rank for rank in range(3) if _changed(_fault(*overrides, rank=rank), 0, 2)] == hit


@pytest.mark.parametrize("overrides", [(), ("fault=bit_flip",)], ids=["none", "bit_flip"])
def test_no_other_fault_touches_the_input(overrides: tuple[str, ...]) -> None:
    assert _changed(_fault(*overrides), 0, 2) == []


# --- bit flips -------------------------------------------------------------------------------------------------------


def _block_outputs(fault: Fault, step: int, run: int) -> list[Tensor]:
    """What every block of a fresh model hands on, while a run of this fault lasts."""
    config = compose("dtype=fp32")
    model = build(config, CPU)
    fault.attach(model)
    outputs: list[Tensor] = []

    def keep(_: Any, __: Any, output: Tensor) -> None:
        outputs.append(output.detach().clone())

    for block in model.blocks:
        block.register_forward_hook(keep)
    fault.begin(step, run)
    model(batch(config, 0, CPU)[0])
    fault.end()
    return outputs


def test_a_bit_flip_corrupts_one_bit_of_its_blocks_output() -> None:
    clean = _block_outputs(_fault(), 0, 2)
    fault = _fault("fault=bit_flip", "dtype=fp32", "fault.block=2", "fault.element=77", "fault.bit=30")
    corrupted = _block_outputs(fault, 0, 2)
    assert _flipped_bits(clean[1], corrupted[1]) == []
    assert _flipped_bits(clean[2], corrupted[2]) == [(77, 30)]
    assert len(_flipped_bits(clean[3], corrupted[3])) > 1


@pytest.mark.parametrize(("step", "run"), [(0, 1), (0, 3), (1, 2)])
def test_a_bit_flip_is_in_its_step_and_run_alone(step: int, run: int) -> None:
    fault = _fault("fault=bit_flip", "runs=3", "steps=2")
    assert all(map(torch.equal, _block_outputs(_fault(), step, run), _block_outputs(fault, step, run)))


def test_a_bit_flip_of_another_rank_hooks_nothing() -> None:
    model = build(compose(), CPU)
    _fault("fault=bit_flip", rank=1).attach(model)
    assert not any(block._forward_hooks for block in model.blocks)
    _fault("fault=bit_flip", "fault.block=3", rank=0).attach(model)
    assert [bool(block._forward_hooks) for block in model.blocks] == [False, False, False, True]


# --- rank failures ---------------------------------------------------------------------------------------------------


def test_a_rank_fails_when_its_run_begins() -> None:
    fault = _fault("fault=rank_failure", "fault.run=2")
    fault.begin(0, 1)
    with pytest.raises(RuntimeError, match="told to fail"):
        fault.begin(0, 2)


def test_a_rank_that_is_not_meant_does_not_fail() -> None:
    _fault("fault=rank_failure", "fault.rank=1", rank=0).begin(0, 1)


def test_running_out_of_memory_is_torchs_own_error() -> None:
    with pytest.raises(RuntimeError, match="memory"):
        fail("oom")
