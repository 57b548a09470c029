"""The report: one truth in the frame, the CSV, the Markdown and on the terminal, and the exit code."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from rich.console import Console

from detsweep import Sweep, load
from detsweep.analysis import exit_code, print_report, write_report
from detsweep.analysis.matrix import cell_table
from detsweep.analysis.report import MARKS, failures, summary
from detsweep.paths import TrialPaths, write_json
from detsweep.plan import Cell
from detsweep.results import VERDICTS, unsupported
from tests.support import BLOCK_0_POST, INPUT, plan_of, trial_of, write_cells, write_trial

ERROR = "rank 1: ValueError: a | b [bold]"


def _write(trial: TrialPaths, cell: Cell, verdict: str) -> None:
    """A trial with this verdict; `none` is a trial that was not reached."""
    if verdict in ("pass", "diverged"):
        write_trial(trial, cell, differs={1: {(0, 2): BLOCK_0_POST}} if verdict == "diverged" else {})
    elif verdict == "invalid":
        write_trial(trial, cell, lost={0: ["A should be 1, is unset"]})
    elif verdict == "unsupported":
        write_json(trial.result, unsupported(cell.spec(0), "only for amd"))
    elif verdict != "none":
        content = {"schema": 1, "verdict": verdict, "error": ERROR, "log": "log/rank001.log", "log_tail": ["x", "y"]}
        write_json(trial.result, content)


def _sweep(folder: Path, *verdicts: str, common: tuple[str, ...] = ()) -> Sweep:
    """A sweep over seeds whose cells came to these verdicts."""
    plan = plan_of(*([f"seed={number}"] for number, _ in enumerate(verdicts)), common=common)
    sweep = write_cells(folder, plan)
    for cell, verdict in zip(plan.cells, verdicts, strict=True):
        _write(trial_of(sweep, cell), cell, verdict)
    return load(folder)


ALL = ("pass", "diverged", "error", "timeout", "invalid", "unsupported", "none")


@pytest.mark.parametrize(
    ("verdicts", "code"),
    [
        (("pass",), 0),
        (("pass", "pass"), 0),
        (("diverged",), 1),
        (("pass", "diverged"), 1),
        (("error", "diverged"), 1),
        (("none", "diverged", "unsupported"), 1),
        (("pass", "error"), 3),
        (("pass", "timeout"), 3),
        (("pass", "invalid"), 3),
        (("pass", "none"), 3),
        (("none",), 3),
        (("pass", "unsupported"), 0),
        (("unsupported",), 3),
        (("unsupported", "error"), 3),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else str(value),
)
def test_the_exit_code_says_what_the_sweep_found(tmp_path: Path, verdicts: tuple[str, ...], code: int) -> None:
    assert exit_code(_sweep(tmp_path, *verdicts)) == code


# --- one truth -------------------------------------------------------------------------------------------------------


def _markdown_table(text: str) -> list[dict[str, str]]:
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    header, _, *rows = ([item.strip() for item in line.strip("|").split(" | ")] for line in lines)
    return [dict(zip(header, row, strict=True)) for row in rows]


def test_markdown_csv_and_frame_say_the_same(tmp_path: Path) -> None:
    sweep = _sweep(tmp_path, *ALL)
    write_report(sweep)
    table = cell_table(sweep)
    csv = pd.read_csv(tmp_path / "matrix.csv", keep_default_na=False)
    shown = _markdown_table((tmp_path / "matrix.md").read_text())
    assert list(table["verdict"]) == list(csv["verdict"]) == list(ALL)
    assert list(csv.columns) == list(table.columns)
    assert [row["verdict"] for row in shown] == [MARKS[verdict] for verdict in ALL]
    for (_, own), (_, in_csv), in_markdown in zip(table.iterrows(), csv.iterrows(), shown, strict=True):
        for column, title in (("seed", "seed"), ("diverged", "diverged /valid"), ("errors", "errors"),
                              ("replays", "replays diverged"), ("first", "first divergence"),
                              ("ranks", "on ranks")):  # fmt: skip
            assert str(own[column]) == str(in_csv[column]) == in_markdown[title]
        for column, title in (("plain_step_ms", "step ms"), ("step_ms", "observed ms")):
            known = pd.notna(own[column])
            assert (f"{own[column]:g}" if known else "") == str(in_csv[column]).removesuffix(".0")
            assert (f"{own[column]:.1f}" if known else "") == in_markdown[title]
        bound = own["upper_bound"]
        assert ("" if pd.isna(bound) else f"{bound:.6g}") == str(in_csv["upper_bound"])
        assert ("" if pd.isna(bound) else f"< {bound:.1%}") == in_markdown["95% bound"]


def test_a_bar_in_a_value_does_not_break_the_markdown_table(tmp_path: Path) -> None:
    plan = plan_of(["+env.A='a|b'"], ["+env.A=c"])
    write_cells(tmp_path, plan)
    sweep = load(tmp_path)
    write_report(sweep)
    assert "| a\\|b | ? none yet |" in (tmp_path / "matrix.md").read_text()


def test_the_report_is_written_again_from_the_disk(tmp_path: Path) -> None:
    write_report(_sweep(tmp_path, *ALL))
    first = {name: (tmp_path / name).read_text() for name in ("matrix.md", "matrix.csv")}
    write_report(load(tmp_path))
    assert {name: (tmp_path / name).read_text() for name in first} == first


def _printed(sweep: Sweep, width: int = 200) -> str:
    out = io.StringIO()
    print_report(sweep, Console(file=out, width=width, highlight=False))
    return out.getvalue()


def test_the_terminal_shows_every_cell_and_its_verdict(tmp_path: Path) -> None:
    text = _printed(_sweep(tmp_path, *ALL))
    rows = [line for line in text.splitlines() if any(mark in line for mark in MARKS.values())]
    assert [row.split()[0] for row in rows] == [str(number) for number in range(len(ALL))]
    for row, verdict in zip(rows, ALL, strict=True):
        assert MARKS[verdict] in row


def test_every_verdict_has_a_mark_of_its_own() -> None:
    assert set(MARKS) == {*VERDICTS, "none"}
    assert len(set(MARKS.values())) == len(MARKS)


def test_columns_that_say_nothing_are_not_printed(tmp_path: Path) -> None:
    assert "divergence" not in _printed(_sweep(tmp_path / "a", "pass", "pass")).splitlines()[1]
    assert "divergence" in _printed(_sweep(tmp_path / "b", "pass", "diverged")).splitlines()[1]


def test_errors_are_printed_as_they_are(tmp_path: Path) -> None:
    text = _printed(_sweep(tmp_path, "pass", "error"))
    assert ERROR in text
    assert "  | x\n  | y\n" in text


def test_failures_name_the_trial_its_error_its_log_and_the_end_of_it(tmp_path: Path) -> None:
    sweep = _sweep(tmp_path, "pass", "timeout", "diverged", "unsupported")
    trial = Path(sweep.trials.iloc[1]["folder"])
    expected = [
        f"seed-1 trial 0: timeout: {ERROR}",
        f"  {trial.relative_to(tmp_path) / 'log' / 'rank001.log'}",
        "  | x",
        "  | y",
        "seed-3 trial 0: unsupported: only for amd",
    ]
    assert list(failures(sweep, tmp_path)) == expected
    elsewhere = list(failures(sweep, Path("/elsewhere")))
    assert elsewhere[1] == f"  {trial / 'log' / 'rank001.log'}"
    write_report(sweep)
    assert "\n".join(["```", *expected, "```"]) in (tmp_path / "matrix.md").read_text()


# --- summary ---------------------------------------------------------------------------------------------------------


def test_trials_are_counted_by_verdict(tmp_path: Path) -> None:
    assert summary(_sweep(tmp_path, *ALL, "pass"))[0] == (
        "8 trials of 8 cells: 2 pass, 1 diverged, 1 error, 1 timeout, 1 invalid, 1 unsupported, 1 not reached"
    )


def test_a_clean_sweep_is_told_with_its_bound(tmp_path: Path) -> None:
    lines = summary(_sweep(tmp_path, "pass", "pass", "error", common=("runs=18", "steps=1")))
    # Seventeen replays in each of the two trials that passed.
    assert lines[1] == (
        "0 of 34 replays diverged: if all cells share one rate, it is below 8.4% per replay (95% confidence)"
    )


@pytest.mark.parametrize("verdicts", [("pass", "diverged"), ("error",)])
def test_without_a_clean_sweep_there_is_no_bound(tmp_path: Path, verdicts: tuple[str, ...]) -> None:
    assert not any("confidence" in line for line in summary(_sweep(tmp_path, *verdicts)))


def _lines(folder: Path, points: list[list[str]], differs: dict[int, Any] | None = None, **options: Any) -> list[str]:
    plan = plan_of(*points, **options)
    sweep = write_cells(folder, plan)
    for number, cell in enumerate(plan.cells):
        write_trial(trial_of(sweep, cell), cell, differs=(differs or {}).get(number))
    return summary(load(folder))


def test_faults_are_never_findings(tmp_path: Path) -> None:
    lines = _lines(tmp_path, [["fault=none"], ["fault=bit_flip"], ["fault=input_flip"]])
    assert "faults were put in on purpose (bit_flip, input_flip): those rows are not findings" in lines


MITIGATIONS = [["mitigation=[none]"], ["mitigation=[recipe]"]]
UNINFORMATIVE = "without mitigations nothing diverged: this sweep says nothing about what they cure"


def test_a_baseline_that_never_diverged_says_nothing_about_mitigations(tmp_path: Path) -> None:
    assert UNINFORMATIVE in _lines(tmp_path, MITIGATIONS)


def test_a_baseline_that_diverged_does(tmp_path: Path) -> None:
    assert UNINFORMATIVE not in _lines(tmp_path, MITIGATIONS, {0: {0: {(0, 2): INPUT}}})


def test_a_fault_in_the_baseline_is_no_divergence_of_it(tmp_path: Path) -> None:
    points = [*MITIGATIONS, ["mitigation=[none]", "fault=input_flip"]]
    assert UNINFORMATIVE in _lines(tmp_path, points, {2: {0: {(0, 2): INPUT}}})


def test_a_positive_control_counts_what_is_as_it_should_be(tmp_path: Path) -> None:
    differs = {1: {rank: {(0, 2): INPUT} for rank in range(2)}}
    points = [["fault=none"], ["fault=input_flip"], ["fault=bit_flip"]]
    lines = _lines(tmp_path, points, differs, common=["positive_control=true"])
    assert lines[-1] == "positive control: 2 of 3 cells as they should be"
    assert list(cell_table(load(tmp_path))["control"]) == ["clean", "found in place", "missed"]


# --- the command -----------------------------------------------------------------------------------------------------


def test_the_command_prints_writes_and_leaves_with_the_sweeps_code(tmp_path: Path) -> None:
    _sweep(tmp_path, "pass", "diverged")
    command = [sys.executable, "-m", "detsweep.analysis", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert MARKS["diverged"] in done.stdout
    assert (tmp_path / "matrix.md").exists()
    assert (tmp_path / "matrix.csv").exists()


def test_the_command_refuses_a_folder_without_a_sweep_in_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "detsweep.analysis", str(tmp_path / "nothing")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"detsweep: {tmp_path / 'nothing'}: no sweep here (no cells/*/cell.json)\n"
