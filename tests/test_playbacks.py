"""What runs that are fed tell of a divergence: compute, communication, or too little to say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from detsweep.compare import Divergence
from detsweep.playbacks import attributed, notes


def _config(runs: int, steps: int = 1, level: str = "block") -> dict[str, Any]:
    return {"mode": {"name": "playback"}, "runs": runs, "steps": steps, "observe": {"name": level}}


def _diverged(*places: tuple[int, int], cause: str | None = None, rank: int = 0) -> list[Divergence]:
    """Divergences of a rank at (step, run)."""
    return [
        Divergence(rank, step, f"r{run}", 3, "block_post", 0, "blocks.0", "forward", "value", cause=cause)
        for step, run in places
    ]


def _causes(config: dict[str, Any], found: Sequence[Divergence]) -> list[str | None]:
    return [one.cause for one in attributed(config, {0: found})[0]]


def test_what_differs_in_a_run_that_is_fed_is_compute() -> None:
    found = _diverged((0, 2))
    assert _causes(_config(5), found) == ["compute"]
    assert list(notes(_config(5), {0: found})) == [
        "fed what r1 received 1 of 2 runs differ, live 0 of 2: a rank's own compute does not repeat"
    ]


@pytest.mark.parametrize("cause", ["input", "rng", "optimizer", "memory", "sequence"])
def test_a_cause_that_was_seen_where_it_happened_stays(cause: str) -> None:
    assert _causes(_config(11), _diverged((0, 2), cause=cause)) == [cause]
    live = _diverged(*((0, run) for run in (3, 5, 7, 9, 11)), cause=cause)
    assert set(_causes(_config(11), live)) == {cause}


def test_what_differs_in_all_live_runs_and_in_no_fed_one_came_from_communication() -> None:
    # By chance all 5 of 10 runs that differ are live ones in 1 of 252 cases.
    found = _diverged(*((0, run) for run in (3, 5, 7, 9, 11)))
    assert set(_causes(_config(11), found)) == {"collective"}
    assert list(notes(_config(11), {0: found})) == [
        "fed what r1 received 0 of 5 runs differ, live 5 of 5: the divergence came from communication"
    ]


def test_steps_are_counted_together() -> None:
    # 1 of 2 live runs in each of 10 steps, none of the 20 fed ones.
    found = _diverged(*((step, 3) for step in range(10)))
    assert set(_causes(_config(5, steps=10), found)) == {"collective"}


@pytest.mark.parametrize("runs", [3, 5, 9])
def test_too_few_runs_tell_nothing(runs: int) -> None:
    # All 4 of 8 are live by chance in 1 of 70 cases.
    found = _diverged(*((0, run) for run in range(3, runs + 1, 2)))
    assert set(_causes(_config(runs), found)) == {None}
    (line,) = notes(_config(runs), {0: found})
    assert line.endswith("too few to tell communication from a rare event; more runs or steps tell")


@pytest.mark.parametrize("level", ["collective", "op"])
def test_what_was_seen_to_compute_other_bits_stays_compute(level: str) -> None:
    live = [(0, run) for run in (3, 5, 7, 9, 11)]
    assert set(_causes(_config(11, level=level), _diverged(*live, cause="compute"))) == {"compute"}
    assert set(_causes(_config(11, level=level), _diverged(*live, cause="upstream"))) == {"collective"}


def test_a_rank_counts_once_with_the_others_of_its_run() -> None:
    found = {0: _diverged((0, 3)), 1: _diverged((0, 3), rank=1)}
    (line,) = notes(_config(5), found)
    assert line.startswith("fed what r1 received 0 of 2 runs differ, live 1 of 2")


def test_both_can_be_at_fault() -> None:
    found = _diverged((0, 2), *((step, run) for step in range(4) for run in (3, 5)))
    lines = list(notes(_config(5, steps=4), {0: found}))
    assert lines[1] == "live runs differ more often than that explains: communication does not repeat either"
    assert list(notes(_config(5), {})) == []
