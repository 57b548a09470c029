"""A sweep as one file for somebody else: made, redacted where asked for, checked and opened again."""

from detsweep.bundling.making import LeakError, Made, make, sweep_folder
from detsweep.bundling.opening import opened

__all__ = ["LeakError", "Made", "make", "opened", "sweep_folder"]
