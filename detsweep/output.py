"""Standard output that nobody reads any more must not cost a sweep its result."""

from __future__ import annotations

import os
import sys
from typing import Any, TextIO


class Tolerant:
    """A stream whose writes are lost, not raised, once its reader is gone: `| head`, a closed terminal, a full disk."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError:
            self._give_up()
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError:
            self._give_up()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _give_up(self) -> None:
        # What is still in the buffers has to go somewhere, or the interpreter complains when it ends.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)


def tolerate_broken_output() -> None:
    """Make standard output and error of this process tolerant."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, Tolerant):
            setattr(sys, name, Tolerant(stream))
