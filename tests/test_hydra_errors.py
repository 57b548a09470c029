"""What Hydra and OmegaConf raise, as the one line that a user reads."""

from __future__ import annotations

import pytest
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from detsweep import schema
from detsweep.hydra_errors import one_line, plugin_line, refuse
from detsweep.paths import conf_dir


def _line(*overrides: str) -> str:
    """The line for what Hydra raises of these words, as from a shell and without -m."""
    with pytest.raises((HydraException, OmegaConfBaseException, ValueError)) as caught:
        _compose(overrides)
    return one_line(caught.value)


def _compose(overrides: tuple[str, ...]) -> None:
    schema.register()
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        hydra = GlobalHydra.instance().hydra
        assert hydra is not None
        config = hydra.compose_config("config", list(overrides), run_mode=RunMode.RUN, from_shell=True)
        OmegaConf.to_container(config, resolve=True)


def _options(group: str) -> str:
    return ", ".join(sorted(path.stem for path in (conf_dir() / group).glob("*.yaml")))


WORLD = ("nodes", "nproc_per_node", "threads_per_rank", "shard_ranks", "node", "gpu")


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("dtype=bf17", "dtype=bf17: no such option; did you mean bf16?; valid: bf16, bf16_mixed, fp16, fp32"),
        ("mitigation=[none,typo]", f"mitigation=typo: no such option; valid: {_options('mitigation')}"),
        ("experiment=typo", f"experiment=typo: no such option; valid: {_options('experiment')}"),
        ("moe.typo=1", "moe.typo: no such key; valid: name, routing, combine, dispatch, default_top_k, experts, top_k"),
        ("world.gpus=1", "world.gpus: no such key; did you mean gpu?; valid: " + ", ".join(WORLD)),
        ("seed=abc", "seed=abc: must be a whole number"),
        ("world.nproc_per_node=2.5", "world.nproc_per_node=2.5: must be a whole number"),
        ("launch.timeout_min=soon", "launch.timeout_min=soon: must be a number"),
        ("dry_run=maybe", "dry_run=maybe: must be true or false"),
        ("launch.fail_fast=2.5", "launch.fail_fast=2.5: must be true or false"),
        ("seed=null", "seed=null: must have a value"),
        ("world=3", "world: Invalid type assigned: int is not a subclass of WorldConfig. value: 3"),
        ("env.A=1", "env.A: a variable is added to the cell's environment with +env.A=value"),
        ("dtype.parm=fp32", "dtype.parm: no such key; did you mean param?; valid: name, param, compute, reduce"),
        ("mitigation.recipe.evn=1", "mitigation.recipe.evn: no such key"),
        ("seed=1,2", "seed=1,2: a sweep over several values needs -m (python -m detsweep -m ...)"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_that_says_what_is_valid(override: str, line: str) -> None:
    assert _line(override) == line


def test_an_unknown_key_at_the_top_lists_the_valid_ones() -> None:
    line = _line("expert=4")
    assert line.startswith("expert: no such key; did you mean experts?; valid: model, dtype, moe, mode, ")
    assert "experts" in line


@pytest.mark.parametrize("word", ["dtype", "a b", "+env.A=[", "+env.A='b", "experts=(1,2"])
def test_what_cannot_be_parsed_is_one_line_that_says_how_to_quote(word: str) -> None:
    expected = f"{word}: cannot be read; a value with special characters needs quotes of its own: key='\"value\"'"
    assert _line(word) == expected


@pytest.mark.parametrize("reason", ["mismatched input 'x'", "no viable alternative at input 'x'", "extraneous input"])
def test_a_parsers_own_words_are_said_with_what_an_override_is(reason: str) -> None:
    line = one_line(ValueError(f"{reason} expecting EOF\nmore of it"))
    assert line.endswith(f"({reason} expecting EOF); one override is key=value, without spaces around the comma")
    assert "\n" not in line


def test_a_group_without_a_name_lists_the_groups() -> None:
    groups = ", ".join(sorted(path.name for path in conf_dir().iterdir() if path.is_dir()))
    assert _line("=3") == f"a group needs the name of one of its options; groups: {groups}"


def test_any_other_error_is_joined_into_one_line() -> None:
    assert one_line(ValueError("first\n\n  second")) == "first; second"
    assert one_line(ValueError()) == "ValueError"


@pytest.mark.parametrize(
    ("argument", "line"),
    [
        ("hydra/launcher=joblib", plugin_line("hydra/launcher", "joblib")),
        ("+hydra/launcher=submitit_slurm", plugin_line("hydra/launcher", "submitit_slurm")),
        ("hydra/sweeper=optuna", plugin_line("hydra/sweeper", "optuna")),
        ("hydra/sweeper@hydra.sweeper=ax", plugin_line("hydra/sweeper", "ax")),
    ],
)
def test_a_launcher_or_sweeper_of_hydras_is_refused(argument: str, line: str) -> None:
    assert refuse(["-m", "seed=1", argument]) == line


def test_the_refusal_says_what_to_use_instead() -> None:
    assert plugin_line("hydra/launcher", "joblib") == (
        "hydra/launcher=joblib: detsweep starts its cells itself; use launch=local launch.max_parallel=N"
    )
    assert "hydra/sweeper=optuna: only basic" in plugin_line("hydra/sweeper", "optuna")


@pytest.mark.parametrize("argument", ["hydra/launcher=basic", "hydra.sweep.dir=x", "dtype=bf16", "launch=local"])
def test_everything_else_is_let_through(argument: str) -> None:
    assert refuse([argument]) is None


@pytest.mark.parametrize(
    "words",
    [
        ("folder=a", "folder=b"),
        ("hydra.sweep.dir=a", "folder=b"),
        ("hydra.run.dir=a", "hydra.sweep.dir=a"),
    ],
    ids=" ".join,
)
def test_two_folders_are_refused(words: tuple[str, ...]) -> None:
    assert refuse(["-m", "seed=1", *words]) == f"{' '.join(words)}: one folder only; use folder=PATH"
