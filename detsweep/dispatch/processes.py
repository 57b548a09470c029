"""Signals by pid, but only to what is still the process that was meant."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from pathlib import Path


def send(pid: int, number: signal.Signals, *, folders: Iterable[Path]) -> None:
    """Signal a process of a trial; nothing where the pid belongs to another process by now, or to none.

    torchrun and every rank have their trial's folder on their command line, submitit's processes the sweep's folder
    of jobs: one of `folders` has to be there. Where the system does not show command lines, nothing is sent.
    """
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if any(os.fsencode(folder) in words for folder in folders):
            os.kill(pid, number)
    except OSError:
        return
