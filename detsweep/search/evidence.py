"""What the launches of a cell say about it: how often it was compared with itself, and how often it differed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from detsweep import modes
from detsweep.chances import held
from detsweep.crosstrial import COMPARABLE


@dataclass(frozen=True)
class Evidence:
    """Of `launches`, those that came to a verdict, `compared` comparisons of which `diverged` differed.

    In modes that train a comparison is one of trajectories, else one of runs. `diverged_launches`: how many launches
    had one, of `compared_launches`: where launches are compared with each other the first one, with which the others
    are, counts only if it differs from itself. `error`: of the first launch that came to nothing. `inert`: no
    mitigation was read by anything.
    """

    launches: int
    compared: int
    diverged: int
    error: str | None
    diverged_launches: int = 0
    compared_launches: int = 0
    inert: bool = False

    @property
    def rate(self) -> str:
        """As a table has it: diverged/compared."""
        return f"{self.diverged}/{self.compared}"


def evidence(results: Mapping[int, Mapping[str, Any]], config: Mapping[str, Any]) -> Evidence:
    """Sum up the results of a cell's launches, settled where launches are compared with each other."""
    valid = [result for result in results.values() if result["verdict"] in COMPARABLE]
    counted = held(valid, config)
    failed = [result for result in results.values() if result["verdict"] not in (*COMPARABLE, "none")]
    return Evidence(
        launches=len(valid),
        compared=sum(_compared(result, config) for result in valid),
        diverged=sum(_diverged(result, config) for result in valid),
        diverged_launches=sum(_diverged(result, config) > 0 for result in counted),
        compared_launches=len(counted),
        inert=_inert(valid),
        error=str(failed[0].get("error") or failed[0]["verdict"]) if failed else None,
    )


def _compared(result: Mapping[str, Any], config: Mapping[str, Any]) -> int:
    # The steps of a trajectory are no chances of their own: after the first that differs all do.
    return int(config["runs"]) - 1 if modes.trajectories(config) else int(result["replays"])


def _diverged(result: Mapping[str, Any], config: Mapping[str, Any]) -> int:
    if not modes.trajectories(config):
        return int(result["diverged_replays"])
    return len({divergence["run"] for rank in result["ranks"] for divergence in rank["divergences"]})


def _inert(valid: list[Mapping[str, Any]]) -> bool:
    statuses = {one["status"] for result in valid for one in (result.get("effects") or {}).values()}
    return statuses == {"inert"}
