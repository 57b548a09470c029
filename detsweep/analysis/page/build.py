"""From a sweep to its page: every text of it, computed."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detsweep.analysis.cells import world_size
from detsweep.analysis.commands import sessions_of
from detsweep.analysis.matrix import cell_table
from detsweep.analysis.outcome import outcome
from detsweep.analysis.page import divergence, tables
from detsweep.analysis.page.details import detail, diverged_trial
from detsweep.analysis.page.labels import anchors
from detsweep.analysis.page.model import Fact, Page
from detsweep.analysis.page.plots import axis_rates, cost_plot
from detsweep.analysis.report import checklist_lines, summary
from detsweep.analysis.unread import unread
from detsweep.analysis.words import counted
from detsweep.paths import TrialPaths

if TYPE_CHECKING:
    from detsweep.analysis.frames import Sweep


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
    table = cell_table(sweep)
    cells = tables.cells_of(sweep)
    names = dict(zip(cells, zip(anchors(cells, "row"), anchors(cells, "cell"), strict=True), strict=True))
    needed = {cell: _record_bytes(sweep, cell) for cell in cells}
    total = sum(needed.values())
    everything = most_bytes is None or total <= most_bytes
    readable = {cell for cell, size in needed.items() if size and everything}
    records = table.to_dict("records")
    outcome_words, style = outcome(sweep)
    campaign, campaign_line = tables.campaign_grid(sweep)
    return Page(
        title=f"Divergence matrix: {sweep.folder.name}",
        outcome=outcome_words,
        outcome_style=f"v-{style}",
        summary=tuple(line for line in summary(sweep) if line),
        unread=tuple(unread(sweep.folder) if lost is None else lost),
        facts=tuple(_facts(sweep)),
        matrix=tables.matrix(sweep, table, names),
        pivot=tables.pivot(sweep, table, names),
        fleet=tables.fleet_grid(sweep),
        campaign=campaign,
        campaign_line=campaign_line,
        rates=axis_rates(sweep),
        costs=cost_plot(sweep),
        checklist=tuple(checklist_lines(sweep, most_bytes=most_bytes) if checked is None else checked),
        details=tuple(
            detail(sweep, cell, row, names[cell], records=readable) for cell, row in zip(cells, records, strict=True)
        ),
        left_out="" if everything else _left_out(sweep, total),
    )


def _record_bytes(sweep: Sweep, cell: str) -> int:
    """How many bytes of records the details of a cell are made from."""
    trial = diverged_trial(sweep.trials[sweep.trials["cell"] == cell])
    if trial is None:
        return 0
    looked = [divergence.parted(sweep, cell, int(trial["trial"]), TrialPaths(Path(trial["folder"])))]
    if (closer := divergence.closer_look(sweep, cell)) is not None:
        looked.append(closer)
    files = {path for one in looked for path in one.record_files(range(world_size(one.config)))}
    # A file that is not there is named where it is read.
    return max(1, sum(path.stat().st_size for path in files if path.exists()))


def _left_out(sweep: Sweep, total: int) -> str:
    return (
        f"Heat maps and the order of events are not here: the records of what diverged have {total / 1e6:.0f} MB. "
        f"python -m detsweep.analysis report {shlex.quote(sweep.folder.name)} reads them all."
    )


def _facts(sweep: Sweep) -> Iterator[Fact]:
    """How the sweep was run: its command lines, when and where, and with which versions."""
    sessions = sessions_of(sweep)
    for number, session in enumerate(sessions, start=1):
        which = f" {number}" if len(sessions) > 1 else ""
        words = [str(word) for word in session.get("arguments", ())]
        yield Fact(f"Command{which}", shlex.join(["python", "-m", "detsweep", *words]), code=True)
        yield Fact(f"Started{which}", _when(session))
        yield Fact(f"Versions{which}", _versions(session))
    if not sessions:
        yield Fact("Command", "not known: sweep.json names none")
    yield Fact("Cells", counted(len(tables.cells_of(sweep)), "cell"))
    yield Fact("Folder", str(sweep.folder), code=True)


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
