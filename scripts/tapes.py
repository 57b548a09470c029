"""What recording costs: the plain step against the same step recorded, in turn in one process of each rank.

`measure` starts the ranks; run as a script this file is one of these ranks. A recorded step is timed whole: with the
digests and copies that are taken of its collectives, and the log that is written at its end.
"""

from __future__ import annotations

import gc
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from levels import Rank, leave
from measuring import ROOT, Figure, clean_environment, finish, in_turn, ratios, seconds, torchrun, trial_spec

from detsweep import fingerprints
from detsweep.paths import RankRecordingPaths, RecordingPaths, read_json, write_json
from detsweep.recording import RankRecording
from detsweep.worker.recorder import Options, Recorder
from detsweep.worker.snapshot import Snapshot

PAYLOADS = ("digest", "outputs")
LIMITS = {"digest": 1.10, "outputs": 1.50}
_WARM_UP = 2


def measure(name: str, overrides: Sequence[str], *, repeats: int, rounds: int) -> list[Figure]:
    """Ratios of recorded steps to plain ones in `repeats` launches, and the bytes that were written for them."""
    spec, launches = trial_spec(*overrides), []
    for _ in range(repeats):
        with tempfile.TemporaryDirectory(prefix="detsweep-") as folder:
            write_json(Path(folder) / "spec.json", spec)
            finish(torchrun(spec["world_size"], __file__, folder, str(rounds)), spec)
            launches.append(read_json(Path(folder) / "times.json"))
    figures = [
        ratios(
            "recording",
            f"{name}, record.payload={payload}",
            [[(one[own], one[0]) for one in launch["times"]] for launch in launches],
            LIMITS[payload],
            "ms",
        )
        for own, payload in enumerate(PAYLOADS, start=1)
    ]
    written, outputs = launches[0]["written"], launches[0]["outputs"]
    detail = f"{written} / {outputs} bytes a step"
    return [*figures, Figure("recording", f"{name}, written/delivered", [written / outputs], 1.05, detail=detail)]


def replay(repeats: int) -> list[Figure]:
    """Wall time of the replay of one rank over that of the run of all four, each as a command of its own."""
    spec = trial_spec()
    with tempfile.TemporaryDirectory(prefix="detsweep-") as scratch:
        words = ["mode=record", "steps=20", "world.nproc_per_node=4", "device=cpu", "warmup=0"]

        def run() -> Path:
            folder = Path(tempfile.mkdtemp(dir=scratch))
            finish([sys.executable, "-m", "detsweep", *words, f"folder={folder}"], spec)
            return folder

        recorded = run()
        command = [sys.executable, "-m", "detsweep.replay", str(recorded), "--rank", "3"]

        def alone() -> None:
            subprocess.run(command, cwd=ROOT, env=clean_environment(), check=True, capture_output=True)

        pairs = in_turn([lambda: seconds(alone), lambda: seconds(run)], rounds=max(3, repeats), warm_up=0)
    return [ratios("replay", "one rank alone / the run of 4", [[pair] for pair in pairs], 1.0, "s")]


def one_rank(folder: Path, rounds: int) -> None:
    """Time plain and recorded steps in turn, and write how long each took on its slowest rank."""
    rank = Rank.open(folder)
    gc.freeze()
    snapshot = Snapshot.take(rank.model, rank.device)
    recorded = {payload: folder / payload for payload in PAYLOADS}
    arms = [_plain(rank, snapshot), *(_recorded(rank, snapshot, payload, recorded[payload]) for payload in PAYLOADS)]
    times = torch.tensor(in_turn(arms, rounds=rounds, warm_up=_WARM_UP), device=rank.device)
    dist.all_reduce(times, op=dist.ReduceOp.MAX)
    if rank.number == 0:
        write_json(folder / "times.json", {"times": times.tolist(), **_bytes(recorded["outputs"])})
    dist.barrier()
    leave()


def _timed(rank: Rank, snapshot: Snapshot, work: Callable[[], object]) -> Callable[[], float]:
    def run() -> float:
        snapshot.restore()
        dist.barrier()
        start = time.perf_counter()
        work()
        if rank.device.type == "cuda":
            torch.cuda.synchronize(rank.device)
        return (time.perf_counter() - start) * 1e3

    return run


def _plain(rank: Rank, snapshot: Snapshot) -> Callable[[], float]:
    step = rank.step("off")
    return _timed(rank, snapshot, lambda: step.plain(0))


def _recorded(rank: Rank, snapshot: Snapshot, payload: str, folder: Path) -> Callable[[], float]:
    step, numbers = rank.step("off"), iter(range(10**6))
    checksum, fingerprint = fingerprints.select("auto", rank.device.type)
    observer = step.observer
    recorder = Recorder(
        observer.collectives,
        RecordingPaths(folder).rank(rank.number),
        Options(payload=payload),
        rank=rank.number,
        checksum=checksum,
        fingerprint=fingerprint,
        position=observer.position,
        device=rank.device,
    )

    def work() -> None:
        with recorder.step(next(numbers), rank.model, None):
            step.plain(0)

    run = _timed(rank, snapshot, work)
    # The first step takes the snapshot, which is not what a step costs.
    run()
    return run


def _bytes(folder: Path) -> dict[str, Any]:
    """Bytes on disk of a step of one rank, and of what its collectives delivered."""
    paths: RankRecordingPaths = RecordingPaths(folder).rank(0)
    own = RankRecording(paths, 0, {})
    number = own.numbers[1]
    step = own.step(number)
    outputs = sum(len(step.bytes_of(call, side)) for call in step.calls for side in call.outputs)
    return {
        "written": sum(path.stat().st_size for path in (paths.log(number), paths.payload(number))),
        "outputs": outputs,
    }


if __name__ == "__main__":
    one_rank(Path(sys.argv[1]), int(sys.argv[2]))
