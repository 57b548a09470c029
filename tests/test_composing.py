"""Points are what Hydra's own sweeper composes, whatever the command line; most take no composition."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.plugins.sweeper import Sweeper

from detsweep import app, schema
from detsweep.app import ConfigurationError

PLAIN = "hydra.sweeper._target_=hydra._internal.core_plugins.basic_sweeper.BasicSweeper"
OURS = ["--config-dir", "ours"]

# What is swept, and how many compositions it takes; None where Hydra's own sweeper takes over.
SWEEPS: list[tuple[Sequence[str], int | None]] = [
    (["seed=range(3)"], 1),
    (["seed=1,2,1"], 1),
    (["seed=5,3", "dtype=bf16,fp16"], 2),
    (["dtype=bf16,fp16", "seed=1,2", "experts=1,4", "moe=topk", "top_k=1"], 2),
    (["experts=range(1,3)", "moe.combine=index_put,ordered"], 1),
    (["moe=top1,top2,topk"], 3),
    (["moe=top1,top2", "top_k=2"], 2),
    (["moe.default_top_k=1,2"], 1),
    (["moe.experts=1,2", "experts=1"], 1),
    (["clip=null,0.5", "lr=1e-3,2", "compile=true,false"], 1),
    (["model.num_layers=2,3", "model=tiny,small"], 2),
    (["model=glob(*)", "seed=1"], 3),
    (["dtype=glob(bf16*)"], 2),
    (["seed=choice(3,4)", "lr=choice(0.1,0.2)"], 1),
    (["seed=sort(3,1,2)", "lr=range(0.1,0.3,0.1)"], 1),
    (["against=a,null,'x y','\"q\"'"], 1),
    (["against=1,true,null,1.5,nan"], 1),
    (["checksum='auto','mixed'", "folder=some/where"], 1),
    (["mitigation=[none],[recipe,seeded]", "seed=1,2"], 2),
    (["mitigation=none,recipe", "seed=1,2"], 2),
    (["mitigation=[recipe]", "mitigation.recipe.torch.cudnn_benchmark=true,false"], 1),
    (["mitigation=[recipe]", "mitigation.recipe.env.CUBLAS_WORKSPACE_CONFIG=':16:8',':4096:8'"], 1),
    (["+env.A=1,2", "seed=1,2"], 2),
    (["seed=1,2", "+env.A=x", "++env.B=null"], 1),
    (["+env.A=x", "env.A=y,z"], 2),
    (["+env.A=1", "++env.A=2,3"], 2),
    (["++seed=1,2", "seed=3"], 2),
    (["+clip=1,2"], 2),
    (["~seed", "steps=1,2"], 1),
    (["~top_k", "steps=1,2"], 3),
    (["~moe", "steps=1,2"], 1),
    (["fault.kinds=[bit_flip],[swap]", "seed=1,2"], 2),
    (["fault={block:1,bit:2},{block:3}", "fault.rank=1"], 2),
    (["seed=${steps},7", "steps=3,4"], 2),
    (["top_k=${experts}", "experts=3,4"], 1),
    (["folder=x/${detsweep.started:},y"], 2),
    (["folder=x/${now:%Y}", "seed=1,2"], 1),
    (["case=clean,moe_top4", "seed=1,2"], 2),
    (["case=clean", "steps=1,2", "experts=8"], 1),
    (["experiment=three_arms", "seed=1"], 9),
    (["experiment=llm_determinism", "model=tiny"], 1),
    (["world.nproc_per_node=1,2", "fault=bit_flip,none", "search.candidates=[a]"], 2),
    (["seed=1,2", "hydra.sweep.dir=there"], 1),
    (["seed=1,2", "hydra.run.dir=there"], 1),
    (["seed=1,2", "hydra/launcher=basic", "hydra/sweeper=basic", "hydra.verbose=false"], 1),
    (["seed=1,2", "hydra.job.chdir=true"], 1),
    (["seed=1,2", "hydra.output_subdir=x"], None),
    (["seed=1,2", "hydra.sweep.subdir=${hydra.job.num}"], None),
    (["seed=1,2", "hydra.sweeper.max_batch_size=1"], None),
    ([*OURS, "experiment=linked", "seed=1,2"], 1),
    ([*OURS, "experiment=looked_up", "seed=1,2"], 1),
    (["hydra.searchpath=[file://ours]", "experiment=linked", "seed=1,2"], 1),
    ([*OURS, "experiment=numbered", "dtype=bf16,fp16"], None),
    (["--config-dir", "groups", "+seed=a,b", "experts=1,2"], 2),
]

# What is wrong, in the place of a point that is not the first too, and where two things are.
WRONG: list[Sequence[str]] = [
    ["experts=1,abc"],
    ["seed=1,2", "experts=abc"],
    ["trails=1,2"],
    ["seed=1,2", "moe.typo=1,2"],
    ["seed.x=1,2"],
    ["moe.experts.x=1,2"],
    ["dtype=bf16,bf17"],
    ["seed=1,x", "dtype=bf16,bf17"],
    ["dtype=bf17,bf16", "seed=x,1"],
    ["dtype=1,2"],
    ["seed=null,1"],
    ["compile=yes,maybe"],
    ["env.NCCL_ALGO=Ring,Tree"],
    ["+seed=1,2"],
    ["++dtype=bf16,fp16"],
    ["~clip=1", "seed=1,2"],
    ["~top_k=2", "moe.default_top_k=1,2"],
    ["env.A=y,z", "+env.A=x"],
    ["dtype@foo=bf16,fp16"],
    ["foo@bar=1,2"],
    ["foo/bar=1,2"],
    ["seed=${nope},1", "experts=1,x"],
    ["seed=${nope},1"],
    ["seed=1,2", "top_k=${nope}"],
    ["top_k=${folder}", "seed=1,2"],
    ["seed=1,2", "folder=${hydra:job.num}"],
    ["seed=1,2", "folder=${hydra.job.num}"],
    ["seed=interval(1,2)"],
    ["seed=1,,2"],
    ["keep_env=a,b"],
    ["model=null,tiny"],
    ["moe.default_top_k=???,1"],
    ["hydra.mode=RUN,MULTIRUN"],
    ["seed=1,2", "~hydra.sweep.subdir"],
    ["seed=1,2", "+hydra.sweeper.params.experts='1,x'"],
    [*OURS, "experiment=wrong,linked", "seed=1,2"],
    ["--config-dir", "groups", "seed=a,b"],
    ["--config-dir", "groups", "seed=1,2"],
]


def _line(words: Sequence[str]) -> str:
    return " ".join(words)


@pytest.fixture(autouse=True)
def _in_a_folder_with_configurations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["detsweep"])
    monkeypatch.setattr(schema.time, "strftime", lambda form: form)
    # Hydra composes each point once more to see that it can: a quarter of a minute of these tests.
    monkeypatch.setattr(Sweeper, "validate_batch_is_legal", lambda *_: None)
    files = {
        "ours/experiment/linked": "seed: ${runs}\nmodel:\n  seq_len: ${world.nproc_per_node}\n  ffn_size: ${steps}",
        "ours/experiment/looked_up": "lr: ${oc.select:seed,1}\nwarmup: ${.seed}",
        "ours/experiment/numbered": "hydra: {sweep: {subdir: '${hydra.job.num}'}, sweeper: {params: {seed: '1,2'}}}",
        "ours/experiment/wrong": "sede: 1",
        "groups/seed/a": "steps: 5",
        "groups/seed/b": "steps: 6",
    }
    for name, text in files.items():
        path = tmp_path / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# @package _global_\n{text}\n")


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Grows with each composition of a point by Hydra."""
    calls: list[object] = []
    original = ConfigLoaderImpl.load_sweep_config

    def load(*positional: Any, **named: Any) -> Any:
        calls.append(named)
        return original(*positional, **named)

    monkeypatch.setattr(ConfigLoaderImpl, "load_sweep_config", load)
    return calls


