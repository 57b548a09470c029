"""What a configuration must not be: a line for each mistake, and none for a configuration that can be run."""

from __future__ import annotations

from typing import Any

import pytest
from omegaconf import MISSING

from detsweep.validate import CHOICES, RANGES, RESERVED, like, lookup, problems, valid_keys
from tests.support import compose


def _set(config: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    node = config
    *parents, last = key.split(".")
    for part in parents:
        node = node[part]
    node[last] = value
    return config


def _lines(*overrides: str, gpus: int = 0, **changes: Any) -> list[str]:
    """The problems of a composed configuration; `changes` are set past the schema, dots written as `__`."""
    config = compose(*overrides)
    for key, value in changes.items():
        _set(config, key.replace("__", "."), value)
    return problems(config, gpus=gpus)


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("model=block24",),
        ("experts=4", "moe=topk"),
        ("experts=4", "moe=even", "top_k=4"),
        ("experts=4", "moe=top2"),
        ("dtype=fp32", "fault=bit_flip", "fault.bit=31"),
        ("fault=input_flip",),
        ("fault=rank_failure", "fault.how=hang"),
        ("mitigation=[recipe,primus]",),
        ("checksum_mode=global",),
        ("observe=off",),
        ("experiment=self_test",),
        ("experiment=llm_determinism", "model=tiny"),
    ],
    ids=" ".join,
)
def test_what_can_be_run_has_no_problem(overrides: tuple[str, ...]) -> None:
    assert _lines(*overrides) == []


@pytest.mark.parametrize("key", CHOICES)
def test_a_word_that_is_no_choice_is_refused_with_the_valid_ones(key: str) -> None:
    config = _set(compose(), key, "nonsense")
    assert problems(config, gpus=0) == [f"{key}=nonsense: valid: {', '.join(CHOICES[key])}"]


@pytest.mark.parametrize("key", RANGES)
def test_a_number_out_of_range_is_refused(key: str) -> None:
    least, most = RANGES[key]
    for value, line in ((least - 1, f"must be at least {least}"), (most + 1, f"must be at most {most}")):
        assert problems(_set(compose(), key, value), gpus=0) == [f"{key}={value}: {line}"]


@pytest.mark.parametrize("key", RANGES)
def test_the_ends_of_a_range_are_in_it(key: str) -> None:
    least, most = RANGES[key]
    lines = {line for value in (least, most) for line in problems(_set(compose(), key, value), gpus=0)}
    assert not lines & {f"{key}={least}: must be at least {least}", f"{key}={most}: must be at most {most}"}


@pytest.mark.parametrize("key", RANGES)
def test_what_is_no_number_at_all_is_out_of_range(key: str) -> None:
    assert problems(_set(compose(), key, float("nan")), gpus=0) == [f"{key}=nan: must be at least {RANGES[key][0]}"]


@pytest.mark.parametrize("minutes", [0, -1.5])
def test_a_trial_needs_time(minutes: float) -> None:
    assert _lines(launch__timeout_min=minutes) == [f"launch.timeout_min={minutes}: must be at least 0.001"]


@pytest.mark.parametrize("folder", ["", "  ", "runs/%j", "100%", "runs/\0"])
def test_a_sweep_needs_a_folder_that_submitit_can_name(folder: str) -> None:
    assert _lines(folder=folder) == [f"folder={folder}: must name a folder, without % in it"]


def test_a_key_appended_past_the_schema_is_refused_at_any_depth() -> None:
    lines = _lines("+moe.typo=1", "+fuild=2")
    assert lines[0] == "moe.typo: no such key; valid: name, routing, default_top_k, experts, top_k"
    assert lines[1].startswith("fuild: no such key; did you mean fault?; valid: model, dtype, moe, ")
    assert len(lines) == 2


def test_a_key_that_is_nearly_one_is_told_which() -> None:
    (line,) = _lines("+world.nproc_pernode=2")
    assert line.startswith("world.nproc_pernode: no such key; did you mean nproc_per_node?; valid: nodes, ")


