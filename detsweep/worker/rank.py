"""One rank of one trial, from its spec to its result."""

from __future__ import annotations

import gc
import shutil
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from detsweep import capture, fingerprints, modes
from detsweep.capture import SCHEMA, Stream
from detsweep.compare import Comparison, compare
from detsweep.environment import thread_variables
from detsweep.paths import TrialPaths, read_json, write_json
from detsweep.worker import model as models
from detsweep.worker import settings, sharding
from detsweep.worker.faults import Faults
from detsweep.worker.observe import Observer
from detsweep.worker.progress import Progress
from detsweep.worker.proof import prove, refusal
from detsweep.worker.replay import Done, replay, warm_up
from detsweep.worker.report import environment_report
from detsweep.worker.step import TrainingStep
from detsweep.worker.stress import Stress
from detsweep.worker.tape import Tape, tapes
from detsweep.worker.train import interrupted, resumed, train


def run_rank(
    spec: Mapping[str, Any], paths: TrialPaths, rank: int, progress: Progress, *, launch: int = 0
) -> dict[str, Any]:
    """Run one launch of the trial and write this rank's records; returns the content of rank<NNN>.result.json.

    Of a trial of several launches only the last one has a result; the others return one without a verdict.
    """
    config = spec["config"]
    device = sharding.open_device(config["device"])
    threads = thread_variables(config["world"]["threads_per_rank"], spec["settings"]["env"])
    threads_taken = settings.apply(threads, spec["settings"]["torch"])
    progress.phase("joining the process group")
    sharding.open_group(device, spec["timeout_min"])
    if dist.get_world_size() != spec["world_size"]:
        raise RuntimeError(f"world size is {dist.get_world_size()}, the trial asks for {spec['world_size']}")
    if (absent := refusal(spec["required"])) is not None:
        return {"schema": SCHEMA, "rank": rank, "verdict": "invalid", "refused": absent}
    _claim(paths, rank, launch)
    stress, observer, step = prepare(config, rank, device, progress)
    write_json(paths.environment(rank), environment_report(rank, device))
    gc.freeze()
    gc.enable()
    # What an earlier launch of this trial left: its records, and in the place of its result what it has to pass on.
    earlier = read_json(paths.rank_result(rank)) if launch else {"injected": [], "groups": {}, "lost": []}
    tape = tapes(spec, paths, rank, step, observer) if modes.records(config) else None
    with stress:
        warm_up(step, config["warmup"])
        compared = _compared(step, spec, paths, rank, launch=launch, tape=tape)
    proof = prove(spec, paths, rank, device, threads_taken=threads_taken)
    seen = {
        "injected": [*earlier["injected"], *(struck.to_json() for struck in step.faults.struck)],
        "groups": {**earlier["groups"], **{name: list(members) for name, members in observer.groups.items()}},
        "lost": list(dict.fromkeys([*earlier["lost"], *proof.lost])),
    }
    last = launch + 1 == modes.launches(config)
    result = (
        _result(rank, compared.comparisons, lost=bool(seen["lost"]), clean=modes.clean_verdict(config))
        if last
        else {"verdict": "none"}
    )
    if last:
        _remove_checkpoint(paths, rank, device, clean=result["verdict"] == "pass")
    progress.phase("leaving the process group")
    dist.destroy_process_group()
    if not last:
        return {"schema": SCHEMA, "rank": rank, **result, **seen}
    return {
        **result,
        **seen,
        "effects": proof.effects,
        "appeared": proof.appeared,
        "loss": float(step.loss),
        "step_ms": statistics.median(compared.milliseconds),
        "plain_step_ms": statistics.median(compared.plain),
        "plain_ms": [round(value, 4) for value in compared.plain],
        **({} if tape is None else {"recording": tape.recorder.to_json()}),
    }


@dataclass(frozen=True)
class _Compared:
    """What the runs of a launch came to, and the milliseconds of observed and of plain steps."""

    comparisons: list[Comparison]
    milliseconds: list[float]
    plain: list[float]


def _compared(
    step: TrainingStep, spec: Mapping[str, Any], paths: TrialPaths, rank: int, *, launch: int, tape: Tape | None
) -> _Compared:
    """Run what the mode runs, write its records, and compare them as they come."""
    config = spec["config"]
    comparing = Comparing(keep=modes.trajectories(config))
    comparing.add(capture.read_streams(paths.records(rank)))
    milliseconds: list[float] = []
    plain: list[float] = []
    for done in _runs(step, config, paths, launch, tape):
        streams = [run.stream for run in done.runs]
        capture.write_streams(paths.records(rank), streams, world_size=spec["world_size"])
        comparing.add(streams)
        milliseconds += [run.milliseconds for run in done.runs]
        plain += done.plain_milliseconds
    return _Compared(comparing.done, milliseconds, plain)


