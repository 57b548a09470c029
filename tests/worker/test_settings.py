"""Threads, switches and seeds: set for a trial, and read back from torch itself."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from detsweep.mitigations.switches import SWITCHES
from detsweep.worker.settings import apply, read_back, seed_everything
from detsweep.worker.snapshot import RandomState

ONE_EACH = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


@pytest.fixture(autouse=True)
def _torch_as_it_was() -> Iterator[None]:
    before, random_state = read_back(), RandomState.now(torch.device("cpu"))
    yield
    apply({"OMP_NUM_THREADS": str(before["num_threads"])}, {"deterministic_algorithms": "off"})
    random_state.restore(torch.device("cpu"))
    assert read_back() == before


def test_every_switch_is_read_back_and_what_else_tells_of_the_cpu() -> None:
    state = read_back()
    assert state.keys() == {*SWITCHES, "num_interop_threads", "cores", "cpu_capability"}
    assert state["cores"] == len(os.sched_getaffinity(0))
    assert state["num_interop_threads"] == torch.get_num_interop_threads()


def test_a_switch_is_set_and_no_other_with_it() -> None:
    apply(ONE_EACH, {})
    before = read_back()
    apply(ONE_EACH, {"deterministic_algorithms": "warn"})
    assert read_back() == {**before, "deterministic_algorithms": "warn"}


def test_what_is_not_asked_for_stays_as_it_is() -> None:
    apply(ONE_EACH, {"deterministic_algorithms": "warn"})
    before = read_back()
    apply(ONE_EACH, {})
    assert read_back() == before


@pytest.mark.parametrize("threads", [2, 1, 3])
def test_threads_are_those_of_the_variables_even_beyond_the_cores(threads: int) -> None:
    apply({"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}, {})
    assert torch.get_num_threads() == threads == read_back()["num_threads"]


def test_of_two_variables_torch_takes_the_smaller_number() -> None:
    apply({"OMP_NUM_THREADS": "3", "MKL_NUM_THREADS": "2"}, {})
    assert torch.get_num_threads() == 2


def test_a_switch_of_threads_comes_after_the_variables() -> None:
    apply({"OMP_NUM_THREADS": "3", "MKL_NUM_THREADS": "3"}, {"num_threads": 2})
    assert torch.get_num_threads() == 2


def test_the_threads_that_torch_had_before_are_told() -> None:
    apply({"OMP_NUM_THREADS": "3", "MKL_NUM_THREADS": "3"}, {})
    assert apply(ONE_EACH, {"num_threads": 2}) == 3
    assert apply(ONE_EACH, {}) == 2


def test_a_seed_sets_every_source() -> None:
    def draws() -> tuple[float, ...]:
        return random.random(), float(np.random.random()), float(torch.rand(()))

    seed_everything(3)
    first = draws()
    assert all(map(float.__ne__, draws(), first))
    seed_everything(3)
    assert draws() == first
    seed_everything(4)
    assert all(map(float.__ne__, draws(), first))


def test_a_seed_may_be_larger_than_numpys() -> None:
    seed_everything(2**32 + 5)
    assert torch.initial_seed() == 2**32 + 5
