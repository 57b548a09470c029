"""A rank's records as the lines they are kept in: found by step and run, and parsed only where asked."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

from detsweep.capture import SCHEMA, Stream, from_line, to_line
from detsweep.paths import FileError

Place = tuple[int, str]
"""A step and a run."""
_HEAD = re.compile(rb'\{"schema":%d,"rank":\d+,"world_size":\d+,"step":(\d+),"run":"(r\d+)",' % SCHEMA)


class Lines(ABC):
    """The lines of one rank, by step and run, wherever they come from."""

    def __init__(self, source: str, places: Sequence[Place]) -> None:
        self.source = source
        self.places = tuple(places)

    @abstractmethod
    def line(self, place: Place) -> bytes:
        """The line of a step and run."""

    def content(self, place: Place) -> bytes:
        """What a line says apart from which rank, of how many, step and run it is of: equal where all bits are."""
        line = self.line(place)
        head = _HEAD.match(line)
        return line[head.end() :] if head else line

    def stream(self, place: Place) -> Stream:
        """The records of a step and run. Raises FileError, naming source and place, where they cannot be read."""
        try:
            return from_line(self.line(place).decode())
        except (ValueError, KeyError, TypeError) as error:
            raise self._unread(place, error) from None

    def count(self, place: Place) -> int:
        """How many records a line holds. Raises FileError where it is no line of records."""
        try:
            return len(json.loads(self.line(place))["records"])
        except (ValueError, KeyError, TypeError) as error:
            raise self._unread(place, error) from None

    def _unread(self, place: Place, error: Exception) -> FileError:
        return FileError(f"{self.source}: step {place[0]} {place[1]} cannot be read: {error}")


class FileLines(Lines):
    """The lines of a rank's file: where each begins is looked up once, and none of them is kept.

    Raises FileError, naming the file and the line, when it is missing, torn or of another schema.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._spans: dict[Place, tuple[int, int]] = {}
        start = 0
        try:
            with path.open("rb") as file:
                for number, line in enumerate(file, start=1):
                    if not line.endswith(b"\n"):
                        raise FileError(f"{path} is cut off in line {number}")
                    self._spans[_place_of(path, number, line)] = (start, len(line))
                    start += len(line)
        except FileNotFoundError:
            raise FileError(f"{path} is missing") from None
        except OSError as error:
            raise FileError(f"{path} cannot be read: {error.strerror}") from None
        super().__init__(str(path), list(self._spans))

    def line(self, place: Place) -> bytes:
        start, length = self._spans[place]
        with self._path.open("rb") as file:
            file.seek(start)
            return file.read(length)


def _place_of(path: Path, number: int, line: bytes) -> Place:
    head = _HEAD.match(line)
    if head is not None:
        return int(head[1]), head[2].decode()
    try:
        # Not as this version writes it, though it may be sound all the same.
        stream = from_line(line.decode())
    except (ValueError, KeyError, TypeError) as error:
        raise FileError(f"{path} line {number} cannot be read: {error}") from None
    return stream.step, stream.run


class KeptLines(Lines):
    """The lines of streams that are in memory; `source` is what they come from."""

    def __init__(self, source: str, streams: Sequence[Stream], *, world_size: int) -> None:
        self._streams = {(stream.step, stream.run): stream for stream in streams}
        self._world_size = world_size
        super().__init__(source, list(self._streams))

    def line(self, place: Place) -> bytes:
        return to_line(self._streams[place], world_size=self._world_size).encode() + b"\n"

    def stream(self, place: Place) -> Stream:
        return self._streams[place]
