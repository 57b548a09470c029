"""Keys, choices and ranges of a configuration: a line for each mistake."""

from __future__ import annotations

from typing import Any

import pytest
from omegaconf import MISSING

from detsweep.validate import CHOICES, RANGES, like, lookup, problems, valid_keys
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


def test_the_defaults_have_no_problem() -> None:
    assert _lines() == []


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
    assert lines[0] == "moe.typo: no such key; valid: name, routing, combine, dispatch, default_top_k, experts, top_k"
    assert lines[1].startswith("fuild: no such key; did you mean fault?; valid: model, dtype, moe, ")
    assert len(lines) == 2


def test_a_key_that_is_nearly_one_is_told_which() -> None:
    (line,) = _lines("+world.nproc_pernode=2")
    assert line.startswith("world.nproc_pernode: no such key; did you mean nproc_per_node?; valid: nodes, ")


def test_a_typo_in_a_mitigations_preset_is_refused() -> None:
    lines = _lines("mitigation=[recipe]", "+mitigation.recipe.evn.A='1'")
    (line,) = lines
    assert line.startswith("mitigation.recipe.evn: no such key; did you mean env?; valid: env, torch, platforms, ")


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


def test_several_mistakes_are_several_lines() -> None:
    lines = _lines("model.num_heads=3", "experts=2", "moe=topk", "world.nodes=2")
    assert [line.partition("=")[0] for line in lines] == ["model.num_heads", "top_k", "world.nodes"]


def test_contradictions_are_looked_for_where_single_values_are_well() -> None:
    config = _set(compose("world.nodes=2"), "moe.routing", "nonsense")
    assert problems(config, gpus=0) == ["moe.routing=nonsense: valid: learned, even"]


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
        ("world.typo", ["nodes", "nproc_per_node", "threads_per_rank", "shard_ranks"]),
        ("dtype.x", ["name", "param", "compute", "reduce"]),
        ("nothing.here.at.all", ["model", "dtype"]),
        ("seed.x", []),
    ],
)
def test_valid_keys_are_those_beside_it(key: str, valid: list[str]) -> None:
    assert valid_keys(key)[: len(valid) or None] == valid


@pytest.mark.parametrize(("key", "word"), [("compres", "compress"), ("payloads", "payload"), ("max_gbs", "max_gb")])
def test_a_key_of_the_recording_that_is_nearly_one_is_told_which(key: str, word: str) -> None:
    (line,) = _lines("mode=record", f"+record.{key}=1")
    assert line.startswith(f"record.{key}: no such key; did you mean {word}?; valid: payload, first, last, every, ")


def test_a_word_of_the_recording_that_is_no_choice_comes_before_what_does_not_go_together() -> None:
    assert _lines("record.payload=everything", "record.compress=gzip", "record.first=-1") == [
        "record.payload=everything: valid: digest, outputs, all",
        "record.compress=gzip: valid: none, repeats, zlib",
        "record.first=-1: must be at least 0",
    ]
