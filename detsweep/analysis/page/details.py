"""All that is known of a cell, part by part."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detsweep.analysis.cells import is_capture
from detsweep.analysis.commands import closer_command, command_of
from detsweep.analysis.costs import cost_words
from detsweep.analysis.findings import closer_level
from detsweep.analysis.marks import MARKS, shown_as
from detsweep.analysis.page import beside, divergence
from detsweep.analysis.page.known import Known, Rows
from detsweep.analysis.page.labels import label_of, text_of
from detsweep.analysis.page.model import Detail, Field, Grid, Log, Part, Rate
from detsweep.analysis.page.pairs import Parted
from detsweep.analysis.page.plots import of_launches, of_replays
from detsweep.analysis.page.tables import style_of
from detsweep.analysis.verdicts import VALID
from detsweep.analysis.words import counted, describe_first, median, missing
from detsweep.failures import tail
from detsweep.mitigations import EFFECTS
from detsweep.paths import TrialPaths

if TYPE_CHECKING:
    from detsweep.analysis.frames import Sweep

PASSING = ("pass", "inert", "recorded", "unsupported", "none")
LOGS, LOG_LINES = 8, 20
FAULTS, TRIALS = 20, 50


def detail(
    known: Known,
    cell: str,
    row: Mapping[Any, Any],
    names: tuple[str, str],
    *,
    records: Collection[str],
    windows: int,
) -> Detail:
    """The parts of one cell; `row` is its row of the cell table, `names` the anchors of its row and of this.

    `records`: the cells whose records may be read, for heat maps and the order of events, of which a cell has
    as many tables at most as `windows`.
    """
    kind = shown_as(row)
    parts = tuple(_parts(known, cell, row, windows=windows if cell in records else 0))
    label = label_of(known.sweep, cell)
    return Detail(names[1], names[0], MARKS[kind], style_of(kind), label, kind not in PASSING, parts)


def _parts(known: Known, cell: str, row: Mapping[Any, Any], *, windows: int) -> Iterator[Part]:
    sweep, trials = known.sweep, known.trials[cell]
    yield from _divergence(known, cell, windows=windows)
    yield from _failures(sweep, trials)
    yield _statistics(known, cell, trials)
    yield from _notes(trials)
    if cell in known.effects:
        yield _effects(known.effects[cell])
    if cell in known.injections:
        yield _faults(known.injections[cell])
    if cell in sweep.configs:
        yield from _baseline(known, cell, str(row.get("differs_from_baseline") or ""))
        if not is_capture(sweep.overrides[cell]):
            yield Part("Run it again", command=command_of(sweep, cell, known.sessions))
    yield Part("Where it lies", (_folder(sweep, trials),))


def diverged(known: Known, cell: str) -> list[tuple[int, Parted]]:
    """The trials of a cell that are looked into, by number: the first that diverged, which stands in the matrix.

    Where another one parted from something else (a launch from another launch and not from its own first run), that one
    too.
    """
    trials = known.trials[cell]
    found: list[tuple[int, Parted]] = []
    seen: set[str] = set()
    for trial in (trial for trial in trials if not missing(trial["first_site"])):
        one = divergence.parted(known, cell, int(trial["trial"]), TrialPaths(Path(trial["folder"])))
        kinds = {reference.rstrip("0123456789") for reference in one.references}
        if not found or kinds - seen:
            found.append((int(trial["trial"]), one))
            seen |= kinds
    return found


def _divergence(known: Known, cell: str, *, windows: int) -> Iterator[Part]:
    found = diverged(known, cell)
    for number, one in found:
        title = f"Trial {number}: " if len(found) > 1 else ""
        first = divergence.first_part(one)
        yield replace(first, title=f"{title}{first.title}")
        yield from _look_closer(known.sweep, cell, one)
        if windows:
            yield from divergence.record_parts(one, title, windows=windows)
        else:
            yield Part(f"{title}Which records differ", ("Not shown here: see the note at the head of this page.",))
    closer = divergence.closer_look(known, cell)
    if closer is not None:
        first = divergence.first_part(closer)
        yield Part(f"A closer look, a launch with observe={closer.config['observe']['name']}", first.lines, first.grids)
        if windows:
            yield from divergence.record_parts(closer, "Closer look: ", windows=windows)


def _look_closer(sweep: Sweep, cell: str, one: Parted) -> Iterator[Part]:
    """The command that would name more than was observed here, where there is one and nobody has run it yet."""
    levels = (text_of(first["closer"]) for first in one.firsts())
    level = next((found for name in levels if name and (found := closer_level(one.config, name))), None)
    runs = not one.config["compile"] and not is_capture(sweep.overrides[cell])
    if level is not None and cell not in sweep.drills and runs:
        yield Part(f"Look closer, with observe={level}", command=closer_command(sweep, cell, level))


def _failures(sweep: Sweep, trials: Rows) -> Iterator[Part]:
    for trial in trials:
        if not text_of(trial["error"]):
            continue
        folder = TrialPaths(Path(trial["folder"]))
        logs = [folder.rank_log(rank) for rank in trial["error_ranks"]][:LOGS]
        said = str(trial["log"]) if isinstance(trial["log"], str) else ""
        shown = [Log(_relative(said, sweep.folder), str(trial["log_tail"]))] if text_of(trial["log_tail"]) else []
        others = [(path, tail(path, LOG_LINES)) for path in logs if str(path) != said]
        shown += [Log(_relative(str(path), sweep.folder), "\n".join(lines)) for path, lines in others if lines]
        title = f"Why trial {trial['trial']} has no verdict" if len(trials) > 1 else "Why it has no verdict"
        yield Part(title, (f"{trial['verdict']}: {trial['error']}",), logs=tuple(shown))


def _statistics(known: Known, cell: str, trials: Rows) -> Part:
    valid = [trial for trial in trials if trial["verdict"] in VALID]
    diverged, own = sum(trial["verdict"] == "diverged" for trial in valid), known.rates[cell]
    rows = [
        ("trials", f"{len(trials)} asked for, {len(valid)} with a verdict about repeating"),
        ("diverged trials", f"{diverged}/{len(valid)}"),
    ]
    if own.seen.launches > 1:
        rows.append(("diverged launches", _rate_words(of_launches(own))))
    rows.append(("diverged replays", _rate_words(of_replays(own))))
    if (bound := own.columns()["upper_bound"]) is not None:
        rows.append(("bound", f"none of {counted(own.seen.compared, 'replay')} diverged: below {bound:.1%} at 95%"))
    for column, name in (("plain_step_ms", "a step, unobserved"), ("step_ms", "a step, observed")):
        milliseconds = median(trial[column] for trial in trials)
        if not missing(milliseconds):
            rows.append((name, f"{milliseconds:.1f} ms (median of trials)"))
    cost = known.costs.get(cell)
    if cost is not None:
        rows.append(("cost", f"{cost_words(cost)}, step time against {label_of(known.sweep, cost['baseline'])}"))
    fields = tuple((Field(name), Field(words)) for name, words in rows)
    return Part(
        "Statistics", grids=(Grid("Counts, rates and times", ("what", "value"), fields), *_trials(known, trials))
    )


def _rate_words(rate: Rate) -> str:
    return f"{rate.counted}, {rate.share} (95% interval {rate.interval})" if rate.share else rate.counted


def _trials(known: Known, trials: Rows) -> Iterator[Grid]:
    """A table of all trials, where there is more than one."""
    if len(trials) < 2:
        return
    rows = tuple(
        (
            Field(str(trial["trial"])),
            Field(MARKS.get(str(trial["verdict"]), str(trial["verdict"])), f"mark {style_of(str(trial['verdict']))}"),
            Field("" if not text_of(trial["first_site"]) else describe_first(trial)),
            Field(_replays(known, trial), "number"),
            Field("" if not text_of(trial["seconds"]) else f"{trial['seconds']:.1f}", "number"),
        )
        for trial in trials[:TRIALS]
    )
    note = f"{len(trials) - TRIALS} more are not shown." if len(trials) > TRIALS else ""
    yield Grid("Every trial", ("trial", "verdict", "first divergence", "replays diverged", "seconds"), rows, note=note)


def _replays(known: Known, trial: Mapping[str, Any]) -> str:
    """Of a trial that counts what it adds to the cell's rate, of another one what it compared, if anything."""
    if trial["verdict"] in VALID and (seen := known.seen.get((str(trial["cell"]), int(trial["trial"])))):
        return f"{seen.diverged}/{seen.compared}"
    return f"{trial['diverged_replays']}/{trial['replays']}" if text_of(trial["replays"]) else ""


