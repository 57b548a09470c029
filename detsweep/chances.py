"""How often the launches of a cell could have diverged, and did: what its rates are made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from detsweep import modes
from detsweep.crosstrial import COMPARABLE

Result = Mapping[str, Any]


@dataclass(frozen=True)
class Chances:
    """Of `compared` replays `diverged` did, and of `launches` those that are `diverged_launches`.

    Of a trajectory steps count up to the first that differs: after it the others have no choice. Where launches are
    compared with each other, the first one, with which the others are, counts only if it differs from itself.
    """

    diverged: int
    compared: int
    diverged_launches: int
    launches: int


NOTHING = Chances(0, 0, 0, 0)


def summed(several: Iterable[Chances]) -> Chances:
    """The chances of several trials, or cells, together."""
    numbers = [(one.diverged, one.compared, one.diverged_launches, one.launches) for one in several]
    return Chances(*map(sum, zip(*numbers, strict=True))) if numbers else NOTHING


def chances(results: Mapping[int, Result], config: Mapping[str, Any]) -> Chances:
    """Sum up the results of a cell's trials, settled where launches are compared; only those with a verdict count."""
    valid = [result for _, result in sorted(results.items()) if result["verdict"] in COMPARABLE]
    counted = held(valid, config)
    moot = sum(_moot(result, config) for result in valid) if modes.trajectories(config) else 0
    if modes.trajectories(config):
        diverged = sum(len(_parted(result)) for result in valid)
    else:
        diverged = sum(int(result["diverged_replays"]) for result in valid)
    return Chances(
        diverged,
        sum(int(result["replays"]) for result in valid) - moot,
        sum(result["verdict"] == "diverged" for result in counted),
        len(counted),
    )


def held(valid: Sequence[Result], config: Mapping[str, Any]) -> list[Result]:
    """Those of a cell's valid results, in the order of the trials, that could have been another than the rest."""
    relaunched = config["mode"]["name"] == "relaunch"
    return [one for place, one in enumerate(valid) if place or not relaunched or one["verdict"] == "diverged"]


def moot_steps(first_steps: Iterable[int], config: Mapping[str, Any]) -> int:
    """How many steps of trajectories come after the first that differs, one for each trajectory that parted."""
    return sum(int(config["steps"]) - 1 - step for step in first_steps)


def planned(config: Mapping[str, Any], number: int) -> int:
    """How many comparisons a trial of this number makes, if it comes to a verdict."""
    compared = modes.replays(config)
    if config["mode"]["name"] == "lockstep":
        compared = int(config["steps"] * config["runs"])
    if config["mode"]["name"] == "relaunch" and number > 0:
        compared += len(modes.expected_runs(config))
    return compared


def _moot(result: Result, config: Mapping[str, Any]) -> int:
    return moot_steps(_parted(result).values(), config)


def _parted(result: Result) -> dict[str, int]:
    """The trajectories of a trial that parted from its first, with the first step in which any rank did."""
    found: dict[str, int] = {}
    for rank in result["ranks"]:
        for divergence in rank["divergences"]:
            found[divergence["run"]] = min(divergence["step"], found.get(divergence["run"], divergence["step"]))
    return found
