"""Locks that tell whether a driver or a trial lives."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from detsweep.locks import DriverLock, driver_lives, hold, is_free, wait_until_free, watch_driver

HOLD = "handles = hold(map(Path, sys.argv[1:]))"
DRIVE = "lock = DriverLock(Path(sys.argv[1])); assert lock.acquire(); print(lock.session, flush=True)"


@contextmanager
def _process(code: str, *paths: Path) -> Iterator[str]:
    """Another process that has run this code and lives until the end of the block; gives the first line it printed."""
    program = f"import sys; from pathlib import Path; from detsweep.locks import DriverLock, hold; {code}; "
    child = subprocess.Popen(
        [sys.executable, "-c", f"{program}print(flush=True); sys.stdin.read()", *map(str, paths)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert child.stdout is not None
        yield child.stdout.readline().strip()
    finally:
        child.kill()
        child.communicate()


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


def test_a_driver_in_another_process_keeps_its_lock_until_it_is_gone(tmp_path: Path) -> None:
    lock = DriverLock(tmp_path / "driver.lock")
    with _process(DRIVE, tmp_path / "driver.lock"):
        assert not lock.acquire()
    assert lock.acquire()
    lock.release()


# --- a trial and its driver ------------------------------------------------------------------------------------------


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


def test_a_driver_lives_while_it_holds_its_lock(tmp_path: Path) -> None:
    path = tmp_path / "driver.lock"
    driver = DriverLock(path)
    assert not driver_lives(path, driver.session)
    assert driver.acquire()
    assert driver_lives(path, driver.session)
    driver.release()
    assert not driver_lives(path, driver.session)


def test_a_driver_lives_only_until_its_process_has_ended(tmp_path: Path) -> None:
    path = tmp_path / "driver.lock"
    with _process(DRIVE, path) as session:
        assert driver_lives(path, session)
    assert not driver_lives(path, session)


def test_the_next_driver_is_another_one(tmp_path: Path) -> None:
    path = tmp_path / "driver.lock"
    first, second = DriverLock(path), DriverLock(path)
    assert first.session != second.session
    assert first.acquire()
    first.release()
    assert second.acquire()
    assert driver_lives(path, second.session)
    assert not driver_lives(path, first.session)
    second.release()


def test_looking_whether_a_driver_lives_does_not_keep_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "driver.lock"
    assert not driver_lives(path, "nobody")
    assert DriverLock(path).acquire()


# --- a trial's own locks ---------------------------------------------------------------------------------------------


def test_a_lock_is_free_once_all_that_share_it_have_let_go(tmp_path: Path) -> None:
    path = tmp_path / ".jobs" / "trials.lock"
    assert is_free(path)
    (one,), (other,) = hold([path]), hold([path])
    assert not is_free(path)
    os.close(one)
    assert not is_free(path)
    os.close(other)
    assert is_free(path)


def test_several_locks_are_held_at_once_and_given_up_one_by_one(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("trials.lock", "0123456789-trial0.lock")]
    handles = hold(paths)
    assert [is_free(path) for path in paths] == [False, False]
    os.close(handles[1])
    assert [is_free(path) for path in paths] == [False, True]
    os.close(handles[0])


def test_locks_are_held_across_processes(tmp_path: Path) -> None:
    sweep, one, other = (tmp_path / name for name in ("trials.lock", "one.lock", "other.lock"))
    with _process(HOLD, sweep, one):
        with _process(HOLD, sweep, other):
            assert not any(is_free(path) for path in (sweep, one, other))
        # Of the trial that has ended nothing is left, but not all trials have.
        assert is_free(other)
        assert not is_free(one)
        assert not is_free(sweep)
    assert is_free(sweep)
    assert is_free(one)


def test_a_driver_waits_for_every_trial_but_not_for_ever(tmp_path: Path) -> None:
    path = tmp_path / "trials.lock"
    assert wait_until_free(path, 0.0)
    (handle,) = hold([path])
    start = time.monotonic()
    assert not wait_until_free(path, 0.1)
    assert 0.1 <= time.monotonic() - start < 5
    os.close(handle)
    assert wait_until_free(path, 0.0)


def test_a_child_that_inherits_a_lock_holds_it_until_it_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "trials.lock"
    (handle,) = hold([path])
    child = subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE, pass_fds=(handle,)
    )
    os.close(handle)
    try:
        assert not wait_until_free(path, 0.1)
    finally:
        child.kill()
        child.communicate()
    assert wait_until_free(path, 5.0)


def test_a_child_that_does_not_inherit_a_lock_does_not_hold_it(tmp_path: Path) -> None:
    path = tmp_path / "trials.lock"
    (handle,) = hold([path])
    child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    os.close(handle)
    try:
        assert wait_until_free(path, 5.0)
        assert child.poll() is None
    finally:
        child.kill()
        child.communicate()
