"""A request to end, from a signal: the sweep ends its trials in order, and leaves nothing running."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Stop:
    """Set by the first INT, TERM or HUP; a second one is `impatient`: trials are then killed, not asked."""

    def __init__(self) -> None:
        self.requested = False
        self.impatient = False

    def __call__(self, _: int, __: FrameType | None) -> None:
        self.impatient = self.requested
        self.requested = True


@contextmanager
def stop_on_signals() -> Iterator[Stop]:
    """Turn INT, TERM and HUP into a request while the sweep runs."""
    stop = Stop()
    # What is ignored was meant to be: nohup.
    numbers = [n for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) != signal.SIG_IGN]
    previous = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
