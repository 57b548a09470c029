"""Whether anything waits for the device while an observed run goes on: torch's profiler over one run, and its judge.

`profile` traces a run in one process with FSDP2 in a group of one; run as a script this file is that process.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from levels import Rank, leave
from measuring import finish, torchrun, trial_spec

from detsweep.paths import write_json
from detsweep.worker.snapshot import Snapshot
from detsweep.worker.step import TrainingStep

Event = Mapping[str, Any]
WAITS = re.compile(r"(cuda|hip)(Stream|Device|Event)Synchronize|(cuda|hip)Memcpy|cu(Stream|Ctx|Event)Synchronize")
CALLS = ("cuda_runtime", "cuda_driver")
STACK_SHOWN = 8


@dataclass(frozen=True)
class Wait:
    """A call with which the host waited for the device, what it was part of, and the Python that led to it."""

    call: str
    within: tuple[str, ...]
    stack: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.call} in {' > '.join(self.within) or 'no operator'}, at {' > '.join(self.stack) or 'no Python'}"


@dataclass(frozen=True)
class Found:
    """What a trace shows: how many kernels, and the waits between the launches of the first and the last of them."""

    kernels: int
    waits: tuple[Wait, ...]


class Untimed(TrainingStep):
    """A step that does not wait for the device to know how long it took: that wait is the timing's, not the run's."""

    def _synchronize(self) -> None:
        pass


def profile(level: str, overrides: Sequence[str], *, timeout_s: float | None = None) -> Found:
    """What the profiler sees of one run at this level, after others that do not count."""
    spec = trial_spec(*overrides)
    with tempfile.TemporaryDirectory(prefix="detsweep-") as folder:
        write_json(Path(folder) / "spec.json", spec)
        finish(torchrun(spec["world_size"], __file__, folder, level), spec, timeout_s=timeout_s)
        return judge(json.loads((Path(folder) / "trace.json").read_text())["traceEvents"])


def judge(events: Iterable[Event]) -> Found:
    """The host's waits in a trace (events as in a Chrome trace), from the first kernel's launch to the last one's.

    Launches, and not the kernels' own times: the host is ahead of the device, and collects the digests with a wait
    that it begins while the last kernels are still to run.
    """
    events = [event for event in events if event.get("ph") == "X"]
    calls = [event for event in events if event.get("cat") in CALLS]
    by_correlation = {_correlation(event): event for event in calls}
    kernels = [event for event in events if event.get("cat") == "kernel"]
    launches = [by_correlation[_correlation(one)]["ts"] for one in kernels if _correlation(one) in by_correlation]
    if not launches:
        return Found(len(kernels), ())
    first, last = min(launches), max(launches)
    # A copy to memory that is not pinned returns when it is done, whatever its call is named.
    blocking = {_correlation(one) for one in events if one.get("cat") == "gpu_memcpy" and _to_pageable(one["name"])}
    waits = [
        _described(call, events)
        for call in calls
        if first <= call["ts"] <= last and (WAITS.fullmatch(call["name"]) or _correlation(call) in blocking)
    ]
    return Found(len(kernels), tuple(waits))


def _to_pageable(name: str) -> bool:
    return "DtoH" in name and "Pinned" not in name


def _correlation(event: Event) -> Any:
    return event.get("args", {}).get("correlation")


def _described(call: Event, events: Iterable[Event]) -> Wait:
    around = [
        event
        for event in events
        if event.get("cat") in ("cpu_op", "python_function")
        and (event["pid"], event["tid"]) == (call["pid"], call["tid"])
        and event["ts"] <= call["ts"] <= event["ts"] + event["dur"]
    ]
    around.sort(key=lambda event: event["ts"])
    operators = tuple(event["name"] for event in around if event["cat"] == "cpu_op")
    stack = [event["name"] for event in around if event["cat"] == "python_function"]
    ours = [name for name in stack if "detsweep" in name] or stack
    return Wait(call["name"], operators, tuple(ours[-STACK_SHOWN:]))


def one_rank(folder: Path, level: str) -> None:
    """Trace one run, after two in which libraries load and memory is taken from the device."""
    rank = Rank.open(folder)
    snapshot = Snapshot.take(rank.model, rank.device)
    step = rank.step(level, Untimed)
    activities = [torch.profiler.ProfilerActivity.CPU]
    if rank.device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    for _ in range(2):
        step.observed(0, 1)
        snapshot.restore()
    with torch.profiler.profile(activities=activities, with_stack=True) as traced:
        step.observed(0, 1)
    traced.export_chrome_trace(str(folder / "trace.json"))
    leave()


if __name__ == "__main__":
    one_rank(Path(sys.argv[1]), sys.argv[2])
