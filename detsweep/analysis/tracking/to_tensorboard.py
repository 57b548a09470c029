"""Cells as runs of TensorBoard: a folder with an event file for each, written without torch or TensorFlow."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from detsweep.analysis.tracking.runs import Tracked, TrackedRun
from detsweep.analysis.words import counted

_LONGEST = 80


def write(sweep: Tracked) -> str:
    """Write an event file for each cell, in the place of the one that was there."""
    folder = sweep.paths.tracker("tensorboard")
    for run in sweep.runs:
        own = folder / _name(run)
        for earlier in folder.glob(f"*{run.key}/events.out.tfevents.*"):
            earlier.unlink()
        _write_run(own, run, sweep.matrix)
    return f"{counted(len(sweep.runs), 'run')} in {folder}; to look at them: tensorboard --logdir {folder}"


def _name(run: TrackedRun) -> str:
    """A folder's name that says what the cell is, and has its key for what was cut off."""
    said = "".join(letter if letter.isalnum() or letter in "=._+-, " else "-" for letter in run.name)
    return f"{said[:_LONGEST].strip()} {run.key}"


def _write_run(folder: Path, run: TrackedRun, matrix: Path | None) -> None:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    folder.mkdir(parents=True, exist_ok=True)
    writer = EventFileWriter(str(folder))
    try:
        for summary in _summaries(run, matrix):
            writer.add_event(Event(wall_time=time.time(), step=0, summary=summary))
    finally:
        writer.close()


def _summaries(run: TrackedRun, matrix: Path | None) -> Iterator[Any]:
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.hparams import summary_v2

    yield summary_v2.hparams_pb(dict(run.params), trial_id=run.key)
    for name, value in run.metrics.items():
        yield Summary(value=[Summary.Value(tag=name, simple_value=value)])
    for name, text in run.tags.items():
        yield _text(name, text)
    if matrix is not None:
        yield _text("matrix", matrix.read_text(encoding="utf-8"))


def _text(tag: str, text: str) -> Any:
    """A text, which TensorBoard shows as Markdown."""
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.compat.proto.types_pb2 import DT_STRING
    from tensorboard.plugins.text.metadata import create_summary_metadata

    # Not numpy's own way, by which a string is cut off at its last zero byte.
    tensor = TensorProto(dtype=DT_STRING, string_val=[text.encode()])
    metadata = create_summary_metadata(display_name=tag, description="")
    return Summary(value=[Summary.Value(tag=f"{tag}/text_summary", tensor=tensor, metadata=metadata)])
