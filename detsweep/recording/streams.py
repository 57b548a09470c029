"""The fingerprints of recorded steps, which lie beside the recording: read, and held against what its log says."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from detsweep.capture import Stream, read_streams
from detsweep.recording.calls import RecordingError, records_digest
from detsweep.recording.reading import RankRecording


def streams_of(recording: RankRecording, path: Path, steps: Iterable[int]) -> dict[int, Stream]:
    """A rank's fingerprints of the recorded run by step; a step that was broken off has none.

    Raises FileError where the file is missing or torn, RecordingError where a step that came to its end has none in it,
    or others than were written.
    """
    found = {stream.step: stream for stream in read_streams(path) if stream.run == "r1"}
    checked = {}
    for number in steps:
        step = recording.step(number)
        if step.records is None:
            if step.complete:
                raise RecordingError(f"{step.paths.log(number)}: the step has no fingerprints to compare a replay with")
            continue
        if number not in found:
            raise RecordingError(f"{path} has no fingerprints of step {number}, which was recorded")
        if records_digest(found[number]) != step.records:
            raise RecordingError(f"{path}: the fingerprints of step {number} are not those that were written")
        checked[number] = found[number]
    return checked