def _found(words: Sequence[str]) -> object:
    """All that is used of the points of a command, or the line that refuses it."""
    try:
        points = app._compose(["-m", *words], "scratch")
    except ConfigurationError as error:
        return str(error)
    except Exception as error:
        return repr(error)
    return [(list(point.overrides), _spelt(point.config), point.own) for point in points]


def _spelt(config: Any) -> str:
    # As text, in which 1, 1.0 and true are not the same, and the order of keys shows.
    return str(config) if isinstance(config, Exception) else json.dumps(config)


@pytest.mark.parametrize(
    ("words", "compositions"), SWEEPS, ids=lambda value: _line(value) if type(value) is list else ""
)
def test_points_are_those_of_hydras_own_sweeper(
    words: Sequence[str], compositions: int | None, loaded: list[object]
) -> None:
    found = _found(words)
    taken = len(loaded)
    expected = _found([*words, PLAIN])
    assert isinstance(expected, list)
    assert found == expected
    assert len(found) > 1
    assert taken >= len(found) if compositions is None else taken == compositions


@pytest.mark.parametrize("words", WRONG, ids=_line)
def test_what_is_wrong_is_said_as_by_hydras_own_sweeper(words: Sequence[str]) -> None:
    found = _found(words)
    assert found == _found([*words, PLAIN])


def test_ten_thousand_points_take_one_composition_and_share_what_they_have_alike(loaded: list[object]) -> None:
    points = app._compose(["-m", "seed=range(5000)", "moe.combine=index_put,ordered"], "scratch")
    assert len(loaded) == 1
    configs = [point.config for point in points]
    assert not any(isinstance(config, Exception) for config in configs)
    first, *others = [dict(config) for config in configs if not isinstance(config, Exception)]
    assert [(config["seed"], config["moe"]["combine"]) for config in (first, *others[:2])] == [
        (0, "index_put"),
        (0, "ordered"),
        (1, "index_put"),
    ]
    alike = {key for key, value in first.items() if isinstance(value, dict)} - {"moe"}
    assert all(config[key] is first[key] for config in others for key in alike)
    assert all(point.own is points[0].own for point in points)


def test_a_value_that_hydra_refuses_costs_a_composition_of_its_own_and_no_more(loaded: list[object]) -> None:
    with pytest.raises(ConfigurationError, match=r"^experts=abc: must be a whole number$"):
        app._compose(["-m", "experts=1,abc,2,x", "seed=range(1000)"], "scratch")
    assert len(loaded) == 2
