"""torchrun as a child process in an environment of its own, ended in order whatever happens around it.

This runs inside the submitit task and imports neither torch nor Hydra.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from detsweep import modes
from detsweep.dispatch import processes
from detsweep.environment import ChildEnvironment, child_environment, isolated
from detsweep.failures import position
from detsweep.orphans import PARENT_VARIABLE
from detsweep.paths import TrialPaths

POLL_S = 0.02
# torchrun gives its ranks 30 seconds of their own before it kills them.
TERM_GRACE_S = 40.0
STACKS_S = 0.5
SIGNALS_MEET_S = 0.1


@dataclass(frozen=True)
class Place:
    """Which node of a trial a launcher is on, of how many, and where they meet: an address and a port per launch."""

    node: int = 0
    nodes: int = 1
    address: str = ""
    ports: tuple[int | str, ...] = ()


ALONE = Place()


@dataclass(frozen=True)
class Ended:
    """How the launches of a trial ended on one node. `seconds`: their wall time."""

    returncode: int
    timed_out: bool
    stopped: bool
    seconds: float


def torchrun_arguments(spec: Mapping[str, Any], trial: TrialPaths, launch: int = 0, place: Place = ALONE) -> list[str]:
    """torchrun's arguments for a launch of a trial. A restart would hide a failure, so there is none.

    Of several nodes each rank's place is fixed: the static rendezvous goes by the node's number and not by who comes
    first.
    """
    world = spec["config"]["world"]
    meeting = ["--standalone", "--local-addr=127.0.0.1", "--nnodes=1"]
    if place.nodes > 1:
        meeting = [
            f"--nnodes={place.nodes}",
            f"--node-rank={place.node}",
            f"--master-addr={place.address}",
            f"--master-port={place.ports[launch]}",
        ]
    return [
        *meeting,
        f"--nproc-per-node={world['nproc_per_node']}",
        "--max-restarts=0",
        "-m",
        "detsweep.worker",
        str(trial.folder),
        str(launch),
    ]


def environment_of(
    spec: Mapping[str, Any], base: Mapping[str, str], gpus: Sequence[str], trial: TrialPaths
) -> ChildEnvironment:
    """The environment of a trial's processes, made from the shell's."""
    config, wanted = spec["config"], spec["settings"]["env"]
    gpu = config["device"] != "cpu"
    defaults = isolated(cache_of(config, trial), compiles=modes.compiles(config), gpu=gpu)
    if gpu and "NCCL_DEBUG" not in base:
        # It says then which variables it has read: the proof that they got there. In every cell, as it takes time.
        log = str(trial.nccl_log("%h", "%p"))
        defaults |= {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "ENV", "NCCL_DEBUG_FILE": log}
    threads = config["world"]["threads_per_rank"]
    return child_environment(base, wanted, threads=threads, gpus=gpus, defaults=defaults)


def cache_of(config: Mapping[str, Any], trial: TrialPaths) -> Path | None:
    """Where libraries keep what they find out; None: the shared places."""
    return {"cell": trial.cell_cache, "trial": trial.cache, "shared": None}[config["kernel_cache"]]


@dataclass(frozen=True)
class Launches:
    """The launches of a trial on one node.

    `variables`: the environment of its processes; `reasons` to stop; `failed_elsewhere`: whether another node's
    torchrun has failed, and ours can only wait for its ranks; `started`: called with torchrun's pid and command.
    """

    trial: TrialPaths
    spec: Mapping[str, Any]
    variables: Mapping[str, str]
    reasons: Sequence[threading.Event]
    started: Callable[[int, list[str]], None]
    place: Place = ALONE
    handles: tuple[int, ...] = ()
    failed_elsewhere: Callable[[], bool] = field(default=lambda: False)

    def run(self, timeout_min: float) -> Ended:
        """Run them to their end, or until `timeout_min` minutes are over for all of them together."""
        begun = time.monotonic()
        variables = {**self.variables, PARENT_VARIABLE: str(os.getpid())}
        self.trial.logs.mkdir(parents=True, exist_ok=True)
        if self.spec["config"]["device"] != "cpu" and (cache := cache_of(self.spec["config"], self.trial)) is not None:
            # Not every library makes the folder of a file that it is to write.
            cache.mkdir(exist_ok=True)
        timed_out, ending = False, None
        for number in range(modes.launches(self.spec["config"])):
            command = self.command(number)
            agent = _start(command, variables, self.trial.launcher_log_of(self.place.node), self.handles)
            self.started(agent.pid, command)
            ending = _Ending(agent, self)
            timed_out = ending.wait(begun + timeout_min * 60)
            if timed_out or ending.stopped or agent.returncode != 0:
                break
        assert ending is not None
        return Ended(ending.agent.wait(), timed_out, ending.stopped, time.monotonic() - begun)

    def command(self, launch: int) -> list[str]:
        """The command line of one launch."""
        arguments = torchrun_arguments(self.spec, self.trial, launch, self.place)
        exits = self.trial.exits_of(self.place.node)
        return [sys.executable, "-m", "detsweep.dispatch.agent", str(exits), *arguments]

    @property
    def ranks(self) -> range:
        """The ranks on this node."""
        each = int(self.spec["config"]["world"]["nproc_per_node"])
        return range(self.place.node * each, (self.place.node + 1) * each)


class _Ending:
    """Waits for a launch's end: its own, its time limit, a signal, its driver's death, or another node's failure."""

    def __init__(self, agent: subprocess.Popen[bytes], launches: Launches) -> None:
        self.agent = agent
        self._launches = launches
        self.stopped = False

    def wait(self, deadline: float) -> bool:
        """Return when torchrun has ended; True when the time limit, at `deadline` (monotonic, seconds), ended it."""
        while self.agent.poll() is None:
            if self._reason():
                self.stopped = True
                self._terminate()
            elif time.monotonic() > deadline:
                self._ask_for_stacks()
                self._terminate()
                return True
            elif self._launches.failed_elsewhere():
                self._terminate()
            time.sleep(POLL_S)
        if self.agent.returncode != 0:
            # A signal to every process at once reaches torchrun and us in any order.
            time.sleep(SIGNALS_MEET_S)
            self.stopped = self._reason()
        return False

    def _reason(self) -> bool:
        return any(reason.is_set() for reason in self._launches.reasons)

    def _ask_for_stacks(self) -> None:
        trial = self._launches.trial
        for rank in self._launches.ranks:
            place = position(trial.progress(rank))
            if place is not None:
                processes.send(place.pid, signal.SIGUSR1, folders=(trial.folder,))
        time.sleep(STACKS_S)

    def _terminate(self) -> None:
        # torchrun ends its ranks on TERM; if it cannot, they die with it (see orphans.die_with_parent).
        self.agent.terminate()
        try:
            self.agent.wait(TERM_GRACE_S)
        except subprocess.TimeoutExpired:
            self.agent.kill()
            self.agent.wait()


def _start(
    command: list[str], variables: Mapping[str, str], log: Path, handles: tuple[int, ...]
) -> subprocess.Popen[bytes]:
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # A session of its own keeps the terminal's Ctrl-C, and a scheduler's signals to the task, away from it.
            start_new_session=True,
            pass_fds=handles,
        )


def stop_on_signals() -> threading.Event:
    """An event set by INT, TERM or HUP, unless they are ignored (nohup), and by USR2.

    It takes the place of submitit's own handlers, which ignore TERM and start the task a second time after USR2.
    """
    stop = threading.Event()

    def handle(_: int, __: FrameType | None) -> None:
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, handle)
    # Blocked where this process was started, and ranks would inherit that.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    return stop
