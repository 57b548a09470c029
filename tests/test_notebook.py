"""scripts/sweep_to_answer.ipynb: it runs anywhere, its outputs are those of a run, and it names no machine."""

from __future__ import annotations

import getpass
import os
import re
import socket
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

REPOSITORY = Path(__file__).parents[1]
NOTEBOOK = REPOSITORY / "scripts" / "sweep_to_answer.ipynb"


@pytest.fixture(scope="module")
def stored() -> Any:
    return nbformat.read(NOTEBOOK, as_version=4)


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The notebook executed in a folder of its own; an error in any cell raises."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    paths = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
    where = {"metadata": {"path": str(tmp_path_factory.mktemp("notebook"))}}
    NotebookClient(notebook, timeout=580, kernel_name="python3", resources=where).execute(
        env={**os.environ, "PYTHONPATH": paths}
    )
    return notebook


def _code(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def _kinds(cell: Any) -> list[tuple[str, ...]]:
    """Of each output its type, and the forms in which it is there."""
    return [(output.output_type, *sorted(output.get("data", {}))) for output in cell.outputs]


def _columns(cell: Any) -> list[str]:
    """The headings of a table."""
    html = "".join(output.get("data", {}).get("text/html", "") for output in cell.outputs)
    (head,) = re.findall(r"<thead>(.*?)</thead>", html, re.DOTALL) or [""]
    return [re.sub(r"<.*?>|&nbsp;", "", heading).strip() for heading in re.findall(r"<th.*?</th>", head, re.DOTALL)]


def _answer(notebook: Any) -> str:
    text: str = _code(notebook)[-1].outputs[0].data["text/markdown"]
    return text


def test_its_cells_are_about_ten_and_each_has_an_output(stored: Any) -> None:
    assert 8 <= len(_code(stored)) <= 12
    assert all(cell.outputs for cell in _code(stored))
    assert [cell.execution_count for cell in _code(stored)] == list(range(1, len(_code(stored)) + 1))


def test_what_is_stored_is_what_a_run_gives(stored: Any, fresh: Any) -> None:
    for kept, run in zip(_code(stored), _code(fresh), strict=True):
        assert _kinds(kept) == _kinds(run), kept.source
        assert _columns(kept) == _columns(run), kept.source
    assert sum(bool(_columns(cell)) for cell in _code(stored)) >= 6


@pytest.mark.parametrize("whose", ["stored", "fresh"])
def test_its_answer_follows_from_what_it_counted(whose: str, request: pytest.FixtureRequest) -> None:
    notebook = request.getfixturevalue(whose)
    answer = _answer(notebook)
    counts = [(int(seen), int(of)) for seen, of in re.findall(r"(\d+) of (\d+) replays differ", answer)]
    two, four, cured = counts
    assert (two[0], cured[0]) == (0, 0)
    assert all(of >= 20 for _, of in counts)
    # A race need not show, and then it says so.
    assert ("has not shown here" in answer) == (four[0] == 0)
    if four[0]:
        assert re.search(r"It parts most often at `\w+` of block \d, cause `\w+`; the loss tells \d+ of \d+\.", answer)
        (chance,) = re.findall(r"a probability of (\S+)\.\n", answer)
        assert 0 < float(chance) < 1


def test_the_stored_run_has_seen_the_race_and_no_failure(stored: Any) -> None:
    assert "has not shown" not in _answer(stored)
    assert not any(kind[0] == "error" for cell in _code(stored) for kind in _kinds(cell))


def test_it_names_no_machine_no_user_and_no_path() -> None:
    text = NOTEBOOK.read_text(encoding="utf-8")
    assert re.findall(r"(?<![\w.<])/(?:home|root|tmp|Users|opt|usr|var|work|mnt)\b", text) == []
    for name in (socket.gethostname(), getpass.getuser()):
        assert not re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text), name
