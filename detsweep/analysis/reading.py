"""Reads what the trials of a sweep recorded of themselves; what cannot be read is a line, and never an error."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from detsweep import results
from detsweep.analysis.cells import read_cells, world_size
from detsweep.analysis.recorded import Rank, Recorded, Trial
from detsweep.capture import SCHEMA
from detsweep.paths import CellPaths, FileError, SweepPaths, TrialPaths, read_json
from detsweep.validate import lookup

# What of a trial's configuration the checklist asks for.
_KEYS = (
    "seed", "accum", "compile", "wrap", "mode.name", "model.vocab_size", "model.batch_size", "model.seq_len",
    "world.nodes", "world.nproc_per_node", "world.shard_ranks",
)  # fmt: skip


def read(folder: Path) -> Recorded:
    """Read what a sweep's folder holds. Raises FileNotFoundError where it holds no sweep.

    A file that is missing, torn or of another schema is a line, with a path relative to the folder.
    """
    sweep = SweepPaths(folder.absolute())
    cells, broken = read_cells(sweep)
    if not cells and not broken:
        raise FileNotFoundError(f"{folder}: no sweep here (no cells/*/cell.json)")
    sessions, unsaid = _sessions(sweep)
    lines = [one.error for one in broken if one.cell != "sweep.json"]
    trials: list[Trial] = []
    for paths, cell in cells.items():
        try:
            trials += _trials(paths, cell, sweep.folder)
        except (KeyError, TypeError, ValueError):
            lines.append(f"{paths.cell} is not a cell's configuration")
    started = tuple(trial for trial in trials if trial.state != "idle")
    unsaid += [one.error for one in broken if one.cell == "sweep.json"]
    return Recorded(started, tuple(sessions), _relative(lines, sweep.folder), _relative(unsaid, sweep.folder))


def _sessions(sweep: SweepPaths) -> tuple[list[Mapping[str, Any]], list[str]]:
    try:
        listed = read_json(sweep.sweep).get("sessions")
    except FileError as error:
        return [], [str(error)]
    sessions = [one for one in listed if isinstance(one, Mapping)] if isinstance(listed, list) else []
    if not isinstance(listed, list) or not sessions or len(sessions) < len(listed):
        return sessions, [f"{sweep.sweep} does not list its sessions"]
    without = [str(number) for number, one in enumerate(sessions, start=1) if not one.get("command")]
    return sessions, [f"{sweep.sweep}: session {number} has no command line" for number in without]


def _trials(paths: CellPaths, cell: Mapping[str, Any], base: Path) -> Iterator[Trial]:
    """Every trial that a cell asks for or has."""
    size = world_size(cell["config"])
    for number in sorted({number for number, _ in paths.trials()} | set(range(int(cell["config"]["trials"])))):
        yield _trial(paths.trial(number), cell, number, size, base)


def _trial(paths: TrialPaths, cell: Mapping[str, Any], number: int, size: int, base: Path) -> Trial:
    result = results.read_result(paths, whole=True)
    state = _state(result)
    absent: list[str] = []
    late: list[str] = []
    ranks: list[Rank] = []
    said = {one["rank"]: one for one in (result or {}).get("ranks") or ()}
    config = _tried(partial(_config, paths), absent) or {}
    _tried(partial(_command, paths), absent)
    for rank in range(size):
        if (environment := _tried(partial(_environment, paths, rank), late)) is not None:
            lost = tuple(map(str, said.get(rank, {}).get("lost") or ()))
            ranks.append(Rank(cell["id"], cell["slug"], number, rank, environment, lost))
        late += [f"{path} is missing" for path in (paths.records(rank), paths.rank_result(rank)) if not path.exists()]
    if result is not None and "cell" not in result:
        # read_result says so of a result, or of a file that it rests on, which is not as it was written.
        absent.append(result["error"])
    missing = {"waiting": [], "failed": absent}.get(state, [*absent, *late])
    return Trial(
        cell["id"],
        cell["slug"],
        number,
        paths,
        state,
        size,
        config,
        tuple(ranks),
        missing=_relative(missing, base),
        gaps=_relative(late if state == "failed" else [], base),
        struck=_struck(result or {}),
    )


def _state(result: Mapping[str, Any] | None) -> str:
    if result is None:
        return "waiting"
    if "cell" not in result:
        return "ran"
    if result["verdict"] == "unsupported" or (result["verdict"] == "invalid" and "ranks" not in result):
        return "idle"
    return "failed" if result["verdict"] in ("error", "timeout") else "ran"


def _tried(read: Callable[[], Mapping[str, Any]], errors: list[str]) -> Mapping[str, Any] | None:
    """What a file holds; None where it cannot be read, with a line in `errors`."""
    try:
        return read()
    except FileError as error:
        errors.append(str(error))
        return None


def _command(paths: TrialPaths) -> Mapping[str, Any]:
    job = read_json(paths.job)
    if not job.get("command"):
        raise FileError(f"{paths.job} has no command")
    return job


def _config(paths: TrialPaths) -> Mapping[str, Any]:
    spec = read_json(paths.spec)
    config = spec.get("config")
    if spec.get("schema") != SCHEMA or not isinstance(config, Mapping):
        raise FileError(f"{paths.spec} is not a trial's in schema {SCHEMA}")
    for key in _KEYS:
        try:
            lookup(config, key)
        except KeyError:
            raise FileError(f"{paths.spec} has no {key}") from None
    return config


def _environment(paths: TrialPaths, rank: int) -> Mapping[str, Any]:
    environment = read_json(paths.environment(rank))
    if environment.get("schema") != SCHEMA or environment.get("rank") != rank:
        raise FileError(f"{paths.environment(rank)} is not rank {rank}'s in schema {SCHEMA}")
    for key, kind in (("python", str), ("torch", str), ("device", dict), ("settings", dict), ("variables", dict)):
        if not isinstance(environment.get(key), kind):
            raise FileError(f"{paths.environment(rank)} has no {key}")
    return environment


def _struck(result: Mapping[str, Any]) -> frozenset[tuple[int, int, str]]:
    return frozenset(
        (rank["rank"], fault.get("step"), f"r{fault.get('run')}")
        for rank in result.get("ranks") or ()
        for fault in rank.get("injected") or ()
        if fault.get("site") == "input"
    )


def _relative(lines: Iterable[str], base: Path) -> tuple[str, ...]:
    """Each line once, with the paths in it relative to the sweep's folder."""
    return tuple(dict.fromkeys(line.replace(f"{base}/", "") for line in lines))
