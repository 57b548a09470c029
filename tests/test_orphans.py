"""A process whose parent is gone does not go on."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys

import pytest

from detsweep.orphans import PARENT_VARIABLE

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="prctl is Linux's")

CHILD = """
import signal, sys
from detsweep.orphans import die_with_parent
die_with_parent(signal.SIGKILL)
print("alive", flush=True)
sys.stdin.read()
"""
PARENT = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {CHILD!r}], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
sys.stdin.read()
"""


def _start(code: str, **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **variables},
    )


def test_a_child_dies_with_its_parent() -> None:
    parent = _start(PARENT)
    assert parent.stdout is not None
    child = os.pidfd_open(int(parent.stdout.readline()))
    parent.kill()
    parent.communicate()
    try:
        # Readable as soon as the process has ended.
        assert select.select([child], [], [], 5.0)[0] == [child]
    finally:
        os.close(child)


def test_a_parent_that_died_before_is_noticed() -> None:
    child = _start(CHILD, **{PARENT_VARIABLE: "1"})
    out, _ = child.communicate()
    assert (out, child.returncode) == ("", -signal.SIGKILL)


def test_a_living_parent_is_left_alone() -> None:
    child = _start(CHILD, **{PARENT_VARIABLE: str(os.getpid())})
    out, _ = child.communicate()
    assert (out, child.returncode) == ("alive\n", 0)
