"""What measurements have in common: cells as the command line composes them, commands that end in time, figures."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from detsweep import schema
from detsweep.dispatch.torchrun import environment_of
from detsweep.environment import visible_gpus
from detsweep.paths import TrialPaths, conf_dir
from detsweep.plan import make_plan

T = TypeVar("T")
ROOT = Path(__file__).resolve().parents[1]
# What a command has to end its own processes in once it is told to: detsweep gives its trials 40 seconds.
LAST_SECONDS = 60.0


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


@dataclass(frozen=True)
class Ended:
    """A command that has ended; `code` is None where it had to be ended."""

    code: int | None
    out: str
    err: str


def run_command(command: Sequence[str], variables: Mapping[str, str], *, timeout_s: float | None = None) -> Ended:
    """Run a command from the repository's root; at its time limit it is told to end, and killed if it does not."""
    # In a session of its own, so that nothing that it has started can outlive the kill.
    with subprocess.Popen(
        command, cwd=ROOT, env=variables, text=True, stdin=subprocess.DEVNULL, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        try:
            out, err = process.communicate(timeout=timeout_s)
            return Ended(process.returncode, out, err)
        except subprocess.TimeoutExpired:
            out, err = _end(process)
            return Ended(None, out, err)
        except BaseException:
            _end(process)
            raise


def _end(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Told to, it ends its own processes first, which are in sessions of their own as often as not."""
    process.terminate()
    try:
        return process.communicate(timeout=LAST_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.communicate()


def end_in_order() -> None:
    """Let a signal that ends this process (`timeout` sends TERM) end the command that it has started first."""

    def end(number: int, _: object) -> None:
        sys.exit(128 + number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)


def clean_environment() -> dict[str, str]:
    """The shell's environment without what would change a command; the package is this checkout's."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("HYDRA_", "DETSWEEP_"))}
    return {**variables, "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), variables.get("PYTHONPATH"))))}


def trial_spec(*overrides: str) -> dict[str, Any]:
    """What a rank of this cell reads, composed from conf/ as the command line does it; on the CPU unless said."""
    schema.register()
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        config: Any = OmegaConf.to_container(compose("config", ["device=cpu", *overrides]), resolve=True)
    plan = make_plan([(overrides, config)])
    assert not plan.problems, plan.problems
    return plan.cells[0].spec(0)


def torchrun(ranks: int, script: str, *arguments: str) -> list[str]:
    own = ["-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1", f"--nproc-per-node={ranks}"]
    return [sys.executable, *own, script, *arguments]


def finish(command: Sequence[str], spec: Mapping[str, Any], *, timeout_s: float | None = None) -> str:
    """Run a command in the environment of a trial, number of threads included, and return what it printed."""
    gpus = visible_gpus() if spec["config"]["device"] == "cuda" else ()
    # The kernels that it compiles are its own, as a trial's are, and go with it.
    with tempfile.TemporaryDirectory(prefix="detsweep-") as scratch:
        variables = environment_of(spec, clean_environment(), gpus, TrialPaths(Path(scratch) / "trial0")).variables
        done = run_command(command, variables, timeout_s=timeout_s)
    if done.code != 0:
        how = f"was ended after {timeout_s:.0f} s" if done.code is None else f"left with {done.code}"
        raise RuntimeError(f"{' '.join(command)} {how}:\n{done.out}{done.err}")
    return done.out


def in_turn(arms: Sequence[Callable[[], T]], *, rounds: int, warm_up: int) -> list[tuple[T, ...]]:
    """What all arms return, `rounds` times over after `warm_up` rounds that do not count.

    Each round begins with the next arm, and every second cycle of rounds goes through them backwards, so that none is
    always the first, nor always behind the same other one.
    """
    found = []
    for number in range(-warm_up, rounds):
        cycle, first = divmod(number, len(arms))
        order = [(first + place) % len(arms) for place in range(len(arms))]
        taken = {arm: arms[arm]() for arm in (reversed(order) if cycle % 2 else order)}
        if number >= 0:
            found.append(tuple(taken[arm] for arm in range(len(arms))))
    return found


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def ratios(
    name: str,
    case: str,
    groups: Sequence[Sequence[Sequence[float]]],
    limit: float,
    unit: str,
    *,
    at_least: bool = False,
) -> Figure:
    """Of each group the median ratio of its pairs, whose two sides are neighbours in time."""
    values = [median(own / other for own, other in pairs) for pairs in groups]
    own, other = (median(side) for side in zip(*(pair for pairs in groups for pair in pairs), strict=True))
    return Figure(name, case, values, limit, at_least, detail=f"{own:.2f} {unit} / {other:.2f} {unit}")