def _claim(paths: TrialPaths, rank: int, launch: int) -> None:
    if launch > 0:
        return
    try:
        paths.records(rank).touch(exist_ok=False)
    except FileExistsError:
        raise FileExistsError(f"{paths.records(rank)} exists: this trial has been run, and is not run over") from None


def prepare(
    config: Mapping[str, Any], rank: int, device: torch.device, progress: Progress
) -> tuple[Stress, Observer, TrainingStep]:
    """Build and shard the model of a cell, and all that a step of it needs on one rank."""
    progress.phase("building the model")
    settings.seed_everything(config["seed"])
    model = models.build(config, device)
    sharding.shard(model, config, device)
    checksum, fingerprint = fingerprints.select(config["checksum"], device.type)
    observer = Observer(
        model,
        level=config["observe"]["name"],
        checksum=checksum,
        fingerprint=fingerprint,
        progress=progress,
        compiled=config["compile"],
    )
    faults = Faults(config, rank=rank, observer=observer)
    faults.attach(model)
    stress = Stress(config, model=model, seed=config["seed"], rank=rank, device=device)
    models.compile_forwards(model, config)
    # The weights are the same on every rank; from here on each rank has data and random numbers of its own, unless
    # ranks are to be compared with each other.
    share = 0 if config["mode"]["name"] == "lockstep" else rank
    settings.seed_everything(config["seed"] + 1 + share)
    step = TrainingStep(
        model,
        config,
        data=lambda number, micro: models.batch(config, share, device, step=number, micro=micro),
        observer=observer,
        faults=faults,
        stress=stress,
        progress=progress,
        device=device,
    )
    return stress, observer, step


def _runs(
    step: TrainingStep, config: Mapping[str, Any], paths: TrialPaths, launch: int, tape: Tape | None
) -> Iterable[Done]:
    steps, runs = config["steps"], config["runs"]
    if tape is not None:
        return tape.runs(step, config, paths.recording)
    if config["mode"]["name"] == "train":
        return train(step, steps, runs)
    if config["mode"]["name"] == "resume":
        part = resumed if launch else interrupted
        return part(step, steps, modes.resumed_at(config), paths.checkpoint)
    # What a campaign costs says nothing: it has no control arm but in its first step.
    plain_steps = 1 if config["fault"]["kind"] == "campaign" else steps
    return replay(step, steps, runs, cold=config["warmup"] == 0, plain_steps=plain_steps)


class Comparing:
    """Compares each run with the first run of its step, as they come; keeps no stream that is not needed any more.

    `keep`: first runs stay until the end, as of trajectories, whose runs come one after the other.
    """

    def __init__(self, *, keep: bool) -> None:
        self._keep = keep
        self._first: dict[int, Stream] = {}
        self.done: list[Comparison] = []

    def add(self, streams: Iterable[Stream]) -> None:
        """Streams that follow those that came before."""
        for stream in streams:
            if stream.run == "r1":
                if not self._keep:
                    self._first.clear()
                self._first[stream.step] = stream
            else:
                self.done.append(compare(self._first[stream.step], stream))


def _result(rank: int, comparisons: list[Comparison], *, lost: bool, clean: str) -> dict[str, Any]:
    """A rank's verdict: each of its runs against its first run of the same step; `lost`: a setting is not in force."""
    differs: Counter[str] = Counter()
    for comparison in comparisons:
        differs.update(comparison.differs)
    divergences = [comparison.first.to_json() for comparison in comparisons if comparison.first is not None]
    return {
        "schema": SCHEMA,
        "rank": rank,
        "verdict": "invalid" if lost else "diverged" if divergences else clean,
        "replays": len(comparisons),
        "diverged_replays": len(divergences),
        "records_compared": sum(comparison.compared for comparison in comparisons),
        "divergences": divergences,
        "differs": dict(differs),
    }


def _remove_checkpoint(paths: TrialPaths, rank: int, device: torch.device, *, clean: bool) -> None:
    """A checkpoint is as large as the model; it stays where it may be evidence."""
    if not paths.checkpoint.exists():
        return
    all_clean = torch.tensor(int(clean), device=device)
    dist.all_reduce(all_clean, op=dist.ReduceOp.MIN)
    if rank == 0 and all_clean.item():
        shutil.rmtree(paths.checkpoint)
