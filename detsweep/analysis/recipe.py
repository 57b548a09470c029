"""Captures without a sweep around them: what the LLM determinism recipe writes, or a rank's own lines alone."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from detsweep import schema
from detsweep.analysis.cells import CAPTURE
from detsweep.analysis.recount import recounted
from detsweep.analysis.rows import Trials
from detsweep.analysis.verdicts import NO_VERDICT
from detsweep.capture import SCHEMA
from detsweep.captured import read_lines
from detsweep.paths import FileError, TrialPaths

DEPTH = 2


def captures_in(folder: Path) -> list[Path]:
    """The folders, this one or up to two below it, that hold files of ranks, in order."""
    found = []
    # Not through whole trees that somebody names by mistake; what cannot be read, or vanishes, holds none.
    for place, folders, files in os.walk(folder):
        if len(Path(place).relative_to(folder).parts) == DEPTH:
            folders.clear()
        if any(re.fullmatch(r"rank\d+\.jsonl", name) for name in files):
            found.append(Path(place))
    return sorted(found)


def read_captures(folder: Path, found: Sequence[Path]) -> tuple[list[dict[str, Any]], dict[str, Trials]]:
    """A cell for each folder of captures, and its only trial, judged from its lines.

    What a capture does not say of its configuration has the schema's own value, or `???`.
    """
    cells: list[dict[str, Any]] = []
    trials: dict[str, Trials] = {}
    for path in found:
        name = path.name if path == folder else str(path.relative_to(folder))
        paths = TrialPaths(path)
        config, result = _captured(paths)
        cells.append(
            {"schema": SCHEMA, "id": name, "slug": name, "overrides": {CAPTURE: name}, "config": config}
        )  # fmt: skip
        trials[name] = {0: (paths, {**result, "trial": 0} if "trial" not in result else result)}
    return cells, trials


def _captured(paths: TrialPaths) -> tuple[dict[str, Any], dict[str, Any]]:
    ranks = 1 + max(int(path.name[4:-6]) for path in paths.folder.glob("rank*.jsonl") if path.name[4:-6].isdigit())
    places: dict[tuple[int, str], None] = {}
    error = None
    for rank in range(ranks):
        try:
            places.update(dict.fromkeys(line.place for line in read_lines(paths.records(rank))))
        except FileError as unread:
            error = error or str(unread)
    steps, runs = {step for step, _ in places}, {run for _, run in places}
    config = _config(ranks, len(steps), len(runs))
    if error is not None:
        return config, {"schema": SCHEMA, "verdict": "error", "error": error}
    result = recounted(paths, config, None) or {"verdict": NO_VERDICT}
    if result["verdict"] == NO_VERDICT:
        expected = f"{len(steps)} steps with {len(runs)} runs each"
        return config, {
            "schema": SCHEMA,
            "verdict": "error",
            "error": f"{paths.folder} has ranks without all {expected}",
        }
    notes = [note for note in result.get("notes", ()) if "result.json" not in note]
    return config, {**result, "notes": notes, "files": {paths.records(rank).name: None for rank in range(ranks)}}


def _config(ranks: int, steps: int, runs: int) -> dict[str, Any]:
    """The configuration of a capture, as far as its lines tell it."""
    known = asdict(schema.Config())
    known["mode"] = {"name": "replay" if runs > 1 else "record", "default_runs": runs}
    known["observe"] = {"name": "block"}
    known["world"] |= {"nproc_per_node": ranks}
    return {**known, "steps": steps, "runs": runs, "trials": 1, "checkpointing": "none", "compile": False}
