"""Two file locks that outlive no process: one says that the driver lives, the other that a trial does.

The kernel drops a lock when its last holder is gone, however it went. So a trial learns of its driver's death by
getting the driver's lock, and a driver knows that nothing of its trials is left when it gets theirs.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from pathlib import Path


def _open(path: Path) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)


class DriverLock:
    """Held by the driver of a sweep for as long as its trials may run."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._handle: int | None = None

    def acquire(self) -> bool:
        """Take the lock; False where another driver has it."""
        handle = _open(self._path)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            return False
        self._handle = handle
        return True

    def release(self) -> None:
        """Give the lock up: every running trial of this driver ends itself now."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def watch_driver(path: Path) -> threading.Event:
    """An event that is set as soon as no driver holds the lock any more. Call it after every fork of this process."""
    gone = threading.Event()

    def wait() -> None:
        handle = _open(path)
        fcntl.flock(handle, fcntl.LOCK_SH)
        # Closed at once: the next driver must be able to take it.
        os.close(handle)
        gone.set()

    threading.Thread(target=wait, name="driver-watch", daemon=True).start()
    return gone


def hold_trial(path: Path) -> int:
    """Share the trials' lock; returns the descriptor, which children that inherit it hold as well."""
    handle = _open(path)
    fcntl.flock(handle, fcntl.LOCK_SH)
    return handle


def wait_for_trials(path: Path, timeout_s: float) -> bool:
    """Wait until no process of any trial of this sweep is left; False when some still is after `timeout_s`."""
    handle = _open(path)
    deadline = time.monotonic() + timeout_s
    try:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    return False
                time.sleep(0.05)
            else:
                return True
    finally:
        os.close(handle)
