"""Which records differ, rank by block: a table of numbers, with a shade as an extra."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from detsweep.analysis.page.model import Field, Grid
from detsweep.analysis.page.pairs import Pairs
from detsweep.analysis.words import counted, listed
from detsweep.compare import differences, partners

SHADES = 9
RANKS_SHOWN = 64
Spot = tuple[int, int | None]
"""A rank and a block; None is what is in no block."""


@dataclass(frozen=True)
class Heat:
    """How many records differ, and how many were compared, at each rank and block, over so many comparisons."""

    differing: Mapping[Spot, int]
    compared: Mapping[Spot, int]
    comparisons: int


def heat(found: Pairs) -> Heat:
    """Count the records that differ in all comparisons that parted."""
    differing: Counter[Spot] = Counter()
    compared: Counter[Spot] = Counter()
    for (rank, _, _), (reference, stream) in found.items():
        compared.update((rank, record.block) for record, _ in partners(reference, stream))
        differing.update((rank, one.record.block) for one in differences(reference, stream))
    return Heat(differing, compared, len(found))


def heat_grid(heat: Heat, ranks: Sequence[int], blocks: int, *, first: Spot, against: str) -> Grid:
    """The table. Of more than 64 ranks those that do not differ are left out, and a line says how many.

    `first` is where the trial parted first; `against` says in words what the streams were held against.
    """
    columns: list[int | None] = [None, *range(blocks)]
    differ = [rank for rank in ranks if any(heat.differing.get((rank, block)) for block in columns)]
    many = len(ranks) > RANKS_SHOWN
    shown = differ[:RANKS_SHOWN] if many else ranks
    rows = tuple(
        (Field(f"rank {rank}"), *(_field(heat, (rank, block), first) for block in columns), _sum(heat, rank, columns))
        for rank in shown
    )
    titles = ("rank", "in no block", *(f"block {block}" for block in range(blocks)), "all")
    caption = (
        f"Records that differ from {against}, by rank and block, over the "
        f"{counted(heat.comparisons, 'comparison')} of a rank that differ"
    )
    return Grid(caption, titles, rows, note=" ".join(_notes(ranks, differ, shown, many=many)), style="heat")


def _notes(ranks: Sequence[int], differ: Sequence[int], shown: Sequence[int], *, many: bool) -> list[str]:
    said = ["A number is how many records differ there, a darker shade a larger share; “first” is where it began."]
    if many:
        said.append(f"{len(ranks) - len(differ)} of {len(ranks)} ranks do not differ, and have no row.")
        if more := differ[len(shown) :]:
            words = listed(more[:RANKS_SHOWN]) + (", ..." if len(more) > RANKS_SHOWN else "")
            said.append(f"{len(more)} more differ and have no row either: {words}.")
    return said


def _field(heat: Heat, spot: Spot, first: Spot) -> Field:
    number, of = heat.differing.get(spot, 0), heat.compared.get(spot, 0)
    text = f"{number}{' first' if spot == first else ''}"
    # A place out of sequence counts as a record that differs, and has no partner that it was compared with.
    shade = f"s{_shade(number / max(of, number))}" if number else ""
    return Field(text, f"{shade}{' first' if spot == first else ''}")


def _sum(heat: Heat, rank: int, columns: Sequence[int | None]) -> Field:
    number, of = (sum(counts.get((rank, block), 0) for block in columns) for counts in (heat.differing, heat.compared))
    return Field(f"{number} of {of}" if of else str(number), "sum")


def _shade(share: float) -> int:
    """1 to SHADES."""
    return min(SHADES, 1 + int(share * SHADES))
