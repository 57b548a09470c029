"""One rank of one trial, from its spec to its result."""

from __future__ import annotations

import gc
import statistics
from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

from detsweep import capture, fingerprints
from detsweep.capture import SCHEMA
from detsweep.compare import Comparison, compare
from detsweep.paths import TrialPaths, write_json
from detsweep.worker import model as models
from detsweep.worker import settings, sharding
from detsweep.worker.faults import Fault
from detsweep.worker.observe import Observer
from detsweep.worker.progress import Progress
from detsweep.worker.replay import Replay, ReplayedStep
from detsweep.worker.report import environment_report


def run_rank(spec: Mapping[str, Any], paths: TrialPaths, rank: int, progress: Progress) -> dict[str, Any]:
    """Run the trial's mode and write this rank's records; returns the content of rank<NNN>.result.json."""
    config = spec["config"]
    device = sharding.open_device(config["device"])
    settings.apply(spec["settings"]["torch"])
    progress.phase("joining the process group")
    sharding.open_group(device, spec["timeout_min"])
    if dist.get_world_size() != spec["world_size"]:
        raise RuntimeError(f"world size is {dist.get_world_size()}, the trial asks for {spec['world_size']}")
    try:
        paths.records(rank).touch(exist_ok=False)
    except FileExistsError:
        raise FileExistsError(f"{paths.records(rank)} exists: this trial has been run, and is not run over") from None
    replay = _prepare(config, rank, device, progress)
    lost = settings.lost(spec["settings"]["env"], spec["settings"]["torch"])
    write_json(paths.environment(rank), environment_report(rank, device))
    gc.freeze()
    gc.enable()
    replay.warm_up(config["warmup"])
    steps, comparisons, loss = [], [], float("nan")
    for step in replay.steps(config["steps"], config["runs"], cold=config["warmup"] == 0):
        steps.append(step)
        loss = float(replay.loss)
        reference = step.runs[0].stream
        comparisons += [compare(reference, run.stream) for run in step.runs[1:]]
        capture.write_streams(paths.records(rank), (run.stream for run in step.runs), world_size=spec["world_size"])
    # Once more, now that every library that the step needs is loaded.
    write_json(paths.environment(rank), environment_report(rank, device))
    progress.phase("leaving the process group")
    dist.destroy_process_group()
    return _result(rank, comparisons, steps, lost, loss)


def _prepare(config: Mapping[str, Any], rank: int, device: torch.device, progress: Progress) -> Replay:
    progress.phase("building the model")
    settings.seed_everything(config["seed"])
    model = models.build(config, device)
    sharding.shard(model, config, device)
    fault = Fault(config["fault"], rank=rank, vocab_size=config["model"]["vocab_size"])
    fault.attach(model)
    checksum, fingerprint = fingerprints.select(config["checksum"], device.type)
    observer = Observer(
        model, level=config["observe"]["name"], checksum=checksum, fingerprint=fingerprint, progress=progress
    )
    # The weights are the same on every rank; from here on each rank has random numbers of its own.
    settings.seed_everything(config["seed"] + 1 + rank)
    return Replay(
        model,
        models.batch(config, rank, device),
        observer=observer,
        fault=fault,
        progress=progress,
        device=device,
        checksum_mode=config["checksum_mode"],
    )


def _result(
    rank: int, comparisons: list[Comparison], steps: list[ReplayedStep], lost: list[str], loss: float
) -> dict[str, Any]:
    differs: Counter[str] = Counter()
    for comparison in comparisons:
        differs.update(comparison.differs)
    divergences = [comparison.first.to_json() for comparison in comparisons if comparison.first is not None]
    return {
        "schema": SCHEMA,
        "rank": rank,
        "verdict": "invalid" if lost else "diverged" if divergences else "pass",
        "replays": len(comparisons),
        "diverged_replays": len(divergences),
        "records_compared": sum(comparison.compared for comparison in comparisons),
        "divergences": divergences,
        "differs": dict(differs),
        "lost": lost,
        "loss": loss,
        "step_ms": statistics.median(run.milliseconds for step in steps for run in step.runs),
        "plain_step_ms": statistics.median(plain for step in steps for plain in step.plain_milliseconds),
    }