def test_a_typo_in_a_mitigations_preset_is_refused() -> None:
    lines = _lines("mitigation=[recipe]", "+mitigation.recipe.evn.A='1'")
    assert lines == ["mitigation.recipe.evn: no such key; did you mean env?; valid: env, torch, platforms, reads"]


def test_what_a_preset_sets_is_the_users_own_to_name() -> None:
    assert _lines("mitigation=[recipe]", "+mitigation.recipe.env.ANYTHING='1'", "+env.OTHER='1'") == []


def test_a_typo_in_one_of_several_presets_is_found() -> None:
    config = compose("mitigation=[none,recipe]")
    config["mitigation"]["none"]["platform"] = ["amd"]
    (line,) = problems(config, gpus=0)
    assert line.startswith("mitigation.none.platform: no such key; did you mean platforms?")


@pytest.mark.parametrize("key", ["seed", "experts", "dtype.param", "model.hidden_size"])
def test_a_key_that_was_left_without_a_value_is_refused(key: str) -> None:
    assert problems(_set(compose(), key, MISSING), gpus=0) == [f"{key}: must have a value"]


@pytest.mark.parametrize("key", ["seed", "env"])
def test_a_key_deleted_from_the_schema_is_refused(key: str) -> None:
    assert _lines(f"~{key}") == [f"{key}: must have a value"]


def test_heads_must_divide_the_hidden_size() -> None:
    lines = _lines("model.num_heads=3", "model.hidden_size=8")
    assert lines == ["model.num_heads=3: must divide model.hidden_size=8 (valid: 1, 2, 4, 8)"]


def test_experts_are_set_without_the_groups_prefix() -> None:
    lines = _lines("moe.experts=4")
    assert lines == ["moe.experts=4 moe.top_k=1: set experts=N and top_k=K, without the prefix"]


def test_a_named_routing_keeps_its_own_number_of_experts_per_token() -> None:
    assert _lines("experts=4", "top_k=2") == ["top_k=2: moe=top1 routes to 1; use moe=topk top_k=2"]
    assert _lines("experts=4", "moe=top2", "top_k=3") == ["top_k=3: moe=top2 routes to 2; use moe=topk top_k=3"]


