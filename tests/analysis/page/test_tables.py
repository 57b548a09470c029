"""The matrix of the page: the same words as everywhere, and an order for each column."""

from __future__ import annotations

from pathlib import Path

from detsweep import load
from detsweep.analysis.celltable import cell_table
from detsweep.analysis.marks import MARKS
from detsweep.analysis.page.labels import anchors
from detsweep.analysis.page.model import Matrix, Pivot
from detsweep.analysis.page.tables import cells_of, matrix, orders_of, pivot
from detsweep.analysis.report import readable
from tests.pages import EVERY, every_verdict


def _made(folder: Path) -> tuple[Matrix, Pivot | None]:
    sweep = every_verdict(folder)
    table, cells = cell_table(sweep), cells_of(sweep)
    names = {cell: (f"row-{cell}", f"cell-{cell}") for cell in cells}
    return matrix(sweep, table, names), pivot(sweep, table, names)


def test_every_field_is_that_of_the_other_tables(tmp_path: Path) -> None:
    made, _ = _made(tmp_path)
    shown = readable(cell_table(load(tmp_path)))
    for place, column in enumerate(made.columns):
        assert [row.fields[place].text for row in made.rows] == [str(item) for item in shown[column.text]]
    left_out = set(shown.columns) - {column.text for column in made.columns}
    assert all((shown[column] == "").all() for column in left_out)
    assert [row.shown_as for row in made.rows] == list(EVERY)
    assert [one.text for one in made.verdicts] == [MARKS[kind] for kind in MARKS if kind in EVERY]


def test_a_verdict_leads_to_its_cell_and_says_which(tmp_path: Path) -> None:
    made, _ = _made(tmp_path)
    place = [column.text for column in made.columns].index("verdict")
    field = made.rows[1].fields[place]
    assert field.href == "#" + made.rows[1].anchor.replace("row-", "cell-")
    assert field.hint == "details of seed=2 dtype=fp32"
    assert all(not one.href for n, one in enumerate(made.rows[1].fields) if n != place)


def test_values_of_an_axis_are_sorted_as_numbers_and_counted(tmp_path: Path) -> None:
    made, _ = _made(tmp_path)
    seeds = [(row.fields[0].text, row.fields[0].order) for row in made.rows]
    assert seeds == [("2", 1), ("2", 1), ("10", 3), ("10", 3), ("9", 2), ("9", 2), ("1", 0), ("1", 0)]
    assert [(one.text, one.count) for one in made.axes[0].choices] == [("2", 2), ("10", 2), ("9", 2), ("1", 2)]


def test_rates_go_by_their_size_and_then_by_how_much_they_say() -> None:
    texts = ["1/2", "0/4", "0/40", "0/0", "10/20", ""]
    assert orders_of("replays", texts, texts) == [3, 2, 1, 0, 4, None]


def test_numbers_in_words_go_by_their_size() -> None:
    costs = ["1.65x (1.59-1.72) slower", "1.06x (0.99-1.09) noise", "", "10.2x (9.00-11.00)"]
    assert orders_of("cost", costs, costs) == [1, 0, None, 2]
    assert orders_of("upper_bound", [0.139, None, 0.05], ["< 13.9%", "", "< 5.0%"]) == [1, None, 0]
    assert orders_of("a", [True, False], ["True", "False"]) == [1, 0]
    assert orders_of("a", [2, "null", 10], ["2", "null", "10"]) == [0, 2, 1]


def test_the_pivot_has_every_cell_in_its_field(tmp_path: Path) -> None:
    _, made = _made(tmp_path)
    assert made is not None
    assert (made.along, made.head) == (("seed",), ("dtype=bf16", "dtype=fp32"))
    marks = [[[point.mark for point in points] for points in fields] for _, fields in made.rows]
    assert [one for row in marks for field in row for one in field] == [MARKS[kind] for kind in EVERY]
    assert [head for head, _ in made.rows] == [("2",), ("10",), ("9",), ("1",)]


def test_anchors_are_fit_for_a_page_and_none_is_twice() -> None:
    assert anchors(["a1", "sweep.json", "sweep json", "x\"><b>"], "cell") == [
        "cell-a1", "cell-sweep-json", "cell-sweep-json-2", "cell-x-b-",
    ]  # fmt: skip
