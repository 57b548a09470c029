"""The matrix for people: on the terminal, as Markdown and as CSV, with what it does and does not say in words."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from detsweep.analysis.arms import arm_lines
from detsweep.analysis.celltable import cell_table
from detsweep.analysis.checklist import checklist, lines
from detsweep.analysis.compared import against_lines, against_none
from detsweep.analysis.control import GOOD
from detsweep.analysis.findings import campaign_lines, closer_lines, mitigation_lines, note_lines
from detsweep.analysis.fleetreport import fleet_lines, fleet_table, fleet_view, verdicts_of_places
from detsweep.analysis.marks import MARKS, OTHER_STYLE, STYLES, mark, shown_as
from detsweep.analysis.rates import rates, stopped_lines, with_rates_in_words
from detsweep.analysis.searched import search_exit_code, search_lines
from detsweep.analysis.unread import CHECKED_AT_ONCE, bytes_of_records, unread, unread_lines
from detsweep.analysis.verdicts import FAILED, VALID
from detsweep.analysis.widths import HEADERS, fit, folded
from detsweep.analysis.words import counted
from detsweep.bounds import upper_bound
from detsweep.paths import SweepPaths, write_text

if TYPE_CHECKING:
    from detsweep.analysis.frames import Sweep


def write_report(sweep: Sweep) -> None:
    """Write matrix.md, matrix.csv and matrix.html into the sweep's folder, and say where the page is.

    Where that cannot be done, it says so and goes on. The page of a large sweep has no records in it.
    """
    # jinja2 only where a page is made.
    from detsweep.analysis.page import build, render

    paths = SweepPaths(sweep.folder)
    table = cell_table(sweep)
    checked, lost = list(checklist_lines(sweep)), unread(sweep)
    try:
        write_text(paths.matrix_csv, csv(table))
        write_text(paths.matrix_md, "\n".join(markdown(sweep, table, checked=checked, lost=lost)) + "\n")
        write_text(paths.matrix_html, render(build(sweep, most_bytes=CHECKED_AT_ONCE, checked=checked, lost=lost)))
    except OSError as error:
        print(f"detsweep: matrix.md, matrix.csv and matrix.html could not be written: {error}", file=sys.stderr)
    else:
        print(f"page with all details, for a browser: {paths.matrix_html}")


def csv(table: pd.DataFrame) -> str:
    """The content of matrix.csv."""
    return table.to_csv(index=False, float_format="%.6g")


def print_report(sweep: Sweep, console: Console | None = None) -> None:
    """Print the matrix, every failure with the end of its log, and the summary."""
    console = console or Console(highlight=False)
    if not console.is_terminal:
        # A pipe or a file has no width to fit into; folding there would break the rows.
        console = Console(file=console.file, highlight=False, width=600)
    table = cell_table(sweep)
    view = Table(box=None, pad_edge=False, header_style="bold")
    shown = readable(table)
    shown = shown.drop(columns=[column for column in shown if (shown[column] == "").all()])
    left_out = fit(shown, console.width, kept=sweep.axes)
    for column in shown.columns:
        right, wide = column.endswith("\nms"), folded(shown, column) is not None
        view.add_column(escape(column), justify="right" if right else "left", overflow="fold", no_wrap=not wide)
    for (_, judged), (_, row) in zip(table.iterrows(), shown.iterrows(), strict=True):
        view.add_row(*(escape(str(item)) for item in row), style=STYLES.get(shown_as(judged.to_dict()), OTHER_STYLE))
    _print_table(console, view)
    if left_out:
        names = ", ".join(column.replace("\n", " ") for column in left_out)
        console.print(f"(in matrix.md, too wide for here: {names})", soft_wrap=True)
    if not sweep.fleet.empty:
        console.print()
        _print_table(console, fleet_view(sweep))
    said = [*failures(sweep, Path.cwd()), *summary(sweep), *unread_lines(sweep)]
    for line in [*campaign_lines(sweep), *said]:
        console.print(escape(line), soft_wrap=True)


def _print_table(console: Console, view: Table) -> None:
    """Print a table without the spaces that fill up its last column."""
    with console.capture() as captured:
        console.print(view)
    console.out("\n".join(line.rstrip() for line in captured.get().splitlines()), highlight=False)


def markdown(
    sweep: Sweep, table: pd.DataFrame, *, checked: Sequence[str] | None = None, lost: Sequence[str] | None = None
) -> Iterator[str]:
    """The lines of matrix.md; `checked` are those of the checklist and `lost` the files not read, where known."""
    yield f"# Divergence matrix: {sweep.folder.name}"
    yield ""
    yield from _markdown_table(readable(table))
    if not sweep.fleet.empty:
        yield from _markdown_table(fleet_table(sweep))
    if table_of_faults := campaign_lines(sweep):
        yield from ("```", *table_of_faults, "```", "")
    yield from (f"- {line}" for line in summary(sweep) if line)
    checked = list(checklist_lines(sweep)) if checked is None else checked
    yield from ("", "## Reproducibility checklist", "", *(f"- {line}" for line in checked))
    if lost := unread(sweep) if lost is None else lost:
        yield from ("", "## Files that could not be read, or are no sweep's", "", *(f"- {line}" for line in lost))
    failed = list(failures(sweep, sweep.folder))
    if failed:
        yield from ("", "## Failures", "", "```", *failed, "```")


def _markdown_table(shown: pd.DataFrame) -> Iterator[str]:
    yield "| " + " | ".join(column.replace("\n", " ") for column in shown.columns) + " |"
    yield "| " + " | ".join("---" for _ in shown.columns) + " |"
    for _, row in shown.iterrows():
        yield "| " + " | ".join(str(item).replace("|", "\\|") for item in row) + " |"
    yield ""


def checklist_lines(sweep: Sweep, *, most_bytes: int | None = CHECKED_AT_ONCE) -> Iterator[str]:
    """The checklist, which reads every record: of a sweep with more than `most_bytes` it is left to its own command."""
    if not SweepPaths(sweep.folder).all_cells():
        yield "not asked: captures, kept frames and several sweeps at once are no sweep's folder"
        return
    records = bytes_of_records(sweep)
    if most_bytes is not None and records > most_bytes:
        yield f"python -m detsweep.analysis checklist {sweep.folder.name} (not here: {records / 1e6:.0f} MB of records)"
    else:
        yield from lines(checklist(sweep.folder))


def failures(sweep: Sweep, base: Path) -> Iterator[str]:
    """Each trial without a verdict about repeating: what failed, on which rank, and the last lines of its log.

    Paths below `base` are given relative to it.
    """
    for _, trial in sweep.trials.iterrows():
        if trial["verdict"] not in (*FAILED, "unsupported"):
            continue
        yield f"{trial['slug']} trial {trial['trial']}: {trial['verdict']}: {trial['error']}"
        if isinstance(trial["log"], str):
            log = Path(trial["log"])
            yield f"  {log.relative_to(base) if log.is_relative_to(base) else log}"
        if isinstance(trial["log_tail"], str):
            yield from (f"  | {line}" for line in trial["log_tail"].splitlines())


def summary(sweep: Sweep) -> list[str]:
    """What the sweep says, and what it cannot say."""
    verdicts = sweep.trials["verdict"].astype(str)
    counts = {verdict: int((verdicts == verdict).sum()) for verdict in MARKS if verdict != "inert"}
    said = ", ".join(f"{count} {verdict if verdict != 'none' else 'not reached'}" for verdict, count in counts.items()
                     if count)  # fmt: skip
    lines = [f"{counted(len(sweep.trials), 'trial')} of {counted(sweep.trials['cell'].nunique(), 'cell')}: {said}"]
    clean = sweep.trials[(verdicts == "pass") & (sweep.trials["fault"] == "none")]
    if len(clean) and not (verdicts[sweep.trials["fault"] == "none"] == "diverged").any():
        replays = int(clean["replays"].sum())
        lines.append(
            f"0 of {replays} replays diverged: if all cells share one rate, it is below "
            f"{upper_bound(replays):.1%} per replay (95% confidence)"
        )
    faults = sorted(set(sweep.trials["fault"]) - {"none", ""})
    if faults:
        lines.append(f"faults were put in on purpose ({', '.join(faults)}): those rows are not findings")
    lines += _outside_rates(sweep)
    known = rates(sweep)
    lines += [*stopped_lines(known), *against_lines(sweep, against_none(sweep, known))]
    lines += [*fleet_lines(sweep), *arm_lines(sweep), *mitigation_lines(sweep), *note_lines(sweep)]
    # A search looks for a cure, and its sets diverge on the way: no closer look at each of them.
    lines += search_lines(sweep) if sweep.search else closer_lines(sweep)
    if sweep.positive_control:
        judged = list(cell_table(sweep)["control"])
        good = sum(word in GOOD for word in judged)
        lines.append(f"positive control: {good} of {len(judged)} cells as they should be")
    return lines


def _outside_rates(sweep: Sweep) -> Iterator[str]:
    """How many trials came to no verdict about repeating, and what to instead, where others of the sweep have one."""
    verdicts = list(sweep.trials["verdict"].astype(str))
    counts = {verdict: verdicts.count(verdict) for verdict in FAILED if verdict in verdicts}
    if counts and any(verdict in VALID for verdict in verdicts):
        said = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
        yield f"{sum(counts.values())} of {counted(len(verdicts), 'trial')} count in no rate: {said}"


def exit_code(sweep: Sweep) -> int:
    """0 every cell passed; 1 something diverged; 3 nothing diverged but a cell has an error or no verdict.

    A place of a fleet that is odd or undecided has diverged, one that is alone of its kind has no verdict.
    Unsupported cells do not count, but where there is no other nothing has passed: 3. Of a positive control: 0 when
    every cell is as it should be, else 1, or 3 where a cell has no verdict. Of a search: 0 where it has an answer that
    was verified, 1 where no set cures, else 3.
    """
    if sweep.search:
        return search_exit_code(sweep)
    if sweep.positive_control:
        judged = set(cell_table(sweep)["control"])
        return 0 if judged <= set(GOOD) else 3 if judged <= {*GOOD, "no verdict"} else 1
    verdicts = {*map(str, sweep.trials["verdict"]), *verdicts_of_places(sweep)} - {"unsupported"}
    if "diverged" in verdicts:
        return 1
    return 0 if verdicts and verdicts <= {"pass", "recorded"} else 3


def readable(table: pd.DataFrame) -> pd.DataFrame:
    # The end of a log has lines of its own below the table.
    empty = ["error"] if (table["error"] == "").all() else []
    shown = table.drop(columns=["log_tail", *empty])
    shown["verdict"] = [mark(row) for row in table.to_dict("records")]
    shown = with_rates_in_words(shown)
    for column in shown.columns:
        if column == "upper_bound":
            shown[column] = [_format(value, "< {:.1%}") for value in shown[column]]
        elif column.endswith("_ms"):
            shown[column] = [_format(value, "{:.1f}") for value in shown[column]]
    renamed: pd.DataFrame = shown.rename(columns=HEADERS)
    return renamed


def _format(value: Any, template: str) -> str:
    return "" if pd.isna(value) else template.format(float(value))
