"""`python -m detsweep.worker <trial folder> <launch>`: what torchrun starts for each rank.

Before torch is imported the rank's output goes to its own log, its death is tied to torchrun's, and its stack can be
asked for; whatever ends it, short of SIGKILL, is written down. It shares the trial's locks, so that nobody takes the
trial for gone while it lives.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from detsweep.capture import SCHEMA
from detsweep.locks import LOCKS_VARIABLE, hold
from detsweep.orphans import die_with_parent
from detsweep.paths import TrialPaths, write_json
from detsweep.worker.progress import Progress


def main() -> None:
    """Run this rank; leaves with 0 when its result is written, whatever its verdict, else with 1."""
    die_with_parent(signal.SIGKILL)
    # Importing torch makes a million objects that stay; collecting among them costs a quarter of the time to start.
    # The mode turns collection on again before its first step.
    gc.disable()
    hold(Path(path) for path in os.environ.get(LOCKS_VARIABLE, "").split(os.pathsep) if path)
    rank, paths = int(os.environ["RANK"]), TrialPaths(Path(sys.argv[1]))
    _log_to(paths.rank_log(rank))
    progress = Progress(paths.progress(rank))
    try:
        spec = json.loads(paths.spec.read_text())
        progress.phase("importing torch")
        from detsweep.worker.rank import run_rank

        result = run_rank(spec, paths, rank, progress, launch=int(sys.argv[2]))
    except BaseException as error:
        result = _failure(rank, error)
        traceback.print_exc()
    write_json(paths.rank_result(rank), result)
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: after a failure, taking a process group down in order can hang because a peer is gone; after a
    # success nothing is left to do, and taking an interpreter with torch in it down costs a quarter of a second.
    os._exit(1 if result["verdict"] == "error" else 0)


def _log_to(path: Path) -> None:
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    faulthandler.enable()
    # The launcher asks for stacks with USR1 before it ends a trial that hangs.
    faulthandler.register(signal.SIGUSR1, all_threads=False)


def _failure(rank: int, error: BaseException) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "rank": rank,
        "verdict": "error",
        "error": f"{type(error).__name__}: {error}".strip(),
        "traceback": traceback.format_exc(),
        "at": time.time(),
    }


if __name__ == "__main__":
    main()
