"""A signal reaches the process of the trial that it is meant for, and no other that has its pid by now."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from detsweep.dispatch import processes

pytestmark = pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="command lines are read from /proc")

# Says that it runs: until then its command line may still be that of the process it was made from.
RANK = "import sys; print(flush=True); sys.stdin.read()"


@contextmanager
def _started(*words: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-c", RANK, *words]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        child.stdout.readline()
        yield child
    finally:
        child.kill()
        child.communicate()


def test_a_process_of_the_trial_is_signalled(tmp_path: Path) -> None:
    trial = tmp_path / "cells" / "seed-1-0123456789" / "trial0"
    with _started("-m", "detsweep.worker", str(trial)) as child:
        processes.send(child.pid, signal.SIGTERM, folders=(trial,))
        assert child.wait(10) == -signal.SIGTERM


def test_a_foreign_process_is_left_alone(tmp_path: Path) -> None:
    child = subprocess.Popen(["sleep", "60"])
    try:
        processes.send(child.pid, signal.SIGKILL, folders=(tmp_path / "trial0",))
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(0.3)
    finally:
        child.kill()
        child.wait()


@pytest.mark.parametrize("word", ["trial1", "trial01", "trial", "trial0/spec.json", "other/trial0"])
def test_a_process_of_another_trial_is_left_alone(tmp_path: Path, word: str) -> None:
    with _started(str(tmp_path / word)) as child:
        processes.send(child.pid, signal.SIGKILL, folders=(tmp_path / "trial0",))
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(0.2)


def test_a_folder_whose_name_is_no_ascii_is_found(tmp_path: Path) -> None:
    trial = tmp_path / "Läufe heute" / "trial0"
    with _started(str(trial)) as child:
        processes.send(child.pid, signal.SIGTERM, folders=(trial,))
        assert child.wait(10) == -signal.SIGTERM


def test_a_process_that_is_gone_is_no_error(tmp_path: Path) -> None:
    with _started(str(tmp_path)) as child:
        pid = child.pid
    processes.send(pid, signal.SIGTERM, folders=(tmp_path,))
