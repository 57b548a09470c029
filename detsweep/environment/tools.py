"""Asking a vendor's tool: what it printed, or why there is nothing."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass

PATIENCE_S = 30.0


@dataclass(frozen=True)
class Answer:
    """What a tool printed on standard output, and with which code it left; None and the reason where it did not run."""

    text: str
    code: int | None
    why: str = ""

    @property
    def good(self) -> bool:
        return self.code == 0


Ask = Callable[[Sequence[str]], Answer]


def ask(command: Sequence[str]) -> Answer:
    """Run a tool and wait for it, at most for PATIENCE_S: a driver that hangs must not hang whoever asks it."""
    if shutil.which(command[0]) is None:
        return Answer("", None, f"{command[0]} is not on PATH")
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=PATIENCE_S, check=False
        )
    except subprocess.TimeoutExpired:
        return Answer("", None, f"{command[0]} did not answer in {PATIENCE_S:.0f} s")
    except OSError as error:
        return Answer("", None, f"{command[0]} cannot be run: {error.strerror}")
    said = (done.stderr.strip() or done.stdout.strip()).partition("\n")[0]
    return Answer(done.stdout, done.returncode, "" if done.returncode == 0 else f"{command[0]}: {said or 'failed'}")
