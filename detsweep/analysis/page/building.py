"""From a sweep to its page: every text of it, computed."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from detsweep.analysis.cells import world_size
from detsweep.analysis.celltable import cell_table
from detsweep.analysis.marks import shown_as
from detsweep.analysis.outcome import outcome
from detsweep.analysis.page import divergence, tables
from detsweep.analysis.page.details import PASSING, detail, diverged
from detsweep.analysis.page.known import Known, known
from detsweep.analysis.page.labels import anchors
from detsweep.analysis.page.model import Fact, Page
from detsweep.analysis.page.plots import axis_rates, cost_plot
from detsweep.analysis.report import checklist_lines, summary
from detsweep.analysis.unread import unread
from detsweep.analysis.words import counted

if TYPE_CHECKING:
    from detsweep.analysis.frames import Sweep

MOST_DETAILS = 1000
MOST_WITH_TWO_WINDOWS = 100


def build(
    sweep: Sweep,
    *,
    most_bytes: int | None = None,
    checked: Sequence[str] | None = None,
    lost: Sequence[str] | None = None,
) -> Page:
    """Everything on the page.

    `most_bytes`: of a sweep in which the records that it would read have more, they are left out, and it says so.
    `checked`: the lines of the checklist, `lost`: those on files that were not read, where somebody knows them already.
    """
    table, apart = cell_table(sweep), known(sweep)
    rows = dict(zip(apart.cells, table.to_dict("records"), strict=True))
    detailed = _detailed(rows)
    details = dict(zip(detailed, anchors(detailed, "cell"), strict=True))
    places = zip(apart.cells, anchors(list(apart.cells), "row"), strict=True)
    names = {cell: (row, details.get(cell, "")) for cell, row in places}
    needed = {cell: _record_bytes(apart, cell) for cell in detailed}
    total = sum(needed.values())
    everything = most_bytes is None or total <= most_bytes
    readable = {cell for cell, size in needed.items() if size and everything}
    # For what a page can hold: of many cells each has less.
    windows = 2 if sum(map(bool, needed.values())) <= MOST_WITH_TWO_WINDOWS else 1
    outcome_words, style = outcome(sweep)
    campaign, campaign_line = tables.campaign_grid(sweep)
    return Page(
        title=f"Divergence matrix: {sweep.folder.name}",
        outcome=outcome_words,
        outcome_style=f"v-{style}",
        summary=tuple(line for line in summary(sweep) if line),
        unread=tuple(unread(sweep, most_bytes=most_bytes) if lost is None else lost),
        facts=tuple(_facts(apart)),
        matrix=tables.matrix(sweep, table, names),
        pivot=tables.pivot(sweep, table, names),
        fleet=tables.fleet_grid(sweep),
        campaign=campaign,
        campaign_line=campaign_line,
        rates=axis_rates(sweep),
        costs=cost_plot(sweep),
        checklist=tuple(checklist_lines(sweep, most_bytes=most_bytes) if checked is None else checked),
        details=tuple(
            detail(apart, cell, rows[cell], names[cell], records=readable, windows=windows) for cell in detailed
        ),
        left_out=tuple(_left_out(sweep, total if not everything else 0, len(rows) - len(detailed))),
    )


def _detailed(rows: Mapping[str, Mapping[Any, Any]]) -> list[str]:
    """The cells that have details, in the order of the sweep: where they are too many those that did not pass first."""
    if len(rows) <= MOST_DETAILS:
        return list(rows)
    by_need = sorted(rows, key=lambda cell: shown_as(rows[cell]) in PASSING)
    chosen = set(by_need[:MOST_DETAILS])
    return [cell for cell in rows if cell in chosen]


def _record_bytes(apart: Known, cell: str) -> int:
    """How many bytes of records the details of a cell are made from."""
    looked = [one for _, one in diverged(apart, cell)]
    if not looked:
        return 0
    if (closer := divergence.closer_look(apart, cell)) is not None:
        looked.append(closer)
    files = {path for one in looked for path in one.record_files(range(world_size(one.config)))}
    # A file that is not there is named where it is read.
    return max(1, sum(path.stat().st_size for path in files if path.exists()))


def _left_out(sweep: Sweep, record_bytes: int, cells: int) -> Iterator[str]:
    if record_bytes:
        yield (
            "Heat maps and the order of events are not here: the records of what diverged have "
            f"{record_bytes / 1e6:.0f} MB. python -m detsweep.analysis report {shlex.quote(sweep.folder.name)} reads "
            "them all."
        )
    if cells:
        yield f"{cells} cells have no details here: {MOST_DETAILS} have them, those that did not pass first."


def _facts(apart: Known) -> Iterator[Fact]:
    """How the sweep was run: its command lines, when and where, and with which versions."""
    sessions = apart.sessions
    for number, session in enumerate(sessions, start=1):
        which = f" {number}" if len(sessions) > 1 else ""
        words = [str(word) for word in session.get("arguments", ())]
        yield Fact(f"Command{which}", shlex.join(["python", "-m", "detsweep", *words]), code=True)
        yield Fact(f"Started{which}", _when(session))
        yield Fact(f"Versions{which}", _versions(session))
    if not sessions:
        yield Fact("Command", "not known: sweep.json names none")
    yield Fact("Cells", counted(len(apart.cells), "cell"))
    yield Fact("Folder", str(apart.sweep.folder), code=True)


def _when(session: Mapping[str, Any]) -> str:
    started = session.get("started")
    said = [time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(started))] if isinstance(started, int | float) else []
    said += [f"on {session['host']}"] if session.get("host") else []
    said += [str(session["platform"])] if session.get("platform") else []
    said += [counted(int(session["cores"]), "core")] if session.get("cores") else []
    return ", ".join(said)


def _versions(session: Mapping[str, Any]) -> str:
    versions = session.get("versions")
    named = [f"{name} {version}" for name, version in versions.items()] if isinstance(versions, Mapping) else []
    python = [f"Python {session['python']}"] if session.get("python") else []
    git = [f"detsweep's commit {session['git']}"] if session.get("git") else []
    return ", ".join([*python, *named, *git])
