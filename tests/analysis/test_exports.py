"""The forms of the report: one truth in all of them."""

from __future__ import annotations

import io
import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest

from detsweep import Sweep, load
from detsweep.analysis.celltable import cell_table
from detsweep.analysis.exports import FORMATS, UnavailableError, export, usual_place
from detsweep.analysis.marks import MARKS
from detsweep.analysis.report import exit_code, readable
from tests.pages import EVERY, every_verdict
from tests.support import plan_of, trial_of, write_cells, write_failure


class Matrix(HTMLParser):
    """The fields of the page's matrix, row by row, without what only a screen reader says."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.inside = self.hidden = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.inside = self.inside or given.get("id") == "matrix-table"
        self.hidden = given.get("class") == "vh"
        if self.inside and tag == "tr":
            self.rows.append([])
        elif self.inside and tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        self.inside = self.inside and tag != "table"
        self.hidden = False

    def handle_data(self, data: str) -> None:
        if self.inside and not self.hidden and self.rows and self.rows[-1]:
            self.rows[-1][-1] += data.strip("\n") if data.strip() else ""


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    return every_verdict(tmp_path_factory.mktemp("every"))


def _in_html(sweep: Sweep) -> list[dict[str, str]]:
    reader = Matrix()
    reader.feed(export(sweep, "html").read_text())
    titles, *rows = reader.rows
    return [dict(zip([title.replace("\n", " ") for title in titles], row, strict=True)) for row in rows]


def _in_markdown(sweep: Sweep) -> list[dict[str, str]]:
    lines = [line for line in export(sweep, "md").read_text().splitlines() if line.startswith("| ")]
    titles, _, *rows = ([item.strip() for item in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines)
    return [dict(zip(titles, row, strict=True)) for row in rows]


def test_the_page_and_markdown_have_the_same_words(sweep: Sweep) -> None:
    in_html, in_markdown = _in_html(sweep), _in_markdown(sweep)
    assert [row["verdict"] for row in in_html] == [MARKS[kind] for kind in EVERY]
    for one, other in zip(in_html, in_markdown, strict=True):
        assert {title: other[title].replace("\\|", "|") for title in one} == one
        assert set("".join(text for title, text in other.items() if title not in one)) == set()


def test_json_has_the_values_of_the_cell_table(sweep: Sweep) -> None:
    content = json.loads(export(sweep, "json").read_text())
    assert (content["schema"], content["version"]) == ("detsweep.matrix", 1)
    assert content["sweep"]["axes"] == list(sweep.axes)
    assert content["sweep"]["exit_code"] == exit_code(sweep) == 1
    assert [one["shown_as"] for one in content["cells"]] == list(EVERY)
    assert [one["mark"] for one in content["cells"]] == [MARKS[kind] for kind in EVERY]
    table = cell_table(sweep)
    assert content["columns"] == list(table.columns)
    for one, row in zip(content["cells"], table.to_dict("records"), strict=True):
        values = {**one, **one["axes"]}
        for column, value in row.items():
            expected = None if not isinstance(value, str) and pd.isna(value) else value
            assert values[str(column)] == expected, column
        assert (sweep.folder / one["folder"] / "cell.json").exists()


def test_csv_has_them_too(sweep: Sweep) -> None:
    read = pd.read_csv(io.StringIO(export(sweep, "csv").read_text()), keep_default_na=False)
    assert list(read["verdict"]) == list(cell_table(sweep)["verdict"])
    assert list(read["first"]) == list(readable(cell_table(sweep))["first\ndivergence"])


def test_json_of_a_broken_cell_and_of_a_large_number_is_json(tmp_path: Path) -> None:
    plan = plan_of(["seed=1"], ["seed=2"])
    paths = write_cells(tmp_path, plan)
    write_failure(trial_of(paths, plan.cells[0]), plan.cells[0])
    next(path for path in tmp_path.glob("cells/*/cell.json") if "seed-2" in str(path)).write_text("{")
    content = json.loads(export(load(tmp_path), "json").read_text())
    assert [one["verdict"] for one in content["cells"]] == ["error", "error"]
    assert "cell.json cannot be read" in content["sweep"]["unread"][0]
    assert (tmp_path / content["cells"][1]["folder"]).is_dir()
    assert content["cells"][0]["plain_step_ms"] is None


def test_every_form_has_a_place_of_its_own(tmp_path: Path) -> None:
    assert [usual_place(tmp_path, form).name for form in FORMATS] == [
        "matrix.md", "matrix.csv", "matrix.json", "matrix.html", "frames",
    ]  # fmt: skip


def test_parquet_is_what_the_sweep_itself_saves(sweep: Sweep, tmp_path: Path) -> None:
    assert export(sweep, "parquet") == sweep.folder / "frames"
    assert export(sweep, "parquet", tmp_path / "kept") == tmp_path / "kept"
    for folder in (sweep.folder / "frames", tmp_path / "kept"):
        assert load(folder).trials.equals(sweep.trials)


def test_without_pyarrow_that_is_one_line(sweep: Sweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UnavailableError, match="needs pyarrow"):
        export(sweep, "parquet", tmp_path / "kept")
