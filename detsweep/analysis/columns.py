"""The frames' columns: what each means, and its dtype, which is the same whatever a sweep holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from detsweep.analysis.verdicts import ALL
from detsweep.capture import LEVELS, PHASES, SITES
from detsweep.causes import CAUSES

TEXT: Any = pd.Series(["text"]).dtype
"""What pandas makes of text: its own dtype from version 3 on, objects before."""
TUPLE = "tuple"
KINDS = ("value", "inputs", "layout", "sequence", "tie")


@dataclass(frozen=True)
class Column:
    """A column of a frame. `kind`: text, int, float, bool, tuple, or the words of an ordered category."""

    name: str
    kind: str | Sequence[str]
    meaning: str


def conformed(frame: pd.DataFrame, columns: Sequence[Column]) -> pd.DataFrame:
    """The frame with the dtypes of these columns; columns that are not among them stay as they are."""
    known = {column.name: column.kind for column in columns}
    made: pd.DataFrame = frame.assign(**{name: _as(frame[name], known[name]) for name in frame if name in known})
    return made


def _as(series: pd.Series[Any], kind: str | Sequence[str]) -> Any:
    if not isinstance(kind, str):
        return ordered(series, kind)
    if kind == TUPLE:
        return pd.Series([tuple(item) if _listed(item) else () for item in series], index=series.index, dtype=object)
    return series.astype(DTYPES[kind])


def _listed(item: Any) -> bool:
    return not isinstance(item, str) and hasattr(item, "__len__")


def ordered(series: pd.Series[Any], words: Sequence[str]) -> pd.Series[Any]:
    """A series as an ordered category of these words; what is none of them stands after them."""
    more = [word for word in dict.fromkeys(series.dropna().astype(str)) if word not in words]
    dtype: Any = pd.CategoricalDtype(pd.Index([*words, *more], dtype=TEXT), ordered=True)
    text = series.where(series.isna(), series.astype(str)) if len(series) else series.astype(TEXT)
    return text.astype(dtype)


def axis(series: pd.Series[Any]) -> pd.Series[Any]:
    """An axis of a sweep: numbers where all its values are numbers, else an ordered category in the sweep's order."""
    # A cell that cannot be read has no value on any axis, written as no text.
    values = [None if value is None or pd.isna(value) or value == "" else value for value in series]
    if any(isinstance(value, (int, float)) for value in values):
        # Of a key that a cell does not have, as one of an earlier version, the command line's word is its value.
        values = [_number(value) if isinstance(value, str) else value for value in values]
    kinds = {type(value) for value in values} - {type(None)}
    numbers = next((dtype for known, dtype in _NUMBERS if kinds and kinds <= known), None)
    if numbers is not None:
        made: pd.Series[Any] = pd.Series(values, index=series.index, dtype=numbers)
        return made
    return ordered(series, tuple(dict.fromkeys(str(value) for value in series if value is not None)))


