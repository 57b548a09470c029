"""REPRODUCE.md: what is in a bundle, what was run, with which versions, what came out, and how to run it again."""

from __future__ import annotations

import shlex
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from detsweep import results
from detsweep.bounds import upper_bound
from detsweep.capture import SCHEMA
from detsweep.environment.files import ranges
from detsweep.paths import CellPaths, FileError, SweepPaths, TrialPaths, read_json

_NONE = "none yet"
_FACTS = ("torch", "torch_git", "torch_cuda", "torch_hip", "python", "platform", "detsweep")


def text(folder: Path, name: str, left_out: Mapping[str, str], *, redacted: bool) -> str:
    """The text for the sweep that lies in `folder`, of a bundle of this `name`. What cannot be read is named in it."""
    return "\n".join(_lines(SweepPaths(folder), name, left_out, redacted=redacted)) + "\n"


def _lines(sweep: SweepPaths, name: str, left_out: Mapping[str, str], *, redacted: bool) -> Iterator[str]:
    yield "# How to see and repeat this sweep"
    yield ""
    yield "`sweep/` is the folder of a sweep of detsweep, which runs one training step again and compares it bit for"
    yield "bit; `environment.json` is the machine on which it was bundled, `manifest.json` lists every file with its"
    yield "size and SHA-256."
    if redacted:
        yield "Names and secrets were replaced, each by the same word everywhere: `node-1`, `user-1`, `<home>`,"
        yield "`REDACTED-1`."
    yield ""
    yield "See it, with this version of detsweep installed:"
    yield ""
    yield f"    tar --zstd -xf {name}   # or tar -xzf, where it ends with .tar.gz"
    yield "    python -m detsweep.analysis <that folder>/sweep"
    yield ""
    yield f"In Python `detsweep.load({name!r})` reads it as it is."
    yield ""
    yield "## What was run"
    yield from _sessions(sweep)
    yield ""
    yield "## With which versions"
    yield ""
    yield from _versions(sweep)
    yield ""
    yield "## What came out"
    yield ""
    yield from _verdicts(sweep)
    yield ""
    yield "## What is not in it"
    yield ""
    yield from (f"- `{place}`: {why}" for place, why in sorted(left_out.items()))
    if not left_out:
        yield "Nothing was left out."


def _sessions(sweep: SweepPaths) -> Iterator[str]:
    try:
        sessions: Sequence[Mapping[str, Any]] = read_json(sweep.sweep)["sessions"]
    except (FileError, KeyError) as error:
        yield ""
        yield f"Not known: {error}"
        return
    for session in sessions:
        started = session.get("started")
        when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(started)) if isinstance(started, int | float) else "?"
        yield ""
        yield f"    {session.get('command')}"
        yield ""
        yield f"on {session.get('host')} ({session.get('platform')}, {session.get('cores')} cores), {when},"
        yield f"in {session.get('cwd')}; commit of detsweep: {session.get('git') or 'not known'}"


def _versions(sweep: SweepPaths) -> Iterator[str]:
    """What the ranks said of their versions, once for each that is another."""
    found: dict[tuple[str, str], list[str]] = {}
    broken = []
    for cell, number, trial in _trials(sweep):
        for path in sorted(trial.folder.glob("environment-rank*.json")):
            place = f"{cell.folder.name} trial {number}"
            try:
                told = read_json(path)
            except FileError as error:
                broken.append(str(error))
                continue
            versions = told.get("versions")
            facts = {name: told.get(name) for name in _FACTS} | dict(versions if isinstance(versions, Mapping) else {})
            for name, value in facts.items():
                if value is not None:
                    found.setdefault((name, str(value)), []).append(place)
    counts = Counter(name for name, _ in found)
    for (name, value), places in sorted(found.items(), key=lambda item: (item[0][0], -len(item[1]))):
        where = f" ({len(places)} ranks, first {places[0]})" if counts[name] > 1 else ""
        yield f"- {name}: {value}{where}"
    if not found:
        yield "No rank left its environment."
    yield from (f"- not known: {error}" for error in broken)


def _verdicts(sweep: SweepPaths) -> Iterator[str]:
    rows = ["| cell | trials | replays diverged | first divergence, or why none |", "| --- | --- | --- | --- |"]
    commands = []
    for paths in sweep.all_cells():
        try:
            cell = _cell(paths)
        except FileError as error:
            rows.append(f"| {paths.folder.name} | cannot be read | | {error} |")
            continue
        found = [results.read_result(trial) for _, trial in paths.trials()]
        rows.append(_row(paths, found, str((cell["config"].get("fault") or {}).get("kind", "none"))))
        if any(result and result["verdict"] == "diverged" for result in found):
            commands.append((paths.folder.name, command_of(cell)))
    yield from rows
    if commands:
        yield ""
        yield "The cells that diverged, each alone:"
        for name, command in commands:
            yield ""
            yield f"{name}:"
            yield ""
            yield f"    {command}"


def _row(paths: CellPaths, found: Sequence[Mapping[str, Any] | None], fault: str) -> str:
    counts = Counter(result["verdict"] if result else _NONE for result in found) or Counter({_NONE: 1})
    valid = [result for result in found if result and result["verdict"] in ("pass", "diverged")]
    replays = sum(int(result.get("replays") or 0) for result in valid)
    diverged = sum(int(result.get("diverged_replays") or 0) for result in valid)
    rate = f"{diverged}/{replays}" if replays else ""
    if replays and not diverged:
        rate += f", below {upper_bound(replays):.1%} (95%)"
    said = next((_first(result) for result in found if result and result["verdict"] == "diverged"), None)
    said = said or next((str(result["error"]) for result in found if result and result.get("error")), "")
    trials = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    trials += "" if fault == "none" else f" (fault {fault} was put in on purpose)"
    return f"| {paths.folder.name} | {trials} | {rate} | {said.replace('|', '/')} |"


def _first(result: Mapping[str, Any]) -> str:
    first = result.get("first") or {}
    ranks = [int(rank) for rank in result.get("diverged_ranks") or ()]
    cause = f", cause {first['cause']}" if first.get("cause") else ""
    place = f"{first.get('site')} {first.get('name')}, rank {first.get('rank')}, step {first.get('step')}"
    return f"{place} {first.get('run')}{cause}; ranks {ranges(ranks)} differ"


def command_of(cell: Mapping[str, Any]) -> str:
    """The command line that runs one cell alone."""
    told = dict(cell["overrides"])
    if cell["config"].get("mitigation_force"):
        told["mitigation_force"] = "true"
    # Variables of the environment are no keys of the schema: they are added.
    words = [f"{'++' if key.startswith('env.') else ''}{key}={value}" for key, value in told.items()]
    return shlex.join(["python", "-m", "detsweep", *words])


def _trials(sweep: SweepPaths) -> Iterator[tuple[CellPaths, int, TrialPaths]]:
    for paths in sweep.all_cells():
        for number, trial in paths.trials():
            yield paths, number, trial


def _cell(paths: CellPaths) -> dict[str, Any]:
    """A cell. Raises FileError where it cannot be read as one."""
    cell = read_json(paths.cell)
    if cell.get("schema") != SCHEMA:
        raise FileError(f"{paths.cell.name} has schema {cell.get('schema')!r}, this version reads {SCHEMA}")
    if not isinstance(cell.get("overrides"), Mapping) or not isinstance(cell.get("config"), Mapping):
        raise FileError(f"{paths.cell.name} is not a cell's configuration")
    return cell
