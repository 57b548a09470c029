"""Which cells of two sweeps belong together."""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from typing import Any

from detsweep.diff.pairing import AT_ONCE, pairs_of
from detsweep.diff.sides import CellSide
from tests.support import one_cell

BASE = one_cell().to_json()["config"]


def _cell(**values: Any) -> CellSide:
    """A cell with these values of keys at the top; its id says them all."""
    config = copy.deepcopy(BASE)
    env = values.pop("env", {})
    config.update(values)
    config["env"] = env
    name = " ".join(f"{key}={value}" for key, value in {**values, **env}.items())
    return CellSide(name, "cell", {}, config, {})


def _pairs(one: Sequence[CellSide], other: Sequence[CellSide]) -> list[tuple[str, str]]:
    return [(one[a].id, other[b].id) for a, b in pairs_of(one, other)[0]]


def test_cells_of_one_configuration_belong_together_in_whatever_order() -> None:
    cells = [_cell(seed=seed) for seed in range(4)]
    assert pairs_of(cells, cells[::-1]) == ([(0, 3), (1, 2), (2, 1), (3, 0)], [], [])


def test_of_sweeps_that_differ_in_one_variable_each_cell_finds_its_like() -> None:
    one = [_cell(seed=seed, steps=steps) for seed in (1, 2) for steps in (1, 5)]
    other = [_cell(seed=seed, steps=steps, env={"X": "1"}) for steps in (5, 1) for seed in (2, 1)]
    assert pairs_of(one, other) == ([(0, 3), (1, 1), (2, 2), (3, 0)], [], [])


def test_where_none_is_like_it_on_all_axes_the_one_that_differs_in_fewest_is_taken() -> None:
    one = [_cell(seed=1, steps=1, warmup=1), _cell(seed=2, steps=2, warmup=2)]
    other = [_cell(seed=7, steps=7, warmup=1), _cell(seed=2, steps=2, warmup=9), _cell(seed=1, steps=1, warmup=1)]
    assert pairs_of(one, other) == ([(0, 2), (1, 1)], [], [0])


def test_cells_with_the_same_configuration_go_before_nearer_ones() -> None:
    one = [_cell(seed=1), _cell(seed=2)]
    other = [_cell(seed=2), _cell(seed=3)]
    assert _pairs(one, other) == [("seed=1", "seed=3"), ("seed=2", "seed=2")]


def test_keys_that_vary_together_count_once() -> None:
    def dtyped(name: str, **values: int) -> CellSide:
        return _cell(**values, dtype={"name": name, "param": name, "compute": name, "reduce": name})

    one = [dtyped("bf16", seed=1, steps=1)]
    other = [dtyped("bf16", seed=2, steps=2), dtyped("fp32", seed=1, steps=1)]
    assert pairs_of(one, other) == ([(0, 1)], [], [0])


def test_of_several_that_are_as_near_the_first_is_taken_each_time() -> None:
    one = [_cell(seed=seed) for seed in (1, 2)]
    other = [_cell(seed=seed) for seed in (5, 6, 7)]
    assert all(pairs_of(one, other) == ([(0, 0), (1, 1)], [], [2]) for _ in range(3))


def test_single_cells_belong_together_whatever_they_are() -> None:
    one = [_cell(seed=1, steps=3, warmup=5, env={"A": "1"})]
    other = [_cell(seed=2, steps=4, warmup=6, env={"B": "1"}, compile=True)]
    assert pairs_of(one, other) == ([(0, 0)], [], [])


def test_a_thousand_cells_find_a_thousand_others_without_trying_all_pairs() -> None:
    one = [_cell(seed=seed, steps=steps) for seed in range(50) for steps in range(1, 21)]
    other = [_cell(seed=seed, steps=steps, env={"X": "1"}) for steps in range(1, 21) for seed in range(50)]
    began = time.process_time()
    pairs, left, right = pairs_of(one, other)
    assert time.process_time() - began < 10
    assert (len(pairs), left, right) == (1000, [], [])
    assert all(one[a].id + " X=1" == other[b].id for a, b in pairs)


def test_what_no_index_finds_among_very_many_is_left_without_a_partner() -> None:
    number = 600
    one = [_cell(seed=n, steps=n, warmup=n, lr=n) for n in range(1, number)]
    other = [_cell(seed=-n, steps=n + number, warmup=n + number, lr=-n) for n in range(1, number)]
    for n, cell in enumerate(other):
        # Not one axis: no two keys vary alike.
        cell.config["seed"], cell.config["steps"], cell.config["lr"] = -n % 7 - 9, n % 11 + number, -n // 3 - 1  # type: ignore[index]
    assert (number - 1) ** 2 > AT_ONCE
    pairs, left, right = pairs_of(one, other)
    assert (pairs, len(left), len(right)) == ([], number - 1, number - 1)
