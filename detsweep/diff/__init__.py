"""Two trials, cells, sweeps or golden files held against each other: configuration, environment and streams."""

from detsweep.diff.compared import Compared, compare_sides
from detsweep.diff.sides import CellSide, NotComparableError, Side, Trial, opened

__all__ = ["CellSide", "Compared", "NotComparableError", "Side", "Trial", "compare_sides", "opened"]
