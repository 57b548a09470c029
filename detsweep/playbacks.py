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
from detsweep.bounds import fisher
from detsweep.compare import Divergence, run_number

# What a fed run can differ by beside compute, and is seen where it happens.
_OWN = ("input", "rng", "optimizer", "memory", "sequence")
SURE = 0.01
"""A difference between fed and live runs is no chance where chance alone would make it less often than this."""


@dataclass(frozen=True)
class _Counted:
    """How many fed and live runs differ, of how many."""

    fed: int
    of_fed: int
    live: int
    of_live: int

    @property
    def communication(self) -> bool:
        """Whether live runs differ more often than fed ones, by more than chance (Fisher's exact test, one-sided)."""
        if not self.live:
            return False
        return fisher((self.fed, self.of_fed), (self.live, self.of_live), alternative="less") < SURE


def attributed(config: Mapping[str, Any], found: Mapping[int, Sequence[Divergence]]) -> dict[int, list[Divergence]]:
    """The divergences of all ranks, with the cause that feeding tells where what was observed does not tell it."""
    communication = _counted(config, _diverged(found)).communication
    fed_steps = {step for step, runs in _diverged(found).items() if any(modes.fed(config, run) for run in runs)}
    # At these levels what every collective was given and delivered has been seen.
    seen = config["observe"]["name"] in ("collective", "op")

    def caused(one: Divergence) -> Divergence:
        if one.cause in _OWN:
            return one
        if modes.fed(config, run_number(one.run)):
            return replace(one, cause="compute")
        if communication and one.step not in fed_steps and not (seen and one.cause == "compute"):
            return replace(one, cause="collective")
        return one

    return {rank: [caused(one) for one in own] for rank, own in found.items()}


def notes(config: Mapping[str, Any], found: Mapping[int, Sequence[Divergence]]) -> Iterator[str]:
    """How many fed and how many live runs differ, over all steps, and what that says; nothing where none does."""
    diverged = _diverged(found)
    if not diverged:
        return
    counted = _counted(config, diverged)
    said = (
        f"fed what r1 received {counted.fed} of {counted.of_fed} runs differ, live {counted.live} of {counted.of_live}"
    )
    if counted.fed:
        yield f"{said}: a rank's own compute does not repeat"
        if counted.communication:
            yield "live runs differ more often than that explains: communication does not repeat either"
    elif counted.communication:
        yield f"{said}: the divergence came from communication"
    else:
        yield f"{said}: too few to tell communication from a rare event; more runs or steps tell"


def _diverged(found: Mapping[int, Sequence[Divergence]]) -> dict[int, set[int]]:
    """The runs of each step in which any rank diverged."""
    diverged: dict[int, set[int]] = defaultdict(set)
    for own in found.values():
        for one in own:
            diverged[one.step].add(run_number(one.run))
    return dict(sorted(diverged.items()))


def _counted(config: Mapping[str, Any], diverged: Mapping[int, set[int]]) -> _Counted:
    runs = range(2, config["runs"] + 1)
    of_fed = sum(modes.fed(config, run) for run in runs)
    fed = sum(modes.fed(config, run) for numbers in diverged.values() for run in numbers)
    live = sum(len(numbers) for numbers in diverged.values()) - fed
    return _Counted(fed, of_fed * config["steps"], live, (len(runs) - of_fed) * config["steps"])
