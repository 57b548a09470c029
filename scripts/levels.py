"""Step times of every level of observation, in turn on one model in one process of each rank.

`measure` starts the ranks and holds each level's ratio to observe=off against its limit; run as a script this file is
one of these ranks.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from measuring import Figure, finish, in_turn, ratios, torchrun, trial_spec

from detsweep import fingerprints
from detsweep.environment import thread_variables
from detsweep.orphans import die_with_parent
from detsweep.paths import read_json, write_json
from detsweep.worker import model as models
from detsweep.worker import settings, sharding
from detsweep.worker.faults import Faults
from detsweep.worker.observe import Observer
from detsweep.worker.progress import Progress
from detsweep.worker.snapshot import Snapshot
from detsweep.worker.step import TrainingStep
from detsweep.worker.stress import Stress

LEVELS = ("off", "block", "module", "collective", "op")
LIMITS = {"block": 1.05, "module": 1.10, "collective": 1.10, "op": 2.0}
PARTS = ("forward and backward", "whole run")
# What each level records inside the step, by one site of each kind: what shows that an arm is what it says.
_KINDS = {"block_pre", "module", "collective_out", "op"}
_SHOWN = {
    "off": set(),
    "block": {"block_pre"},
    "module": {"block_pre", "module"},
    "collective": {"block_pre", "collective_out"},
    "op": _KINDS,
}
_WARM_UP = 2


@dataclass(frozen=True)
class Rank:
    """One rank with its model, made as a trial makes it; any number of steps can be taken on it."""

    model: models.RepeatedBlockModel
    config: Mapping[str, Any]
    number: int
    device: torch.device
    progress: Progress

    @classmethod
    def open(cls, folder: Path) -> Rank:
        """Join the group that torchrun's variables describe, as the rank of the spec that lies in `folder`."""
        die_with_parent(signal.SIGKILL)
        number, spec = int(os.environ["RANK"]), read_json(folder / "spec.json")
        config = spec["config"]
        device = sharding.open_device(config["device"])
        asked = spec["settings"]
        settings.apply(thread_variables(config["world"]["threads_per_rank"], asked["env"]), asked["torch"])
        sharding.open_group(device, spec["timeout_min"])
        settings.seed_everything(config["seed"])
        model = models.build(config, device)
        sharding.shard(model, config, device)
        return cls(model, config, number, device, Progress(folder / f"rank{number}.progress"))

    def step(self, level: str, kind: type[TrainingStep] = TrainingStep) -> TrainingStep:
        """The rank's training step, observed at this level."""
        config, model = self.config, self.model
        checksum, function = fingerprints.select(config["checksum"], self.device.type)
        observer = Observer(model, level=level, checksum=checksum, fingerprint=function, progress=self.progress)
        batch = models.batch(config, self.number, self.device)
        return kind(
            model,
            config,
            data=lambda _, __: batch,
            observer=observer,
            faults=Faults(config, rank=self.number, observer=observer),
            stress=Stress(config, model=model, seed=config["seed"], rank=self.number, device=self.device),
            progress=self.progress,
            device=self.device,
        )


def leave() -> None:
    """End this process as detsweep's ranks end: the backends' threads do not always survive the interpreter's end."""
    dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def measure(
    name: str,
    overrides: Sequence[str],
    *,
    repeats: int,
    rounds: int,
    levels: Sequence[str] = LEVELS,
    timeout_s: float | None = None,
) -> list[Figure]:
    """Ratios of each level to observe=off in `repeats` launches of a cell, `rounds` runs of each level in a launch."""
    spec, launches = trial_spec(*overrides), []
    for _ in range(repeats):
        with tempfile.TemporaryDirectory(prefix="detsweep-") as folder:
            write_json(Path(folder) / "spec.json", spec)
            command = torchrun(spec["world_size"], __file__, folder, str(rounds), *levels)
            finish(command, spec, timeout_s=timeout_s)
            launches.append(read_json(Path(folder) / "times.json"))
    off = levels.index("off")
    return [
        ratios(
            "observe",
            f"{name}, {level}, {part}",
            [[(one[own], one[off]) for one in launch[part]] for launch in launches],
            LIMITS[level],
            "ms",
        )
        for own, level in enumerate(levels)
        for part in PARTS
        if level != "off"
    ]


def one_rank(folder: Path, rounds: int, levels: Sequence[str]) -> None:
    """Time every level in turn, and write how long each run took on its slowest rank."""
    rank = Rank.open(folder)
    gc.freeze()
    snapshot = Snapshot.take(rank.model, rank.device)
    arms = [_arm(rank, level, snapshot) for level in levels]
    # (round, level, part)
    times = torch.tensor(in_turn(arms, rounds=rounds, warm_up=_WARM_UP), device=rank.device)
    dist.all_reduce(times, op=dist.ReduceOp.MAX)
    if rank.number == 0:
        write_json(folder / "times.json", {part: times[..., n].tolist() for n, part in enumerate(PARTS)})
    leave()


def _arm(rank: Rank, level: str, snapshot: Snapshot) -> Callable[[], tuple[float, float]]:
    """Runs the step at a level; milliseconds of its forward and backward, and of all with the digests at its end."""
    step = rank.step(level)
    lonely = {"collective_out"} if dist.get_world_size() == 1 else set()

    def run() -> tuple[float, float]:
        snapshot.restore()
        dist.barrier()
        if rank.device.type == "cuda":
            torch.cuda.synchronize(rank.device)
        start = time.perf_counter()
        done = step.observed(0, 1)
        whole = (time.perf_counter() - start) * 1e3
        # Where the backend has no collective to issue for a group of one, there is none to see.
        seen = {record.site for record in done.stream.records} & _KINDS
        assert seen | lonely == _SHOWN[level] | lonely, f"observe={level} has recorded {seen}"
        return done.milliseconds, whole

    return run


if __name__ == "__main__":
    one_rank(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
