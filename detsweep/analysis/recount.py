"""What a trial's records say by themselves, whatever became of its results: for captures without, and as a check."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from detsweep import modes, results
from detsweep.analysis.cells import world_size
from detsweep.capture import SCHEMA, Stream
from detsweep.captured import Line, read_lines
from detsweep.compare import Comparison, compare
from detsweep.crosstrial import RAN
from detsweep.judgement import Streams, diverged_runs, judge, needed, notes_of
from detsweep.paths import FileError, TrialPaths, read_json

_MEASURED = ("step_ms", "plain_step_ms", "plain_ms", "effects", "appeared", "injected", "groups", "recording")
Result = Mapping[str, Any]


class _FewerError(FileError):
    """A rank has fewer lines than its runs are: it may still write."""


def recounted(trial: TrialPaths, config: Mapping[str, Any], stored: Result | None) -> Result | None:
    """A trial's result, judged anew from the records of all its ranks.

    A trial without a result is judged too, once every rank has all of its lines; before that it stays without one, as
    do trials that came to no verdict about repeating. Where the records say something else than `stored`, a note tells.
    Lines that are equal byte for byte are equal, and are not parsed.
    """
    if stored is not None and stored["verdict"] not in RAN:
        return stored
    try:
        if stored is None and not all(trial.records(rank).exists() for rank in range(world_size(config))):
            return None
        judged = _judged(trial, config)
    except _FewerError as error:
        return None if stored is None else {"schema": SCHEMA, "verdict": "error", "error": str(error)}
    except FileError as error:
        return {"schema": SCHEMA, "verdict": "error", "error": str(error)}
    if stored is None:
        return {**judged, "notes": [*judged["notes"], "judged from its records: it has no result.json"]}
    kept = {key: value for key, value in stored.items() if key not in judged or key in _MEASURED}
    apart = [key for key in ("verdict", "diverged_ranks", "diverged_replays") if judged[key] != stored.get(key)]
    said = [f"its records say {key} {judged[key]}, its result.json {stored.get(key)}" for key in apart]
    return {**judged, **kept, "notes": [*said, *judged["notes"]]}


def _judged(trial: TrialPaths, config: Mapping[str, Any]) -> dict[str, Any]:
    ranks: list[dict[str, Any]] = []
    notes: list[str] = []
    for rank in range(world_size(config)):
        own, said = _rank(trial, rank, config)
        ranks.append(own)
        notes += said
    wanted = needed(config, ranks)
    streams: dict[int, Streams] = {}
    if wanted is None or diverged_runs(ranks):
        for rank, own in enumerate(ranks):
            if wanted is not None and not own["divergences"]:
                # A rank that differs nowhere has no part in any cause: none of its records is looked at.
                streams[rank] = {place: Stream(rank, *place, "", ()) for place in wanted}
            else:
                streams[rank] = _streams(_lines(trial, rank, config), wanted)
    judged = judge(config, ranks, streams, notes)
    return {"schema": SCHEMA, **results.verdict_of(judged, clean=modes.clean_verdict(config))}


def _streams(lines: Iterable[Line], wanted: Collection[tuple[int, str]] | None) -> dict[tuple[int, str], Stream]:
    """The wanted lines as their records; what equals the line before is not parsed again."""
    found: dict[tuple[int, str], Stream] = {}
    before: tuple[Line, Stream] | None = None
    for line in lines:
        if wanted is not None and line.place not in wanted:
            continue
        if before is not None and line.equals(before[0]):
            step, run = line.place
            found[line.place] = replace(before[1], step=step, run=run, nonfinite=line.head["nonfinite"])
            continue
        found[line.place] = line.stream()
        before = line, found[line.place]
    return found


def _lines(trial: TrialPaths, rank: int, config: Mapping[str, Any]) -> Iterator[Line]:
    """A rank's lines. Raises FileError where they are not those that must be there."""
    path, expected, found = trial.records(rank), modes.expected_runs(config), 0
    for line in read_lines(path):
        if found == len(expected) or line.place != expected[found] or line.head["rank"] != rank:
            found = -1
            break
        found += 1
        yield line
    if found != len(expected):
        wrong = FileError if found < 0 else _FewerError
        raise wrong(f"{path} holds runs that are not the {len(expected)} of rank {rank}")


def _rank(trial: TrialPaths, rank: int, config: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """What a rank's own comparison comes to, with what it measured where its result can be read; and its notes."""
    first: dict[int, Line] = {}
    differing: list[Comparison] = []
    notes: dict[bool, str] = {}
    compared = 0
    for line in _lines(trial, rank, config):
        for note in _noted(rank, line, config):
            # Of each kind the first: values that are not finite, recomputations that differ.
            notes.setdefault("recomputes" in note, note)
        step, run = line.place
        if run == "r1":
            if not modes.trajectories(config):
                first.clear()
            first[step] = line
            continue
        compared += 1
        if not line.equals(first[step]):
            differing.append(compare(first[step].stream(), line.stream()))
    differs: Counter[str] = Counter()
    for one in differing:
        differs.update(one.differs)
    own = {
        "rank": rank,
        "divergences": [one.first.to_json() for one in differing if one.first is not None],
        "differs": dict(differs),
        "replays": compared,
        "lost": [],
        **_measured(trial, rank),
    }
    return own, [notes[kind] for kind in sorted(notes)]


def _measured(trial: TrialPaths, rank: int) -> dict[str, Any]:
    """What cannot be read out of records: times, effects, faults; nothing where the rank's result cannot be read."""
    try:
        said = read_json(trial.rank_result(rank))
    except FileError:
        said = {}
    return {"step_ms": None, "effects": {}, **{key: said[key] for key in _MEASURED if key in said}}


def _noted(rank: int, line: Line, config: Mapping[str, Any]) -> list[str]:
    """What stands out in a line, which is parsed only where it can hold something of it."""
    recomputed = config["checkpointing"] != "none" and b'"recompute"' in line.rest
    if not line.head["nonfinite"] and not recomputed:
        return []
    return list(notes_of(rank, {line.place: line.stream()}))
