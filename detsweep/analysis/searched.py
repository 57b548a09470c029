"""What a search found, in words: from search.json and the measured costs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from detsweep import modes
from detsweep.analysis.costs import cost_words
from detsweep.bounds import upper_bound

if TYPE_CHECKING:
    from detsweep.analysis.frames import Sweep


def search_lines(sweep: Sweep) -> Iterator[str]:
    """The answer of the search that was the last command on this folder; nothing where it was none."""
    found = sweep.search
    if not found:
        return
    yield ""
    if found["state"] != "done":
        yield f"search={found['name']}: not at its end; {len(found['path'])} sets tried so far"
        return
    yield from (f"search={found['name']}: {line}" for line in found["lines"])
    if not found["found"] or found["name"] != "minimal":
        return
    # What the search has counted: not what an earlier command may have launched beyond, nor the steps of a trajectory.
    compared = next(one["evidence"]["compared"] for one in found["path"] if one["cell"] == found["answer_cell"])
    config = sweep.configs.get(found["answer_cell"])
    each = "trajectory" if config is not None and modes.trajectories(config) else "replay"
    yield f"search=minimal: with it the rate is below {upper_bound(compared):.1%} per {each} (95% confidence)"
    cost = sweep.costs[sweep.costs["cell"] == found["answer_cell"]]
    for _, row in cost.iterrows():
        launches = f"{row['launches']} pair{'' if row['launches'] == 1 else 's'} of launches"
        yield f"search=minimal: its cost: {cost_words(row)}, a step against one without it, {launches}"


def search_exit_code(sweep: Sweep) -> int:
    """0 an answer that was verified, 1 no set cures, 3 the search could not say."""
    assert sweep.search is not None
    if sweep.search["found"] and sweep.search["verified"]:
        return 0
    return 1 if sweep.search["verified"] else 3
