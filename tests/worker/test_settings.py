"""Switches: set, read back from torch itself, and named when they are not in force."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from detsweep.mitigations import TORCH_SWITCHES
from detsweep.worker.settings import apply, lost, read_back, seed_everything
from detsweep.worker.snapshot import RandomState

OTHER: dict[str, tuple[Any, ...]] = {
    "deterministic_algorithms": ("strict", "warn", "off"),
    "fill_uninitialized_memory": (False, True),
    "cudnn_deterministic": (True, False),
    "cudnn_benchmark": (True, False),
}


@pytest.fixture(autouse=True)
def _torch_as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    threads, before = torch.get_num_threads(), read_back()
    random_state = RandomState.now(torch.device("cpu"))
    monkeypatch.setenv("OMP_NUM_THREADS", str(threads))
    yield
    monkeypatch.setenv("OMP_NUM_THREADS", str(threads))
    apply({name: before[name] for name in TORCH_SWITCHES})
    random_state.restore(torch.device("cpu"))
    assert read_back() == before


def test_every_switch_of_the_catalogue_is_tested_here() -> None:
    assert set(OTHER) == set(TORCH_SWITCHES)


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in OTHER.items() for value in values])
def test_a_switch_is_set_read_back_and_not_lost(name: str, value: Any) -> None:
    others = {other: state for other, state in read_back().items() if other != name}
    apply({name: value})
    assert read_back()[name] == value
    assert {other: state for other, state in read_back().items() if other != name} == others
    assert lost({}, {name: value}) == []


def test_switches_reach_torch() -> None:
    apply({"deterministic_algorithms": "warn", "cudnn_deterministic": True, "fill_uninitialized_memory": False})
    assert torch.are_deterministic_algorithms_enabled()
    assert torch.is_deterministic_algorithms_warn_only_enabled()
    assert torch.backends.cudnn.deterministic
    assert not torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    apply({"deterministic_algorithms": "strict"})
    assert not torch.is_deterministic_algorithms_warn_only_enabled()


def test_what_is_not_asked_for_stays_as_it_is() -> None:
    before = read_back()
    apply({})
    assert read_back() == before


def test_threads_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for threads in (2, 1):
        monkeypatch.setenv("OMP_NUM_THREADS", str(threads))
        apply({})
        assert torch.get_num_threads() == threads == read_back()["num_threads"]


def test_a_switch_that_is_not_in_force_is_named() -> None:
    apply({"deterministic_algorithms": "off", "cudnn_benchmark": False})
    assert lost({}, {"deterministic_algorithms": "strict", "cudnn_benchmark": False}) == [
        "deterministic_algorithms should be strict, is off"
    ]


def test_variables_that_are_not_as_asked_for_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_ALGO", "Tree")
    monkeypatch.setenv("NCCL_PROTO", "LL")
    monkeypatch.setenv("MY_FLAG", "1")
    monkeypatch.delenv("NVTE_X", raising=False)
    wanted = {"NCCL_ALGO": "Ring", "NCCL_PROTO": None, "NVTE_X": "0", "MY_FLAG": "1", "NEVER_SET": None}
    assert lost(wanted, {}) == [
        "NCCL_ALGO should be Ring, is Tree",
        "NCCL_PROTO should be unset, is LL",
        "NVTE_X should be 0, is unset",
    ]


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
