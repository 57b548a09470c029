"""No process outlives its parent: on Linux the kernel sees to it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PARENT_VARIABLE = "DETSWEEP_PARENT_PID"
"""Names the process that must be alive; without it a parent that died before we looked would go unnoticed."""
_PR_SET_PDEATHSIG = 1


def die_with_parent(death_signal: signal.Signals) -> None:
    """Have the kernel send this process a signal when its parent dies; at once where that has already happened.

    Linux only (prctl(2), PR_SET_PDEATHSIG); elsewhere this does nothing and torchrun's own clean-up has to do.
    Call it from the main thread, before starting anything.
    """
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(death_signal), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    expected = os.environ.get(PARENT_VARIABLE)
    if expected is not None and os.getppid() != int(expected):
        os.kill(os.getpid(), death_signal)
