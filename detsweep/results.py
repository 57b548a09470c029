"""A trial's result: the verdicts of all its ranks as one, and the check that what it rests on is still there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from detsweep import modes
from detsweep.capture import SCHEMA, read_streams
from detsweep.compare import when
from detsweep.failures import explain_failure, explain_timeout
from detsweep.judgement import Judged, Streams, judge, needed, notes_of
from detsweep.mitigations import merged
from detsweep.paths import FileError, TrialPaths, file_hash, read_json

VERDICTS = ("pass", "recorded", "diverged", "invalid", "error", "timeout", "unsupported")
"""What a trial can come to; a trial that has not been reached has none. `recorded`: nothing was compared."""
SETTLED = ("pass", "recorded", "diverged", "unsupported")
FIELDS: dict[Any, tuple[str, ...]] = {
    int: ("trial", "replays", "diverged_replays", "retries", "requeues"),
    (int, float): ("started", "seconds", "step_ms", "plain_step_ms"),
    list: ("plain_ms", "ranks", "diverged_ranks", "error_ranks", "log_tail", "notes", "nodes"),
    dict: ("effects", "first", "files", "hashes", "differs", "loss"),
    str: ("error", "log"),
}


def merge(
    trial: TrialPaths, spec: Mapping[str, Any], *, returncode: int, timeout_min: float | None, seconds: float
) -> dict[str, Any]:
    """The content of result.json, from what all ranks left behind.

    `timeout_min` is the limit in minutes that ended the trial, None where it ended by itself; `seconds` its wall
    time. A rank whose result or records are missing or torn makes the trial an error that names the file.
    """
    world_size = int(spec["world_size"])
    base = {"schema": SCHEMA, "cell": spec["cell"], "trial": spec["trial"], "seconds": round(seconds, 3)}
    if timeout_min is not None:
        failure = explain_timeout(trial, world_size, timeout_min)
        return {**base, "verdict": "timeout", **failure.to_json(trial.folder)}
    if returncode != 0:
        failure = explain_failure(trial, world_size, returncode)
        return {**base, "verdict": "error", **failure.to_json(trial.folder)}
    try:
        if absent := _refusals(trial, world_size):
            return {**refused(spec, absent), **base}
        ranks = [_rank_result(trial, rank, modes.replays(spec["config"])) for rank in range(world_size)]
        streams, notes = _read_needed(trial, ranks, spec)
        files = {trial.records(rank).name: trial.records(rank).stat().st_size for rank in range(world_size)}
        files |= {trial.rank_result(rank).name: trial.rank_result(rank).stat().st_size for rank in range(world_size)}
        hashes = {trial.records(rank).name: file_hash(trial.records(rank)) for rank in range(world_size)}
    except FileError as error:
        return {**base, "verdict": "error", "error": str(error), "error_ranks": [], "log": "", "log_tail": []}
    judged = judge(spec["config"], ranks, streams, notes)
    return {**base, **verdict_of(judged, clean=modes.clean_verdict(spec["config"])), "files": files, "hashes": hashes}


def refused(spec: Mapping[str, Any], absent: Sequence[str]) -> dict[str, Any]:
    """The result of a trial that was not started, because of what `require` asks for and is not in force."""
    return {
        "schema": SCHEMA,
        "cell": spec["cell"],
        "trial": spec["trial"],
        "seconds": 0.0,
        "verdict": "invalid",
        "error": f"refused, required and not in force: {'; '.join(absent)}",
    }


def unsupported(spec: Mapping[str, Any], reason: str) -> dict[str, Any]:
    """The result of a trial that this platform cannot run."""
    return {
        "schema": SCHEMA,
        "cell": spec["cell"],
        "trial": spec["trial"],
        "seconds": 0.0,
        "verdict": "unsupported",
        "error": reason,
    }


def read_result(trial: TrialPaths, *, whole: bool = False) -> dict[str, Any] | None:
    """A trial's result, or None where it has none yet.

    Where the result itself is torn or of another schema, or a file it was made from is gone or has another size,
    the result is an `error` that names the file. `whole`: or has other bytes, for which all records are read.
    """
    if not trial.result.exists():
        return None
    try:
        result = read_json(trial.result)
        if result.get("schema") != SCHEMA:
            raise FileError(f"{trial.result} has schema {result.get('schema')!r}, this version reads {SCHEMA}")
        if wrong := _wrong_fields(trial, result):
            raise FileError(f"{trial.result} is not this trial's result: {wrong}")
        for name, size in result.get("files", {}).items():
            path = trial.folder / name
            if not path.exists():
                raise FileError(f"{path} is missing")
            if path.stat().st_size != size:
                raise FileError(f"{path} has {path.stat().st_size} bytes, {size} were written")
        if whole:
            check_records(trial, result)
    except FileError as error:
        return {"schema": SCHEMA, "verdict": "error", "error": str(error)}
    return result


def check_records(trial: TrialPaths, result: Mapping[str, Any]) -> None:
    """Raise FileError, naming the file, where records of a trial are not those that its result was made from.

    Results of earlier versions do not say which bytes these had.
    """
    for name, written in (result.get("hashes") or {}).items():
        path = trial.folder / name
        if (found := file_hash(path)) != written:
            raise FileError(f"{path} is not what was written: its xxh3_128 is {found}, it was {written}")


def _wrong_fields(trial: TrialPaths, result: Mapping[str, Any]) -> str | None:
    """What makes a result unfit for a table: another trial's, an unknown verdict, or a field of the wrong type."""
    if result.get("verdict") not in VERDICTS:
        return f"verdict {result.get('verdict')!r} is none of {', '.join(VERDICTS)}"
    if not trial.folder.parent.name.endswith(f"-{result.get('cell')}"):
        return f"it is of cell {result.get('cell')!r}"
    if trial.folder.name != f"trial{result.get('trial')}":
        return f"it is of trial {result.get('trial')!r}"
    for rank in result.get("ranks") or ():
        if not isinstance(rank, dict) or not isinstance(rank.get("divergences"), list) or "rank" not in rank:
            return f"ranks holds {rank!r}"
    for kind, names in FIELDS.items():
        for name in names:
            value = result.get(name)
            if value is not None and not isinstance(value, kind):
                return f"{name} is {value!r}"
    return None


