"""Mitigations: stacked in any order, refused when they contradict each other, and bound to their platforms."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest

from detsweep.mitigations import PLATFORMS, Settings, combine, redundant, settings_of, unsupported_reason
from detsweep.mitigations.stack import ALIASES, CONTRADICTIONS
from tests.support import compose

Preset = dict[str, Any]

RING: Preset = {"env": {"NCCL_ALGO": "Ring"}, "torch": {"cudnn_benchmark": False}}
STRICT: Preset = {"env": {"NVTE_ALLOW_NONDETERMINISTIC_ALGO": "0"}, "torch": {"deterministic_algorithms": "strict"}}
BOTH: Preset = {"env": {"NCCL_ALGO": "Ring", "KMP_AFFINITY": None}, "torch": {}}


def _refused(presets: dict[str, Any], env: dict[str, str | None] | None = None) -> str:
    with pytest.raises(ValueError, match=r".") as caught:
        combine(presets, env or {})
    return str(caught.value)


@pytest.mark.parametrize("order", list(permutations(["ring", "strict", "both"])), ids="-".join)
def test_the_union_does_not_depend_on_the_order(order: tuple[str, ...]) -> None:
    presets = {"ring": RING, "strict": STRICT, "both": BOTH}
    settings = combine({name: presets[name] for name in order}, {})
    assert settings.env == {"NCCL_ALGO": "Ring", "NVTE_ALLOW_NONDETERMINISTIC_ALGO": "0", "KMP_AFFINITY": None}
    assert settings.torch == {"cudnn_benchmark": False, "deterministic_algorithms": "strict"}


def test_the_configurations_own_presets_stack_in_any_order() -> None:
    names = ("primus_full", "nccl_pinned", "cudnn_det", "torchtitan")
    presets = compose(f"mitigation=[{','.join(names)}]")["mitigation"]
    found = [combine({name: presets[name] for name in order}, {}) for order in permutations(names)]
    assert all(one == found[0] for one in found)
    assert found[0].torch == {
        "deterministic_algorithms": "strict",
        "fill_uninitialized_memory": False,
        "cudnn_deterministic": True,
        "cudnn_benchmark": False,
    }


@pytest.mark.parametrize("order", list(permutations(["ring", "tree", "strict"])), ids="-".join)
def test_a_contradiction_is_found_in_any_order(order: tuple[str, ...]) -> None:
    presets = {"ring": RING, "tree": {"env": {"NCCL_ALGO": "Tree"}}, "strict": STRICT}
    line = _refused({name: presets[name] for name in order})
    assert line.startswith("NCCL_ALGO cannot be both ")
    assert "Ring (mitigation 'ring')" in line
    assert "Tree (mitigation 'tree')" in line


def test_nothing_asked_for_is_nothing_set() -> None:
    settings = combine({}, {})
    assert (settings.env, settings.torch) == ({}, {})


def test_own_variables_join_the_presets() -> None:
    assert combine({"ring": RING}, {"A": "1", "B": None}).env == {"NCCL_ALGO": "Ring", "A": "1", "B": None}


def test_values_become_text() -> None:
    assert combine({"one": {"env": {"A": 0}}}, {"B": "1"}).env == {"A": "0", "B": "1"}


def test_settings_are_written_as_they_are() -> None:
    assert Settings({"A": None}, {"num_threads": 2}).to_json() == {"env": {"A": None}, "torch": {"num_threads": 2}}


def test_settings_of_a_preset_are_variables_and_switches() -> None:
    assert settings_of(RING) == {"NCCL_ALGO": "Ring", "cudnn_benchmark": False}
    assert settings_of({}) == {}


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


def test_the_flag_with_and_without_filling_are_two_mitigations() -> None:
    line = _refused(compose("mitigation=[torch_det,torch_det_nofill]")["mitigation"])
    assert line == (
        "fill_uninitialized_memory cannot be both True (mitigation 'torch_det') and False "
        "(mitigation 'torch_det_nofill')"
    )


def test_an_alias_with_another_value_is_refused() -> None:
    one, other = {"env": {"ONEDNN_MAX_CPU_ISA": "AVX2"}}, {"env": {"DNNL_MAX_CPU_ISA": "SSE41"}}
    expected = (
        "DNNL_MAX_CPU_ISA=SSE41 (mitigation 'other') and ONEDNN_MAX_CPU_ISA=AVX2 (mitigation 'one') "
        "are one setting under two names"
    )
    assert _refused({"one": one, "other": other}) == expected
    assert _refused({"other": other, "one": one}) == expected


@pytest.mark.parametrize(
    ("one", "other"),
    [pair for group in ALIASES for pair in permutations(sorted(group), 2)],
    ids="-".join,
)
def test_every_two_names_of_one_setting_are_kept_together(one: str, other: str) -> None:
    line = _refused({"a": {"env": {one: "1"}}, "b": {"env": {other: "2"}}})
    assert f"{one}=1 (mitigation 'a')" in line
    assert f"{other}=2 (mitigation 'b')" in line
    assert combine({"a": {"env": {one: "1"}}, "b": {"env": {other: "1"}}}, {}).env == {one: "1", other: "1"}


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


UNIONS: dict[str, tuple[Preset, Preset, str]] = {
    "openmp": ({"env": {"OMP_NUM_THREADS": "2"}}, {"torch": {"num_threads": 1}}, "cannot both be had"),
    "mkl": ({"env": {"MKL_NUM_THREADS": "2"}}, {"torch": {"num_threads": 1}}, "cannot both be had"),
    "serialized": (
        {"env": {"HIP_LAUNCH_BLOCKING": "1"}},
        {"env": {"AMD_SERIALIZE_KERNEL": "1"}},
        "are one setting under two names",
    ),
    "not serialized": (
        {"env": {"HIP_LAUNCH_BLOCKING": "0"}},
        {"env": {"AMD_SERIALIZE_KERNEL": "3"}},
        "are one setting under two names",
    ),
    "nvls": ({"env": {"NCCL_ALGO": "NVLS"}}, {"env": {"NCCL_NVLS_ENABLE": "0"}}, "leave no algorithm"),
    "nvls trees": (
        {"env": {"NCCL_ALGO": "nvls, NVLSTree"}},
        {"env": {"NCCL_NVLS_ENABLE": "0"}},
        "leave no algorithm",
    ),
    "channels": (
        {"env": {"NCCL_MIN_NCHANNELS": "16"}},
        {"env": {"NCCL_MAX_NCHANNELS": "8"}},
        "leave no number between them",
    ),
    "blocks": (
        {"env": {"NCCL_MIN_CTAS": "10"}},
        {"env": {"NCCL_MAX_CTAS": "9"}},
        "leave no number between them",
    ),
    "tf32": (
        {"torch": {"cuda_matmul_allow_tf32": True}},
        {"torch": {"float32_matmul_precision": "highest"}},
        "cannot both be had",
    ),
    "no tf32": (
        {"torch": {"cuda_matmul_allow_tf32": False}},
        {"torch": {"float32_matmul_precision": "medium"}},
        "cannot both be had",
    ),
    "primus": (
        {"env": {"PRIMUS_DETERMINISTIC": "1"}},
        {"env": {"PRIMUS_TURBO_AUTO_TUNE": "1"}},
        "are refused by Primus itself",
    ),
}
"""Mitigations that set nothing twice and yet cannot be stacked, with what is said of the two."""


def _said(case: str) -> str:
    one, other, why = UNIONS[case]
    ((name, value),), ((other_name, other_value),) = settings_of(one).items(), settings_of(other).items()
    return f"{name}={value} (mitigation 'one') and {other_name}={other_value} (mitigation 'other') {why}"


@pytest.mark.parametrize("case", UNIONS)
def test_settings_that_contradict_each_other_name_both_sides(case: str) -> None:
    one, other, _ = UNIONS[case]
    assert _refused({"one": one, "other": other}) == _said(case)
    assert _refused({"other": other, "one": one}) == _said(case)
    assert combine({"one": one}, {}) != combine({"other": other}, {})


@pytest.mark.parametrize("case", [name for name, (_, other, _) in UNIONS.items() if "env" in other])
def test_a_contradiction_with_the_own_list_names_it(case: str) -> None:
    one, other, _ = UNIONS[case]
    assert _refused({"one": one}, other["env"]) == _said(case).replace("mitigation 'other'", "your env")


def test_every_contradiction_is_tested_here() -> None:
    def sides(key: str, *presets: Preset) -> dict[str, tuple[Any, str]]:
        return {name: (value, "x") for preset in presets for name, value in preset.get(key, {}).items()}

    found = {
        check
        for check in CONTRADICTIONS
        for one, other, _ in UNIONS.values()
        if check(sides("env", one, other), sides("torch", one, other)) is not None
    }
    assert found == set(CONTRADICTIONS)


@pytest.mark.parametrize(
    ("env", "torch"),
    [
        ({"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}, {"num_threads": 1}),
        ({"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "1"}, {}),
        ({"HIP_LAUNCH_BLOCKING": "1", "AMD_SERIALIZE_KERNEL": "3"}, {}),
        ({"HIP_LAUNCH_BLOCKING": "0", "AMD_SERIALIZE_KERNEL": "0"}, {}),
        ({"NCCL_ALGO": "Ring", "NCCL_NVLS_ENABLE": "0"}, {}),
        ({"NCCL_ALGO": "Ring,NVLS", "NCCL_NVLS_ENABLE": "0"}, {}),
        ({"NCCL_ALGO": "^Tree", "NCCL_NVLS_ENABLE": "0"}, {}),
        ({"NCCL_ALGO": "^NVLS", "NCCL_NVLS_ENABLE": "0"}, {}),
        ({"NCCL_ALGO": "allreduce:tree;broadcast:ring", "NCCL_NVLS_ENABLE": "0"}, {}),
        ({"NCCL_ALGO": None, "NCCL_NVLS_ENABLE": "0"}, {}),
        ({"NCCL_ALGO": "NVLS", "NCCL_NVLS_ENABLE": "1"}, {}),
        ({"NCCL_MIN_NCHANNELS": "8", "NCCL_MAX_NCHANNELS": "16"}, {}),
        ({"NCCL_MIN_NCHANNELS": "8", "NCCL_MAX_NCHANNELS": None}, {}),
        ({"PRIMUS_DETERMINISTIC": "1", "PRIMUS_TURBO_AUTO_TUNE": "0"}, {}),
        ({"PRIMUS_DETERMINISTIC": "true", "PRIMUS_TURBO_AUTO_TUNE": "1"}, {}),
        ({}, {"cuda_matmul_allow_tf32": True, "float32_matmul_precision": "medium"}),
        ({}, {"cuda_matmul_allow_tf32": False, "float32_matmul_precision": "highest"}),
    ],
    ids=str,
)
def test_what_goes_together_is_let_through(env: dict[str, str | None], torch: dict[str, Any]) -> None:
    assert combine({"one": {"env": env, "torch": torch}}, {}) == Settings(env, torch)


@pytest.mark.parametrize(
    ("preset", "expected"),
    [
        (
            {"torch": {"tf32": False}},
            (
                "mitigation 'x': unknown torch switch 'tf32'; switches: deterministic_algorithms, "
                "fill_uninitialized_memory, cudnn_deterministic, cudnn_benchmark, cudnn_allow_tf32, "
                "cuda_matmul_allow_tf32, fp16_reduced_precision_reduction, bf16_reduced_precision_reduction, "
                "mkldnn_enabled, mkldnn_deterministic, float32_matmul_precision, sdpa_backend, blas_library, "
                "num_threads"
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


@pytest.mark.parametrize(
    ("presets", "env", "expected"),
    [
        ({"ring": RING, "none": {}}, {}, []),
        (
            {"ring": {"env": {"NCCL_ALGO": "Ring"}}, "both": BOTH},
            {},
            ["mitigation 'ring' changes nothing beside 'both', which has all that it sets"],
        ),
        (
            {"ring": RING, "again": RING},
            {},
            ["mitigation 'ring' changes nothing beside 'again', which has all that it sets"],
        ),
        (
            {"ring": {"env": {"NCCL_ALGO": "Ring"}}},
            {"NCCL_NVLS_ENABLE": "1"},
            ["NCCL_NVLS_ENABLE=1 changes nothing beside NCCL_ALGO=Ring"],
        ),
        (
            {"any": {"env": {"NCCL_ALGO": "^NVLS,NVLSTree", "NCCL_NVLS_ENABLE": "2"}}},
            {},
            ["NCCL_NVLS_ENABLE=2 changes nothing beside NCCL_ALGO=^NVLS,NVLSTree"],
        ),
        ({"trees are left": {"env": {"NCCL_ALGO": "^NVLS", "NCCL_NVLS_ENABLE": "1"}}}, {}, []),
        ({"chosen": {"env": {"NCCL_ALGO": "Ring,NVLS", "NCCL_NVLS_ENABLE": "1"}}}, {}, []),
        ({"each apart": {"env": {"NCCL_ALGO": "allreduce:ring", "NCCL_NVLS_ENABLE": "1"}}}, {}, []),
        (
            {"eager": {"env": {"TORCH_COMPILE_DISABLE": "1"}}},
            {"TORCHINDUCTOR_MAX_AUTOTUNE": "0", "TORCHINDUCTOR_DETERMINISTIC": "1"},
            [
                "TORCHINDUCTOR_DETERMINISTIC changes nothing beside TORCH_COMPILE_DISABLE=1",
                "TORCHINDUCTOR_MAX_AUTOTUNE changes nothing beside TORCH_COMPILE_DISABLE=1",
            ],
        ),
        (
            {"math": {"torch": {"sdpa_backend": "math"}}, "flash": {"env": {"FLASH_ATTENTION_DETERMINISTIC": "1"}}},
            {},
            ["FLASH_ATTENTION_DETERMINISTIC changes nothing beside sdpa_backend=math, which never comes to it"],
        ),
        (
            {"fill": {"torch": {"fill_uninitialized_memory": True}}},
            {},
            ["fill_uninitialized_memory=True changes nothing without deterministic_algorithms"],
        ),
        ({"both": {"torch": {"fill_uninitialized_memory": True, "deterministic_algorithms": "warn"}}}, {}, []),
        (
            {"flag": {"env": {"PRIMUS_DETERMINISTIC": "1"}}, "tune": {"env": {"PRIMUS_HIPBLASLT_TUNING": "1"}}},
            {},
            ["PRIMUS_HIPBLASLT_TUNING=1 changes nothing beside PRIMUS_DETERMINISTIC=1, which keeps it from running"],
        ),
    ],
    ids=str,
)
def test_what_changes_nothing_is_said(presets: dict[str, Any], env: dict[str, str], expected: list[str]) -> None:
    assert list(redundant(presets, env)) == expected
    assert list(redundant(dict(reversed(presets.items())), env)) == expected


def test_a_member_of_a_bundle_changes_nothing_beside_it() -> None:
    presets = compose("mitigation=[no_compile,primus,inductor_det]")["mitigation"]
    assert list(redundant(presets, {})) == [
        "mitigation 'no_compile' changes nothing beside 'primus', which has all that it sets",
        "TORCHINDUCTOR_DETERMINISTIC changes nothing beside TORCH_COMPILE_DISABLE=1",
        "TORCHINDUCTOR_MAX_AUTOTUNE changes nothing beside TORCH_COMPILE_DISABLE=1",
    ]


def test_a_preset_without_platforms_runs_on_all() -> None:
    assert [unsupported_reason({"ring": RING}, platform) for platform in PLATFORMS] == [None, None, None]


def test_a_preset_elsewhere_has_a_reason_that_names_both_platforms() -> None:
    presets = {"ring": RING, "gpu": {"platforms": ["nvidia", "amd"]}}
    assert unsupported_reason(presets, "amd") is None
    assert unsupported_reason(presets, "cpu") == "mitigation 'gpu' is for nvidia and amd, this is cpu"
