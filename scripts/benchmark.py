"""What detsweep costs, each figure taken within one run and held against its limit; leaves with 1 if one is missed.

observe      time of a replayed step at each level of observation over that with observe=off, model=small, 2 gloo ranks
records      bytes of the records of one rank and run, 24 layers, observe=block
fingerprint  throughput of the default fingerprint on CPU over that of bitsum, one thread
memory       peak memory of each fingerprint beyond the tensor itself
recording    time of a recorded step over that of a plain one, and bytes written over those that collectives delivered
replay       time of the replay of one rank over that of the run of all four
sweep        time of a sweep of four tiny cells over that of four torchrun launches that do nothing

Arms that are compared take turns, and take turns at being first, so that a machine that warms up, drifts or has other
work favours none. What is held against the limit is the median over all repetitions.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import levels
import tapes
import torch
from measuring import Figure, end_in_order, finish, in_turn, ratios, seconds, torchrun, trial_spec
from rich.console import Console
from rich.table import Table

from detsweep import fingerprints
from detsweep.paths import write_json

MIB = 1 << 20
ROUNDS = 20  # runs of each level in one launch of `observe`
BARE_RANK = """\
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
dist.destroy_process_group()
"""


def inner(what: str, *arguments: str) -> Any:
    """What a fresh process with a trial's environment measures."""
    return json.loads(finish([sys.executable, __file__, "--inner", what, *arguments], trial_spec()))


def observe(repeats: int) -> list[Figure]:
    figures = []
    for dtype in ("bf16", "fp32"):
        overrides = ("model=small", f"dtype={dtype}")
        figures += levels.measure(dtype, overrides, repeats=repeats, rounds=ROUNDS)
    return figures


def records(_: int) -> list[Figure]:
    """Once is enough: how many records there are depends on the layers alone, not on sizes, and not on luck."""
    with tempfile.TemporaryDirectory(prefix="detsweep-") as folder:
        cell = ["device=cpu", "model.num_layers=24", "observe=block", f"folder={folder}"]
        finish([sys.executable, "-m", "detsweep", *cell], trial_spec())
        sizes = [
            len(line) / 1e6
            for file in Path(folder).glob("cells/*/trial0/rank*.jsonl")
            for line in file.read_bytes().splitlines(keepends=True)
        ]
    return [Figure("records", "24 layers, largest of 2 ranks and runs", [max(sizes)], 1.0, unit="MB")]


def fingerprint(repeats: int) -> list[Figure]:
    checksum = trial_spec()["config"]["checksum"]
    figures = []
    for dtype in ("float32", "bfloat16"):
        name, speeds = inner("throughput", checksum, dtype, str(repeats))
        groups = [[pair] for pair in speeds]
        figures.append(ratios("fingerprint", f"{name} / bitsum, {dtype}", groups, 10.0, "GB/s", at_least=True))
    return figures


def throughput(checksum: str, dtype: str, repeats: str) -> tuple[str, list[tuple[float, ...]]]:
    """What `checksum` stands for on CPU, and its GB/s and bitsum's in turn over one tensor of 64 MiB."""
    torch.set_num_threads(1)
    of_dtype = getattr(torch, dtype)
    tensor = torch.randn(64 * MIB // of_dtype.itemsize).to(of_dtype)
    name, own = fingerprints.select(checksum, "cpu")

    def speed(function: Callable[[torch.Tensor], fingerprints.Digest]) -> Callable[[], float]:
        return lambda: tensor.nbytes / seconds(lambda: function(tensor)) / 1e9

    return name, in_turn([speed(own), speed(fingerprints.bitsum)], rounds=int(repeats), warm_up=1)


def memory(repeats: int) -> list[Figure]:
    figures = []
    for checksum in ("xxh3", "sha256", "mixed", "bitsum"):
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
                finish(torchrun(2, str(script)), spec)

        pairs = in_turn([lambda: seconds(cells), lambda: seconds(launches)], rounds=max(3, repeats), warm_up=0)
    return [ratios("sweep", "4 cells / 4 bare launches", [[pair] for pair in pairs], 1.5, "s")]


def recording(repeats: int) -> list[Figure]:
    figures = []
    for model in ("tiny", "small"):
        figures += tapes.measure(f"model={model}", (f"model={model}", "dtype=fp32"), repeats=repeats, rounds=ROUNDS)
    return figures


FIGURES: dict[str, Callable[[int], list[Figure]]] = {
    f.__name__: f for f in (observe, records, fingerprint, memory, recording, tapes.replay, sweep)
}
INNER: dict[str, Callable[..., Any]] = {f.__name__: f for f in (throughput, peak)}


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
    end_in_order()
    sys.exit(main())
