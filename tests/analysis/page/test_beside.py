"""A cell beside its baseline: which it is, and what tells configuration and environment apart."""

from __future__ import annotations

from pathlib import Path

import pytest

from detsweep import load
from detsweep.analysis.page.beside import baseline_of, configuration_grid, environment_grid
from detsweep.analysis.page.known import known
from detsweep.paths import write_json
from tests.pages import write_environments
from tests.support import compose, plan_of, trial_of, write_cells, write_trial


def _baselines(folder: Path, *points: list[str], common: tuple[str, ...] = ()) -> list[tuple[int, str] | None]:
    """Of each cell the place of its baseline among the cells, and why that one."""
    plan = plan_of(*points, common=common)
    paths = write_cells(folder, plan)
    for cell in plan.cells:
        write_trial(trial_of(paths, cell), cell)
    apart, order = known(load(folder)), [cell.id for cell in plan.cells]
    found = [baseline_of(apart, cell) for cell in order]
    return [None if one is None else (order.index(one.cell), one.why) for one in found]


@pytest.mark.parametrize(
    ("points", "common", "expected"),
    [
        ([["seed=1"], ["seed=2"]], (), [None, (0, "the sweep's first cell")]),
        (
            [["seed=1", "mitigation=recipe"], ["seed=2", "mitigation=recipe"], ["seed=2", "mitigation=none"]],
            (),
            [None, (2, "the same cell without mitigations"), (0, "the sweep's first cell")],
        ),
        (
            [["wrap=module"], ["wrap=block"]],
            ("against=wrap:block",),
            [(1, "against=wrap:block"), (0, "the sweep's first cell")],
        ),
    ],
)  # fmt: skip
def test_the_baseline_and_why(
    points: list[list[str]], common: tuple[str, ...], expected: list[tuple[int, str] | None], tmp_path: Path
) -> None:
    assert _baselines(tmp_path, *points, common=common) == expected


def _grid_rows(before: list[str], after: list[str]) -> list[tuple[str, ...]]:
    grid = configuration_grid(compose(*before), compose(*after))
    return [] if grid is None else [tuple(field.text for field in row) for row in grid.rows]


def test_two_configurations_differ_in_exactly_what_was_said() -> None:
    assert _grid_rows(["seed=1"], ["seed=2"]) == [("seed", "1", "2")]
    assert _grid_rows(["seed=1", "trials=3", "launch.timeout_min=1"], ["seed=1"]) == []


def test_of_mitigations_it_is_what_they_set_and_not_what_is_said_about_them() -> None:
    rows = _grid_rows(["mitigation=none"], ["mitigation=cpu_1thread"])
    assert rows[0] == ("mitigation", "none", "cpu_1thread")
    assert ("mitigation.cpu_1thread.env.OMP_NUM_THREADS", "not there", "1") in rows
    assert not [row for row in rows if row[0].endswith((".cost", ".source", ".expect"))]


def test_environments_differ_by_section_and_name(tmp_path: Path) -> None:
    plan = plan_of(["seed=1"], ["seed=2"])
    paths = write_cells(tmp_path, plan)
    one, other = (trial_of(paths, cell) for cell in plan.cells)
    write_environments(one, A="1")
    write_environments(other, A="2")
    grid, said = environment_grid(one, other)
    assert grid is not None
    assert [tuple(field.text for field in row) for row in grid.rows] == [("variables", "A", "1", "2")]
    assert said == ""
    assert environment_grid(one, one) == (None, "The environments of rank 0 are the same.")


def test_a_long_value_is_cut_and_many_are_counted(tmp_path: Path) -> None:
    plan = plan_of(["seed=1"], ["seed=2"])
    paths = write_cells(tmp_path, plan)
    one, other = (trial_of(paths, cell) for cell in plan.cells)
    write_environments(one, **{f"V{n}": "x" for n in range(70)})
    write_environments(other, **{f"V{n}": "y" * 500 for n in range(70)})
    grid, _ = environment_grid(one, other)
    assert grid is not None
    assert (len(grid.rows), grid.note) == (60, "10 more are not shown.")
    assert grid.rows[0][3].text.endswith("yyy... (500 characters)")


def test_an_environment_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    plan = plan_of(["seed=1"], ["seed=2"])
    paths = write_cells(tmp_path, plan)
    one, other = (trial_of(paths, cell) for cell in plan.cells)
    write_json(one.environment(0), {"python": "3.11"})
    grid, said = environment_grid(one, other)
    assert grid is None
    assert said == f"Environments cannot be compared: {other.environment(0)} is missing"
