"""`stop_after`: when a cell needs no further trial, from its results alone: dispatch, status and analysis ask the same.

A cell has its answer when so many of its trials have diverged, or when none has and the bound that was asked for is
reached. Of a cell that diverged no bound is asked: looked at again after each divergence, it would be too low more
often than its confidence says (with a rate of 5%, a bound of 5% and up to 200 replays in 12 cases of 100 instead of 5).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from detsweep.bounds import clean_needed
from detsweep.chances import Chances, chances, planned

NO_RULE: Mapping[str, Any] = {"divergences": None, "bound": None}


@dataclass(frozen=True)
class Stopped:
    """A cell that stopped early: after how many of its trials, and why."""

    after: int
    of: int
    why: str

    @property
    def words(self) -> str:
        return f"after {self.after} of {self.of} trials: {self.why}"


def rule_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """`stop_after` of a cell; sweeps from before there was such a key have none."""
    return config.get("stop_after") or NO_RULE


def has_rule(config: Mapping[str, Any]) -> bool:
    """Whether a cell may stop before its last trial."""
    return any(value is not None for value in rule_of(config).values())


def reason(config: Mapping[str, Any], seen: Chances) -> str | None:
    """Why a cell needs no further trial; None where it does need them."""
    rule, diverged = rule_of(config), seen.diverged_launches
    if rule["divergences"] is not None and diverged >= rule["divergences"]:
        return f"{diverged} diverged"
    if rule["bound"] is not None and not diverged and seen.compared >= clean_needed(rule["bound"]):
        return f"0 of {seen.compared} replays diverged"
    return None


def stopped(config: Mapping[str, Any], results: Mapping[int, Mapping[str, Any]]) -> Stopped | None:
    """How a cell stopped early; None where it did not. `results`: those of all its trials that have one, settled."""
    wanted, ended = int(config["trials"]), len(results)
    if not has_rule(config) or ended >= wanted:
        return None
    why = reason(config, chances(results, config))
    return None if why is None else Stopped(ended, wanted, why)


def surely_needed(config: Mapping[str, Any], seen: Chances, in_flight: Collection[int]) -> bool:
    """Whether a cell needs a further trial whatever those come to that are in flight, given by their numbers.

    Launched only then, no trial is launched that would not be if they were launched one after the other.
    """
    rule, diverged = rule_of(config), seen.diverged_launches
    if rule["divergences"] is not None and diverged + len(in_flight) >= rule["divergences"]:
        return False
    if rule["bound"] is None or diverged:
        return True
    coming = sum(planned(config, number) for number in in_flight)
    return seen.compared + coming < clean_needed(rule["bound"])


def contradictions(config: Mapping[str, Any]) -> Iterator[str]:
    """What does not go together with a cell's `stop_after`, a line each."""
    rule, trials, launch = rule_of(config), config["trials"], config["launch"]
    for key, value in rule.items():
        if value is None:
            continue
        name = f"stop_after.{key}={value}"
        if launch["detach"]:
            yield f"{name}: does not go with launch.detach=true: somebody must watch what trials come to"
        if planned(config, 1) == 0:
            yield f"{name}: runs={config['runs']} compares nothing, so that no trial can say anything; use runs=2"
    if rule["divergences"] is not None and rule["divergences"] > trials:
        yield f"stop_after.divergences={rule['divergences']}: no cell can reach it with trials={trials}; raise trials"


def notes(config: Mapping[str, Any]) -> Iterator[str]:
    """A line where the trials of a cell are too few for the bound that is to stop it."""
    bound = rule_of(config)["bound"]
    if bound is None:
        return
    first, each, trials = planned(config, 0), planned(config, 1), int(config["trials"])
    wanted, possible = clean_needed(bound), planned(config, 0) + (trials - 1) * planned(config, 1)
    if possible < wanted:
        enough = 1 + max(0, math.ceil((wanted - first) / each))
        yield (
            f"stop_after.bound={bound}: takes {wanted} replays, trials={trials} make {possible}: no cell stops by it "
            f"(trials={enough} would do)"
        )
