"""A sweep's verdicts and metrics for experiment trackers: one run for each cell."""

from detsweep.analysis.tracking.sending import TrackerError, send

__all__ = ["TrackerError", "send"]