def _refusals(trial: TrialPaths, world_size: int) -> list[str]:
    """What `require` asks for and ranks did not find, before they built anything; a line each."""
    found = {rank: read_json(trial.rank_result(rank)).get("refused", ()) for rank in range(world_size)}
    return [f"rank {rank}: {line}" for rank, lines in found.items() for line in lines]


def _rank_result(trial: TrialPaths, rank: int, replays: int) -> dict[str, Any]:
    """A rank's result. Raises FileError unless it is that rank's, complete, and about all the trial's replays."""
    path = trial.rank_result(rank)
    result = read_json(path)
    if result.get("schema") != SCHEMA or result.get("rank") != rank:
        raise FileError(f"{path} is not rank {rank}'s result in schema {SCHEMA}")
    if missing := {"lost", "divergences", "differs", "replays", "step_ms", "plain_step_ms", "effects"} - result.keys():
        raise FileError(f"{path} has no {', '.join(sorted(missing))}")
    if result["replays"] != replays:
        raise FileError(f"{path} is about {result['replays']} replays, the trial has {replays}")
    return result


def _read_needed(
    trial: TrialPaths, ranks: list[dict[str, Any]], spec: Mapping[str, Any]
) -> tuple[dict[int, Streams], list[str]]:
    """The records that a judgement needs, and what stands out in any of them; all ranks' at once would be too many."""
    wanted = needed(spec["config"], ranks)
    streams: dict[int, Streams] = {}
    notes: list[str] = []
    for rank in range(int(spec["world_size"])):
        own = _checked_streams(trial, rank, spec)
        notes += notes_of(rank, own)
        streams[rank] = {place: stream for place, stream in own.items() if wanted is None or place in wanted}
    return streams, notes


def _checked_streams(trial: TrialPaths, rank: int, spec: Mapping[str, Any]) -> Streams:
    """A rank's records by step and run, once every line that must be there has been read."""
    path = trial.records(rank)
    streams = read_streams(path)
    expected = modes.expected_runs(spec["config"])
    if [(stream.step, stream.run) for stream in streams] != expected or any(s.rank != rank for s in streams):
        raise FileError(f"{path} holds {len(streams)} runs that are not the {len(expected)} of rank {rank}")
    return {(stream.step, stream.run): stream for stream in streams}


def verdict_of(judged: Judged, *, clean: str) -> dict[str, Any]:
    """What a judgement makes of a trial; `clean`: its verdict where nothing differed. Times of no rank are None."""
    ranks = judged.ranks
    lost = [f"rank {rank['rank']}: {line}" for rank in ranks for line in rank["lost"]]
    diverged = [rank["rank"] for rank in ranks if rank["divergences"]]
    differs: Counter[str] = Counter()
    for rank in ranks:
        differs.update(rank["differs"])
    firsts = [divergence for rank in ranks for divergence in rank["divergences"]]
    timed = [rank for rank in ranks if rank["step_ms"] is not None]
    untimed: dict[str, Any] = {"plain_ms": [], "plain_step_ms": None}
    slowest = max(timed, key=lambda rank: float(rank["plain_step_ms"]), default=untimed)
    return {
        "verdict": "invalid" if lost else "diverged" if diverged else clean,
        "error": "not in force: " + "; ".join(lost) if lost else None,
        "diverged_ranks": diverged,
        "first": min(firsts, key=when, default=None),
        "differs": dict(differs),
        "replays": judged.compared,
        "diverged_replays": len({(d["step"], d["run"]) for rank in ranks for d in rank["divergences"]}),
        "loss": judged.loss,
        "notes": [*judged.notes, *_recordings(ranks), *_appeared(ranks)],
        "effects": merged([rank["effects"] for rank in ranks]),
        "ranks": ranks,
        "step_ms": max((rank["step_ms"] for rank in timed), default=None),
        "plain_ms": slowest["plain_ms"],
        "plain_step_ms": slowest["plain_step_ms"],
    }


def _recordings(ranks: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Why recordings ended before their time, or what they were kept for; each said once."""
    found: dict[str, list[int]] = {}
    for rank in ranks:
        for line in rank.get("recording", {}).get("notes", ()):
            found.setdefault(line, []).append(rank["rank"])
    for line, where in found.items():
        ranks_said = "" if len(where) == len(ranks) else f"rank{'s' if len(where) > 1 else ''} {_list(where)}: "
        yield f"{ranks_said}{line}"


def _list(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks))


def _appeared(ranks: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Variables that change bits and were set inside the processes, each said once."""
    found: dict[tuple[str, str], list[int]] = {}
    for rank in ranks:
        for pair in rank.get("appeared", {}).items():
            found.setdefault(pair, []).append(rank["rank"])
    for (name, value), where in found.items():
        ranks_said = f"rank{'s' if len(where) > 1 else ''} {', '.join(map(str, where))}"
        yield f"{ranks_said}: {name}={value} was set inside the process, by a library or a configuration file"
