"""detsweep: sweeps that tell whether a training step repeats bit for bit, and what differs first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from detsweep.analysis import Sweep, load
    from detsweep.worker.program import record

__version__ = "0.1.0"
__all__ = ["Sweep", "__version__", "load", "record"]


def __getattr__(name: str) -> Any:
    # pandas is only imported by those who ask for results: the command line and the ranks must start fast.
    if name in ("load", "Sweep"):
        from detsweep import analysis

        return getattr(analysis, name)
    if name == "record":
        from detsweep.worker.program import record

        return record
    raise AttributeError(f"module 'detsweep' has no attribute {name!r}")
