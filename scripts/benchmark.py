"""What detsweep costs, each figure taken within one run and held against its limit; leaves with 1 if one is missed.

observe      time of a replayed step with observe=block over that with observe=off, model=small, 2 gloo ranks
fingerprint  throughput of the default fingerprint on CPU over that of bitsum, one thread
memory       peak memory of each fingerprint beyond the tensor itself
sweep        time of a sweep of four tiny cells over that of four torchrun launches that do nothing

Arms that are compared take turns, and take turns at being first, so that a machine that warms up, drifts or has other
work favours neither. What is held against the limit is the median over all repetitions.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from rich.console import Console
from rich.table import Table

from detsweep import fingerprints, schema
from detsweep.dispatch.torchrun import environment_of
from detsweep.paths import conf_dir, read_json, write_json
from detsweep.plan import make_plan
from detsweep.worker import model as models
from detsweep.worker import settings, sharding
from detsweep.worker.faults import Fault
from detsweep.worker.observe import Observer
from detsweep.worker.progress import Progress
from detsweep.worker.replay import Replay
from detsweep.worker.snapshot import Snapshot

T = TypeVar("T")
Pairs = list[tuple[float, float]]
MIB = 1 << 20
PAIRS = 20  # runs of each arm in one launch of `observe`
PARTS = ("forward and backward", "whole run")
BARE_RANK = """\
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
dist.destroy_process_group()
"""


@dataclass(frozen=True)
class Figure:
    """One figure over all repetitions, the limit that its median must keep, and the two medians it was made of."""

    name: str
    case: str
    values: list[float]
    limit: float
    at_least: bool = False
    unit: str = ""
    detail: str = ""

    @property
    def kept(self) -> bool:
        return median(self.values) >= self.limit if self.at_least else median(self.values) <= self.limit


def trial_spec(*overrides: str) -> dict[str, Any]:
    """What a rank of this cell reads, composed from conf/ as the command line does it."""
    schema.register()
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        config: Any = OmegaConf.to_container(compose("config", ["device=cpu", *overrides]), resolve=True)
    plan = make_plan([(overrides, config)])
    assert not plan.problems, plan.problems
    return plan.cells[0].spec(0)


def torchrun(script: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", script, *arguments]


def finish(command: Sequence[str], spec: Mapping[str, Any]) -> str:
    """Run a command in the environment of a trial, number of threads included, and return what it printed."""
    variables = environment_of(spec, os.environ, ()).variables
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} left with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def inner(what: str, *arguments: str) -> Any:
    """What a fresh process with a trial's environment measures."""
    return json.loads(finish([sys.executable, __file__, "--inner", what, *arguments], trial_spec()))


def in_turn(first: Callable[[], T], second: Callable[[], T], *, pairs: int, warm_up: int) -> list[tuple[T, T]]:
    """What both return, `pairs` times over after `warm_up` pairs that do not count."""
    arms, found = (first, second), []
    for number in range(warm_up + pairs):
        order = (0, 1) if number % 2 == 0 else (1, 0)
        taken = {arm: arms[arm]() for arm in order}
        found.append((taken[0], taken[1]))
    return found[warm_up:]


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def ratios(name: str, case: str, groups: list[Pairs], limit: float, unit: str, *, at_least: bool = False) -> Figure:
    """Of each group the median ratio of its pairs, whose two sides are neighbours in time."""
    values = [median(own / other for own, other in pairs) for pairs in groups]
    own, other = (median(side) for side in zip(*(pair for pairs in groups for pair in pairs), strict=True))
    return Figure(name, case, values, limit, at_least, detail=f"{own:.2f} {unit} / {other:.2f} {unit}")


