"""A sweep's frames as Parquet files, and back: what a notebook elsewhere reads without the captures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd

from detsweep.analysis import columns
from detsweep.analysis.frames import Drill, Sweep
from detsweep.analysis.problems import Problem
from detsweep.analysis.words import missing
from detsweep.paths import FileError, FramesPaths, read_json, write_json

SCHEMA = 1
FRAMES = ("trials", "divergences", "injections", "baselines", "effects", "costs", "fleet", "timings")
_TUPLES = {"injections": ["ranks"]}


def save(sweep: Sweep, folder: Path, *, records: bool = False) -> Path:
    """Keep the frames of a sweep, its environment and problems, and with `records` all its records.

    Raises FileExistsError where the folder is there and holds anything else, ImportError without pyarrow.
    """
    paths = FramesPaths(folder)
    if folder.exists() and any(folder.iterdir()) and not holds_frames(folder):
        raise FileExistsError(f"{folder} is there and holds other files than frames")
    folder.mkdir(parents=True, exist_ok=True)
    for name in FRAMES:
        _plain(getattr(sweep, name)).to_parquet(paths.frame(name), index=False)
    from detsweep.analysis.celltable import cell_table

    _plain(cell_table(sweep)).to_parquet(paths.frame("cells"), index=False)
    sweep.environment.to_parquet(paths.frame("environment"), index=False)
    sweep.problems.to_parquet(paths.frame("problems"), index=False)
    if records:
        _save_records(sweep, paths.frame("records"))
    else:
        paths.frame("records").unlink(missing_ok=True)
    write_json(
        paths.content,
        {
            "schema": SCHEMA,
            "folder": sweep.folder.name,
            "axes": list(sweep.axes),
            "configs": sweep.configs,
            "overrides": sweep.overrides,
            "drills": {cell: asdict(drill) for cell, drill in sweep.drills.items()},
            "search": sweep.search,
            "sessions": list(sweep.sessions),
            "unread": [asdict(problem) for problem in sweep.unread],
        },
    )
    return folder


def holds_frames(folder: Path) -> bool:
    """Whether a folder holds what `save` wrote."""
    return FramesPaths(folder).content.is_file()


def read(folder: Path) -> Sweep:
    """The sweep that `save` kept, without its files. Raises FileError where one of the frames cannot be read."""
    paths = FramesPaths(folder)
    content = read_json(paths.content)
    if content.get("schema") != SCHEMA:
        raise FileError(f"{paths.content} has schema {content.get('schema')!r}, this version reads {SCHEMA}")
    frames = {name: _read(paths, name, content["axes"]) for name in FRAMES}
    sweep = Sweep(
        folder=folder,
        axes=tuple(content["axes"]),
        configs=content["configs"],
        overrides=content["overrides"],
        drills={cell: Drill(**drill) for cell, drill in content["drills"].items()},
        search=content["search"],
        files={},
        frames_only=True,
        sessions=content["sessions"],
        unread=[Problem(**problem) for problem in content["unread"]],
        **frames,  # type: ignore[arg-type]
    )
    # Without its files these cannot be read again, and are those of the sweep when it was saved.
    for name in ("environment", "problems"):
        sweep.__dict__[name] = _read(paths, name)
    return sweep


def _read(paths: FramesPaths, name: str, axes: Sequence[str] = ()) -> pd.DataFrame:
    try:
        frame: pd.DataFrame = pd.read_parquet(paths.frame(name))
    except (OSError, ValueError) as error:
        raise FileError(f"{paths.frame(name)} cannot be read: {str(error).splitlines()[0]}") from None
    for column in _TUPLES.get(name, []):
        frame[column] = pd.Series([tuple(item) for item in frame[column]], index=frame.index, dtype=object)
    # Tuples come back as arrays, and a category without rows without its words.
    known = [one for one in columns.FRAMES.get(name, ()) if one.name not in axes]
    return columns.conformed(frame, known)


def _plain(frame: pd.DataFrame) -> pd.DataFrame:
    """A frame that Parquet can hold: columns of several kinds of values become text."""
    changed: pd.DataFrame = frame.copy()
    for name in frame:
        kinds = {type(item) for item in frame[name] if not missing(item)}
        if frame[name].dtype == object and len(kinds) > 1:
            changed[name] = frame[name].map(lambda item: None if item is None else str(item))
    return changed


def _save_records(sweep: Sweep, path: Path) -> None:
    """All records, trial by trial: no more than one of them is in memory."""
    import pyarrow as pa
    from pyarrow import parquet

    writer: Any = None
    try:
        for batch in sweep.record_batches():
            # Categories differ from trial to trial; as text all batches have one schema, and Parquet encodes it.
            text = batch.astype(
                {name: columns.TEXT for name in batch if isinstance(batch[name].dtype, pd.CategoricalDtype)}
            )
            table = pa.Table.from_pandas(text, preserve_index=False)
            writer = writer or parquet.ParquetWriter(path, table.schema)
            writer.write_table(table.cast(writer.schema))
    finally:
        if writer is not None:
            writer.close()
