"""A process's environment as the kernel gave it, as C libraries read it, and as Python does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from detsweep.worker.variables import appeared, wrong

STARTED = {
    "STAYS": "1",
    "EMPTY": "",
    "EQUALS": "a=b=c",
    "BYTES": "\udcff",
    "CHANGED_IN_C": "old",
    "REMOVED_IN_C": "old",
    "CHANGED_IN_PYTHON": "old",
    "REMOVED_IN_PYTHON": "old",
}
INSIDE = """
import ctypes, json, os
from detsweep.worker.variables import appeared, c_environment, kernel_environment, wrong
libc = ctypes.CDLL(None)
libc.setenv(b"CHANGED_IN_C", b"new", 1)
libc.setenv(b"SET_IN_C", b"new", 1)
libc.unsetenv(b"REMOVED_IN_C")
os.environ["CHANGED_IN_PYTHON"] = os.environ["SET_IN_PYTHON"] = "new"
del os.environ["REMOVED_IN_PYTHON"]
kernel, c = kernel_environment(), c_environment()
names = [*kernel, "SET_IN_C", "SET_IN_PYTHON", "NEVER_SET"]
said = {f"{name}={value}": wrong(name, value, kernel, c) for name in names for value in ("old", "new", None)}
seen = {"kernel": kernel, "c": c, "python": dict(os.environ), "appeared": appeared(kernel, c), "wrong": said}
print(json.dumps(seen))
"""


@pytest.fixture(scope="module")
def inside() -> Any:
    """What a process says that was started with STARTED and then changed its variables, in C and in Python."""
    # Without a locale Python would set one for itself, and it would be among what has appeared.
    variables = {**STARTED, "LC_ALL": "C.UTF-8", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-c", INSIDE], capture_output=True, text=True, check=True, timeout=60, env=variables
    )
    return json.loads(done.stdout)


def test_the_kernel_tells_what_the_process_was_started_with_whatever_became_of_it(inside: Any) -> None:
    assert {name: value for name, value in inside["kernel"].items() if name in STARTED} == STARTED
    assert not {"SET_IN_C", "SET_IN_PYTHON"} & inside["kernel"].keys()


def test_c_libraries_see_what_was_set_in_c_and_in_python(inside: Any) -> None:
    assert {name: inside["c"].get(name) for name in (*STARTED, "SET_IN_C", "SET_IN_PYTHON")} == {
        "STAYS": "1",
        "EMPTY": "",
        "EQUALS": "a=b=c",
        "BYTES": "\udcff",
        "CHANGED_IN_C": "new",
        "REMOVED_IN_C": None,
        "CHANGED_IN_PYTHON": "new",
        "REMOVED_IN_PYTHON": None,
        "SET_IN_C": "new",
        "SET_IN_PYTHON": "new",
    }


def test_python_does_not_see_what_was_set_in_c(inside: Any) -> None:
    assert (inside["python"]["CHANGED_IN_C"], inside["python"]["REMOVED_IN_C"]) == ("old", "old")
    assert "SET_IN_C" not in inside["python"]


def test_what_was_set_or_changed_inside_has_appeared(inside: Any) -> None:
    assert inside["appeared"] == dict.fromkeys(
        ("CHANGED_IN_C", "SET_IN_C", "CHANGED_IN_PYTHON", "SET_IN_PYTHON"), "new"
    )


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ("STAYS=old", "STAYS should be old, was 1 when the process started"),
        ("NEVER_SET=None", None),
        ("NEVER_SET=new", "NEVER_SET should be new, was unset when the process started"),
        ("STAYS=None", "STAYS should be unset, was 1 when the process started"),
        ("CHANGED_IN_C=new", "CHANGED_IN_C should be new, was old when the process started"),
        ("CHANGED_IN_C=old", "CHANGED_IN_C should be old, is new for C libraries"),
        ("REMOVED_IN_C=old", "REMOVED_IN_C should be old, is unset for C libraries"),
        ("SET_IN_C=None", "SET_IN_C should be unset, is new for C libraries"),
        ("CHANGED_IN_PYTHON=old", "CHANGED_IN_PYTHON should be old, is new for C libraries"),
        ("SET_IN_PYTHON=new", "SET_IN_PYTHON should be new, was unset when the process started"),
    ],
)
def test_a_variable_is_as_asked_for_where_kernel_c_and_python_agree(inside: Any, wanted: str, said: str | None) -> None:
    assert inside["wrong"][wanted] == said


def test_python_is_asked_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLAG", "mine")
    both = {"FLAG": "1"}
    assert wrong("FLAG", "1", both, both) == "FLAG should be 1, is mine for Python"
    assert wrong("FLAG", "mine", {"FLAG": "mine"}, {"FLAG": "mine"}) is None


def test_where_the_kernel_does_not_tell_the_others_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLAG", "1")
    assert wrong("FLAG", "1", None, {"FLAG": "1"}) is None
    assert wrong("FLAG", "1", None, {}) == "FLAG should be 1, is unset for C libraries"
    assert appeared(None, {"FLAG": "1"}) == {}