def test_a_token_cannot_go_to_more_experts_than_there_are() -> None:
    assert _lines("experts=2", "moe=topk", "top_k=3") == ["top_k=3: must be at most experts=2"]
    assert _lines("experts=3", "moe=topk", "top_k=3") == []


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (("fault=input_flip", "fault.step=1"), "fault.step=1: must be at most 0 in this cell"),
        (("fault=input_flip", "fault.run=3"), "fault.run=3: must be at most 2 in this cell"),
        (("fault=bit_flip", "fault.rank=2"), "fault.rank=2: must be at most 1 in this cell"),
        (("fault=bit_flip", "fault.rank=-1"), "fault.rank=-1: must be at least 0, or null for every rank"),
        (("fault=input_flip", "fault.element=64"), "fault.element=64: must be at most 63 in this cell"),
        (("fault=bit_flip", "fault.element=4096"), "fault.element=4096: must be at most 4095 in this cell"),
        (("fault=bit_flip", "fault.block=4"), "fault.block=4: must be at most 3 in this cell"),
        (("fault=bit_flip", "fault.bit=16"), "fault.bit=16: must be at most 15 in this cell"),
        (("fault=bit_flip", "dtype=fp32", "fault.bit=32"), "fault.bit=32: must be at most 31 in this cell"),
        (("fault=bit_flip", "dtype=bf16_mixed", "fault.bit=16"), "fault.bit=16: must be at most 15 in this cell"),
        (("fault=rank_failure", "fault.rank=2"), "fault.rank=2: must be at most 1 in this cell"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_fault_must_have_its_place_in_the_cell(overrides: tuple[str, ...], line: str) -> None:
    assert _lines(*overrides) == [line]


@pytest.mark.parametrize(
    "overrides",
    [
        ("fault=input_flip", "fault.element=63", "fault.rank=1"),
        ("fault=bit_flip", "fault.element=4095", "fault.block=3", "fault.bit=15", "fault.run=1"),
        ("fault=bit_flip", "steps=3", "runs=5", "fault.step=2", "fault.run=5", "fault.rank=null"),
        ("fault=rank_failure", "fault.block=99", "fault.element=99999"),
    ],
    ids=" ".join,
)
def test_the_last_place_of_a_cell_is_in_it(overrides: tuple[str, ...]) -> None:
    assert _lines(*overrides) == []


def test_the_local_launch_has_one_node() -> None:
    assert _lines("world.nodes=2") == ["world.nodes=2: launch=local has one node"]


def test_a_gpu_for_each_rank_of_each_trial_at_a_time() -> None:
    overrides = ("device=cuda", "launch.max_parallel=2", "world.nproc_per_node=3")
    assert _lines(*overrides, gpus=6) == []
    assert _lines(*overrides, gpus=5) == [
        "world.nproc_per_node=3: with launch.max_parallel=2 needs 6 GPUs, this machine offers 5 (or device=cpu)"
    ]


def test_xxh3_is_for_host_memory() -> None:
    assert _lines("checksum=xxh3") == []
    assert _lines("checksum=xxh3", "device=cuda", gpus=2) == [
        "checksum=xxh3: reads host memory and would stop the device at every site; use auto, mixed or bitsum"
    ]


def test_the_global_fingerprint_needs_observation() -> None:
    assert _lines("checksum_mode=global", "observe=off") == [
        "checksum_mode=global: needs the logits' fingerprint, which observe=off does not take; use observe=block"
    ]


def test_contradicting_mitigations_are_a_problem() -> None:
    lines = _lines("mitigation=[recipe]", "+env.CUBLAS_WORKSPACE_CONFIG=':16:8'")
    assert lines == ["CUBLAS_WORKSPACE_CONFIG cannot be both :4096:8 (mitigation 'recipe') and :16:8 (your env)"]


@pytest.mark.parametrize("name", RESERVED)
@pytest.mark.parametrize("value", ["'0'", "null"])
def test_a_trials_share_of_the_gpus_is_not_set_by_hand(name: str, value: str) -> None:
    expected = [f"env.{name}: set it in the shell, and each trial gets its share"]
    assert _lines(f"+env.{name}={value}") == expected
    assert _lines("mitigation=[recipe]", f"+mitigation.recipe.env.{name}={value}") == expected


@pytest.mark.parametrize("name", ["OMP_NUM_THREADS", "MKL_NUM_THREADS"])
@pytest.mark.parametrize(("value", "shown"), [("'0'", "0"), ("many", "many"), ("''", ""), ("null", "unset")])
def test_threads_are_a_number(name: str, value: str, shown: str) -> None:
    expected = f"{name}={shown}: must be at least 1; use world.threads_per_rank=N"
    assert _lines(f"+env.{name}={value}") == [expected]
    assert _lines(f"+env.{name}='2'") == []


def test_several_mistakes_are_several_lines() -> None:
    lines = _lines("model.num_heads=3", "experts=2", "moe=topk", "world.nodes=2")
    assert [line.partition("=")[0] for line in lines] == ["model.num_heads", "top_k", "world.nodes"]


@pytest.mark.parametrize(
    ("word", "hint"), [("expert", "; did you mean experts?"), ("exprets", "; did you mean experts?"), ("colour", "")]
)
def test_a_word_is_like_an_option_or_none(word: str, hint: str) -> None:
    assert like(word, ["seed", "experts", "steps"]) == hint


def test_lookup_follows_dots_and_says_what_is_not_there() -> None:
    config = {"world": {"nodes": 2}, "seed": 0}
    assert lookup(config, "world.nodes") == 2
    assert lookup(config, "seed") == 0
    for key in ("world.ranks", "seed.x", "nothing"):
        with pytest.raises(KeyError):
            lookup(config, key)


@pytest.mark.parametrize(
    ("key", "valid"),
    [
        ("world.typo", ["nodes", "nproc_per_node", "threads_per_rank"]),
        ("dtype.x", ["name", "param", "compute", "reduce"]),
        ("nothing.here.at.all", ["model", "dtype"]),
        ("seed.x", []),
    ],
)
def test_valid_keys_are_those_beside_it(key: str, valid: list[str]) -> None:
    assert valid_keys(key)[: len(valid) or None] == valid
