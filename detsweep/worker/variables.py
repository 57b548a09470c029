"""A process's environment three times over: as the kernel gave it, as C libraries read it, and as Python does."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from pathlib import Path


def kernel_environment() -> dict[str, str] | None:
    """The variables with which this process was started; None where the kernel does not tell."""
    file = Path("/proc/self/environ")
    return _parsed(file.read_bytes().split(b"\0")) if file.exists() else None


def c_environment() -> dict[str, str]:
    """The variables that getenv sees now: a library's setenv or putenv is in here, and not in os.environ."""
    entries = ctypes.POINTER(ctypes.c_char_p).in_dll(ctypes.CDLL(None), "environ")
    listed: list[bytes] = []
    while (entry := entries[len(listed)]) is not None:
        listed.append(entry)
    return _parsed(listed)


def wrong(name: str, value: str | None, kernel: Mapping[str, str] | None, c: Mapping[str, str]) -> str | None:
    """Where a variable has not the value it should have (None: unset), None where all three agree that it has."""
    if kernel is not None and kernel.get(name) != value:
        return f"{name} should be {_text(value)}, was {_text(kernel.get(name))} when the process started"
    for found, reader in ((c.get(name), "C libraries"), (os.environ.get(name), "Python")):
        if found != value:
            return f"{name} should be {_text(value)}, is {_text(found)} for {reader}"
    return None


def appeared(kernel: Mapping[str, str] | None, c: Mapping[str, str]) -> dict[str, str]:
    """What something in this process has set or changed since it was started: a configuration file, a library."""
    return {} if kernel is None else {name: value for name, value in c.items() if kernel.get(name) != value}


def _parsed(entries: list[bytes]) -> dict[str, str]:
    pairs = (entry.decode(errors="surrogateescape").partition("=") for entry in entries if entry)
    return {name: value for name, _, value in pairs}


def _text(value: str | None) -> str:
    return "unset" if value is None else value
