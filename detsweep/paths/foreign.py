"""What lies in a sweep's folder and is none of its files: something left half-written, or not a sweep's at all."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

_SWEEP = re.compile(
    r"sweep\.json|search\.json|matrix\.(md|csv|json|html)|frames|mlruns|mlflow\.db|wandb|tensorboard|cells|\.jobs"
)
_CELL = re.compile(r"cell\.json|cache|superseded|trial\d+(-attempt-.*)?")
_TRIAL = re.compile(
    r"(spec|job|result|meeting)\.json|exits(-node\d+)?\.json|node\d+\.json|rank\d+\.(jsonl|result\.json|progress)|"
    r"environment-rank\d+\.json|log|cache|checkpoint|recording|\.failed|\.claimed(\..+)?"
)
_TEMPORARY = re.compile(r"\..+\.([a-z0-9_]{8}|part)")
"""What a file is called until it is whole: see paths.files."""


def foreign(sweep: Path) -> Iterator[tuple[Path, str]]:
    """Each file or folder that is not one of a sweep's, and why.

    Folders that something else fills (caches, recordings, logs) are not looked into, nor trials that have no result
    yet: what is half-written there may be whole the next moment.
    """
    for path in _strange(sweep, _SWEEP):
        yield path, _why(path, "is no file of a sweep")
    for cell in _folders(sweep / "cells"):
        yield from ((path, _why(path, "is no file of a cell")) for path in _strange(cell, _CELL))
        for trial in _folders(cell):
            if re.fullmatch(r"trial\d+", trial.name) and (trial / "result.json").exists():
                yield from ((path, _why(path, "is no file of a trial")) for path in _strange(trial, _TRIAL))
    if (sweep / "cells").is_dir():
        yield from (
            (path, "is no folder of a cell") for path in sorted((sweep / "cells").iterdir()) if not path.is_dir()
        )


def _strange(folder: Path, known: re.Pattern[str]) -> list[Path]:
    return [path for path in sorted(folder.iterdir()) if not known.fullmatch(path.name)]


def _folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []


def _why(path: Path, otherwise: str) -> str:
    return "was left half-written" if _TEMPORARY.fullmatch(path.name) else otherwise
