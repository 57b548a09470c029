"""A comparison as JSON: everything that the lines say, and what they leave out."""

from __future__ import annotations

from typing import Any

from detsweep.diff.compared import Compared, ComparedCells, ComparedTrials
from detsweep.diff.configuration import KeyDifference
from detsweep.diff.environments import Apart
from detsweep.diff.sides import CellSide, Side

SCHEMA = 1


def content(compared: Compared) -> dict[str, Any]:
    """The comparison as one JSON object."""
    return {
        "schema": SCHEMA,
        "differs": compared.differs,
        "exit_code": compared.exit_code,
        **{letter: _side(side) for letter, side in zip("ab", compared.sides, strict=True)},
        **{
            f"only_in_{letter}": [_cell(cell) for cell in alone]
            for letter, alone in zip("ab", compared.alone, strict=True)
        },
        "pairs": [pair_content(pair) for pair in compared.pairs],
    }


def _side(side: Side) -> dict[str, Any]:
    return {"name": side.name, "kind": side.kind, "cells": len(side.cells), "trials": side.trials,
            "unread": list(side.unread)}  # fmt: skip


def _cell(cell: CellSide) -> dict[str, Any]:
    return {"id": cell.id, "label": cell.label, "ranks": cell.world_size}


def pair_content(pair: ComparedCells) -> dict[str, Any]:
    """Two cells, the first of them under `a`."""
    return {
        "a": {**_cell(pair.cells[0]), "rates": pair.rates[0], "only": list(pair.alone[0])},
        "b": {**_cell(pair.cells[1]), "rates": pair.rates[1], "only": list(pair.alone[1])},
        "differs": pair.differs,
        "configuration": [_key(one) for one in pair.configuration],
        "aside": [_key(one) for one in pair.aside],
        "trials": [_trial(trial) for trial in pair.trials],
    }


def _key(one: KeyDifference) -> dict[str, str]:
    return {"key": one.key, "a": one.before, "b": one.after}


def _trial(trial: ComparedTrials) -> dict[str, Any]:
    streams = trial.streams
    return {
        **{letter: {"trial": number, "verdict": verdict, "result": result}
           for letter, number, verdict, result in zip("ab", trial.numbers, trial.verdicts, trial.results, strict=True)},
        "differs": trial.differs,
        "environment": [_fact(one) for one in trial.environments.apart],
        "shells": [_fact(one) for one in trial.environments.shells],
        "places": [_fact(one) for one in trial.environments.places],
        "streams": {
            "ranks": list(streams.ranks),
            "runs": streams.runs,
            "records": streams.records,
            "first": [divergence.to_json() for divergence in streams.first],
            "differing": {str(rank): dict(found) for rank, found in streams.differing.items()},
            "loss_differs": streams.loss,
            "only_in_a": streams.alone[0],
            "only_in_b": streams.alone[1],
        },
        "not_compared": [{"why": line, "ranks": list(where)} for line, where in trial.unread.items()],
    }  # fmt: skip


def _fact(one: Apart) -> dict[str, Any]:
    return {"section": one.section, "name": one.name, "a": one.before, "b": one.after, "ranks": list(one.ranks)}
