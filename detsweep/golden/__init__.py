"""Golden files: fingerprints of cells that repeat, for later checks on the same torch and hardware."""

from detsweep.golden.file import GoldenError, golden_side, read_golden, write_golden

__all__ = ["GoldenError", "golden_side", "read_golden", "write_golden"]
