"""`log=`: the trackers to which a sweep's verdicts can go, and the process of its own in which they do."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

PACKAGES = {"mlflow": ("mlflow", "mlflow"), "wandb": ("wandb", "wandb"), "tensorboard": ("tensorboard", "tensorboard")}
"""Of each tracker the module that it is, and the package that brings it."""
NAMES = tuple(PACKAGES)
MOST_S = 900.0


def problem(tracker: str) -> str | None:
    """Why nothing can be logged to a tracker, as a line for the user; None where it can, and for `none`."""
    if tracker not in PACKAGES or _installed(tracker):
        return None
    valid = ", ".join(["none", *(name for name in NAMES if _installed(name))])
    return f"log={tracker}: the package is not installed: pip install {PACKAGES[tracker][1]} (valid here: {valid})"


def _installed(tracker: str) -> bool:
    found = importlib.util.find_spec(PACKAGES[tracker][0])
    # A folder of that name, as wandb leaves behind where it ran, is no package.
    return found is not None and found.origin is not None


def log_sweep(tracker: str, folder: Path) -> str | None:
    """Send a sweep's verdicts to a tracker, in a process of its own: what goes wrong there, as a line; None: nothing.

    The driver imports no tracker, and what one does, be it to hang or to crash, costs the sweep nothing.
    """
    command = [sys.executable, "-m", "detsweep.analysis", "log", tracker, str(folder)]
    again = f"python -m detsweep.analysis log {tracker} {folder}"
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, timeout=MOST_S, check=False)
    except subprocess.TimeoutExpired:
        return f"log={tracker}: no end after {MOST_S / 60:.0f} minutes, given up; to try again: {again}"
    except KeyboardInterrupt:
        return f"log={tracker}: interrupted; to try again: {again}"
    except OSError as error:
        return f"log={tracker}: could not be started: {error}"
    return None if done.returncode == 0 else f"log={tracker}: not logged, the results stand; to try again: {again}"
