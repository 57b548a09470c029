"""The command line that runs one cell of a sweep again."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from detsweep.paths import FileError, SweepPaths, read_json

if TYPE_CHECKING:
    from detsweep.analysis.frames import Sweep

_LAUNCH = ("launch=", "launch.", "+launch.", "++launch.")
# What a session asks for as a whole: whether to wait for it, and how many at a time.
_OF_A_SESSION = ("launch.detach=", "launch.max_parallel=", "launch.rerun=", "launch.fail_fast=")
_CONFIG_DIR = ("--config-dir", "-cd")


def told(sweep: Sweep, cell: str, level: str | None = None) -> Iterator[str]:
    """The words of the command line that run a cell once more, at another level of observation if one is given."""
    config, said = sweep.configs[cell], dict(sweep.overrides[cell])
    if level is not None:
        said["observe"] = level
    if config["mode"]["name"] == "relaunch":
        said["trials"] = str(config["trials"])
    if config["mitigation_force"]:
        said["mitigation_force"] = "true"
    # Variables of the environment are no keys of the schema: they are added.
    yield from (f"{'++' if key.startswith('env.') else ''}{key}={value}" for key, value in said.items())


def closer_command(sweep: Sweep, cell: str, level: str) -> str:
    """The command that looks closer at a cell."""
    return shlex.join(["python", "-m", "detsweep", *told(sweep, cell, level)])


def command_of(sweep: Sweep, cell: str, sessions: Sequence[Mapping[str, Any]]) -> str:
    """The command that runs a cell alone: what the command line said of it, and what all of the sweep was given.

    That is the folder of the user's own configurations, and how trials are launched, as the one of `sessions` that
    asked for the cell first had them.
    """
    session = next((one for one in sessions if cell in one.get("cells", ())), {})
    return shlex.join(["python", "-m", "detsweep", *_given(session), *told(sweep, cell)])


def _given(session: Mapping[str, Any]) -> Iterator[str]:
    words = [str(word) for word in session.get("arguments", ())]
    for place, word in enumerate(words):
        if word in _CONFIG_DIR:
            yield from words[place : place + 2]
        elif word.startswith(tuple(f"{name}=" for name in _CONFIG_DIR)) or (
            word.startswith(_LAUNCH) and not word.startswith(_OF_A_SESSION)
        ):
            yield word


def sessions_of(sweep: Sweep) -> list[dict[str, Any]]:
    """The sessions of sweep.json, a command each; none where it cannot be read."""
    try:
        listed = read_json(SweepPaths(sweep.folder).sweep).get("sessions")
    except FileError:
        return []
    return [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