def observe(repeats: int) -> list[Figure]:
    figures = []
    for dtype in ("bf16", "fp32"):
        spec = trial_spec("model=small", f"dtype={dtype}")
        launches = []
        for _ in range(repeats):
            with tempfile.TemporaryDirectory(prefix="detsweep-") as folder:
                write_json(Path(folder) / "spec.json", spec)
                finish(torchrun(__file__, "--inner", "ranks", folder), spec)
                launches.append(read_json(Path(folder) / "times.json"))
        figures += [
            ratios("observe", f"{dtype}, {part}", [launch[part] for launch in launches], 1.05, "ms") for part in PARTS
        ]
    return figures


def ranks(folder: str) -> None:
    """One rank of `observe`: both levels on one model in one process, made as detsweep.worker.rank makes a cell."""
    rank, spec = int(os.environ["RANK"]), read_json(Path(folder) / "spec.json")
    config = spec["config"]
    device = sharding.open_device(config["device"])
    settings.apply(spec["settings"]["torch"])
    sharding.open_group(device, spec["timeout_min"])
    settings.seed_everything(config["seed"])
    model = models.build(config, device)
    sharding.shard(model, config, device)
    progress = Progress(Path(folder) / f"rank{rank}.progress")
    checksum, function = fingerprints.select(config["checksum"], device.type)
    fault = Fault(config["fault"], rank=rank, vocab_size=config["model"]["vocab_size"])
    batch, mode = models.batch(config, rank, device), config["checksum_mode"]

    def arm(level: str) -> Callable[[], tuple[float, float]]:
        observer = Observer(model, level=level, checksum=checksum, fingerprint=function, progress=progress)
        replay = Replay(
            model, batch, observer=observer, fault=fault, progress=progress, device=device, checksum_mode=mode
        )

        def run() -> tuple[float, float]:
            snapshot.restore()
            dist.barrier()
            start = time.perf_counter()
            # One run by itself: `steps` would add unobserved runs and snapshots of its own to both arms.
            done = replay.observed_run(0, 1)
            whole = (time.perf_counter() - start) * 1e3
            assert bool(done.stream.digests("block_pre")) == (level != "off")
            return done.milliseconds, whole

        return run

    gc.freeze()
    snapshot = Snapshot.take(model, device)
    # (pair, arm, part); a run has taken as long as on its slowest rank.
    times = torch.tensor(in_turn(arm("block"), arm("off"), pairs=PAIRS, warm_up=3))
    dist.all_reduce(times, op=dist.ReduceOp.MAX)
    if rank == 0:
        write_json(Path(folder) / "times.json", {part: times[..., n].tolist() for n, part in enumerate(PARTS)})
    dist.destroy_process_group()
    # As detsweep's ranks leave: gloo's threads do not always survive the interpreter's own end.
    os._exit(0)


def fingerprint(repeats: int) -> list[Figure]:
    checksum = trial_spec()["config"]["checksum"]
    figures = []
    for dtype in ("float32", "bfloat16"):
        name, speeds = inner("throughput", checksum, dtype, str(repeats))
        groups = [[pair] for pair in speeds]
        figures.append(ratios("fingerprint", f"{name} / bitsum, {dtype}", groups, 10.0, "GB/s", at_least=True))
    return figures


