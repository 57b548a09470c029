"""Signals by pid, but only to what is still the process that was meant."""

from __future__ import annotations

import os
import signal
from pathlib import Path


def send(pid: int, number: signal.Signals, *, trial: Path) -> None:
    """Signal a process of a trial; nothing where the pid belongs to another process by now, or to none.

    torchrun and every rank have their trial's folder on their command line. Where the system does not show command
    lines, nothing is sent.
    """
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if os.fsencode(trial) in words:
            os.kill(pid, number)
    except OSError:
        return
