"""The frame of fleets for people: a table of places and their verdicts, and what it says in lines of words."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pandas as pd
from rich.markup import escape
from rich.table import Table

from detsweep.analysis.fleet import golden_place
from detsweep.analysis.places import place_name
from detsweep.analysis.words import counted, describe_place, missing

if TYPE_CHECKING:
    from detsweep.analysis.frames import Sweep

SHOWN = 20
MARKS = {
    "equal": "✓ equal",
    "odd": "✗ odd",
    "diverged": "✗ diverged",
    "undecided": "✗ undecided",
    "alone": "? alone",
    "none": "? none yet",
    "unsupported": "- unsupported",
}
STYLES = {"equal": "green", "odd": "bold red", "diverged": "bold red", "undecided": "bold red", "unsupported": "dim"}
# What a verdict about places counts as among the verdicts of trials.
COUNTS_AS = {"equal": "pass", "odd": "diverged", "undecided": "diverged", "alone": "none"}
_COMPARED = ("equal", "odd", "undecided", "diverged")

Row = Mapping[Hashable, Any]


def verdicts_of_places(sweep: Sweep) -> set[str]:
    """The verdicts of all places, as those of trials."""
    return {COUNTS_AS.get(str(verdict), str(verdict)) for verdict in sweep.fleet["verdict"]}


def fleet_table(sweep: Sweep) -> pd.DataFrame:
    """A row of words for each place; columns that say nothing, or the same of all, are left out."""
    rows = [
        {
            "fleet": row["fleet"],
            "hardware": _text(row["hardware"]),
            "node": _text(row["node"]),
            "GPU": _text(row["gpu"]),
            "place": MARKS.get(row["verdict"], f"! {row['verdict']}"),
            "differs from": _differs_from(row),
            "first difference": "" if missing(row["site"]) else _where(row),
            "fault": "" if row["fault"] == "none" else row["fault"],
            "error": _text(row["error"]),
        }
        for row in _rows(sweep.fleet)
    ]
    table = pd.DataFrame(rows)
    alike = [column for column in ("fleet", "hardware") if len(set(table[column]) - {""}) < 2]
    empty = [column for column in table if (table[column] == "").all()]
    shown: pd.DataFrame = table.drop(columns=list(dict.fromkeys([*alike, *empty])))
    return shown


def fleet_view(sweep: Sweep) -> Table:
    """The table for a terminal."""
    table = fleet_table(sweep)
    view = Table(box=None, pad_edge=False, header_style="bold")
    for column in table.columns:
        view.add_column(column, overflow="fold", no_wrap=column not in ("hardware", "first difference", "error"))
    for (_, words), verdict in zip(table.iterrows(), sweep.fleet["verdict"], strict=True):
        view.add_row(*(escape(str(item)) for item in words), style=STYLES.get(verdict, "yellow"))
    return view


def fleet_lines(sweep: Sweep) -> Iterator[str]:
    """For each fleet: the places that are not like the others, where they first differ, and how many are alike."""
    groups = list(sweep.fleet.groupby("fleet", sort=False))
    for label, rows in groups:
        prefix = f"{label}: " if len(groups) > 1 else ""
        yield from (prefix + line for line in _of_fleet(sweep, rows))


def _of_fleet(sweep: Sweep, rows: pd.DataFrame) -> Iterator[str]:
    noun = "GPU" if rows["gpu"].notna().any() else "node"
    against = sweep.configs[rows["cell"].iloc[0]].get("against")
    kinds = list(rows[rows["hardware"].notna()].groupby("hardware", sort=False))
    if len(kinds) > 1:
        listed = ", ".join(f"{kind} ({counted(len(own), noun)})" for kind, own in kinds)
        yield f"{len(kinds)} kinds of hardware, not compared with each other: {listed}"
    for kind, own in kinds:
        said = list(_of_kind(own, noun, against))
        yield from (f"{kind}: {line}" if len(kinds) > 1 else line for line in said)
    away = [_name(row) for row in _rows(rows) if row["verdict"] == "unsupported"]
    if away:
        yield f"not screened, takes no jobs: {_some(away)}"
    silent = [f"{_name(row)} ({MARKS['none'][2:] if row['verdict'] == 'none' else row['verdict']})"
              for row in _rows(rows) if row["verdict"] not in (*_COMPARED, "alone", "unsupported")]  # fmt: skip
    if silent:
        yield f"without a verdict: {_some(silent)}"


def _of_kind(rows: pd.DataFrame, noun: str, against: str | None) -> Iterator[str]:
    own = list(_rows(rows))
    by_verdict = {verdict: [row for row in own if row["verdict"] == verdict] for verdict in (*_COMPARED, "alone")}
    if golden_place(against) and "majority" in set(rows["by"]):
        yield f"against={against}: it has no records among these, and the majority decides"
    odd, diverged, undecided = (by_verdict[verdict] for verdict in ("odd", "diverged", "undecided"))
    yield from (_odd(row, noun) for row in odd[:SHOWN])
    yield from (_unlike_itself(row) for row in diverged[:SHOWN])
    if more := sum(max(0, len(some) - SHOWN) for some in (odd, diverged)):
        yield f"{counted(more, f'more such {noun}')}: the frame .fleet"
    if undecided:
        yield _undecided(undecided, noun)
    equal = by_verdict["equal"]
    if len(equal) > 1:
        total = sum(map(len, by_verdict.values()))
        yield f"{len(equal)} of {counted(total, noun)} equal, bit for bit, in {counted(equal[0]['records'], 'record')}"
    for row in by_verdict["alone"]:
        yield f"{_name(row)}: there is no other {noun} of its kind with records to compare with"


def _odd(row: Row, noun: str) -> str:
    others = f"{row['differing_from']} of {counted(row['compared'], f'other {noun}')} of its kind"
    golden = f", the golden {row['reference']} among them" if row["by"] == "golden" else ""
    return f"{_name(row)} differs from {others}{golden}, first at {_where(row)}{_put_in(row)}"


def _unlike_itself(row: Row) -> str:
    return f"{_name(row)} does not repeat itself, first at {_where(row)}{_put_in(row)}"


def _undecided(rows: list[Row], noun: str) -> str:
    first = min(rows, key=lambda row: (row["step"], int(row["run"][1:]), row["seq"]))
    key = "world.node" if not missing(rows[0]["node"]) else "world.gpu"
    more = "a third" if len(rows) == 2 else "one more"
    names = _some([_name(row) + _put_in(row) for row in rows])
    return (
        f"{counted(len(rows), noun)} differ, first at {_where(first)}, and it cannot be told which is wrong: {names}; "
        f"{more}, or against={key}:NAME, tells which"
    )


def _differs_from(row: Row) -> str:
    # How many are odd stands beside none of those that are as they should be.
    if row["verdict"] not in ("odd", "undecided"):
        return ""
    golden = f" ({row['reference']} is golden)" if row["by"] == "golden" and not missing(row["reference"]) else ""
    return f"{row['differing_from']} of {row['compared']}{golden}"


def _where(row: Row) -> str:
    return f"{describe_place({str(key): row[key] for key in row})}, rank {row['rank']}, step {row['step']} {row['run']}"


def _put_in(row: Row) -> str:
    return "" if row["fault"] == "none" else f" (fault={row['fault']} was put in there on purpose)"


def _name(row: Row) -> str:
    return place_name(*(None if missing(row[key]) else row[key] for key in ("node", "gpu")))


def _some(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def _text(item: Any) -> str:
    return "" if missing(item) else str(item)


def _rows(frame: pd.DataFrame) -> Iterator[Row]:
    return (row.to_dict() for _, row in frame.iterrows())
