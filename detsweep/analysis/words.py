"""Where something diverged, and what a field holds, as tables and lines say it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd


def describe_first(trial: Mapping[Any, Any] | pd.Series[Any]) -> str:
    """Where a trial first diverged, as a few words: site, block, name, ranks, their nodes of several, step and run."""
    place = describe_place({key: trial[f"first_{key}"] for key in ("site", "block", "name", "phase", "kind")})
    ranks = trial["first_ranks"]
    where = f"rank{'s' if len(ranks) > 1 else ''} {listed(ranks)}"
    if len(trial["nodes"]) > 1 and trial["first_nodes"]:
        where += f" ({', '.join(trial['first_nodes'])})"
    reference = str(trial["first_reference"])
    against = f" against {reference.replace('trial', 'trial ')}" if reference.startswith("trial") else ""
    return f"{place}, {where}, step {trial['first_step']} {trial['first_run']}{against}"


def describe_place(record: Mapping[str, Any]) -> str:
    """A record that differs, as a few words."""
    site, name = record["site"], record["name"]
    if str(site).startswith("block_"):
        place = f"{site} of block {record['block']}"
    else:
        place = str(site) if name == site else f"{site} {name}"
        # Of these the site does not say when in a step they are.
        if site in ("op", "module", "collective_in", "collective_out", "rng", "param", "buffer", "optim"):
            place += f" ({record['phase']})"
    # A record that the other run does not have at this place, or has in another shape, is not one of other bits.
    return place if record["kind"] in ("value", "tie", None) else f"{record['kind']} differs at {place}"


def listed(ranks: Iterable[int]) -> str:
    """Ranks in their order, with commas."""
    return ", ".join(map(str, sorted(ranks)))


def missing(item: Any) -> bool:
    """Whether a field of a frame holds nothing."""
    return not isinstance(item, tuple) and bool(pd.isna(item))


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """A number and its noun: 1 trial, 2 trials."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def said(item: Any) -> Any:
    """A field as it is, or no text where it holds nothing."""
    return "" if missing(item) else item


def median(values: Iterable[Any]) -> float:
    """The median of the values that are there; NaN of none."""
    numbers = [float(value) for value in values if not missing(value)]
    return statistics.median(numbers) if numbers else math.nan


def total(trials: Iterable[Mapping[str, Any]], column: str) -> int:
    """The sum of a column of counts; what is missing counts nothing."""
    return sum(int(trial[column]) for trial in trials if not missing(trial[column]))
