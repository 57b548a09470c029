"""Mitigations: stacked in any order, refused when they contradict each other, and bound to their platforms."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest

from detsweep.mitigations import PLATFORMS, combine, unsupported_reason
from tests.support import compose

Preset = dict[str, Any]

RING: Preset = {"env": {"NCCL_ALGO": "Ring"}, "torch": {"cudnn_benchmark": False}}
STRICT: Preset = {"env": {"NVTE_ALLOW_NONDETERMINISTIC_ALGO": "0"}, "torch": {"deterministic_algorithms": "strict"}}
BOTH: Preset = {"env": {"NCCL_ALGO": "Ring", "KMP_AFFINITY": None}, "torch": {}}


@pytest.mark.parametrize("order", list(permutations(["ring", "strict", "both"])), ids="-".join)
def test_the_union_does_not_depend_on_the_order(order: tuple[str, ...]) -> None:
    presets = {"ring": RING, "strict": STRICT, "both": BOTH}
    settings = combine({name: presets[name] for name in order}, {})
    assert settings.env == {"NCCL_ALGO": "Ring", "NVTE_ALLOW_NONDETERMINISTIC_ALGO": "0", "KMP_AFFINITY": None}
    assert settings.torch == {"cudnn_benchmark": False, "deterministic_algorithms": "strict"}


def test_nothing_asked_for_is_nothing_set() -> None:
    settings = combine({}, {})
    assert (settings.env, settings.torch) == ({}, {})


def test_own_variables_join_the_presets() -> None:
    assert combine({"ring": RING}, {"A": "1", "B": None}).env == {"NCCL_ALGO": "Ring", "A": "1", "B": None}


def test_values_become_text() -> None:
    assert combine({"one": {"env": {"A": 0}}}, {"B": "1"}).env == {"A": "0", "B": "1"}


def _refused(presets: dict[str, Any], env: dict[str, str | None] | None = None) -> str:
    with pytest.raises(ValueError, match=r".") as caught:
        combine(presets, env or {})
    return str(caught.value)


def test_two_values_of_one_variable_name_both_sides() -> None:
    tree = {"env": {"NCCL_ALGO": "Tree"}}
    expected = "NCCL_ALGO cannot be both Ring (mitigation 'ring') and Tree (mitigation 'tree')"
    assert _refused({"ring": RING, "tree": tree}) == expected


def test_a_preset_and_the_own_list_may_not_contradict() -> None:
    expected = "NCCL_ALGO cannot be both Ring (mitigation 'ring') and Tree (your env)"
    assert _refused({"ring": RING}, {"NCCL_ALGO": "Tree"}) == expected


def test_unset_and_a_value_contradict() -> None:
    unset = {"env": {"NCCL_ALGO": None}}
    expected = "NCCL_ALGO cannot be both Ring (mitigation 'ring') and unset (mitigation 'unset')"
    assert _refused({"ring": RING, "unset": unset}) == expected


def test_two_values_of_one_switch_name_both_sides() -> None:
    warn = {"torch": {"deterministic_algorithms": "warn"}}
    expected = "deterministic_algorithms cannot be both strict (mitigation 'strict') and warn (mitigation 'warn')"
    assert _refused({"strict": STRICT, "warn": warn}) == expected


def test_an_alias_with_another_value_is_refused() -> None:
    one, other = {"env": {"ONEDNN_MAX_CPU_ISA": "AVX2"}}, {"env": {"DNNL_MAX_CPU_ISA": "SSE41"}}
    expected = (
        "DNNL_MAX_CPU_ISA=SSE41 (mitigation 'other') and ONEDNN_MAX_CPU_ISA=AVX2 (mitigation 'one') "
        "are one setting under two names"
    )
    assert _refused({"one": one, "other": other}) == expected
    assert _refused({"other": other, "one": one}) == expected


def test_an_alias_that_must_be_unset_contradicts_a_value() -> None:
    line = _refused({"one": {"env": {"PYTORCH_ALLOC_CONF": "a:1"}}}, {"PYTORCH_CUDA_ALLOC_CONF": None})
    assert "PYTORCH_CUDA_ALLOC_CONF=unset (your env)" in line


def test_the_third_of_three_aliases_is_checked_too() -> None:
    env: dict[str, str | None] = {
        "PYTORCH_ALLOC_CONF": "a:1",
        "PYTORCH_CUDA_ALLOC_CONF": "a:1",
        "PYTORCH_HIP_ALLOC_CONF": "a:2",
    }
    assert "PYTORCH_HIP_ALLOC_CONF=a:2" in _refused({}, env)


def test_an_alias_with_the_same_value_is_fine() -> None:
    env: dict[str, str | None] = {"ONEDNN_MAX_CPU_ISA": "AVX2", "DNNL_MAX_CPU_ISA": "AVX2"}
    assert combine({}, env).env == env


@pytest.mark.parametrize(
    ("preset", "expected"),
    [
        (
            {"torch": {"tf32": False}},
            (
                "mitigation 'x': unknown torch switch 'tf32'; switches: deterministic_algorithms, "
                "fill_uninitialized_memory, cudnn_deterministic, cudnn_benchmark"
            ),
        ),
        (
            {"torch": {"deterministic_algorithms": True}},
            "mitigation 'x': deterministic_algorithms=True is none of off, warn, strict",
        ),
        (
            {"torch": {"cudnn_benchmark": "no"}},
            "mitigation 'x': cudnn_benchmark='no' is neither true nor false",
        ),
        ({"platforms": ["tpu"]}, "mitigation 'x': platform 'tpu' is none of cpu, nvidia, amd"),
    ],
    ids=["switch", "level", "boolean", "platform"],
)
def test_what_does_not_exist_is_refused_by_name(preset: dict[str, Any], expected: str) -> None:
    assert _refused({"x": preset}) == expected


def test_a_preset_without_platforms_runs_on_all() -> None:
    assert [unsupported_reason({"ring": RING}, platform) for platform in PLATFORMS] == [None, None, None]


def test_a_preset_elsewhere_has_a_reason_that_names_both_platforms() -> None:
    presets = {"ring": RING, "gpu": {"platforms": ["nvidia", "amd"]}}
    assert unsupported_reason(presets, "amd") is None
    assert unsupported_reason(presets, "cpu") == "mitigation 'gpu' is for nvidia and amd, this is cpu"


@pytest.mark.parametrize("preset", ["none", "recipe", "primus"])
def test_the_presets_of_the_configuration_are_well_formed(preset: str) -> None:
    presets = compose(f"mitigation=[{preset}]")["mitigation"]
    assert list(presets) == [preset]
    settings = combine(presets, {})
    assert bool(settings.env or settings.torch) == (preset != "none")


def test_the_presets_of_the_configuration_can_be_stacked() -> None:
    settings = combine(compose("mitigation=[primus,recipe]")["mitigation"], {})
    assert settings.env["NCCL_ALGO"] == "Ring"
    assert settings.env["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert settings.torch["deterministic_algorithms"] == "warn"
