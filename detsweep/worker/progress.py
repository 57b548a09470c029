"""Where a rank is, in a small memory-mapped file: what is left of a rank that hangs or was killed."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

SIZE = 256


class Progress:
    """A line `pid<TAB>step<TAB>run<TAB>block<TAB>words`, rewritten in place without a system call.

    Step, run and block count from 0 and are -1 before the first; ranks can be ordered by how far they came.
    """

    def __init__(self, path: Path) -> None:
        path.write_bytes(b" " * SIZE)
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), SIZE)
        self._step = self._run = -1
        self._words = ""
        self.phase("start")

    def phase(self, words: str) -> None:
        """Say in words what the rank does outside the runs."""
        self._write(-1, words)

    def run(self, step: int, run: int, words: str) -> None:
        """Say which run of which step begins."""
        self._step, self._run, self._words = step, run, words
        self._write(-1, words)

    def at_block(self, block: int) -> None:
        """Say which block's forward begins."""
        self._write(block, f"{self._words}, last block entered: {block}")

    def _write(self, block: int, words: str) -> None:
        line = f"{os.getpid()}\t{self._step}\t{self._run}\t{block}\t{words}\n"
        self._map[:] = line.encode().ljust(SIZE)[:SIZE]
