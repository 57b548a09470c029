"""File locks that outlive no process: one says that the driver lives, others that a trial does.

The kernel drops a lock when its last holder is gone, however it went. So a trial learns of its driver's death by
getting the driver's lock, and a driver knows that nothing of a trial is left when it gets the trial's. A trial's locks
are shared by the process that launches it, by torchrun, which inherits them, and by every rank, which takes its own.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import threading
import time
from collections.abc import Iterable
from pathlib import Path

LOCKS_VARIABLE = "DETSWEEP_LOCKS"
"""Paths of the locks that a rank takes, separated as those of PATH are."""


class FolderBusyError(Exception):
    """Another driver works on the folder, or trials of one still run there."""


def _open(path: Path) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)


def _take(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class DriverLock:
    """Held by the driver of a sweep for as long as its trials may run; its content names the driver's session."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._handle: int | None = None
        self.session = secrets.token_hex(8)

    def acquire(self) -> bool:
        """Take the lock; False where another driver has it."""
        handle = _open(self._path)
        # A moment's patience: a trial that only looks whether its driver lives holds the lock for as long.
        deadline = time.monotonic() + 0.25
        while not _take(handle):
            if time.monotonic() > deadline:
                os.close(handle)
                return False
            time.sleep(0.05)
        os.truncate(handle, 0)
        os.pwrite(handle, self.session.encode(), 0)
        self._handle = handle
        return True

    def release(self) -> None:
        """Give the lock up: every running trial of this driver ends itself now."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def driver_lives(path: Path, session: str) -> bool:
    """Whether the driver of this session still holds its lock.

    Ask it while you hold a trial's lock: a new driver waits for that, and gives its own lock up meanwhile.
    """
    return not is_free(path) and path.read_text() == session


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


def hold(paths: Iterable[Path]) -> tuple[int, ...]:
    """Share locks; returns the descriptors, which children that inherit them hold as well."""
    handles = tuple(_open(path) for path in paths)
    for handle in handles:
        fcntl.flock(handle, fcntl.LOCK_SH)
    return handles


def is_free(path: Path) -> bool:
    """Whether no process holds a lock, shared or not."""
    handle = _open(path)
    try:
        return _take(handle)
    finally:
        os.close(handle)


def wait_until_free(path: Path, timeout_s: float) -> bool:
    """Wait until no process holds a lock; False when one still does after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not is_free(path):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
