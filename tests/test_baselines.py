"""`against`: which cell is another one's baseline, and what is said where there is none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from detsweep import baselines
from detsweep.baselines import baseline_of, has, problems, value_of, wanted
from tests.support import one_cell, plan_of

Point = tuple[Mapping[str, Any], Mapping[str, str]]


def _points(*points: Sequence[str], common: Sequence[str] = ()) -> list[Point]:
    """The cells of a sweep as (configuration, overrides), in its order."""
    return [(cell.config, cell.overrides) for cell in plan_of(*points, common=common).cells]


# --- keys and values -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("against", "pairs"),
    [
        ("checkpointing:none", {"checkpointing": "none"}),
        ("checkpointing=none", {"checkpointing": "none"}),
        ("compile:false+wrap:root", {"compile": "false", "wrap": "root"}),
        ("world.shard_ranks:null", {"world.shard_ranks": "null"}),
        ("env.CUBLAS_WORKSPACE_CONFIG::4096:8", {"env.CUBLAS_WORKSPACE_CONFIG": ":4096:8"}),
    ],
)
def test_keys_and_values_are_read_as_they_are_written(against: str, pairs: dict[str, str]) -> None:
    assert wanted(against) == pairs


@pytest.mark.parametrize("against", ["", "checkpointing", ":none", "checkpointing:", "compile:false+", "a:1+b"])
def test_what_is_no_key_and_value_is_refused(against: str) -> None:
    with pytest.raises(ValueError, match=r"^against=.*: must be key:value, several as key:value\+key:value$"):
        wanted(against)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("dtype", "fp16"),
        ("dtype.reduce", "fp16"),
        ("mode", "train"),
        ("observe", "block"),
        ("fault", "none"),
        ("fault.block", ""),
        ("stress", "none"),
        ("mitigation", "none+recipe"),
        ("compile", False),
        ("clip", "null"),
        ("world.shard_ranks", "null"),
        ("lr", 0.001),
        ("keep_env", "HOME,PATH"),
        ("env.A", "null"),
        ("env.B", ""),
        ("experiment", ""),
    ],
)
def test_a_cell_has_a_value_for_every_key(key: str, value: object) -> None:
    cell = one_cell("dtype=fp16", "mode=train", "mitigation=[recipe,none]", "keep_env=[HOME,PATH]", "+env.A=null")
    assert value_of(cell.config, key) == value


def test_a_fault_has_the_values_of_its_settings_and_none_has_none() -> None:
    cell = one_cell("fault=bit_flip", "fault.block=2", "fault.rank=null")
    assert [value_of(cell.config, key) for key in ("fault", "fault.block", "fault.rank")] == ["bit_flip", 2, "null"]


def test_what_is_no_key_of_the_configuration_has_the_value_of_the_command_line() -> None:
    assert value_of(one_cell().config, "experiment", {"experiment": "cpu_races"}) == "cpu_races"
    # What is a key has its own, whatever the command line says of it.
    assert value_of(one_cell().config, "mitigation", {"mitigation": "[recipe]"}) == "none"


@pytest.mark.parametrize(
    ("overrides", "target", "found"),
    [
        (("compile=true",), "compile:true", True),
        (("compile=true",), "compile:True", True),
        (("compile=true",), "compile:TRUE", True),
        (("compile=true",), "compile:false", False),
        (("dtype=fp16",), "dtype:FP16", True),
        (("world.shard_ranks=1",), "world.shard_ranks:1", True),
        (("world.shard_ranks=1",), "world.shard_ranks:null", False),
        ((), "world.shard_ranks:null", True),
        ((), "world.shard_ranks:NULL", True),
        (("compile=true", "dtype=fp16"), "compile:true+dtype:fp16", True),
        (("compile=true", "dtype=fp16"), "compile:true+dtype:bf16", False),
        ((), "no.such.key:1", False),
    ],
    ids=str,
)
def test_a_cell_is_a_baseline_where_it_has_all_the_values(overrides: tuple[str, ...], target: str, found: bool) -> None:
    cell = one_cell(*overrides)
    assert has((cell.config, cell.overrides), wanted(target)) is found


# --- the nearest cell ------------------------------------------------------------------------------------------------


def test_a_baseline_is_like_its_cell_on_all_other_axes() -> None:
    cells = _points(*([f"dtype={dtype}", f"seed={seed}"] for dtype in ("bf16", "fp16", "fp32") for seed in (1, 2)))
    assert [baseline_of(cell, cells, "dtype:bf16") for cell in cells] == [None, None, 0, 1, 0, 1]
    assert [baseline_of(cell, cells, "seed:2") for cell in cells] == [1, None, 3, None, 5, None]


def test_where_none_is_like_it_on_all_axes_the_nearest_is_the_baseline() -> None:
    cells = _points(["dtype=bf16", "seed=1", "warmup=2"], ["dtype=bf16", "seed=2", "warmup=0"],
                    ["dtype=fp16", "seed=2", "warmup=2", "steps=2"], ["dtype=fp16", "seed=3", "warmup=0"])  # fmt: skip
    assert baseline_of(cells[3], cells, "dtype:bf16") == 1
    with pytest.raises(ValueError, match=r"^against=dtype:bf16: 2 cells are as like this one; name one more key$"):
        baseline_of(cells[2], cells, "dtype:bf16")
    assert baseline_of(cells[2], cells, "dtype:bf16+seed:1") == 0


def test_a_default_that_is_not_written_out_is_the_same_value() -> None:
    cells = _points(["seed=1"], ["seed=2", "dtype=bf16"], ["seed=2", "dtype=fp16"])
    # The first cell does not say its dtype; it has bf16 as the second has.
    assert baseline_of(cells[2], cells, "dtype:bf16") == 1
    assert baseline_of(cells[1], cells, "seed:1") == 0


def test_a_baseline_is_named_by_several_keys() -> None:
    cells = _points(*([f"compile={flag}", f"wrap={wrap}"] for flag in ("false", "true") for wrap in ("block", "root")))
    assert [baseline_of(cell, cells, "compile:false+wrap:root") for cell in cells] == [1, None, 1, 1]


def test_cells_of_an_experiment_are_told_apart_by_what_the_command_line_says() -> None:
    config = one_cell().config
    cells: list[Point] = [(config, {"case": "a"}), (config, {"case": "b"})]
    assert baseline_of(cells[1], cells, "case:a") == 0
    assert baseline_of(cells[0], cells, "case:a") is None


def test_without_a_baseline_the_values_that_there_are_are_said() -> None:
    cells = _points(["wrap=block"], ["wrap=root"])
    with pytest.raises(
        ValueError,
        match=r"^against=wrap:all: no cell of this sweep has wrap=all; wrap is: block, root$",
    ):
        baseline_of(cells[0], cells, "wrap:all")
    with pytest.raises(ValueError, match=r"has no\.key=1; no\.key is: no axis$"):
        baseline_of(cells[0], cells, "no.key:1")


# --- problems --------------------------------------------------------------------------------------------------------


def test_a_sweep_in_which_every_cell_has_a_baseline_has_no_problem() -> None:
    assert list(problems(_points(["seed=1"], ["seed=2"], ["seed=3"]), "seed:1")) == []


@pytest.mark.parametrize(
    ("against", "line"),
    [
        ("seed", "against=seed: must be key:value, several as key:value+key:value"),
        ("seed:7", "against=seed:7: no cell of this sweep has seed=7; seed is: 1, 2, 3"),
    ],
)
def test_what_is_wrong_for_every_cell_is_said_once(against: str, line: str) -> None:
    assert list(problems(_points(["seed=1"], ["seed=2"], ["seed=3"]), against)) == [line]


def test_cells_that_have_two_baselines_are_counted_by_how_many() -> None:
    cells = _points(["dtype=bf16", "seed=1"], ["dtype=bf16", "seed=2"], ["dtype=fp16", "seed=3"])
    assert list(problems(cells, "dtype:bf16")) == [
        "against=dtype:bf16: 2 cells are as like this one; name one more key"
    ]


def test_the_plus_signs_of_stacked_mitigations_are_part_of_their_name() -> None:
    assert wanted("mitigation:none+recipe+seed:3") == {"mitigation": "none+recipe", "seed": "3"}


def test_a_number_is_compared_by_what_it_is() -> None:
    assert has(({"lr": 0.001}, {}), {"lr": "1e-3"})
    assert not has(({"lr": 0.001}, {}), {"lr": "1e-4"})


def test_in_a_large_product_each_baseline_is_found_without_a_look_at_all_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked = []
    monkeypatch.setattr(baselines, "value_of", lambda *given: looked.append(1) or value_of(*given))
    config = one_cell().config
    cells = [
        ({**config, "seed": seed, "checkpointing": kind}, {"seed": str(seed), "checkpointing": kind})
        for seed in range(500)
        for kind in ("none", "block")
    ]
    assert list(problems(cells, "checkpointing:none")) == []
    assert len(looked) < 5 * len(cells)
    found = baselines.Baselines(cells, "checkpointing:none")
    assert [found.of(cell) for cell in cells[-4:]] == [None, 996, None, 998]
