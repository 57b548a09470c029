"""The three arms: deterministic algorithms off, on with fresh memory filled, and on without. What tells them apart?

torch fills fresh memory while its deterministic algorithms are on, so a cure by that switch may be a cure of either:
operators that race, or reads of memory that nobody has written. The third arm tells which.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from detsweep.analysis.costs import without_mitigations
from detsweep.mitigations import combine

if TYPE_CHECKING:
    from detsweep.analysis.frames import Sweep

OFF, FILLED, UNFILLED = "off", "filled", "unfilled"


def arm_lines(sweep: Sweep) -> Iterator[str]:
    """A line for each cell that was run in all three arms and is not clean in all of them."""
    cells: dict[str, dict[str, str]] = {}
    for cell, verdicts in sweep.trials.groupby("cell", sort=False)["verdict"]:
        config = sweep.configs.get(str(cell))
        arm = None if config is None else _arm(config)
        if config is not None and arm is not None:
            worst = {str(verdict) for verdict in verdicts}
            came_to = "diverged" if "diverged" in worst else "pass" if worst == {"pass"} else "none"
            arms = cells.setdefault(without_mitigations(config), {"name": _name(sweep, str(cell))})
            # Of several cells in one arm (torch_det, torch_strict) the worst.
            arms[arm] = min(arms.get(arm, came_to), came_to, key=("diverged", "none", "pass").index)
    for arms in cells.values():
        if (words := _said(arms)) is not None:
            yield f"{arms['name']}: {words}"


def _said(arms: Mapping[str, str]) -> str | None:
    if not {OFF, FILLED, UNFILLED} <= arms.keys():
        return None
    # The first arm fills nothing either: where it says the opposite of the third, neither of them can be explained so.
    if (arms[FILLED], arms[UNFILLED]) == ("pass", "diverged") and arms[OFF] != "pass":
        return "clean only while fresh memory is filled: something reads memory that nobody has written"
    if (arms[OFF], arms[FILLED], arms[UNFILLED]) == ("diverged", "pass", "pass"):
        return "cured by deterministic algorithms, with and without filling fresh memory: an operator that races"
    if arms[FILLED] == arms[UNFILLED] == "diverged":
        return "not cured by deterministic algorithms"
    if (arms[FILLED], arms[UNFILLED]) == ("diverged", "pass") and arms[OFF] != "diverged":
        return "diverges only while fresh memory is filled: the fill itself races"
    return None


def _arm(config: Mapping[str, Any]) -> str | None:
    settings = combine(config["mitigation"], config["env"])
    # What only warns leaves operators as they are that have no deterministic form: no arm of this comparison.
    if settings.env or settings.torch.keys() - {"deterministic_algorithms", "fill_uninitialized_memory"}:
        return None
    level = settings.torch.get("deterministic_algorithms", "off")
    if level == "off":
        return OFF
    if level == "warn":
        return None
    return FILLED if settings.torch.get("fill_uninitialized_memory", True) else UNFILLED


def _name(sweep: Sweep, cell: str) -> str:
    told = {key: value for key, value in sweep.overrides[cell].items() if key not in ("mitigation", "experiment")}
    return " ".join(f"{key}={value}" for key, value in told.items()) or str(sweep.configs[cell]["model"]["name"])