def _number(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


_NUMBERS: tuple[tuple[set[type], Any], ...] = (({bool}, "boolean"), ({int}, "Int64"), ({int, float}, "Float64"))
DTYPES: Mapping[str, Any] = {"text": TEXT, "int": "Int64", "float": "Float64", "bool": "boolean"}


def _columns(*rows: tuple[str, str | Sequence[str], str]) -> tuple[Column, ...]:
    return tuple(Column(*row) for row in rows)


TRIALS = _columns(
    ("cell", "text", "id of the cell"),
    ("slug", "text", "name of the cell's folder"),
    ("trial", "int", "number of the launch, from 0"),
    ("verdict", ALL, "what the trial came to; none: not reached yet"),
    ("mitigation", "text", "names of the mitigations, with plus signs"),
    ("effect", "text", "what became of them, see effects"),
    ("fault", "text", "what was put in on purpose"),
    ("mode", "text", "what was compared with what"),
    ("diverged_ranks", TUPLE, "ranks that diverged anywhere"),
    ("first_site", SITES, "the first record that differs: what it is of"),
    ("first_block", "int", "its block; missing outside of the repeated blocks"),
    ("first_name", "text", "its name"),
    ("first_phase", PHASES, "its part of the step"),
    ("first_kind", KINDS, "how it differs"),
    ("first_step", "int", "its step"),
    ("first_run", "text", "its run"),
    ("first_reference", "text", "the run, vote or trial that it parts from"),
    ("first_ranks", TUPLE, "ranks that parted there"),
    ("first_nodes", TUPLE, "their nodes, of a trial on a cluster"),
    ("cause", tuple(CAUSES), "why, where that can be told"),
    ("closer", LEVELS, "the level of observation that would tell more"),
    ("loss", "text", "in how many diverged comparisons the loss differs, or how many steps later"),
    ("replays", "int", "comparisons with the first run, per rank"),
    ("diverged_replays", "int", "how many of them diverged on any rank"),
    ("clean_comparisons", "int", "of a sweep with faults: comparisons of a rank without one"),
    ("false_alarms", "int", "how many of these diverged"),
    ("error", "text", "why there is no verdict about repeating"),
    ("error_ranks", TUPLE, "ranks that failed"),
    ("notes", TUPLE, "what else stood out, a line each"),
    ("log", "text", "file of the failed rank's output"),
    ("log_tail", "text", "its last lines"),
    ("step_ms", "float", "milliseconds of an observed step, median of the slowest rank"),
    ("plain_step_ms", "float", "the same of a step that is not observed"),
    ("seconds", "float", "wall time of the trial"),
    ("nodes", TUPLE, "nodes of a cluster that it ran on, in the order of their ranks"),
    ("retries", "int", "how often it was submitted again after a failure of the infrastructure"),
    ("requeues", "int", "how often Slurm itself started it anew"),
    ("folder", "text", "folder of the trial"),
)
DIVERGENCES = _columns(
    ("cell", "text", "id of the cell"),
    ("trial", "int", "number of the launch"),
    ("rank", "int", "the rank that differs"),
    ("step", "int", "step"),
    ("run", "text", "run that differs"),
    ("reference", "text", "what it is compared with: a run, the ranks' vote, another trial"),
    ("seq", "int", "place of the first record that differs, in the order of execution"),
    ("site", SITES, "what that record is of"),
    ("block", "int", "its block; missing outside of the repeated blocks"),
    ("name", "text", "its name"),
    ("phase", PHASES, "its part of the step"),
    ("kind", KINDS, "how it differs"),
    ("cause", tuple(CAUSES), "why, where that can be told"),
    ("origin", "int", "of an upstream divergence the rank that started it"),
    ("closer", LEVELS, "the level of observation that would tell more"),
    ("level", LEVELS, "the level at which it was seen"),
    ("fault", "text", "what was put in on purpose"),
    ("node", "text", "the rank's node"),
)
EFFECTS = _columns(
    ("cell", "text", "id of the cell"),
    ("trial", "int", "number of the launch"),
    ("mitigation", "text", "name of the preset, or env"),
    ("setting", "text", "variable or switch"),
    ("status", "text", "effective, set, inert or lost"),
    ("evidence", "text", "how that is known"),
)
TIMINGS = _columns(
    ("cell", "text", "id of the cell"),
    ("trial", "int", "number of the launch"),
    ("rank", "int", "rank"),
    ("observed", "bool", "whether the step was observed"),
    ("number", "int", "which of the rank's steps of this kind; missing: the median of them all"),
    ("ms", "float", "milliseconds"),
)
ENVIRONMENT = _columns(
    ("cell", "text", "id of the cell"),
    ("trial", "int", "number of the launch"),
    ("rank", "int", "rank"),
    ("section", "text", "versions, torch, device, settings, variables, machine, ..."),
    ("name", "text", "name of the fact"),
    ("value", "text", "what the rank had"),
)
PROBLEMS = _columns(
    ("file", "text", "path, relative to the sweep's folder"),
    ("cell", "text", "id of the cell, where it is of one"),
    ("trial", "int", "number of the launch, where it is of one"),
    ("problem", "text", "what is wrong with it"),
)
RECORDS = _columns(
    ("cell", "text", "id of the cell (a category)"),
    ("trial", "int", "number of the launch"),
    ("rank", "int", "rank"),
    ("step", "int", "step"),
    ("run", "text", "run (an ordered category)"),
    ("seq", "int", "place in the run, in the order of execution"),
    ("site", SITES, "what the record is of"),
    ("block", "int", "block; missing outside of the repeated blocks"),
    ("name", "text", "name (a category)"),
    ("phase", PHASES, "part of the step"),
    ("dtype", "text", "dtype of the tensor (a category)"),
    ("shape", "text", "shape of the rank's own shard, as in 2x32x64; scalar (a category)"),
    ("digest", "text", "fingerprint in 16 hex digits, of sha256 in 64"),
)
FRAMES: Mapping[str, tuple[Column, ...]] = {
    "trials": TRIALS,
    "divergences": DIVERGENCES,
    "effects": EFFECTS,
    "timings": TIMINGS,
    "environment": ENVIRONMENT,
    "problems": PROBLEMS,
    "records": RECORDS,
}


def described(frame: str) -> pd.DataFrame:
    """The columns of a frame: name, kind of value, meaning. Raises KeyError, listing the frames, for another name."""
    if frame not in FRAMES:
        raise KeyError(f"no frame {frame!r}; frames: {', '.join(FRAMES)}")
    rows = [
        (column.name, column.kind if isinstance(column.kind, str) else "ordered category", column.meaning)
        for column in FRAMES[frame]
    ]
    made: pd.DataFrame = pd.DataFrame(rows, columns=["column", "kind", "meaning"]).set_index("column")
    return made
