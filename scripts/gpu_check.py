"""Everything that needs a GPU, unattended and within minutes; leaves with 0 only if nothing failed.

faults    a fault campaign with one rank: every fault is found, in its place, and nothing where there is none
atomics   experts' outputs combined by atomic additions: the race shows and is named, and is cured
levels    step time of each level of observation over that with observe=off, against the limits of the benchmark
waits     torch's profiler over one observed run: nothing waits for the device before the run is over
tests     pytest -m gpu

`--device cpu` rehearses the same with gloo and small sizes. A check that fails, or cannot be made, stops no other.
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gpu_profile
import levels
import torch
from gpu_judges import (
    FAIL,
    Outcome,
    judge_atomics,
    judge_effects,
    judge_faults,
    judge_levels,
    judge_tests,
    judge_waits,
    last_line,
)
from measuring import Figure, clean_environment, end_in_order, run_command

import detsweep
from detsweep.analysis.control import campaign
from detsweep.analysis.costs import cost_words
from detsweep.injections import KINDS, can_strike
from detsweep.paths import write_json

if TYPE_CHECKING:
    from detsweep.analysis import Sweep

ACCUMULATING = ("index_add", "scatter_add", "index_put")


@dataclass(frozen=True)
class Sizes:
    """How large the checks are on a type of device; `races` is a model in which many additions meet."""

    faults: tuple[int, int]
    races: tuple[str, ...]
    replays: tuple[str, ...]
    levels: Mapping[str, tuple[str, ...]]
    rounds: int


# 65536 results of four additions each: few enough that all additions are under way at once, and so meet. A vocabulary
# of 64 gives a row of the embedding's gradient eight.
_GPU = Sizes(
    faults=(231, 49),
    races=("model.hidden_size=128", "model.ffn_size=128", "model.seq_len=256", "model.num_layers=4"),
    replays=("steps=20", "runs=3"),
    levels={
        "block24 bf16": ("model=block24", "dtype=bf16"),
        "block24 fp32": ("model=block24", "dtype=fp32"),
        # Where the device has enough to do that launching kernels takes none of its time.
        "wide bf16": (
            "model=block24", "dtype=bf16", "model.num_layers=4", "model.hidden_size=4096", "model.ffn_size=11264",
            "model.num_heads=32", "model.seq_len=1024", "model.batch_size=8", "model.attention=sdpa",
        ),
    },
    rounds=8,
)  # fmt: skip
_CPU = Sizes(
    faults=(231, 13),
    races=("model.hidden_size=128", "model.ffn_size=352", "model.seq_len=128", "model.num_layers=2",
           "world.threads_per_rank=2"),
    replays=("steps=10", "runs=3"),
    levels={"small fp32": ("model=small", "dtype=fp32")},
    rounds=5,
)  # fmt: skip


@dataclass(frozen=True)
class Bench:
    """Where and for how long checks are made; `ends` is on the clock of time.monotonic."""

    device: str
    out: Path
    ends: float

    @property
    def sizes(self) -> Sizes:
        return _GPU if self.device == "cuda" else _CPU

    @property
    def common(self) -> tuple[str, ...]:
        return f"device={self.device}", "world.nproc_per_node=1"

    def left(self, most: float) -> float:
        """Seconds for a command that may take `most`; raises TimeoutError where no time is left at all."""
        left = min(most, self.ends - time.monotonic())
        if left < 10:
            raise TimeoutError("no time is left for it; give it more with --minutes")
        return left

    def sweep(self, name: str, *words: str, timeout_s: float) -> Sweep:
        """What the command line makes of these words, in a folder of that name."""
        folder, limit = self.out / name, self.left(timeout_s)
        command = [sys.executable, "-m", "detsweep", *words, *self.common, f"folder={folder}"]
        done = run_command(command, clean_environment(), timeout_s=limit)
        (self.out / f"{name}.txt").write_text(done.out + done.err)
        if done.code not in (0, 1):
            how = f"was ended after {limit:.0f} s" if done.code is None else f"left with {done.code}"
            raise RuntimeError(f"{name}: detsweep {how}: {last_line(done.err) or last_line(done.out)}")
        return detsweep.load(folder)


def faults(bench: Bench) -> Outcome:
    """Two campaigns, the second with the faults that only the closest level of observation can see."""
    # A real race is no fault of the detector's: the recipe cures those that it can.
    cell = ("fault=campaign", "mitigation=recipe", "experts=4", "model.num_layers=3", "model.seq_len=16",
            "model.dropout=0.1")  # fmt: skip
    many, few = bench.sizes.faults
    found = [
        bench.sweep("faults", *cell, "observe=collective", f"steps={many + 1}", "runs=3", timeout_s=200),
        bench.sweep("faults-op", *cell, "observe=op", f"steps={few + 1}", "runs=2", timeout_s=100),
    ]
    return judge_faults([fault_counts(sweep) for sweep in found])


def fault_counts(sweep: Sweep) -> dict[str, Any]:
    """How a campaign went: its kinds, those that its cell can have, and its clean comparisons."""
    (config,) = sweep.configs.values()
    table = campaign(sweep)
    return {
        "verdict": str(sweep.trials["verdict"].iloc[0]),
        "expected": [kind for kind in KINDS if can_strike(kind, config)],
        "kinds": {row["kind"]: {key: int(row[key]) for key in ("put_in", "detected", "placed")}
                  for _, row in table.iterrows()},
        "not_put_in": int(sweep.injections["detected"].isna().sum()),
        "clean": int(sweep.trials["clean_comparisons"].sum()),
        "false_alarms": int(sweep.trials["false_alarms"].sum()),
    }  # fmt: skip


def atomics(bench: Bench) -> Outcome:
    """Experts' outputs combined in each way, and the backwards of two embeddings; all fp32, where each addend shows."""
    shape = ("dtype=fp32", *bench.sizes.races, *bench.sizes.replays)
    experts = ("experts=4", "moe=topk", "top_k=4")
    combines = f"moe.combine={','.join(ACCUMULATING)}"
    parts = {
        "races": ("-m", *experts, combines, "mitigation=none", "drill=true"),
        "cured": (*experts, "moe.combine=ordered", "mitigation=recipe"),
        "backward": ("-m", "model.embedding=index,module", "model.vocab_size=64", "mitigation=none"),
    }
    rows: list[dict[str, Any]] = []
    errors = []
    for part, words in parts.items():
        try:
            found = bench.sweep(part, *words, *shape, timeout_s=200)
            rows += ({"part": part, **row} for row in race_rows(found))
        except (RuntimeError, TimeoutError) as error:
            errors.append(str(error))
    return judge_atomics(rows, errors)