def _notes(trials: Rows) -> Iterator[Part]:
    lines = list(dict.fromkeys(note for trial in trials for note in trial["notes"]))
    if lines:
        more = (f"{len(lines) - FAULTS} more of this kind",) if len(lines) > FAULTS else ()
        yield Part("Notes", (*lines[:FAULTS], *more))


def _effects(own: Rows) -> Part:
    """What became of each setting; the same of several trials once."""
    seen: dict[tuple[str, ...], list[str]] = {}
    for one in own:
        key = tuple(str(one[name]) for name in ("mitigation", "setting", "status", "evidence"))
        seen.setdefault(key, []).append(str(one["trial"]))
    rows = tuple(
        (
            Field(mitigation),
            Field(setting),
            Field(status, f"effect-{status}" if status in EFFECTS else ""),
            Field(evidence),
            Field(", ".join(trials), "number"),
        )
        for (mitigation, setting, status, evidence), trials in seen.items()
    )
    columns = ("mitigation", "setting", "effect", "evidence", "trials")
    return Part("What became of its mitigations", grids=(Grid("Settings, and the proof", columns, rows, heads=2),))


def _faults(own: Rows) -> Part:
    names = ["trial", "ranks", "step", "run", "kind", "site", "name", "block", "detected", "placed"]
    columns = [name for name in names if name in own[0]]
    rows = tuple(tuple(Field(text_of(one[name])) for name in columns) for one in own[:FAULTS])
    note = f"{len(own) - FAULTS} more are not shown." if len(own) > FAULTS else ""
    line = f"{counted(len(own), 'fault')} put in on purpose: this cell is no finding."
    grid = Grid("Faults, and what was found of them", tuple(columns), rows, heads=0, note=note)
    return Part("Faults that were put in", (line,), (grid,))


