"""sweep.json: what was asked for, when, where, and with which versions, a session for each command on this folder."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from detsweep.capture import SCHEMA
from detsweep.paths import FileError, SweepPaths, read_json, write_json
from detsweep.plan import Plan

PACKAGES = ("detsweep", "torch", "numpy", "hydra-core", "omegaconf", "submitit", "pandas", "xxhash")


def open_session(sweep: SweepPaths, plan: Plan, arguments: Sequence[str]) -> None:
    """Add this command to sweep.json; say so where versions are not those of the sessions before it.

    Raises FileError where the sweep.json that is there cannot be read.
    """
    session = _session(plan, arguments)
    before = read_json(sweep.sweep) if sweep.sweep.exists() else {"sessions": []}
    earlier = before.get("sessions")
    if not isinstance(earlier, list):
        raise FileError(f"{sweep.sweep} lists no sessions: not a sweep of this version")
    if earlier:
        for line in changed(earlier[-1], session):
            print(f"detsweep: warning: {line}; results kept from before are not repeated", file=sys.stderr)
    # A search adds cells of its own to those that the command lines name.
    named = [cell for one in earlier for cell in one["cells"]]
    cells = dict.fromkeys([*before.get("cells", ()), *named, *session["cells"]])
    write_json(sweep.sweep, {"schema": SCHEMA, "cells": list(cells), "sessions": [*earlier, session]})


def add_cell(sweep: SweepPaths, cell: str) -> None:
    """Add a cell, by its id, to those that this folder is known to have."""
    content = read_json(sweep.sweep)
    if cell not in content["cells"]:
        write_json(sweep.sweep, {**content, "cells": [*content["cells"], cell]})


def changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What is not as it was in an earlier session, a line each: versions, git commit and host."""
    lines = [
        f"{name} was {before['versions'].get(name)}, is {version}"
        for name, version in now["versions"].items()
        if before["versions"].get(name) != version
    ]
    lines += [f"{key} was {before[key]}, is {now[key]}" for key in ("git", "host") if before[key] != now[key]]
    return lines


def _session(plan: Plan, arguments: Sequence[str]) -> dict[str, Any]:
    return {
        "command": shlex.join([sys.executable, "-m", "detsweep", *arguments]),
        "arguments": list(arguments),
        "cells": [cell.id for cell in plan.cells],
        "search": plan.options["search"]["name"],
        "started": time.time(),
        "host": platform.node(),
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "cwd": str(Path.cwd()),
        "python": sys.version.split()[0],
        "versions": {name: _version(name) for name in PACKAGES},
        "git": _git_commit(),
    }


def _version(package: str) -> str | None:
    # Read from the installed package's metadata: importing torch only to ask for its version takes seconds.
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _git_commit() -> str | None:
    """The commit of detsweep's own checkout, with `+changes` where it has uncommitted ones; None outside of one."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    try:
        commit = subprocess.run(
            ["git", "-C", str(root), "rev-parse", "HEAD"], capture_output=True, text=True, check=True
        ).stdout.strip()
        status = ["git", "-C", str(root), "status", "--porcelain", "--untracked-files=no"]
        dirty = subprocess.run(status, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
    return commit + ("+changes" if dirty else "")
