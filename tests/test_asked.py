"""What a cell requires beyond its own settings, and what is worth knowing of those before it runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from detsweep.asked import NOTHING, notes, required
from detsweep.mitigations import Preset, Settings, catalogue, load_presets
from detsweep.paths import conf_dir
from detsweep.plan import make_plan
from tests.support import compose, one_cell

PRESETS = load_presets([conf_dir()])


def _required(*names: str, force: bool = False, platform: str = "cpu", presets: Mapping[str, Preset] = PRESETS) -> Any:
    config = compose(f"require=[{','.join(names)}]", f"mitigation_force={str(force).lower()}")
    return required(config, presets, platform)


def test_without_require_nothing_is() -> None:
    assert required(compose(), {}, "cpu") == NOTHING == Settings({}, {})


def test_all_that_the_presets_set_is_required() -> None:
    assert _required("no_compile", "torch_det") == Settings(
        {"TORCH_COMPILE_DISABLE": "1"}, {"deterministic_algorithms": "strict", "fill_uninitialized_memory": True}
    )


def test_what_must_be_unset_is_required_to_be() -> None:
    assert _required("hipblaslt_no_override", platform="amd").env == {"HIPBLASLT_TUNING_OVERRIDE_FILE": None}


def test_a_preset_that_does_not_exist_is_named_with_what_does() -> None:
    with pytest.raises(ValueError, match=r"^require=torch_dett: no such mitigation; did you mean torch_det\?; valid: "):
        _required("none", "torch_dett")


def test_one_of_another_platform_is_refused_unless_forced() -> None:
    line = (
        "^require=nccl_ring: mitigation 'nccl_ring' is for nvidia and amd, this is cpu; "
        "mitigation_force=true requires it all the same$"
    )
    with pytest.raises(ValueError, match=line):
        _required("nccl_ring")
    assert (
        _required("nccl_ring", force=True)
        == _required("nccl_ring", platform="amd")
        == Settings({"NCCL_ALGO": "Ring"}, {})
    )


def test_presets_that_cannot_both_be_in_force_are_refused_with_both_sides() -> None:
    with pytest.raises(ValueError, match=r"^require=torch_det,torch_warn: deterministic_algorithms cannot be both "):
        _required("torch_det", "torch_warn")


def test_what_is_required_is_not_what_a_cell_is_but_its_ranks_are_told() -> None:
    plain, demanding = one_cell(), one_cell("require=[no_compile]")
    assert demanding.id == plain.id
    assert demanding.spec(0)["required"] == {"env": {"TORCH_COMPILE_DISABLE": "1"}, "torch": {}}
    assert plain.spec(0)["required"] == {"env": {}, "torch": {}}
    assert demanding.spec(0)["settings"] == plain.spec(0)["settings"]


def test_a_closer_look_requires_the_same() -> None:
    closer = one_cell("require=[no_compile]").closer()
    assert closer is not None
    assert closer.required.env == {"TORCH_COMPILE_DISABLE": "1"}


def test_what_cannot_be_required_is_a_problem_of_the_plan() -> None:
    (problem,) = make_plan([(["require=[primus]"], compose("require=[primus]"))]).problems
    assert problem.startswith("require=primus: mitigation 'primus' is for amd, this is cpu")


# --- notes -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def _bare_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in catalogue():
        monkeypatch.delenv(name, raising=False)


def _notes(*overrides: str) -> list[str]:
    return list(notes(compose(*overrides)))


@pytest.mark.usefixtures("_bare_shell")
@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("mitigation=[primus]",),
        ("mitigation=[torch_det,cpu_1thread]",),
        ("+env.MY_FLAG=1",),
        ("+env.NCCL_ALGO=Ring",),
    ],
    ids=" ".join,
)
def test_what_is_in_order_needs_no_note(overrides: tuple[str, ...]) -> None:
    assert _notes(*overrides) == []


@pytest.mark.usefixtures("_bare_shell")
def test_what_changes_nothing_in_a_stack_is_noted() -> None:
    line = "mitigation 'nccl_ring' changes nothing beside 'primus', which has all that it sets"
    assert _notes("mitigation=[primus,nccl_ring]") == [line]


@pytest.mark.usefixtures("_bare_shell")
@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (("mitigation=[primus]",), "Ring by mitigation 'primus'"),
        (("mitigation=[nccl_ring,te_det]",), "Ring by mitigation 'nccl_ring'"),
        (("mitigation=[primus,megatron]",), "Ring by mitigation 'primus' and mitigation 'megatron'"),
        (("+env.NCCL_ALGO=Ring",), "Ring by env"),
        (("+env.NCCL_ALGO=null",), "unset by env"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_the_shell_has_otherwise_is_noted_with_who_asks(
    monkeypatch: pytest.MonkeyPatch, overrides: tuple[str, ...], line: str
) -> None:
    monkeypatch.setenv("NCCL_ALGO", "Tree")
    assert [note for note in _notes(*overrides) if "shell" in note] == [
        f"NCCL_ALGO=Tree in this shell, {line}: trials get the latter"
    ]


@pytest.mark.usefixtures("_bare_shell")
@pytest.mark.parametrize(
    ("overrides", "notes_of_threads"),
    [
        ((), ["OMP_NUM_THREADS=64 in this shell: trials have world.threads_per_rank=1"]),
        (("world.threads_per_rank=64",), []),
        (
            ("mitigation=[omp_1thread]",),
            ["OMP_NUM_THREADS=64 in this shell, 1 by mitigation 'omp_1thread': trials get the latter"],
        ),
        (("keep_env=[OMP_NUM_THREADS]",), []),
    ],
    ids=str,
)
def test_threads_of_the_shell_that_trials_do_not_get_are_noted(
    monkeypatch: pytest.MonkeyPatch, overrides: tuple[str, ...], notes_of_threads: list[str]
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "64")
    (cell,) = make_plan([(list(overrides), compose(*overrides))]).cells
    assert list(notes(cell.config)) == notes_of_threads


@pytest.mark.usefixtures("_bare_shell")
def test_what_the_shell_has_too_or_no_cell_speaks_of_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    monkeypatch.setenv("NCCL_PROTO", "LL")
    assert _notes("mitigation=[nccl_ring]") == []


@pytest.mark.usefixtures("_bare_shell")
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("NCCL_ALGOO", ["env.NCCL_ALGOO: not in the catalogue of variables; did you mean NCCL_ALGO?"]),
        ("HSA_XXXXXXXXXXXX", ["env.HSA_XXXXXXXXXXXX: not in the catalogue of variables"]),
        ("NCCL_ALGO", []),
        ("MY_NCCL_ALGO", []),
    ],
)
def test_a_variable_of_a_known_family_that_is_not_known_is_perhaps_misspelt(name: str, expected: list[str]) -> None:
    assert _notes(f"+env.{name}=1") == expected


@pytest.mark.usefixtures("_bare_shell")
def test_notes_of_several_cells_are_said_once_by_the_plan() -> None:
    points = [[f"seed={seed}", "+env.HSA_XXXXXXXXXXXX=1"] for seed in (1, 2)]
    plan = make_plan([(point, compose(*point)) for point in points])
    assert plan.notes == ("env.HSA_XXXXXXXXXXXX: not in the catalogue of variables",)
