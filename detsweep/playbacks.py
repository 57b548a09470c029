"""Mode `playback`: what a divergence is that stays, or is gone, when runs are given what r1 received.

A run that is fed has nothing from other ranks but what r1 had. What differs in it differs by this rank's own compute;
what differs in live runs again and again, and in no fed one, came over the group.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from detsweep import modes
from detsweep.compare import Divergence, run_number

# What a fed run can differ by beside compute, and is seen where it happens.
_OWN = ("input", "rng", "optimizer", "memory", "sequence")
ENOUGH = 2
"""So many runs of each kind it takes to say that a divergence came from communication; one could be a single event."""


@dataclass(frozen=True)
class _Step:
    """How many fed and live runs of a step differ, of how many."""

    fed: int
    of_fed: int
    live: int
    of_live: int

    @property
    def communication(self) -> bool:
        return not self.fed and self.live >= ENOUGH and self.of_fed >= ENOUGH


def attributed(config: Mapping[str, Any], found: Mapping[int, Sequence[Divergence]]) -> dict[int, list[Divergence]]:
    """The divergences of all ranks, with the cause that feeding tells where what was observed does not tell it."""
    steps = _steps(config, found)
    # At these levels what every collective was given and delivered has been seen.
    seen = config["observe"]["name"] in ("collective", "op")

    def caused(one: Divergence) -> Divergence:
        if one.cause in _OWN:
            return one
        if modes.fed(config, run_number(one.run)):
            return replace(one, cause="compute")
        if steps[one.step].communication and not (seen and one.cause == "compute"):
            return replace(one, cause="collective")
        return one

    return {rank: [caused(one) for one in own] for rank, own in found.items()}


def notes(config: Mapping[str, Any], found: Mapping[int, Sequence[Divergence]]) -> Iterator[str]:
    """For the steps that diverged, three at most: how many fed and how many live runs differ, and what that says."""
    steps = _steps(config, found)
    for number, step in list(steps.items())[:3]:
        counts = f"step {number}: fed what r1 received {step.fed} of {step.of_fed} runs differ"
        counts += f", live {step.live} of {step.of_live}"
        if step.fed:
            yield f"{counts}: a rank's own compute does not repeat"
        elif step.communication:
            yield f"{counts}: the divergence came from communication"
        else:
            yield f"{counts}: communication, or a single event; more runs tell (runs={2 * config['runs'] - 1})"
    if len(steps) > 3:
        yield f"and so on, in {len(steps)} steps"


def _steps(config: Mapping[str, Any], found: Mapping[int, Sequence[Divergence]]) -> dict[int, _Step]:
    runs = range(2, config["runs"] + 1)
    of_fed = sum(modes.fed(config, run) for run in runs)
    diverged: dict[int, set[int]] = defaultdict(set)
    for own in found.values():
        for one in own:
            diverged[one.step].add(run_number(one.run))
    counted = {step: sum(modes.fed(config, run) for run in numbers) for step, numbers in sorted(diverged.items())}
    return {step: _Step(fed, of_fed, len(diverged[step]) - fed, len(runs) - of_fed) for step, fed in counted.items()}
