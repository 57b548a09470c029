"""How long it takes from captures to the matrix: synthetic sweeps of the reference shape, in three sizes.

Every trial has 8 ranks that observed a step of a model of 24 blocks at observe=block, with gradients, twice; it has
records and nothing else, so that all is judged anew. One trial in twenty diverged. The same is then done line by line
with json in plain Python, without a matrix, for comparison.

    python scripts/analysis_scale.py 248 500 1000
"""

from __future__ import annotations

import argparse
import json
import random
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from measuring import trial_spec

import detsweep
from detsweep.capture import Record, Stream, to_line
from detsweep.dispatch.provenance import open_session
from detsweep.paths import SweepPaths, write_json
from detsweep.plan import Cell, make_plan

RANKS, BLOCKS, TRIALS = 8, 24, 4
WEIGHTS = ("attention.qkv", "attention.out", "attention_norm", "ffn.gate", "ffn.up", "ffn.down", "ffn_norm")
DIVERGED = 20
"""One trial in so many."""


def sequence() -> Iterator[tuple[str, str, int | None, str]]:
    """Site, name, block and phase of the records of a step, in their order."""
    yield from (("rng", "torch", None, "before"), ("input", "input_ids", None, "before"))
    for block in range(BLOCKS):
        yield from ((site, f"blocks.{block}", block, "forward") for site in ("block_pre", "block_post"))
    yield from (("logits", "logits", None, "forward"), ("loss", "loss", None, "forward"))
    for block in reversed(range(BLOCKS)):
        yield from ((site, f"blocks.{block}", block, "backward") for site in ("block_grad_out", "block_grad_in"))
    for block in range(BLOCKS):
        yield from (("grad", f"blocks.{block}.{name}.weight", block, "after") for name in WEIGHTS)
        yield from (("grad", f"blocks.{block}.{name}.bias", block, "after") for name in WEIGHTS)
    yield ("grad", "embedding.weight", None, "after")


class Writer:
    """Writes lines as `to_line` does, from a pattern that it made once."""

    def __init__(self) -> None:
        steps = list(sequence())
        self.records = len(steps)
        marked = [10**18 + seq for seq in range(self.records)]
        rows = [
            Record(seq, site, name, block, "bfloat16", (1, 512, 2048), marked[seq], phase)
            for seq, (site, name, block, phase) in enumerate(steps)
        ]
        line = to_line(Stream(777, 0, "r9", "mixed", tuple(rows)), world_size=RANKS)
        found = re.findall(r"\b1000000000000000\d{3}\b", line)
        self.order = [int(one) - 10**18 for one in found]
        pattern = re.sub(r"\b1000000000000000\d{3}\b", "%d", line.replace("%", "%%"))
        self.pattern = pattern.replace('"rank":777', '"rank":%d').replace('"run":"r9"', '"run":"%s"') + "\n"

    def line(self, rank: int, run: str, digests: list[int]) -> str:
        """A line of a rank with these digests."""
        return self.pattern % (rank, run, *(digests[place] for place in self.order))