def _baseline(known: Known, cell: str, differs: str) -> Iterator[Part]:
    sweep, found = known.sweep, beside.baseline_of(known, cell)
    if found is None:
        yield Part("Beside the baseline", ("This is the sweep's first cell, which the others are held against.",))
        return
    line = f"Baseline: {label_of(sweep, found.cell)} ({found.why})."
    grids = [beside.configuration_grid(sweep.configs[found.cell], sweep.configs[cell])]
    lines = [line] if grids[0] else [line, "The configurations are the same."]
    before, after = _first_folder(known, found.cell), _first_folder(known, cell)
    environment, said = beside.environment_grid(before, after)
    lines += [said] if said else []
    lines += [f"Its records beside those of the baseline: {differs}."] if differs else []
    yield Part("Beside the baseline", tuple(lines), tuple(grid for grid in (*grids, environment) if grid is not None))


def _first_folder(known: Known, cell: str) -> TrialPaths:
    """The first trial of a cell that left an environment, else its first."""
    folders = [TrialPaths(Path(trial["folder"])) for trial in known.trials[cell]]
    return next((folder for folder in folders if folder.environment(0).exists()), folders[0])


def _folder(sweep: Sweep, trials: Rows) -> str:
    folder = Path(trials[0]["folder"])
    # Of a cell whose own file is broken no trial is known, and the folder is the cell's.
    return _relative(str(folder.parent if trials[0]["cell"] in sweep.configs else folder), sweep.folder)


def _relative(path: str, base: Path) -> str:
    return str(Path(path).relative_to(base)) if path and Path(path).is_relative_to(base) else path
