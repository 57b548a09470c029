"""Presets: those of the configuration, pinned against the catalogue and against Hydra, and a user's own ones."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from detsweep.mitigations import Preset, catalogue, chosen, combine, load_presets, settings_of_all
from detsweep.mitigations.presets import FIELDS
from detsweep.mitigations.stack import PLATFORMS
from detsweep.paths import conf_dir
from tests.support import compose

PRESETS = load_presets([conf_dir()])
FILES = sorted((conf_dir() / "mitigation").glob("*.yaml"))
TABLE = (
    "none", "seeded", "primus", "primus_full", "primus_v4_eager", "megatron", "torch_det", "torch_det_warn",
    "torch_det_nofill", "no_compile", "inductor_det", "sdpa_math", "flash_det", "te_det", "nccl_ring", "nccl_no_nvls",
    "nccl_pinned", "rccl_plain", "rocblas_no_atomics", "blas_no_lt", "tuning_off", "cublas_ws", "cudnn_det",
    "strict_precision", "serialize", "no_sdma", "cpu_1thread", "cpu_portable", "cpu_strict", "recipe",
)  # fmt: skip
"""The mitigations that are meant to be chosen by name; the others are parts or relatives of these."""
LITERAL: dict[str, tuple[dict[str, str | None], dict[str, Any], tuple[str, ...]]] = {
    "none": ({}, {}, ()),
    "primus": (
        {
            "PRIMUS_DETERMINISTIC": "1",
            "NCCL_ALGO": "Ring",
            "NVTE_ALLOW_NONDETERMINISTIC_ALGO": "0",
            "ROCBLAS_DEFAULT_ATOMICS_MODE": "0",
            "TORCH_COMPILE_DISABLE": "1",
            "PRIMUS_TURBO_AUTO_TUNE": "0",
            "TE_HIPBLASLT_TUNING_RUN_COUNT": "0",
            "TE_HIPBLASLT_TUNING_ALGO_COUNT": "0",
        },
        {},
        ("amd",),
    ),
    "nccl_pinned": (
        {
            "NCCL_ALGO": "Ring",
            "NCCL_PROTO": "Simple",
            "NCCL_MIN_NCHANNELS": "8",
            "NCCL_MAX_NCHANNELS": "8",
            "NCCL_NVLS_ENABLE": "0",
            "NCCL_COLLNET_ENABLE": "0",
            "NCCL_LAUNCH_ORDER_IMPLICIT": "1",
            "NCCL_TUNER_PLUGIN": "none",
        },
        {},
        ("nvidia", "amd"),
    ),
    "tuning_off": (
        {
            "PYTORCH_TUNABLEOP_ENABLED": "0",
            "HIPBLASLT_TUNING_MODE": "off",
            "HIPBLASLT_TUNING_OVERRIDE_FILE": None,
            "TE_HIPBLASLT_TUNING_RUN_COUNT": "0",
            "TE_HIPBLASLT_TUNING_ALGO_COUNT": "0",
            "PRIMUS_TURBO_AUTO_TUNE": "0",
            "MIOPEN_DEBUG_DISABLE_USER_DB": "1",
        },
        {"cudnn_benchmark": False},
        ("nvidia", "amd"),
    ),
    "cpu_portable": (
        {
            "ATEN_CPU_CAPABILITY": "avx2",
            "ONEDNN_MAX_CPU_ISA": "AVX2",
            "MKL_CBWR": "COMPATIBLE",
            "OMP_DYNAMIC": "false",
            "MKL_DYNAMIC": "FALSE",
        },
        {},
        ("cpu",),
    ),
    "megatron": (
        {
            "NCCL_ALGO": "Ring",
            "NVTE_ALLOW_NONDETERMINISTIC_ALGO": "0",
            "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        },
        {"deterministic_algorithms": "strict"},
        ("nvidia", "amd"),
    ),
    "recipe": (
        {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"},
        {"deterministic_algorithms": "warn", "cudnn_deterministic": True, "cudnn_benchmark": False},
        (),
    ),
}


def test_the_presets_of_the_table_are_there() -> None:
    assert [name for name in TABLE if name not in PRESETS] == []


def test_a_file_holds_one_preset_of_its_own_name() -> None:
    found = {file.stem: list(yaml.safe_load(file.read_text())) for file in FILES}
    assert found == {name: [name] for name in found}
    assert list(PRESETS) == sorted(found)
    assert {name: preset.file for name, preset in PRESETS.items()} == {file.stem: file for file in FILES}


@pytest.mark.parametrize("name", LITERAL)
def test_central_presets_set_what_they_are_known_for(name: str) -> None:
    env, torch, platforms = LITERAL[name]
    preset = PRESETS[name]
    assert (preset.env, preset.torch, preset.platforms) == (env, torch, platforms)
    # True equals 1 in Python, and not in a switch.
    assert {key: type(value) for key, value in preset.torch.items()} == {key: type(v) for key, v in torch.items()}


@pytest.fixture(scope="module")
def composed() -> dict[str, Any]:
    """All presets as Hydra composes them, at once: it does not mind that they contradict each other."""
    found: dict[str, Any] = compose(f"mitigation=[{','.join(PRESETS)}]")["mitigation"]
    return found


@pytest.mark.parametrize("name", PRESETS)
def test_hydra_composes_what_is_read_here(name: str, composed: dict[str, Any]) -> None:
    preset = PRESETS[name]
    assert set(composed) == set(PRESETS)
    assert composed[name]["env"] == preset.env
    assert composed[name]["torch"] == preset.torch
    described = {key: composed[name][key] for key in FIELDS if key not in ("env", "torch")}
    lists = {key: list(getattr(preset, key)) for key in ("platforms", "members", "advice")}
    assert described == {key: lists.get(key, getattr(preset, key)) for key in described}


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_alone_is_valid_and_described(name: str) -> None:
    preset = PRESETS[name]
    settings = combine({name: preset.raw()}, {})
    assert (settings.env, settings.torch) == (preset.env, preset.torch)
    assert bool(settings.env or settings.torch) == (name != "none")
    assert set(preset.env) <= set(catalogue())
    assert set(preset.platforms) <= set(PLATFORMS)
    assert re.fullmatch(r"[a-z][a-z0-9_]*", name)
    texts = (preset.reads, preset.expect, preset.cost, preset.source, *preset.advice)
    assert all(text.strip() == text and text and text != "None" for text in texts)


@pytest.mark.parametrize("name", [name for name, preset in PRESETS.items() if preset.members])
def test_a_bundle_is_the_union_of_its_members(name: str) -> None:
    preset = PRESETS[name]
    assert len(set(preset.members)) == len(preset.members) > 1
    assert [member for member in preset.members if member not in PRESETS] == []
    union = settings_of_all([PRESETS[member] for member in preset.members])
    assert (union.env, union.torch) == (preset.env, preset.torch)


def test_bundles_do_not_go_round_in_circles() -> None:
    def depth(name: str, above: tuple[str, ...] = ()) -> int:
        assert name not in above
        return 1 + max((depth(member, (*above, name)) for member in PRESETS[name].members), default=0)

    assert max(depth(name) for name in PRESETS) == 3


@pytest.mark.parametrize("name", [name for name, preset in PRESETS.items() if preset.members])
def test_no_member_of_a_bundle_is_for_another_platform_alone(name: str) -> None:
    here = {platform for platform in PLATFORMS if PRESETS[name].supports(platform)}
    for member in PRESETS[name].members:
        assert here & {platform for platform in PLATFORMS if PRESETS[member].supports(platform)}


def test_every_setting_can_be_had_alone() -> None:
    # A search for the smallest set takes bundles apart: what is in none of the parts could not be named.
    single = [preset for preset in PRESETS.values() if not preset.members]
    for preset in PRESETS.values():
        for setting in (*preset.env.items(), *preset.torch.items()):
            assert any(setting in (*one.env.items(), *one.torch.items()) for one in single), setting


def test_advice_speaks_of_presets_and_variables_that_exist() -> None:
    words = {word for preset in PRESETS.values() for line in preset.advice for word in re.findall(r"[A-Z0-9_]+", line)}
    names = {word for word in words if "_" in word.strip("_") and len(word) > 4}
    assert names
    assert names <= set(catalogue())
    mentioned = re.findall(r"the mitigation (\w+)", " ".join(line for one in PRESETS.values() for line in one.advice))
    assert mentioned
    assert set(mentioned) <= set(PRESETS)


def test_chosen_keeps_the_order_that_was_asked_for() -> None:
    assert [preset.name for preset in chosen(PRESETS, ["te_det", "aten_avx2"], "x")] == ["te_det", "aten_avx2"]
    assert chosen(PRESETS, [], "x") == []


@pytest.mark.parametrize(
    ("name", "hint"),
    [("primsu", "; did you mean primus?"), ("torch-det", "; did you mean torch_det?"), ("zzz", "")],
)
def test_a_name_that_does_not_exist_is_told_what_does(name: str, hint: str) -> None:
    with pytest.raises(ValueError, match=r"^search\.candidates=") as caught:
        chosen(PRESETS, ["primus", name], "search.candidates")
    expected = f"search.candidates={name}: no such mitigation{hint}; valid: {', '.join(PRESETS)}"
    assert str(caught.value) == expected


def test_settings_of_all_names_both_sides() -> None:
    with pytest.raises(ValueError, match=r"strict \(mitigation 'torch_det'\) and warn \(mitigation 'recipe'\)"):
        settings_of_all([PRESETS["torch_det"], PRESETS["recipe"]])


def test_supports_says_where_a_preset_has_a_place() -> None:
    assert [PRESETS["none"].supports(platform) for platform in PLATFORMS] == [True, True, True]
    assert [PRESETS["megatron"].supports(platform) for platform in PLATFORMS] == [False, True, True]


def _folder(parent: Path, name: str, **files: str) -> Path:
    folder = parent / name
    (folder / "mitigation").mkdir(parents=True)
    for stem, text in files.items():
        (folder / "mitigation" / f"{stem}.yaml").write_text(text)
    return folder


def test_presets_of_another_folder_join(tmp_path: Path) -> None:
    own = _folder(tmp_path, "own", mine="mine:\n  env: {NCCL_ALGO: Tree, SOME_COUNT: 2, GONE: null}\n")
    found = load_presets([conf_dir(), own])
    assert list(found) == sorted([*PRESETS, "mine"])
    assert found["mine"] == Preset(
        name="mine",
        env={"NCCL_ALGO": "Tree", "SOME_COUNT": "2", "GONE": None},
        torch={},
        platforms=(),
        reads="",
        expect="",
        cost="",
        source="",
        members=(),
        advice=(),
        file=own / "mitigation" / "mine.yaml",
    )


def test_of_two_with_one_name_the_first_folders_counts(tmp_path: Path) -> None:
    one = _folder(tmp_path, "one", mine="mine:\n  env: {A: one}\n")
    other = _folder(tmp_path, "other", mine="mine:\n  env: {A: other}\n", more="more:\n  env: {B: other}\n")
    assert {name: preset.env for name, preset in load_presets([one, other]).items()} == {
        "mine": {"A": "one"},
        "more": {"B": "other"},
    }
    assert load_presets([other, one])["mine"].env == {"A": "other"}


def test_a_file_may_hold_several_and_hydras_own_key(tmp_path: Path) -> None:
    text = "defaults: [_self_]\none: {env: {A: 1}}\ntwo: {torch: {num_threads: 2}}\n"
    found = load_presets([_folder(tmp_path, "own", several=text)])
    assert {name: (preset.env, preset.torch) for name, preset in found.items()} == {
        "one": ({"A": "1"}, {}),
        "two": ({}, {"num_threads": 2}),
    }


def test_a_folder_without_presets_has_none(tmp_path: Path) -> None:
    assert load_presets([tmp_path, tmp_path / "nothing"]) == {}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mine: {env: {A: 1}\n", "cannot be read: line 2: expected ',' or '}', but got '<stream end>'"),
        ("mine:\n  env:\n\tA: 1\n", "cannot be read: line 3: found character '\\t' that cannot start any token"),
        ("", "must hold `name: {env: ..., torch: ...}`"),
        ("- mine\n", "must hold `name: {env: ..., torch: ...}`"),
        ("mine\n", "must hold `name: {env: ..., torch: ...}`"),
        ("mine: 1\n", "must hold `name: {env: ..., torch: ...}`"),
        ("mine: {environment: {A: 1}}\n", f"mine.environment: no such key; valid: {', '.join(FIELDS)}"),
        ("mine: {env: [A]}\n", "mine.env: must be names with values"),
        ("mine: {torch: strict}\n", "mine.torch: must be names with values"),
        ("mine: {platforms: amd}\n", "mine.platforms: must be a list"),
        ("mine: {members: primus}\n", "mine.members: must be a list"),
        ("mine: {platforms: [tpu]}\n", "mitigation 'mine': platform 'tpu' is none of cpu, nvidia, amd"),
        ("mine: {torch: {num_threads: 0}}\n", "mitigation 'mine': num_threads=0 must be a whole number of at least 1"),
        (
            "mine: {env: {NCCL_MIN_NCHANNELS: 9, NCCL_MAX_NCHANNELS: 8}}\n",
            (
                "NCCL_MIN_NCHANNELS=9 (mitigation 'mine') and NCCL_MAX_NCHANNELS=8 (mitigation 'mine') "
                "leave no number between them"
            ),
        ),
    ],
    ids=str.strip,
)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, text: str, expected: str) -> None:
    own = _folder(tmp_path, "own", mine=text)
    with pytest.raises(ValueError, match=r"mine\.yaml: ") as caught:
        load_presets([conf_dir(), own])
    assert str(caught.value) == f"{own / 'mitigation' / 'mine.yaml'}: {expected}"


def test_a_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    own = _folder(tmp_path, "own")
    (own / "mitigation" / "mine.yaml").write_bytes(b"mine: {env: {A: \xff}}\n")
    with pytest.raises(ValueError, match=r"mine\.yaml: cannot be read: 'utf-8' codec"):
        load_presets([own])


def test_a_file_that_is_a_folder_is_named(tmp_path: Path) -> None:
    own = _folder(tmp_path, "own")
    (own / "mitigation" / "mine.yaml").mkdir()
    with pytest.raises(ValueError, match=r"mine\.yaml: cannot be read: .*Is a directory"):
        load_presets([own])
