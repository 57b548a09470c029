"""What follows from a matrix, in lines of words: where to look closer, what stands out, how the detector did."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from detsweep.analysis.cells import is_capture
from detsweep.analysis.commands import closer_command
from detsweep.analysis.control import campaign
from detsweep.analysis.costs import SLOWER
from detsweep.mitigations.effect import UNDONE

if TYPE_CHECKING:
    from detsweep.analysis.frames import Sweep

CLOSER_SHOWN = 3
NOTES_SHOWN = 4


def closer_lines(sweep: Sweep) -> Iterator[str]:
    """For cells whose cause could be said more exactly: the command that looks closer."""
    coarse = sweep.trials[sweep.trials["closer"].notna() & (sweep.trials["fault"] == "none")]
    captures = {cell for cell, overrides in sweep.overrides.items() if is_capture(overrides)}
    coarse = coarse[~coarse["cell"].isin([*sweep.drills, *captures])].drop_duplicates("cell")
    levels = [(trial, closer_level(sweep.configs[trial["cell"]], trial["closer"])) for _, trial in coarse.iterrows()]
    asked = [(trial, level) for trial, level in levels if level is not None]
    for trial, level in asked[:CLOSER_SHOWN]:
        if sweep.configs[trial["cell"]]["compile"]:
            yield f"{trial['slug']}: what is compiled cannot be looked into; compare it with compile=false"
            continue
        command = closer_command(sweep, trial["cell"], level)
        yield f"{trial['slug']}: observed too coarsely to name the operator or collective; look closer: {command}"
    if len(asked) > CLOSER_SHOWN:
        yield f"{len(asked) - CLOSER_SHOWN} more cells could be looked at closer; drill=true does it for all of them"


def closer_level(config: Mapping[str, Any], level: str) -> str | None:
    """The level that looks closer at a cell, as far as its mode has it; None where it looks no closer."""
    if config["mode"]["name"] == "lockstep" and config["world"]["shard_ranks"] != 1:
        level = "collective"
    return None if config["observe"]["name"] == level else level


def mitigation_lines(sweep: Sweep) -> Iterator[str]:
    """Mitigations that nothing read here, and those that are so slow that this alone may hide a race."""
    whole = sweep.effects.groupby(["cell", "trial", "mitigation"], sort=False)["status"].agg(set).reset_index()
    inert = whole["status"].map(lambda statuses: statuses == {"inert"}).astype(bool)
    idle, acting = set(whole[inert]["mitigation"]), set(whole[~inert]["mitigation"])
    for name in sorted(idle):
        rows_of_it = (sweep.effects["mitigation"] == name) & (sweep.effects["status"] == "inert")
        reasons = list(dict.fromkeys(sweep.effects[rows_of_it]["evidence"]))
        rows = "those rows say" if name in acting else "its rows say"
        where = "in some cells" if name in acting else "here"
        yield f"{name} is inert {where}, {rows} nothing about it: {'; '.join(reasons[:2])}"
    undone = sweep.effects[sweep.effects["evidence"].str.startswith(UNDONE)].drop_duplicates(["mitigation", "setting"])
    yield from (f"{one['mitigation']}: {one['setting']} {one['evidence']}" for _, one in undone.iterrows())
    if sweep.search:
        return
    slow = sorted(set(sweep.costs[sweep.costs["slower"].fillna(False)]["mitigation"]))
    if slow:
        yield f"slower than without by more than {SLOWER - 1:.0%}, which by itself can hide a race: {', '.join(slow)}"


def note_lines(sweep: Sweep) -> Iterator[str]:
    """What ranks saw beside divergences: values that are not finite, recomputations that differ."""
    lost = int(sweep.injections["detected"].isna().sum())
    if lost:
        faults = "1 fault was" if lost == 1 else f"{lost} faults were"
        yield f"{faults} not put in: there was nothing to change where to strike"
    said = 0
    for _, trial in sweep.trials.iterrows():
        if trial["fault"] == "campaign":
            continue
        for note in trial["notes"]:
            said += 1
            if said <= NOTES_SHOWN:
                yield f"{trial['slug']} trial {trial['trial']}: {note}"
    if said > NOTES_SHOWN:
        yield f"{said - NOTES_SHOWN} more notes of this kind: the column notes of .trials"


def campaign_lines(sweep: Sweep) -> list[str]:
    """The table of a fault campaign, and how many clean comparisons there were beside it; nothing without one."""
    if not any(sweep.configs[cell]["fault"]["kind"] == "campaign" for cell in set(sweep.injections["cell"])):
        return []
    table = campaign(sweep)
    view = Table(box=None, pad_edge=False)
    names = ("mode", "persistence", "kind", "put in", "detected", "placed", "cause", "missed", "by replay")
    for name in names:
        view.add_column(name, justify="left" if name in names[:3] else "right", no_wrap=True)
    for row in table[
        ["mode", "persistence", "kind", "put_in", "detected", "placed", "cause", "missed", "by_replay"]
    ].values:
        view.add_row(*map(str, row))
    sums = table[["put_in", "detected", "placed", "cause", "missed", "by_replay"]].sum()
    view.add_row("all", "", "", *map(str, sums))
    console = Console(width=200)
    with console.capture() as captured:
        console.print(view)
    lines = ["", *(line.rstrip() for line in captured.get().splitlines()), ""]
    counted = sweep.trials.drop_duplicates(["cell", "trial"])
    clean, alarms = int(counted["clean_comparisons"].sum()), int(counted["false_alarms"].sum())
    lines.append(f"clean comparisons of a rank: {clean}, false alarms: {alarms}")
    return lines