def write_captures(folder: Path, trials: int, writer: Writer) -> tuple[int, int]:
    """Write a sweep of so many trials; the numbers of records and of bytes in it."""
    base = trial_spec("model=block24", f"world.nproc_per_node={RANKS}", f"trials={TRIALS}")["config"]
    points = [([f"seed={seed}"], {**base, "seed": seed}) for seed in range(trials // TRIALS)]
    plan = make_plan(points)
    sweep = SweepPaths(folder)
    open_session(sweep, plan, ["-m", f"seed=range({len(points)})"])
    drawn, size, number = random.Random(trials), 0, 0
    for cell in plan.cells:
        write_json(sweep.cell(cell.slug, cell.id, {}).cell, cell.to_json())
        for trial in range(TRIALS):
            size += _write_trial(sweep, cell, trial, writer, drawn, diverged=number % DIVERGED == 0)
            number += 1
    return number * RANKS * 2 * writer.records, size


def _write_trial(
    sweep: SweepPaths, cell: Cell, trial: int, writer: Writer, drawn: random.Random, *, diverged: bool
) -> int:
    paths, size = sweep.cell(cell.slug, cell.id, {}).trial(trial), 0
    paths.folder.mkdir(parents=True)
    for rank in range(RANKS):
        digests = [drawn.getrandbits(64) for _ in range(writer.records)]
        text = writer.line(rank, "r1", digests)
        if diverged and rank == 3:
            digests[40:] = [one ^ 1 for one in digests[40:]]
        text += writer.line(rank, "r2", digests)
        size += paths.records(rank).write_bytes(text.encode())
    return size


def plainly(folder: Path) -> dict[str, str]:
    """The verdict of every trial by json, line by line: each run's records against those of the first."""
    verdicts = {}
    for trial in sorted(folder.glob("cells/*/trial*")):
        verdict = "pass"
        for path in sorted(trial.glob("rank*.jsonl")):
            first: dict[int, list[object]] = {}
            with path.open() as file:
                for line in file:
                    stream = json.loads(line)
                    if stream["records"] != first.setdefault(stream["step"], stream["records"]):
                        verdict = "diverged"
        verdicts[str(trial)] = verdict
    return verdicts


def to_matrix(folder: Path) -> dict[str, str]:
    """The same by detsweep, and with it the matrix."""
    sweep = detsweep.load(folder, recount=True)
    sweep.matrix(value="rate")
    verdicts: dict[str, str] = sweep.trials.set_index("folder")["verdict"].astype(str).to_dict()
    return verdicts


def one_trial(folder: Path) -> int:
    """The records of one trial among all, from the folder on."""
    sweep = detsweep.load(folder)
    trial = sweep.trials.iloc[len(sweep.trials) // 2]
    return len(sweep.records(cell=trial["cell"], trial=int(trial["trial"])))


def all_records(folder: Path) -> int:
    """Every record as one frame."""
    sweep = detsweep.load(folder)
    return len(sweep.records(trial=range(TRIALS)))


TASKS: dict[str, Callable[[Path], object]] = {
    "matrix": to_matrix, "json": plainly, "trial": one_trial, "records": all_records,
}  # fmt: skip


def measure(task: str, folder: Path) -> tuple[float, float, float, str]:
    """Seconds, those on the CPU, and MiB of a task in a process of its own, imports apart, and what it comes to."""
    command = [sys.executable, __file__, "--task", task, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    seconds, processor, memory, came_to = json.loads(done.stdout)
    return seconds, processor, memory, came_to


def _task(task: str, folder: Path) -> None:
    # Imported before the clock runs, as in a notebook.
    import scipy.special  # noqa: F401

    import detsweep.analysis.celltable  # noqa: F401

    begun, busy = time.perf_counter(), time.process_time()
    came_to = TASKS[task](folder)
    seconds, processor = time.perf_counter() - begun, time.process_time() - busy
    if isinstance(came_to, dict):
        came_to = f"{sum(verdict == 'diverged' for verdict in came_to.values())} of {len(came_to)} trials diverged"
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps([seconds, processor, peak, str(came_to)]))


def main() -> int:
    """Measure each size in a folder of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trials", nargs="*", type=int, default=[248, 500, 1000], help="numbers of trials")
    parser.add_argument("--task", choices=TASKS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    if sys.argv[1:2] == ["--task"]:
        _task(sys.argv[2], Path(sys.argv[3]))
        return 0
    writer = Writer()
    print(f"{'trials':>7} {'records':>10} {'MB':>6}  {'task':<8} {'seconds':>8} {'CPU s':>7} {'MiB':>6}")
    for trials in parser.parse_args().trials:
        if trials % TRIALS:
            parser.error(f"{trials}: must be a multiple of {TRIALS}, the trials of a cell")
        with tempfile.TemporaryDirectory(prefix="detsweep-scale-") as scratch:
            records, size = write_captures(Path(scratch), trials, writer)
            for task in TASKS:
                seconds, processor, memory, came_to = measure(task, Path(scratch))
                counts = f"{trials:>7} {records:>10} {size / 1e6:>6.0f}"
                print(f"{counts}  {task:<8} {seconds:>8.2f} {processor:>7.2f} {memory:>6.0f}  {came_to}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
