"""What became of mitigations, from each setting on each rank to one word for a mitigation in a trial."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

EFFECTS = ("effective", "set", "inert", "lost")
"""`effective`: in force, and seen to act. `set`: in force, and something here reads it; whether it acts cannot be seen.
`inert`: nothing here reads it. `lost`: asked for, and not in force."""
UNDONE = "undone"
"""How the evidence begins of what was in force, and was undone by the library itself."""

Statuses = Mapping[str, Mapping[str, Mapping[str, str]]]
"""For each mitigation each of its settings: its `status` and the `evidence`."""


def overall(statuses: Iterable[str]) -> str:
    """The status of a mitigation from those of its settings: lost by one that is lost, else the best of them."""
    found = set(statuses)
    return "lost" if "lost" in found else next(status for status in EFFECTS if status in found)


def merged(ranks: Sequence[Statuses]) -> dict[str, dict[str, Any]]:
    """For each mitigation of a trial its `status` and that of its `settings`; each the worst that it is on any rank."""
    if not ranks:
        return {}
    trial = {}
    for mitigation, settings in ranks[0].items():
        worst = {name: _worst([rank[mitigation][name] for rank in ranks]) for name in settings}
        trial[mitigation] = {"status": overall(one["status"] for one in worst.values()), "settings": worst}
    return trial


def _worst(found: Sequence[Mapping[str, str]]) -> dict[str, str]:
    return dict(max(found, key=lambda one: EFFECTS.index(one["status"])))
