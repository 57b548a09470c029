"""`python -m detsweep.analysis`: which of its two commands is meant, what it prints, and with what it leaves."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from detsweep.analysis.__main__ import main
from detsweep.analysis.checklist import checklist, lines
from detsweep.paths import SweepPaths, read_json, write_json
from tests.support import BLOCK_0_POST, plan_of, trial_of, write_cells, write_trial

USAGE = "usage: python -m detsweep.analysis [-h]"


def _sweep(folder: Path, *, ran: bool = True) -> None:
    """A sweep of one cell that diverged; of a checkout without changes, and without environments."""
    plan = plan_of(["seed=1"])
    sweep = write_cells(folder, plan)
    if ran:
        write_trial(trial_of(sweep, plan.cells[0]), plan.cells[0], differs={1: {(0, 2): BLOCK_0_POST}})


def _run(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["analysis", *words])
    return main()


def _left(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    """The exit code of arguments that the parser itself answers."""
    with pytest.raises(SystemExit) as left:
        _run(monkeypatch, *words)
    assert isinstance(left.value.code, int)
    return left.value.code


def _files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def test_the_folder_alone_is_the_matrix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _sweep(tmp_path)
    assert _run(monkeypatch, str(tmp_path)) == 1
    assert "✗ diverged" in capsys.readouterr().out
    assert SweepPaths(tmp_path).matrix_md.exists()
    assert SweepPaths(tmp_path).matrix_csv.exists()
    assert SweepPaths(tmp_path).matrix_html.exists()


@pytest.mark.parametrize(
    ("words", "written"),
    [
        ((), ("matrix.html", "<!doctype html>")),
        (("--format", "html"), ("matrix.html", "<!doctype html>")),
        (("--format", "md"), ("matrix.md", "# Divergence matrix")),
        (("--format", "csv"), ("matrix.csv", "slug,verdict")),
        (("--format", "json"), ("matrix.json", "{")),
    ],
)
def test_the_report_is_written_where_it_belongs_and_its_place_is_printed(
    words: tuple[str, ...],
    written: tuple[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    _sweep(tmp_path)
    name, begins = written
    assert _run(monkeypatch, "report", str(tmp_path), *words) == 0
    assert capsys.readouterr().out == f"{tmp_path / name}\n"
    assert (tmp_path / name).read_text().lstrip().startswith(begins)


def test_the_report_goes_to_a_file_or_into_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _sweep(tmp_path / "sweep")
    for to, place in (("a.html", "a.html"), (".", "matrix.html")):
        assert _run(monkeypatch, "report", str(tmp_path / "sweep"), "-o", str(tmp_path / to)) == 0
        assert capsys.readouterr().out == f"{tmp_path / place}\n"
        assert (tmp_path / place).exists()
    assert not SweepPaths(tmp_path / "sweep").matrix_html.exists()


def test_a_report_that_cannot_be_written_is_one_line_and_3(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _sweep(tmp_path)
    # Long enough that the temporary name, to which it is written first, is too long.
    long = "x" * 245
    assert _run(monkeypatch, "report", str(tmp_path), "-o", str(tmp_path / f"{long}.html")) == 3
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("detsweep: the report could not be written: ")
    assert len(printed.err.splitlines()) == 1


def test_the_checklist_is_printed_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _sweep(tmp_path)
    before = _files(tmp_path)
    assert _run(monkeypatch, "checklist", str(tmp_path)) == 1
    printed = capsys.readouterr()
    assert printed.out.splitlines() == lines(checklist(tmp_path))
    assert printed.out.splitlines()[-1].startswith("✗ everything recorded: no; ")
    assert printed.err == ""
    assert _files(tmp_path) == before


def test_without_a_no_the_checklist_leaves_with_0(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _sweep(tmp_path, ran=False)
    assert _run(monkeypatch, "checklist", str(tmp_path)) == 0
    assert capsys.readouterr().out.count("? ") == 7


def test_a_divergence_is_no_answer_of_the_checklist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _sweep(tmp_path)
    sweep = SweepPaths(tmp_path)
    write_json(
        sweep.sweep, {**read_json(sweep.sweep), "sessions": [{"command": "python -m detsweep", "git": "a" * 40}]}
    )
    ((_, trial),) = sweep.all_cells()[0].trials()
    write_json(trial.job, {"command": ["torchrun"]})
    for rank in range(2):
        settings = {"deterministic_algorithms": "strict", "num_threads": 1}
        told = {"python": "3.11", "torch": "2.13", "device": {"type": "cpu"}, "settings": settings, "variables": {}}
        write_json(trial.environment(rank), {"schema": 2, "rank": rank, **told})
    assert _run(monkeypatch, "checklist", str(tmp_path)) == 0
    assert "~ seeds fixed: partly; PYTHONHASHSEED unset in 2 ranks of 1 trial" in capsys.readouterr().out
    assert _run(monkeypatch, str(tmp_path)) == 1


@pytest.mark.parametrize("command", [(), ("checklist",), ("report",)])
def test_a_folder_without_a_sweep_is_one_line_and_2(
    command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(monkeypatch, *command, str(tmp_path / "nowhere")) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"detsweep: {tmp_path / 'nowhere'}: no sweep here (no cells/*/cell.json)")
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            (),
            f"the following arguments are required: folder ({USAGE} [--recount] folder [folder ...])",
        ),
        (
            ("checklist",),
            "the following arguments are required: folder (usage: python -m detsweep.analysis checklist [-h] folder)",
        ),
        (
            ("checklist", "a", "b"),
            "unrecognized arguments: b (usage: python -m detsweep.analysis checklist [-h] folder)",
        ),
        (
            ("a", "--fast"),
            f"unrecognized arguments: --fast ({USAGE} [--recount] folder [folder ...])",
        ),
        (
            ("checklist", "--json", "a"),
            "unrecognized arguments: --json (usage: python -m detsweep.analysis checklist [-h] folder)",
        ),
    ],
)
def test_wrong_arguments_are_one_line_and_2(
    words: tuple[str, ...], line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _left(monkeypatch, *words) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", f"detsweep: {line}\n")


def test_several_folders_are_one_table_and_no_folder_is_written_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, differs in (("monday", None), ("tuesday", {0: {(0, 2): BLOCK_0_POST}})):
        (cell,) = (plan := plan_of(["seed=1"])).cells
        write_trial(trial_of(write_cells(tmp_path / name, plan), cell), cell, differs=differs)
    assert _run(monkeypatch, str(tmp_path / "monday"), str(tmp_path / "tuesday")) == 1
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [row[:3] for row in rows if row[:1] in (["monday"], ["tuesday"])] == [
        ["monday", "✓", "pass"],
        ["tuesday", "✗", "diverged"],
    ]
    assert not list(tmp_path.rglob("matrix.*"))
    assert _run(monkeypatch, str(tmp_path / "monday"), str(tmp_path / "nowhere")) == 2


def test_results_can_be_judged_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (cell,) = (plan := plan_of(["seed=1"])).cells
    trial = trial_of(write_cells(tmp_path, plan), cell)
    write_trial(trial, cell)
    trial.result.unlink()
    assert _run(monkeypatch, str(tmp_path)) == 3
    assert _run(monkeypatch, str(tmp_path), "--recount") == 0
    assert "judged from its records: it has no result.json" in capsys.readouterr().out


@pytest.mark.parametrize("output", ["nowhere/x.md", "new/"])
def test_a_report_goes_into_no_folder_that_is_not_there(
    output: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert _left(monkeypatch, "report", "a", "--format", "md", "-o", output) == 2
    assert capsys.readouterr().err.startswith(f"detsweep: -o {output}: no such folder to write to (usage: ")
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_form_of_the_report_is_one_line_and_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _left(monkeypatch, "report", "a", "--format", "pdf") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("detsweep: argument --format: invalid choice: 'pdf' (choose from ")
    assert all(form in line for form in ("md", "csv", "json", "html", "parquet"))


def test_help_names_the_other_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert _left(monkeypatch, "--help") == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "python -m detsweep.analysis checklist FOLDER" in printed
    assert "python -m detsweep.analysis report FOLDER" in printed
    assert "./report" in printed
    assert _left(monkeypatch, "checklist", "-h") == 0
    assert "usage: python -m detsweep.analysis checklist [-h] folder" in capsys.readouterr().out


def test_a_sweep_in_a_folder_of_that_name_is_reached_by_its_path(tmp_path: Path) -> None:
    _sweep(tmp_path / "checklist")

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "detsweep.analysis", *words]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)

    matrix, items = run("./checklist"), run("checklist", "checklist")
    assert (matrix.returncode, "✗ diverged" in matrix.stdout) == (1, True)
    assert (items.returncode, items.stdout.splitlines()) == (1, lines(checklist(tmp_path / "checklist")))
