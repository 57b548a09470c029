"""The report: one truth in the frame, the CSV, the Markdown and on the terminal, and the exit code."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from rich.console import Console

from detsweep import Sweep, load
from detsweep.analysis import exit_code, print_report, write_report
from detsweep.analysis.celltable import MATRIX_COLUMNS, cell_table
from detsweep.analysis.findings import campaign_lines, closer_lines
from detsweep.analysis.marks import MARKS
from detsweep.analysis.rates import NUMBERS_ALONE
from detsweep.analysis.report import failures, markdown, summary
from detsweep.analysis.widths import EXPENDABLE, HEADERS, fit
from detsweep.paths import TrialPaths, write_json
from detsweep.plan import Cell
from detsweep.results import VERDICTS, unsupported
from tests.support import (
    BLOCK_0_POST,
    INPUT,
    as_planned,
    plan_of,
    struck,
    trial_of,
    write_cells,
    write_failure,
    write_trial,
)

ERROR = "rank 1: ValueError: a | b [bold]"
GREEN, DIM = "\x1b[32m", "\x1b[2m"


def _write(trial: TrialPaths, cell: Cell, verdict: str) -> None:
    """A trial with this verdict; `none` is a trial that was not reached."""
    if verdict in ("pass", "diverged"):
        write_trial(trial, cell, differs={1: {(0, 2): BLOCK_0_POST}} if verdict == "diverged" else {})
    elif verdict == "invalid":
        write_trial(trial, cell, lost={0: ["A should be 1, is unset"]})
    elif verdict == "unsupported":
        write_json(trial.result, unsupported(cell.spec(0), "only for amd"))
    elif verdict != "none":
        write_failure(trial, cell, verdict=verdict, error=ERROR, log="log/rank001.log", log_tail=["x", "y"])


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
    header, _, *rows = ([item.strip() for item in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines)
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
        for column in ("seed", "diverged", "errors", "replays", "first", "ranks", "error"):
            title = HEADERS.get(column, column).replace("\n", " ")
            assert str(own[column]) == str(in_csv[column]) == in_markdown[title].replace("\\|", "|")
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


def _printed(sweep: Sweep, width: int | None = None) -> str:
    """What is printed on a terminal of this width, or into a file."""
    out = io.StringIO()
    terminal = width is not None
    print_report(sweep, Console(file=out, width=width, highlight=False, force_terminal=terminal, color_system=None))
    return out.getvalue()


def test_the_terminal_shows_every_cell_and_its_verdict(tmp_path: Path) -> None:
    text = _printed(_sweep(tmp_path, *ALL))
    rows = [line for line in text.splitlines() if any(mark in line for mark in MARKS.values())]
    assert [row.split()[0] for row in rows] == [str(number) for number in range(len(ALL))]
    for row, verdict in zip(rows, ALL, strict=True):
        assert MARKS[verdict] in row


def _table(text: str) -> list[str]:
    """The lines of the printed matrix: all above what was left out, the failures and the summary."""
    lines = text.splitlines()
    return lines[
        : next(
            number
            for number, line in enumerate(lines)
            if re.match(r"\(in matrix\.md|\S+ trial \d+: |\d+ trials? of", line)
        )
    ]


def _wide_sweep(folder: Path) -> Sweep:
    """A sweep whose table would need far more than 80 columns: faults, mitigations and every column filled."""
    plan = plan_of(
        ["dtype=bf16", "experts=1"],
        ["dtype=bf16_mixed", "experts=16"],
        ["dtype=fp16", "experts=1", "mitigation=[recipe]"],
        common=["world.nproc_per_node=3"],
    )
    sweep = write_cells(folder, plan)
    write_trial(trial_of(sweep, plan.cells[0]), plan.cells[0])
    everywhere = {rank: {(0, 2): BLOCK_0_POST} for rank in range(3)}
    write_trial(trial_of(sweep, plan.cells[1]), plan.cells[1], differs=everywhere)
    write_trial(trial_of(sweep, plan.cells[2]), plan.cells[2], lost={1: ["A should be 1, is unset"]})
    return load(folder)


def test_eighty_columns_hold_where_it_diverged_and_on_which_ranks(tmp_path: Path) -> None:
    text = _printed(_wide_sweep(tmp_path), width=80)
    table = _table(text)
    assert max(map(len, table)) <= 80
    header = " ".join(table[:2]).split()
    for title in ("dtype", "experts", "verdict", *HEADERS["first"].split(), *HEADERS["ranks"].split()):
        assert title in header
    body = "\n".join(table[2:])
    for word in ("bf16_mixed", *(MARKS[verdict] for verdict in ("pass", "diverged", "invalid")), "0, 1, 2"):
        assert word in body
    # The words of the first divergence fold, and are all there.
    assert {"block_post", "block", "ranks", "0,", "1,", "2,", "step", "r2"} <= set(body.split())


def test_what_was_left_out_is_named_and_where_to_find_it(tmp_path: Path) -> None:
    sweep = _wide_sweep(tmp_path)
    (line,) = [line for line in _printed(sweep, width=80).splitlines() if line.startswith("(in matrix.md")]
    left_out = line.removeprefix("(in matrix.md, too wide for here: ").removesuffix(")").split(", ")
    write_report(sweep)
    (header, *_) = (tmp_path / "matrix.md").read_text().split("| --- ")[0].splitlines()[2:]
    assert left_out[0] == "error"
    assert set(left_out) <= {title.strip() for title in header.split("|")}
    # The error itself stands below the table.
    assert "invalid: not in force: rank 1: A should be 1, is unset" in _printed(sweep, width=80)


@pytest.mark.parametrize(
    ("statuses", "style"),
    [
        ({}, GREEN),
        ({"recipe": {"A": "effective"}}, GREEN),
        ({"recipe": {"A": "set", "B": "inert"}}, GREEN),
        ({"recipe": {"A": "inert"}}, DIM),
        ({"recipe": {"A": "inert"}, "env": {"B": "inert"}}, DIM),
        ({"recipe": {"A": "inert"}, "env": {"B": "set"}}, GREEN),
    ],
    ids=str,
)
def test_a_pass_with_a_mitigation_that_nothing_reads_does_not_look_like_a_cure(
    tmp_path: Path, statuses: dict[str, dict[str, str]], style: str
) -> None:
    plan = plan_of(["mitigation=[recipe]"])
    write_trial(trial_of(write_cells(tmp_path, plan), plan.cells[0]), plan.cells[0], effects=statuses)
    out = io.StringIO()
    print_report(load(tmp_path), Console(file=out, width=250, force_terminal=True, color_system="standard"))
    (row,) = [line for line in out.getvalue().splitlines() if MARKS["inert" if style == DIM else "pass"] in line]
    assert {code for code in (GREEN, DIM) if code in row} == {style}


def test_a_long_stack_of_mitigations_folds(tmp_path: Path) -> None:
    stack = "torch_det,cpu_1thread,no_compile,seeded,mkl_compatible,aten_avx2,no_dynamic_threads,fp32_highest"
    plan = plan_of([f"mitigation=[{stack}]"], ["mitigation=[none]"])
    sweep = write_cells(tmp_path, plan)
    for cell in plan.cells:
        write_trial(trial_of(sweep, cell), cell, effects={"torch_det": {"A": "set"}})
    loaded = load(tmp_path)
    table = _table(_printed(loaded, width=100))
    assert max(map(len, table)) <= 100
    header = next(place for place, line in enumerate(table) if "verdict" in line)
    end = table[header].index("verdict")
    # No letter of the stack is lost where it is folded.
    assert "".join(line[:end].strip() for line in table[header + 1 :]) == "+".join(sorted(stack.split(","))) + "none"


def test_a_wide_terminal_and_a_file_leave_nothing_out(tmp_path: Path) -> None:
    sweep = _wide_sweep(tmp_path)
    for text in (_printed(sweep, width=250), _printed(sweep)):
        assert "(in matrix.md" not in text
        assert "block_post of block 0, ranks 0, 1, 2, step 0 r2" in text
        assert len(_table(text)) == 2 + 3


def _shown(*columns: str, content: str = "x" * 12) -> pd.DataFrame:
    frame: pd.DataFrame = pd.DataFrame([[content] * len(columns)], columns=list(columns))
    return frame


def test_columns_are_left_out_from_the_least_important_on_until_the_rest_fits() -> None:
    columns = ["dtype", "verdict", *reversed(EXPENDABLE), HEADERS["first"], HEADERS["ranks"]]
    whole = _shown(*columns)
    assert fit(whole, 1000) == []
    assert list(whole.columns) == columns
    narrow = _shown(*columns)
    dropped = fit(narrow, 80)
    assert dropped == list(EXPENDABLE[: len(dropped)])
    assert 0 < len(dropped) < len(EXPENDABLE)
    assert list(narrow.columns) == [column for column in columns if column not in dropped]


def test_what_diverged_and_the_axes_are_never_left_out() -> None:
    kept = ["dtype", "verdict", HEADERS["first"], HEADERS["ranks"]]
    shown = _shown(*kept, *EXPENDABLE, content="x" * 100)
    assert fit(shown, 10) == list(EXPENDABLE)
    assert list(shown.columns) == kept
    # Mitigations and faults are axes too where they vary.
    shown = _shown(*kept, *EXPENDABLE, content="x" * 100)
    assert fit(shown, 10, kept=("dtype", "mitigation")) == [name for name in EXPENDABLE if name != "mitigation"]
    assert list(shown.columns) == [*kept, "mitigation"]


def test_a_cell_that_is_gone_has_a_row_and_a_line_everywhere(tmp_path: Path) -> None:
    plan = plan_of(["seed=1"], ["seed=2"], ["seed=3"])
    sweep = write_cells(tmp_path, plan)
    for cell in plan.cells:
        write_trial(trial_of(sweep, cell), cell)
    shutil.rmtree(sweep.cell(plan.cells[0].slug, plan.cells[0].id).folder)
    loaded = load(tmp_path)
    write_report(loaded)
    line = f"{tmp_path}/cells/*-{plan.cells[0].id} is missing, and sweep.json lists it"
    for text in (_printed(loaded), _printed(loaded, width=80), (tmp_path / "matrix.md").read_text()):
        assert text.count("✓ pass") == 2
        assert text.count("! error") == 1
        assert f"*-{plan.cells[0].id} trial 0: error: {line}" in text
        assert "nan" not in text.lower().replace(str(tmp_path).lower(), "")
    csv = pd.read_csv(tmp_path / "matrix.csv", keep_default_na=False)
    assert list(zip(csv["seed"].astype(str), csv["verdict"], csv["error"], csv["log_tail"], strict=True)) == [
        ("2", "pass", "", ""),
        ("3", "pass", "", ""),
        ("", "error", line, ""),
    ]
    assert exit_code(loaded) == 3


def test_a_folder_that_cannot_be_written_is_said_and_costs_no_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = _sweep(tmp_path, "pass", "diverged")
    # Where a folder stands no file can be put, whoever asks.
    (tmp_path / "matrix.csv" / "taken").mkdir(parents=True)
    write_report(sweep)
    assert capsys.readouterr().err.startswith("detsweep: matrix.md, matrix.csv and matrix.html could not be written: ")
    assert MARKS["diverged"] in _printed(sweep)
    assert exit_code(sweep) == 1


def test_every_verdict_has_a_mark_of_its_own() -> None:
    assert set(MARKS) == {*VERDICTS, "inert", "none"}
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


@pytest.mark.parametrize("verdicts", [("pass", "diverged"), ("error",), ("invalid",), ("invalid", "error")])
def test_without_a_clean_sweep_there_is_no_bound(tmp_path: Path, verdicts: tuple[str, ...]) -> None:
    assert not any("confidence" in line for line in summary(_sweep(tmp_path, *verdicts)))


def _lines(folder: Path, points: list[list[str]], differs: dict[int, Any] | None = None, **options: Any) -> list[str]:
    plan = plan_of(*points, **options)
    sweep = write_cells(folder, plan)
    for number, cell in enumerate(plan.cells):
        found = (differs or {}).get(number)
        write_trial(trial_of(sweep, cell), cell, differs=found, injected=as_planned(cell))
    return summary(load(folder))


def test_faults_are_never_findings(tmp_path: Path) -> None:
    lines = _lines(tmp_path, [["fault=none"], ["fault=bit_flip"], ["fault=input_flip"]])
    assert "faults were put in on purpose (bit_flip, input_flip): those rows are not findings" in lines


def test_what_was_put_in_on_purpose_is_no_part_of_the_bound(tmp_path: Path) -> None:
    differs = {1: {0: {(0, 2): INPUT}}}
    lines = _lines(tmp_path, [["fault=none"], ["fault=bit_flip"], ["fault=input_flip"]], differs, common=["runs=11"])
    # Neither the fault that was found nor the one that was not says how often a step repeats.
    assert lines[1].startswith("0 of 10 replays diverged: ")


def test_an_invalid_trial_is_no_part_of_the_bound(tmp_path: Path) -> None:
    lines = summary(_sweep(tmp_path, "pass", "invalid", common=("runs=11",)))
    assert lines[1].startswith("0 of 10 replays diverged: ")


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
    assert (
        done.stderr
        == f"detsweep: {tmp_path / 'nothing'}: no sweep here (no cells/*/cell.json), and no captures (no rank*.jsonl)\n"
    )


# --- every column ----------------------------------------------------------------------------------------------------


IN_WORDS = [name for name in MATRIX_COLUMNS if name not in ("log_tail", *NUMBERS_ALONE)]


def _full_sweep(folder: Path, *more: str) -> Sweep:
    """A sweep in which every column of the table has something to say."""
    points = [
        [f"mitigation=[{mitigation}]", f"dtype={dtype}"]
        for dtype in ("bf16", "bf16_mixed")
        for mitigation in ("none", "recipe")
    ]
    common = ["fault=bit_flip", "against=dtype:bf16", "world.nproc_per_node=3", "trials=2", "stop_after.divergences=1"]
    plan = plan_of(*points, common=[*common, *more])
    sweep = write_cells(folder, plan)
    everywhere = {rank: {(0, 2): BLOCK_0_POST} for rank in range(3)}
    for cell in plan.cells[:3]:
        mixed = cell.config["dtype"]["name"] == "bf16_mixed"
        became = {
            name: {"deterministic_algorithms": "effective"} for name in cell.config["mitigation"] if name != "none"
        }
        differs = everywhere if mixed else {}
        for number in range(1 if mixed else 2):
            trial = trial_of(sweep, cell, number)
            result = write_trial(trial, cell, number, differs=differs, injected=as_planned(cell), effects=became)
            write_json(trial.result, {**result, "retries": 1})
    write_failure(trial_of(sweep, plan.cells[3]), plan.cells[3], error=ERROR)
    closer = plan.cells[2].closer()
    assert closer is not None
    write_json(sweep.cell(closer.slug, closer.id).cell, closer.to_json())
    write_trial(trial_of(sweep, closer), closer, differs=everywhere)
    return load(folder)


def test_every_column_of_the_matrix_has_its_place_in_markdown_csv_and_a_wide_print(tmp_path: Path) -> None:
    sweep = _full_sweep(tmp_path)
    write_report(sweep)
    titles = {HEADERS.get(name, name).replace("\n", " ") for name in IN_WORDS}
    (row, *_) = _markdown_table((tmp_path / "matrix.md").read_text())
    assert titles <= set(row)
    assert set(MATRIX_COLUMNS) <= set(pd.read_csv(tmp_path / "matrix.csv").columns)
    text = _printed(sweep)
    place = "memory: block_post of block 0, ranks 0, 1, 2, step 0 r2"
    assert "(in matrix.md" not in text
    assert text.count(place) == 1
    assert text.count("compute: block_post of block 0, rank 0, step 0") == 1
    assert text.count("not compared: no result") == 1


@pytest.mark.parametrize("width", [80, 100, 120, 160])
def test_a_full_table_fits_the_terminal_and_what_is_dropped_is_said(tmp_path: Path, width: int) -> None:
    sweep = _full_sweep(tmp_path)
    text = _printed(sweep, width=width)
    table = _table(text)
    assert max(map(len, table)) <= width
    (line,) = [line for line in text.splitlines() if line.startswith("(in matrix.md")]
    left_out = line.removeprefix("(in matrix.md, too wide for here: ").removesuffix(")").split(", ")
    titles = [HEADERS.get(name, name).replace("\n", " ") for name in ("dtype", *IN_WORDS)]
    assert set(left_out) < set(titles)
    # A column is there with its whole header, or is said to be left out.
    shown = " ".join(title for title in titles if title not in left_out)
    first_row = next(place for place, row in enumerate(table) if MARKS["pass"] in row)
    assert sorted(" ".join(table[:first_row]).split()) == sorted(shown.split())
    kept = ("dtype", "mitigation", "verdict", HEADERS["first"], HEADERS["ranks"], HEADERS["differs_from_baseline"])
    assert not {title.replace("\n", " ") for title in kept} & set(left_out)
    body = "\n".join(table[first_row:])
    # No word is cut off: what folds, folds between words.
    for word in ("bf16_mixed", MARKS["diverged"], MARKS["error"], "0, 1, 2", "block_post", "compute:"):
        assert word in body


def test_a_table_says_that_a_fault_is_no_finding_where_its_column_is_left_out(tmp_path: Path) -> None:
    lines = _printed(_full_sweep(tmp_path), width=80).splitlines()
    assert not any("fault" in line for line in _table("\n".join(lines)))
    assert "faults were put in on purpose (bit_flip): those rows are not findings" in lines


def test_the_table_of_a_campaign_stands_between_the_matrix_and_the_summary(tmp_path: Path) -> None:
    plan = plan_of(["fault=campaign", "fault.kinds=[bit_flip]", "steps=3"])
    sweep = write_cells(tmp_path, plan)
    injected = {0: [struck("bit_flip", 1)]}
    write_trial(trial_of(sweep, plan.cells[0]), plan.cells[0], injected=injected)
    loaded = load(tmp_path)
    write_report(loaded)
    lines = [*campaign_lines(loaded), *summary(loaded)]
    assert "\n".join(lines) in _printed(loaded, width=100)
    assert "1 fault was not put in: there was nothing to change where to strike" in lines
    text = (tmp_path / "matrix.md").read_text()
    assert "\n".join(["```", *campaign_lines(loaded), "```"]) in text


def test_notes_and_closer_looks_are_lines_of_the_summary(tmp_path: Path) -> None:
    sweep = _sweep(tmp_path, "diverged", "pass")
    (line,) = closer_lines(sweep)
    assert line in summary(sweep)
    assert f"- {line}" in list(markdown(sweep, cell_table(sweep)))
