"""matrix.json: the matrix and what the sweep says, for programs.

One object with these keys; later versions may add keys, and change `version` where one means something else:

- `schema`: "detsweep.matrix"; `version`: 1
- `sweep`: `folder` (its name), `axes`, `exit_code`, `outcome` (what that says), `summary` (lines in words),
  `checklist`, `unread` (files that could not be read or are no sweep's), `sessions` (of each command its `command`,
  `started` in seconds since 1970, `host`, `versions`, `git`)
- `columns`: the columns of the cell table, in order; see detsweep.analysis.celltable.cell_table
- `cells`: an object for each row of the matrix, in its order: `cell` (its id), `slug`, `folder` (relative to the
  sweep's), `shown_as` (its verdict, or "inert") and `mark` (as tables have it), `axes` (values by axis), and of each
  other column its value. What is not known is null.
- `fleet`: an object for each place of each fleet, with the columns of `Sweep.fleet`
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from detsweep.analysis.celltable import cell_table
from detsweep.analysis.commands import sessions_of
from detsweep.analysis.marks import mark, shown_as
from detsweep.analysis.outcome import outcome
from detsweep.analysis.report import checklist_lines, exit_code, summary
from detsweep.analysis.unread import unread
from detsweep.analysis.words import missing

if TYPE_CHECKING:
    from detsweep.analysis.frames import Sweep

SCHEMA, VERSION = "detsweep.matrix", 1


def matrix_json(sweep: Sweep) -> str:
    """The content of matrix.json."""
    table = cell_table(sweep)
    first = sweep.trials.drop_duplicates("cell").to_dict("records")
    content = {
        "schema": SCHEMA,
        "version": VERSION,
        "sweep": _sweep(sweep),
        "columns": list(table.columns),
        "cells": [_cell(sweep, one, row) for one, row in zip(first, table.to_dict("records"), strict=True)],
        "fleet": _plain(sweep.fleet),
    }
    return json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _sweep(sweep: Sweep) -> dict[str, Any]:
    kept = ("command", "started", "host", "versions", "git")
    return {
        "folder": sweep.folder.name,
        "axes": list(sweep.axes),
        "exit_code": exit_code(sweep),
        "outcome": outcome(sweep)[0],
        "summary": [line for line in summary(sweep) if line],
        "checklist": list(checklist_lines(sweep)),
        "unread": unread(sweep),
        "sessions": [{key: session.get(key) for key in kept} for session in sessions_of(sweep)],
    }


def _cell(sweep: Sweep, trial: dict[Any, Any], row: dict[Any, Any]) -> dict[str, Any]:
    trial_folder = Path(str(trial["folder"]))
    folder = trial_folder.parent if trial["cell"] in sweep.configs else trial_folder
    own = {str(key): _value(value) for key, value in row.items() if key not in sweep.axes}
    return {
        **own,
        "cell": trial["cell"],
        "slug": trial["slug"],
        "folder": str(folder.relative_to(sweep.folder)),
        "shown_as": shown_as(row),
        "mark": mark(row),
        "axes": {axis: _value(row[axis]) for axis in sweep.axes},
    }


def _plain(frame: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(key): _value(value) for key, value in row.items()} for row in frame.to_dict("records")]


def _value(value: Any) -> Any:
    """A value as JSON has it: numbers of pandas are Python's, what is missing is null."""
    if missing(value):
        return None
    plain = value.item() if hasattr(value, "item") else value
    return plain if isinstance(plain, str | int | float | bool | list) else str(plain)
