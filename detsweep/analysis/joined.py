"""Several sweeps as one, with the sweep as the first axis."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from detsweep.analysis.columns import TEXT, axis, ordered
from detsweep.analysis.frames import Sweep
from detsweep.analysis.problems import Problem

AXIS = "sweep"
_FRAMES = ("divergences", "injections", "baselines", "effects", "costs", "fleet", "timings")
_CELLS = ("cell", "baseline")
"""Columns that hold the id of a cell."""


def joined(sweeps: Sequence[Sweep]) -> Sweep:
    """All of them as one: cells are named `<sweep>:<id>`, and the axis `sweep` stands first.

    Raises ValueError for none.
    """
    if not sweeps:
        raise ValueError("no folder was given")
    if len(sweeps) == 1:
        return sweeps[0]
    names = _names([sweep.folder for sweep in sweeps])
    axes = (AXIS, *dict.fromkeys(name for sweep in sweeps for name in sweep.axes if name != AXIS))
    pairs = list(zip(sweeps, names, strict=True))
    own = [_named(sweep, name, axes) for sweep, name in pairs]
    trials = _stacked([sweep.trials for sweep in own])
    trials = trials.assign(**{name: axis(trials[name].astype(object)) for name in axes[1:]})
    trials[AXIS] = ordered(trials[AXIS], names)
    first = [*axes, *(name for name in trials if name not in axes)]
    frames = {name: _stacked([getattr(sweep, name) for sweep in own]) for name in _FRAMES}
    made = Sweep(
        folder=Path(os.path.commonpath([sweep.folder for sweep in sweeps])),
        trials=trials[first],
        axes=axes,
        configs=_merged([sweep.configs for sweep in own]),
        overrides=_merged([sweep.overrides for sweep in own]),
        drills=_merged([sweep.drills for sweep in own]),
        search=None,
        roots=[root for sweep in sweeps for root in sweep.roots],
        files=_merged([sweep.files for sweep in own]),
        sessions=[session for sweep in own for session in sweep.sessions],
        unread=[problem for sweep in own for problem in sweep.unread],
        frames_only=any(sweep.frames_only for sweep in own),
        **frames,
    )
    if made.frames_only:
        # What cannot be read again is what each of them has of it.
        for name in ("environment", "problems"):
            made.__dict__[name] = _stacked([_named_cells(getattr(sweep, name), one) for sweep, one in pairs])
    return made


def _names(folders: Sequence[Path]) -> list[str]:
    """What each sweep is called: the end of its path, as much of it as tells them apart."""
    for length in range(1, max(len(folder.parts) for folder in folders) + 1):
        names = ["/".join(folder.parts[-length:]) for folder in folders]
        if len(set(names)) == len(names):
            return names
    return [f"{folder.name}#{place}" for place, folder in enumerate(folders, start=1)]


def _named(sweep: Sweep, name: str, axes: Sequence[str]) -> Sweep:
    def cell(own: str) -> str:
        return f"{name}:{own}"

    def frame(content: pd.DataFrame) -> pd.DataFrame:
        return _named_cells(content, name)

    # What does not vary within one of the sweeps varies between them.
    constant = {
        key: [_value(sweep, one, key) for one in sweep.trials["cell"]]
        for key in axes[1:]
        if key not in sweep.trials.columns
    }
    return replace(
        sweep,
        trials=frame(sweep.trials).assign(**{AXIS: name}, **constant),
        configs={cell(key): value for key, value in sweep.configs.items()},
        overrides={cell(key): {**value, AXIS: name} for key, value in sweep.overrides.items()},
        drills={cell(key): value for key, value in sweep.drills.items()},
        files={(cell(key), number): value for (key, number), value in sweep.files.items()},
        unread=[Problem(f"{name}/{one.file}", one.cell, one.trial, one.problem) for one in sweep.unread],
        **{one: frame(getattr(sweep, one)) for one in _FRAMES},  # type: ignore[arg-type]
    )


def _named_cells(content: pd.DataFrame, name: str) -> pd.DataFrame:
    """A frame whose ids of cells have the name of their sweep before them."""
    changed: pd.DataFrame = content.assign(
        **{
            one: content[one].map(lambda own: own if pd.isna(own) else f"{name}:{own}").astype(TEXT)
            for one in _CELLS
            if one in content
        }
    )
    return changed


def _value(sweep: Sweep, cell: str, key: str) -> Any:
    from detsweep.baselines import value_of

    return value_of(sweep.configs[cell], key, sweep.overrides[cell]) if cell in sweep.configs else ""


def _stacked(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Frames below each other; ordered categories stay, as all frames have the same words."""
    filled = [frame for frame in frames if len(frame)]
    return pd.concat(filled, ignore_index=True) if filled else frames[0]


def _merged(mappings: Sequence[Mapping[Any, Any]]) -> dict[Any, Any]:
    return {key: value for mapping in mappings for key, value in mapping.items()}