def throughput(checksum: str, dtype: str, repeats: str) -> tuple[str, Pairs]:
    """What `checksum` stands for on CPU, and its GB/s and bitsum's in turn over one tensor of 64 MiB."""
    torch.set_num_threads(1)
    of_dtype = getattr(torch, dtype)
    tensor = torch.randn(64 * MIB // of_dtype.itemsize).to(of_dtype)
    name, own = fingerprints.select(checksum, "cpu")

    def speed(function: Callable[[torch.Tensor], fingerprints.Digest]) -> Callable[[], float]:
        return lambda: tensor.nbytes / seconds(lambda: function(tensor)) / 1e9

    return name, in_turn(speed(own), speed(fingerprints.bitsum), pairs=int(repeats), warm_up=1)


def memory(repeats: int) -> list[Figure]:
    figures = []
    for checksum in ("xxh3", "mixed", "bitsum"):
        for case in ("float32 1024 MiB", "float32 512 MiB transposed", "int8 256 MiB"):
            values = [inner("peak", checksum, case) for _ in range(repeats)]
            figures.append(Figure("memory", f"{checksum}, {case}", values, 64.0, unit="MiB"))
    return figures


def peak(checksum: str, case: str) -> float:
    """MiB by which this process grew at most while it took its first fingerprint.

    VmHWM is the kernel's own record of the most that was resident, so no short-lived temporary can hide between two
    looks; writing 5 to clear_refs sets it back to what is resident now. ru_maxrss cannot be set back: it would hide
    what fingerprinting takes behind what making the tensor took. All pages of the tensor have been written before, so
    the starting value holds them; what the first call loads or keeps counts.
    """
    dtype, size, _, *transposed = case.split()
    of_dtype = getattr(torch, dtype)
    tensor = torch.ones(4096, int(size) * MIB // 4096 // of_dtype.itemsize, dtype=of_dtype)
    tensor = tensor.t() if transposed else tensor
    _, function = fingerprints.select(checksum, "cpu")
    Path("/proc/self/clear_refs").write_text("5")
    before = _resident("VmRSS")
    assert abs(_resident("VmHWM") - before) < 1, "the kernel did not set VmHWM back"
    fingerprints.collect([function(tensor)])
    return _resident("VmHWM") - before


def _resident(field: str) -> float:
    return int(re.findall(rf"^{field}:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)[0]) / 1024


def sweep(repeats: int) -> list[Figure]:
    spec = trial_spec()
    with tempfile.TemporaryDirectory(prefix="detsweep-") as scratch:
        script = Path(scratch) / "bare.py"
        script.write_text(BARE_RANK)

        def cells() -> None:
            command = [sys.executable, "-m", "detsweep", "-m", "device=cpu", "dtype=bf16,fp16", "experts=1,4"]
            finish([*command, f"folder={tempfile.mkdtemp(dir=scratch)}"], spec)

        def launches() -> None:
            for _ in range(4):
                finish(torchrun(str(script)), spec)

        pairs = in_turn(lambda: seconds(cells), lambda: seconds(launches), pairs=max(3, repeats), warm_up=0)
    return [ratios("sweep", "4 cells / 4 bare launches", [[pair] for pair in pairs], 1.5, "s")]


FIGURES: dict[str, Callable[[int], list[Figure]]] = {f.__name__: f for f in (observe, fingerprint, memory, sweep)}
INNER: dict[str, Callable[..., Any]] = {f.__name__: f for f in (ranks, throughput, peak)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=FIGURES, action="append", help="measure this one; may be given again")
    parser.add_argument("--repeats", type=int, default=5, metavar="N", help="default: 5; sweep takes at least 3")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all figures with all their values")
    parser.add_argument("--inner", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.inner:
        print(json.dumps(INNER[arguments.inner[0]](*arguments.inner[1:])))
        return 0
    if arguments.repeats < 1:
        parser.error("--repeats must be at least 1")
    figures: list[Figure] = []
    for name in arguments.only or FIGURES:
        print(f"measuring {name} ...", file=sys.stderr)
        figures += FIGURES[name](arguments.repeats)
    table = Table("figure", "case", "median", "min", "max", "limit", "", "medians of both sides")
    for figure in figures:
        numbers = (f"{of(figure.values):.3f}" for of in (median, min, max))
        limit = f"{'>=' if figure.at_least else '<='} {figure.limit:g} {figure.unit}"
        table.add_row(figure.name, figure.case, *numbers, limit, "ok" if figure.kept else "missed", figure.detail)
    Console(width=128).print(table)
    if arguments.json:
        rows = [{**asdict(figure), "median": median(figure.values), "kept": figure.kept} for figure in figures]
        write_json(arguments.json, {"repeats": arguments.repeats, "figures": rows})
    return 0 if all(figure.kept for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