def race_rows(sweep: Sweep) -> Iterator[dict[str, Any]]:
    """What each cell showed, and the operator that a closer look at it named."""
    for _, trial in sweep.trials.iterrows():
        config, drill = sweep.configs[trial["cell"]], sweep.drills.get(trial["cell"])
        closer = {} if drill is None else drill.first
        combined = config["moe"]["combine"] if config["experts"] > 1 else f"embedding={config['model']['embedding']}"
        yield {
            "cell": combined,
            "verdict": str(trial["verdict"]),
            "replays": trial["replays"],
            "diverged": trial["diverged_replays"],
            "first": trial["first_name"],
            "error": trial["error"],
            "drill": None if drill is None else drill.verdict,
            "operator": closer.get("first_name") if closer.get("first_site") == "op" else None,
            "cause": closer.get("cause"),
        }


def effects(bench: Bench) -> Outcome:
    """What becomes of mitigations whose effect a GPU, NCCL or cuBLAS can show, and what they cost."""
    names = ("none", "torch_det", "nccl_ring", "cublas_ws", "cudnn_det", "cpu_1thread")
    model = "small" if bench.device == "cuda" else "tiny"
    cell = ("mitigation_force=true", "trials=3", "steps=5", f"model={model}")
    words = ("-m", f"mitigation={','.join(names)}", *cell)
    found = bench.sweep("mitigations", *words, timeout_s=240)
    rows = found.effects.drop_duplicates(["mitigation", "setting"])
    costs = {row["mitigation"]: cost_words(row) for _, row in found.costs.iterrows()}
    return judge_effects(rows.to_dict("records"), costs, bench.device)


