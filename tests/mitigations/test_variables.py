"""The catalogue of variables: whole, valid, and of one mind with the presets, the environment and the workers."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
import yaml

from detsweep import environment
from detsweep.consistency import RESERVED
from detsweep.mitigations import catalogue, load_presets, variables
from detsweep.mitigations.listing import WHEN
from detsweep.mitigations.stack import ALIASES
from detsweep.mitigations.variables import FILE, READ, READERS, USES
from detsweep.paths import conf_dir
from detsweep.worker.canaries import CANARIES
from detsweep.worker.effects import _READERS

LINES = FILE.read_text().splitlines()
NAMES = [line[:-1] for line in LINES if re.fullmatch(r"\w+:", line)]


def _set_by_presets() -> set[str]:
    return {name for preset in load_presets([conf_dir()]).values() for name in preset.env}


def test_every_entry_of_the_file_is_in_the_catalogue() -> None:
    assert list(catalogue()) == NAMES
    assert all(variable.name == name for name, variable in catalogue().items())


def test_no_variable_is_described_twice() -> None:
    assert [name for name, count in Counter(NAMES).items() if count > 1] == []


def test_each_part_of_the_file_is_in_order() -> None:
    parts: list[list[str]] = []
    for line in LINES:
        if line.startswith("#") or not parts:
            parts.append([])
        elif re.fullmatch(r"\w+:", line):
            parts[-1].append(line[:-1])
    assert sum(len(part) for part in parts) == len(NAMES)
    assert [part for part in parts if part != sorted(part)] == []


@pytest.mark.parametrize("name", NAMES)
def test_an_entry_says_all_that_it_should(name: str) -> None:
    variable = catalogue()[name]
    assert re.fullmatch(r"[A-Z][A-Z0-9_]*", name)
    assert set(variable.readers) <= set(READERS)
    assert len(set(variable.readers)) == len(variable.readers) > 0
    assert variable.read in READ
    assert variable.use in USES
    texts = (variable.values, variable.default, variable.effect, variable.cost, variable.source)
    assert all(text.strip() == text and text and text != "None" for text in texts)
    assert not variable.effect.endswith(".")
    # Each is read alone, in `show` and `variables`: what came before it is not there.
    assert "the same" not in variable.effect.replace("stays the same", "").replace("the same in each", "")


def test_readers_and_moments_are_those_that_something_uses() -> None:
    assert {reader for variable in catalogue().values() for reader in variable.readers} == set(READERS)
    assert {variable.read for variable in catalogue().values()} == set(READ) == set(WHEN)
    assert len(set(READERS)) == len(READERS)


def test_the_workers_know_every_reader() -> None:
    assert set(_READERS) == set(READERS)


def test_what_canaries_watch_is_described() -> None:
    assert set(CANARIES) <= set(NAMES)


def test_other_names_of_a_setting_are_described() -> None:
    assert {name for group in ALIASES for name in group} <= set(NAMES)


def test_use_says_preset_exactly_where_a_preset_sets_it() -> None:
    assert {name for name, variable in catalogue().items() if variable.use == "preset"} == _set_by_presets()


def test_use_says_isolated_exactly_where_a_trial_gets_a_path_of_its_own(tmp_path: Path) -> None:
    isolated = environment.isolated(tmp_path, compiles=True, gpu=True)
    assert {name for name, variable in catalogue().items() if variable.use == "isolated"} == set(isolated)


def test_what_a_trial_needs_of_the_shell_is_not_in_the_catalogue() -> None:
    kept = {*environment.KEPT_NAMES, *RESERVED}
    assert kept & set(NAMES) == set()
    assert [name for name in NAMES if environment.FOREIGN.fullmatch(name)] == []


@pytest.mark.parametrize("prefix", environment.NUMERIC_PREFIXES)
def test_every_family_that_is_taken_away_is_described(prefix: str) -> None:
    assert [name for name in NAMES if name.startswith(prefix)] != []


def test_everything_in_the_catalogue_is_taken_away() -> None:
    assert [name for name in NAMES if not environment.changes_numerics(name)] == []


def test_compiling_is_not_switched_off_behind_a_trials_back() -> None:
    # torch obeys the older name too, at each call of torch.compile.
    shell = {"TORCHDYNAMO_DISABLE": "1", "TORCH_COMPILE_DISABLE": "1", "HOME": "/home"}
    child = environment.child_environment(shell, {}, threads=1, gpus=(), defaults={})
    assert child.removed == {"TORCHDYNAMO_DISABLE": "1", "TORCH_COMPILE_DISABLE": "1"}


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("readers", ["nccl", "mpi"], "SOME: readers ['nccl', 'mpi'] are not all of python, glibc"),
        ("readers", [], "SOME: readers [] are not all of python, glibc"),
        ("readers", "nccl", "SOME: readers 'nccl' are not all of python, glibc"),
        ("read", "later", "SOME: read 'later' is none of process, import, handle"),
        ("use", "maybe", "SOME: use 'maybe' is none of preset, isolated, observe"),
        ("origin", "here", "SOME must have cost, default, effect, read, readers, source, use, values"),
        ("cost", None, "SOME must have cost, default, effect, read, readers, source, use, values"),
    ],
    ids=str,
)
def test_an_entry_that_is_wrong_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, value: object, expected: str
) -> None:
    entry = yaml.safe_load(FILE.read_text())["NCCL_ALGO"]
    changed = {name: old for name, old in {**entry, key: value}.items() if old is not None}
    file = tmp_path / "variables.yaml"
    file.write_text(yaml.safe_dump({"SOME": changed}))
    monkeypatch.setattr(variables, "FILE", file)
    with pytest.raises(ValueError, match=r"^variables\.yaml: ") as caught:
        # As it is without its memory: the catalogue of other tests stays what it was.
        catalogue.__wrapped__()
    assert expected in str(caught.value)
