"""Recordings of what a rank received: their format, and how they are written, read, checked and compared. No torch."""

from detsweep.recording.calls import Call, RecordingError, Side, StepHeader
from detsweep.recording.reading import RankRecording, Step, open_rank
from detsweep.recording.writing import FullError, Stored, Writer

__all__ = [
    "Call",
    "FullError",
    "RankRecording",
    "RecordingError",
    "Side",
    "Step",
    "StepHeader",
    "Stored",
    "Writer",
    "open_rank",
]
