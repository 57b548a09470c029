"""What is known of a trial that diverged: first divergences, causes in words, heat maps, the order of events."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from detsweep.analysis.cells import world_size
from detsweep.analysis.page.events import events
from detsweep.analysis.page.heatmap import heat, heat_grid
from detsweep.analysis.page.known import Known
from detsweep.analysis.page.labels import text_of
from detsweep.analysis.page.model import Field, Grid, Part
from detsweep.analysis.page.pairs import VOTE, Pairs, Parted, pairs
from detsweep.analysis.words import describe_place, listed
from detsweep.causes import CAUSES
from detsweep.compare import when
from detsweep.paths import FileError, TrialPaths

RANKS_LISTED = 64
COLUMNS = ("rank", "step", "run", "compared with", "site", "name", "block", "phase", "kind", "cause", "origin")
_KEYS = ("step", "run", "reference", "site", "name", "block", "phase", "kind", "cause", "origin")


def parted(known: Known, cell: str, trial: int, folder: TrialPaths) -> Parted:
    """A trial of a cell with its own divergences, without those of a closer look."""
    return _of(known, cell, trial, folder, cell)


def closer_look(known: Known, cell: str) -> Parted | None:
    """The launch that looked closer at a cell and diverged; None without one."""
    drill = known.sweep.drills.get(cell)
    if drill is None or not drill.first:
        return None
    folder = TrialPaths(Path(str(drill.first["folder"])))
    own = folder.folder.parent.name.rpartition("-")[2]
    return _of(known, cell, int(drill.first["trial"]), folder, own)


def _of(known: Known, cell: str, trial: int, folder: TrialPaths, own: str) -> Parted:
    config = known.sweep.configs[own]
    level = config["observe"]["name"]
    found = (one for one in known.divergences.get(cell, ()) if one["trial"] == trial and one["level"] == level)
    return Parted(folder, config, tuple(found))


def first_part(one: Parted) -> Part:
    """The first divergence of each rank, and its cause in words."""
    firsts = one.firsts()
    rows = tuple(
        (Field(f"rank {first['rank']}"), *(Field(text_of(first[key]), "number" * (key == "step")) for key in _KEYS))
        for first in firsts[:RANKS_LISTED]
    )
    apart = {int(first["rank"]) for first in firsts}
    alike = [rank for rank in range(world_size(one.config)) if rank not in apart]
    notes = []
    if alike:
        notes.append(f"Nothing differs on rank{'s' * (len(alike) > 1)} {_some(alike)}.")
    if len(firsts) > RANKS_LISTED:
        notes.append(f"{len(firsts) - RANKS_LISTED} more ranks differ.")
    grid = Grid("First divergence of each rank", COLUMNS, rows, note=" ".join(notes))
    return Part("Where it diverges first", tuple(_causes(one)), (grid,))


def _causes(one: Parted) -> Iterator[str]:
    """A line for each cause that a rank's first divergence has, with the ranks that have it."""
    found: dict[str, list[int]] = {}
    for first in one.firsts():
        found.setdefault(_cause(first), []).append(int(first["rank"]))
    yield from (f"Rank{'s' * (len(ranks) > 1)} {_some(ranks)}: {said}." for said, ranks in found.items())


def _cause(first: Mapping[str, Any]) -> str:
    cause = text_of(first["cause"])
    if not cause:
        closer = text_of(first["closer"])
        return "no cause is named, what was observed is too coarse for one" + (
            f" (observe={closer} tells more)" if closer else ""
        )
    origin = text_of(first["origin"])
    return f"{cause} ({CAUSES[cause]})" + (f", rank {origin} started it" if origin else "")


def record_parts(one: Parted, title: str = "", *, windows: int = 2) -> Iterator[Part]:
    """Heat map and order of events, for each reference that streams of the trial parted from.

    `windows`: of the order of events as many tables at most, for ranks that parted in different places.

    Records that cannot be read make a part that names the file.
    """
    for reference in one.references:
        about = f"{title}Which records differ from {_words(reference, one.config)}"
        try:
            found = pairs(one, reference)
        except (FileError, ValueError) as error:
            yield Part(about, (f"Records cannot be read: {error}",))
            continue
        divergences = [d for d in one.against(reference) if _place(d) in found]
        if not divergences:
            yield Part(about, ("No comparison that differs has its records.",))
            continue
        first = divergences[0]
        spot = int(first["rank"]), None if text_of(first["block"]) == "" else int(first["block"])
        grid = heat_grid(
            heat(found),
            range(world_size(one.config)),
            int(one.config["model"]["num_layers"]),
            first=spot,
            against=_words(reference, one.config),
        )
        yield Part(about, grids=(grid,))
        yield Part(
            f"{title}Order of events around the first difference",
            grids=tuple(_window(found, d, one.config) for d in _told_apart(divergences, windows)),
        )


def _told_apart(divergences: Sequence[Mapping[str, Any]], most: int) -> list[Mapping[str, Any]]:
    """The first divergence, and the first of a rank that parted elsewhere."""
    chosen = [divergences[0]]
    firsts: dict[int, Mapping[str, Any]] = {}
    for one in sorted(divergences, key=when):
        firsts.setdefault(int(one["rank"]), one)
    for one in firsts.values():
        places = {(other["site"], other["name"]) for other in chosen}
        if len(chosen) < most and (one["site"], one["name"]) not in places:
            chosen.append(one)
    return chosen


def _window(found: Pairs, first: Mapping[str, Any], config: Mapping[str, Any]) -> Grid:
    reference, stream = found[_place(first)]
    named = str(first["reference"])
    own = f"rank {first['rank']}" if named == VOTE else str(first["run"])
    caption = (
        f"Rank {first['rank']}, step {first['step']} {first['run']}, beside {_words(named, config)}: "
        f"first {describe_place({**first, 'block': text_of(first['block'])})}"
    )
    title = {VOTE: "most ranks"}.get(named, named.replace("trial", "trial "))
    return events(reference, stream, first, titles=(title, own), caption=caption)


def _words(reference: str, config: Mapping[str, Any]) -> str:
    """What streams were held against."""
    if reference == VOTE:
        return "what most ranks have"
    if reference.startswith("trial"):
        return f"the same run of {reference.replace('trial', 'trial ')}"
    recorded = config["mode"]["name"] == "playback"
    return f"{reference}, the first run" + (" (the one that was recorded)" if recorded else "")


def _place(one: Mapping[str, Any]) -> tuple[int, int, str]:
    return int(one["rank"]), int(one["step"]), str(one["run"])


def _some(ranks: Sequence[int]) -> str:
    more = f" and {len(ranks) - RANKS_LISTED} more" if len(ranks) > RANKS_LISTED else ""
    return listed(ranks[:RANKS_LISTED]) + more
