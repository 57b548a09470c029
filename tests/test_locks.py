"""Locks that tell whether a driver or a trial lives."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from detsweep.dispatch.locks import DriverLock, hold_trial, wait_for_trials, watch_driver


def test_a_second_driver_is_refused_until_the_first_lets_go(tmp_path: Path) -> None:
    path = tmp_path / ".jobs" / "driver.lock"
    first, second = DriverLock(path), DriverLock(path)
    assert first.acquire()
    assert not second.acquire()
    first.release()
    assert second.acquire()
    assert not first.acquire()
    second.release()


def test_letting_go_twice_is_harmless(tmp_path: Path) -> None:
    lock = DriverLock(tmp_path / "driver.lock")
    lock.release()
    assert lock.acquire()
    lock.release()
    lock.release()
    assert lock.acquire()
    lock.release()


def test_a_trial_sees_its_driver_go_and_leaves_the_lock_to_the_next(tmp_path: Path) -> None:
    path = tmp_path / "driver.lock"
    driver = DriverLock(path)
    assert driver.acquire()
    gone = watch_driver(path)
    assert not gone.wait(0.1)
    driver.release()
    assert gone.wait(5)
    deadline = time.monotonic() + 5
    while not driver.acquire():
        assert time.monotonic() < deadline
    driver.release()


def test_a_driver_waits_for_every_trial(tmp_path: Path) -> None:
    path = tmp_path / "trials.lock"
    assert wait_for_trials(path, 0.0)
    one, other = hold_trial(path), hold_trial(path)
    assert not wait_for_trials(path, 0.0)
    os.close(one)
    assert not wait_for_trials(path, 0.1)
    os.close(other)
    assert wait_for_trials(path, 0.0)


def test_a_child_that_inherits_the_trials_lock_holds_it_until_it_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "trials.lock"
    handle = hold_trial(path)
    child = subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE, pass_fds=(handle,)
    )
    os.close(handle)
    try:
        assert not wait_for_trials(path, 0.1)
    finally:
        child.kill()
        child.communicate()
    assert wait_for_trials(path, 5.0)