def level_times(bench: Bench) -> Outcome:
    """Each model on its own: what does not fit, or takes too long, leaves the others their figures."""
    figures: list[Figure] = []
    errors = []
    for name, overrides in bench.sizes.levels.items():
        words = (*overrides, *bench.common)
        try:
            limit = bench.left(100)
            figures += levels.measure(name, words, repeats=1, rounds=bench.sizes.rounds, timeout_s=limit)
        except (RuntimeError, TimeoutError) as error:
            errors.append(f"{name}: {last_line(str(error))}")
    return judge_levels(figures, errors)


def waits(bench: Bench) -> Outcome:
    """A dense model: one with experts has to wait to know how many tokens each of them gets."""
    cell = ("model=small", "model.num_layers=2", "dtype=bf16", *bench.common)
    found = {
        level: gpu_profile.profile(level, (*cell, f"observe={level}"), timeout_s=bench.left(90))
        for level in ("block", "op")
    }
    return judge_waits(found, bench.device)


def tests(bench: Bench) -> Outcome:
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "tests"]
    done = run_command(command, clean_environment(), timeout_s=bench.left(150))
    (bench.out / "tests.txt").write_text(done.out + done.err)
    return judge_tests(done.code, done.out, bench.device)


CHECKS: dict[str, Callable[[Bench], Outcome]] = {
    "faults": faults,
    "atomics": atomics,
    "effects": effects,
    "levels": level_times,
    "waits": waits,
    "tests": tests,
}


def attempt(name: str, bench: Bench) -> Outcome:
    """A check's outcome; what it raises is one too."""
    try:
        return CHECKS[name](bench)
    except Exception as error:
        (bench.out / f"{name}.traceback.txt").write_text(traceback.format_exc())
        lines = str(error).strip().splitlines() or [""]
        return Outcome(FAIL, f"could not be made: {type(error).__name__}: {lines[0]}", details=lines[1:][-20:])


def _machine(device: str) -> dict[str, Any]:
    machine = {"device": device, "torch": torch.__version__, "python": platform.python_version()}
    tool = shutil.which("nvidia-smi") if device == "cuda" else None
    if tool:
        asked = [tool, "--query-gpu=name,driver_version", "--format=csv,noheader"]
        machine["gpu"] = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    return machine


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="default: cuda")
    parser.add_argument("--out", type=Path, default=Path("gpu-check"), metavar="FOLDER", help="default: gpu-check")
    parser.add_argument("--only", choices=CHECKS, action="append", help="make this check; may be given again")
    parser.add_argument("--minutes", type=float, default=8.0, metavar="N", help="for all of it; default: 8")
    given = parser.parse_args(arguments)
    out = given.out.absolute()
    if out.exists() and any(out.iterdir()):
        parser.error(f"--out {given.out}: holds files already; name a new or an empty folder")
    out.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    bench = Bench(given.device, out, started + given.minutes * 60)
    report: dict[str, Any] = {"machine": _machine(given.device), "checks": []}
    print(json.dumps(report["machine"]), flush=True)
    for name in given.only or CHECKS:
        begun = time.monotonic()
        outcome = attempt(name, bench)
        took = time.monotonic() - begun
        print(f"{outcome.status} {name} ({took:.0f} s): {outcome.text}", flush=True)
        for line in outcome.details:
            print(f"     {line}", flush=True)
        report["checks"].append({"name": name, "seconds": took, **asdict(outcome)})
        report["seconds"] = time.monotonic() - started
        # After each of them: whatever ends this process, what is known by then is kept.
        write_json(out / "report.json", report)
    failed = [check["name"] for check in report["checks"] if check["status"] == FAIL]
    print(f"{len(report['checks'])} checks in {report['seconds']:.0f} s, {len(failed)} failed; {out / 'report.json'}")
    return 1 if failed else 0


if __name__ == "__main__":
    end_in_order()
    sys.exit(main())
