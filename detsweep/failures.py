"""Who failed first, and how: exit codes, results, progress and logs of all ranks as one line and a log's end."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from detsweep.paths import FileError, TrialPaths, read_json

TAIL_LINES = 8
_TAIL_BYTES = 16384


@dataclass(frozen=True)
class Position:
    """How far a rank came: its process and the step, run and block it was in (-1: before the first)."""

    pid: int
    step: int
    run: int
    block: int
    words: str

    @property
    def order(self) -> tuple[int, int, int]:
        return self.step, self.run, self.block


@dataclass(frozen=True)
class Failure:
    """What a table says of a trial without a result: one line, the ranks it names, and the end of a log."""

    text: str
    ranks: tuple[int, ...]
    log: Path
    tail: tuple[str, ...]

    def to_json(self, base: Path) -> dict[str, Any]:
        log = self.log.relative_to(base) if self.log.is_relative_to(base) else self.log
        return {"error": self.text, "error_ranks": list(self.ranks), "log": str(log), "log_tail": list(self.tail)}


def position(path: Path) -> Position | None:
    """What a rank last wrote of itself, or None where it wrote nothing readable."""
    try:
        pid, step, run, block, words = path.read_text().strip().split("\t")
        return Position(int(pid), int(step), int(run), int(block), words)
    except (OSError, ValueError):
        return None


def tail(path: Path, lines: int = TAIL_LINES) -> tuple[str, ...]:
    """The last lines of a log, without reading the rest; empty where there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            text = file.read().decode("utf-8", errors="replace")
    except OSError:
        return ()
    return tuple(line.rstrip() for line in text.splitlines() if line.strip())[-lines:]


def explain_timeout(trial: TrialPaths, world_size: int, minutes: float) -> Failure:
    """Name the ranks that came least far in a trial that had to be ended.

    Where several came equally far, those that wait in a collective wait for the others.
    """
    places = {rank: position(trial.progress(rank)) for rank in range(world_size)}
    orders = {rank: place.order for rank, place in places.items() if place is not None}
    missing = tuple(rank for rank in range(world_size) if rank not in orders)
    least = min(orders.values(), default=None)
    last = tuple(rank for rank, order in orders.items() if order == least)
    ranks = missing or tuple(rank for rank in last if not _waits(trial.rank_log(rank))) or last
    head = f"no end after {minutes:g} min"
    if missing:
        text = f"{head}: {_ranks(missing)} never started"
    else:
        place = places[ranks[0]]
        assert place is not None
        where = _stack_top(trial.rank_log(ranks[0]))
        text = f"{head}: {_ranks(ranks)} stopped in {place.words}" + (f", at {where}" if where else "")
        if len(ranks) == world_size and world_size > 1:
            text += " (all ranks came equally far)"
    failure = _with_log(trial, text, ranks)
    # Of a stack the first lines say where the rank is, not the last.
    stack = _stack_lines(failure.log)
    return replace(failure, tail=stack[:TAIL_LINES]) if stack else failure


def explain_failure(trial: TrialPaths, world_size: int, returncode: int) -> Failure:
    """Name the rank that failed first in a trial that ended without a result of every rank.

    A rank that was killed comes first, then one that left without a word: every exception is written down, so the
    exceptions of its peers only followed. Of exceptions the earliest is the cause.
    """
    exits = _exits(trial)
    results = {rank: _result(trial, rank) for rank in range(world_size)}
    killed = [rank for rank, code in exits.items() if code < 0 and code != -signal.SIGTERM]
    raised = [rank for rank, result in results.items() if result and result.get("verdict") == "error"]
    silent = [rank for rank, code in exits.items() if code > 0 and not results.get(rank)]
    if killed:
        return _with_log(trial, "; ".join(_killed(rank, exits[rank], trial) for rank in killed), killed)
    if silent:
        text = "; ".join(f"rank {rank} left with exit code {exits[rank]} and no result" for rank in silent)
        return _with_log(trial, text, silent)
    if raised:
        first = min(raised, key=lambda rank: float(results[rank].get("at", 0)))
        return _with_log(trial, f"rank {first}: {_single_line(results[first]['error'])}", [first])
    if returncode < 0:
        return _with_log(trial, f"torchrun was killed by {signal.Signals(-returncode).name} from outside", [])
    missing = [rank for rank, result in results.items() if not result]
    if missing:
        text = f"{_ranks(missing)} left no result (torchrun's exit code {returncode})"
        return _with_log(trial, text, missing)
    return _with_log(trial, f"torchrun ended with exit code {returncode}", [])


def _killed(rank: int, code: int, trial: TrialPaths) -> str:
    name = signal.Signals(-code).name
    hint = ", as the kernel does when memory runs out" if -code == signal.SIGKILL else ""
    place = position(trial.progress(rank))
    return f"rank {rank} was killed by {name}{hint}" + (f" (in {place.words})" if place else "")


def _exits(trial: TrialPaths) -> dict[int, int]:
    found: dict[int, int] = {}
    for path in trial.all_exits():
        try:
            found |= {int(rank): int(code) for rank, code in read_json(path)["ranks"].items()}
        except (FileError, KeyError, ValueError):
            continue
    return found


def _result(trial: TrialPaths, rank: int) -> Mapping[str, Any]:
    try:
        return read_json(trial.rank_result(rank))
    except FileError:
        return {}


def _with_log(trial: TrialPaths, text: str, ranks: Sequence[int]) -> Failure:
    for log in (*(trial.rank_log(rank) for rank in ranks), trial.launcher_log):
        if lines := tail(log):
            # torchrun's own summary names the rank that it happened to look at first; the agent's names all.
            own = tuple(line for line in lines if line.startswith("rank ")) if log == trial.launcher_log else ()
            return Failure(text, tuple(ranks), log, own or lines)
    return Failure(text, tuple(ranks), trial.launcher_log, ())


def _stack_lines(log: Path) -> tuple[str, ...]:
    """The last stack that a rank dumped into its log, from its heading on."""
    lines = tail(log, 200)
    starts = [index for index, line in enumerate(lines) if "most recent call first" in line]
    return lines[starts[-1] :] if starts else ()


def _stack(log: Path) -> list[tuple[str, str, str]]:
    """The frames of the last stack in a log: (file, line, function), innermost first."""
    frames = (re.match(r'\s*File "(.+)", line (\d+) in (.+)', line) for line in _stack_lines(log))
    return [(frame[1], frame[2], frame[3]) for frame in frames if frame]


def _stack_top(log: Path) -> str | None:
    for file, line, function in _stack(log):
        return f"{function} ({Path(file).name}:{line})"
    return None


def _waits(log: Path) -> bool:
    """Whether a rank's innermost frame is torch.distributed's, or waits for the device: it waits for a peer."""
    return any("torch/distributed/" in file or "torch/cuda/" in file for file, _, _ in _stack(log)[:1])


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"


def _single_line(text: str) -> str:
    return " ".join(text.split())[:400]
