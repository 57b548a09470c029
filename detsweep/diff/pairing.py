"""Which cell of one sweep is held against which cell of another."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from detsweep.diff.configuration import flat
from detsweep.diff.sides import CellSide

AT_ONCE = 250_000
"""So many pairs are looked at one by one where no index finds a partner; of more the rest has none."""
_INDEXED = 2
_AXES = 24
Places = list[tuple[int, int]]


def pairs_of(one: Sequence[CellSide], other: Sequence[CellSide]) -> tuple[Places, list[int], list[int]]:
    """The places of cells that belong together, and of those that have no partner on the other side.

    First those of one id, which are one configuration; then, of the rest, those that differ in the fewest axes, an axis
    being the keys that vary in the same way over all of them (`dtype.param` does as `dtype.name`). Ties go by the order
    of the axes' names and then of the sweeps. Up to two differing axes are found by an index and not by trying all
    pairs with all; what differs in all cells of one sweep from all of the other, as one more variable, is no axis and
    costs nothing.
    """
    ids = {cell.id: place for place, cell in enumerate(other)}
    found = [(place, ids.pop(cell.id)) for place, cell in enumerate(one) if cell.id in ids]
    taken = {place for place, _ in found}
    left, right = [place for place in range(len(one)) if place not in taken], sorted(ids.values())
    if left and right:
        values = _values([one[place] for place in left], [other[place] for place in right])
        near = _nearest(values[: len(left)], values[len(left) :])
        found += [(left[a], right[b]) for a, b in near]
        left, right = (
            [place for n, place in enumerate(places) if n not in {pair[side] for pair in near}]
            for side, places in ((0, left), (1, right))
        )
    return sorted(found), left, right


def _values(one: Sequence[CellSide], other: Sequence[CellSide]) -> list[tuple[int, ...]]:
    """Each cell's values on the axes, as numbers: those of `one`, then those of `other`."""
    configs = [flat(cell.config) for cell in (*one, *other)]
    keys = sorted({key for config in configs for key in config})
    axes: dict[tuple[int, ...], None] = {}
    for key in keys:
        numbers: dict[str | None, int] = {}
        column = tuple(numbers.setdefault(config.get(key), len(numbers)) for config in configs)
        within = (column[: len(one)], column[len(one) :])
        if any(len(set(side)) > 1 for side in within):
            axes[column] = None
    return list(zip(*axes, strict=True)) if axes else [()] * len(configs)


def _nearest(one: Sequence[tuple[int, ...]], other: Sequence[tuple[int, ...]]) -> Places:
    free_one, free_other = dict.fromkeys(range(len(one))), dict.fromkeys(range(len(other)))
    found: Places = []

    def take(a: int, b: int) -> None:
        found.append((a, b))
        del free_one[a], free_other[b]

    axes = len(one[0])
    for unlike in range(min(_INDEXED, axes) + 1 if axes <= _AXES else 1):
        for left_out in combinations(range(axes), unlike):
            index: dict[tuple[int, ...], list[int]] = {}
            for b in free_other:
                index.setdefault(_without(other[b], left_out), []).append(b)
            for a in list(free_one):
                if partners := index.get(_without(one[a], left_out)):
                    take(a, partners.pop(0))
    if len(free_one) * len(free_other) <= AT_ONCE:
        ranked = sorted(
            (sum(x != y for x, y in zip(one[a], other[b], strict=True)), a, b) for a in free_one for b in free_other
        )
        for _, a, b in ranked:
            if a in free_one and b in free_other:
                take(a, b)
    return found


def _without(values: tuple[int, ...], left_out: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(value for place, value in enumerate(values) if place not in left_out)
