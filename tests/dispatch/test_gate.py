"""Which trials are let through beside those in flight, and which a cell does without."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from detsweep.dispatch import loop
from detsweep.dispatch.gate import Gate
from detsweep.dispatch.loop import _drain, _outstanding, _settled
from detsweep.dispatch.pools import Trial
from detsweep.dispatch.progress import Progress
from detsweep.dispatch.stop import Stop
from detsweep.paths import SweepPaths
from detsweep.plan import Plan
from tests.support import INPUT, plan_of, trial_of, write_cells, write_failure, write_trial

EVERY_OF_THE_LAST = [(5, number) for number in range(9)]
DIVERGES, CLEAN, FAILS = "diverged", "pass", "error"


class FakePool:
    """A pool whose trials come to what a test says; each call of `finished` ends those that were launched first."""

    def __init__(self, width: int, outcome: Mapping[tuple[int, int], str], *, at_once: int = 1) -> None:
        self.width = width
        self.running: list[Trial] = []
        self.launched: list[tuple[int, int]] = []
        self.most: dict[int, int] = {}
        self._outcome = outcome
        self._at_once = at_once

    def adopt(self, _: Trial) -> bool:
        return False

    def launch(self, queue: deque[Trial]) -> list[Trial]:
        started = []
        while queue and len(self.running) < self.width:
            started.append(queue.popleft())
            self.running.append(started[-1])
            seed = int(started[-1].cell.config["seed"])
            self.launched.append((seed, started[-1].number))
            own = sum(int(trial.cell.config["seed"]) == seed for trial in self.running)
            self.most[seed] = max(own, self.most.get(seed, 0))
        return started

    def finished(self) -> list[tuple[Trial, Mapping[str, Any]]]:
        ended, self.running = self.running[: self._at_once], self.running[self._at_once :]
        return [(trial, self._end(trial)) for trial in ended]

    def _end(self, trial: Trial) -> Mapping[str, Any]:
        assert trial.paths.spec.exists()
        verdict = self._outcome.get((int(trial.cell.config["seed"]), trial.number), CLEAN)
        if verdict == FAILS:
            write_failure(trial.paths, trial.cell, trial.number)
            return {"verdict": "error", "error": "x"}
        differs = {0: {(0, 2): INPUT}} if verdict == DIVERGES else {}
        return write_trial(trial.paths, trial.cell, trial.number, differs=differs)


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "POLL_S", 0.0)


def _run(plan: Plan, sweep: SweepPaths, pool: FakePool, *, rounds: bool = False) -> None:
    """What the loop does, with another pool."""
    queue = deque(_outstanding(plan, sweep, pool))  # type: ignore[arg-type]
    gate = Gate(plan, lambda cell: _settled(cell, sweep), rounds=rounds)
    with Progress(plan, left=len(queue), width=pool.width) as progress:
        _drain(queue, gate, plan, pool=pool, progress=progress, stop=Stop())  # type: ignore[arg-type]


def _plan(*common: str, cells: int = 1) -> Plan:
    return plan_of(*([f"seed={seed}"] for seed in range(cells)), common=common)


def test_a_cell_stops_with_its_last_divergence_and_the_next_command_launches_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan, sweep = _plan("trials=9", "stop_after.divergences=2"), SweepPaths(tmp_path)
    pool = FakePool(1, {(0, 1): DIVERGES, (0, 3): DIVERGES})
    _run(plan, sweep, pool)
    assert pool.launched == [(0, number) for number in range(4)]
    # What was not launched has no folder.
    assert len(list(sweep.all_cells()[0].trials())) == 4
    assert "seed=0: stopped after 4 of 9 trials: 2 diverged" in capsys.readouterr().out.splitlines()
    again = FakePool(1, {})
    _run(plan, sweep, again)
    assert again.launched == []
    assert capsys.readouterr().out.splitlines() == [
        "4 of 9 trials have a result already",
        "seed=0: stopped after 4 of 9 trials: 2 diverged",
    ]


def test_counts_are_of_what_is_still_to_come(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = _plan("trials=3", "stop_after.divergences=1", cells=2)
    _run(plan, SweepPaths(tmp_path), FakePool(1, {(0, 0): DIVERGES}))
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition("]")[0] for line in lines] == [
        "[1/6",
        "seed=0: stopped after 1 of 3 trials: 1 diverged",
        *("[2/4", "[3/4", "[4/4"),
    ]


def test_a_cell_without_a_divergence_stops_at_the_bound(tmp_path: Path) -> None:
    # 29 clean replays say: below 10%.
    plan, sweep = _plan("trials=9", "steps=10", "stop_after.bound=0.1", cells=2), SweepPaths(tmp_path)
    pool = FakePool(1, {(1, 1): DIVERGES})
    _run(plan, sweep, pool)
    assert [number for seed, number in pool.launched if seed == 0] == [0, 1, 2]
    assert [number for seed, number in pool.launched if seed == 1] == list(range(9))


@pytest.mark.parametrize("at_once", [1, 3])
def test_where_other_cells_fill_the_places_no_trial_is_launched_that_is_not_needed(
    tmp_path: Path, at_once: int
) -> None:
    # Each cell diverges in its second trial; one after the other it would take two of each.
    plan = _plan("trials=9", "stop_after.divergences=1", cells=30)
    pool = FakePool(3, {(seed, 1): DIVERGES for seed in range(30)}, at_once=at_once)
    _run(plan, SweepPaths(tmp_path), pool)
    early = [number for seed, number in pool.launched if seed < 25]
    assert sorted(early) == [0] * 25 + [1] * 25
    assert max(pool.most[seed] for seed in range(25)) == 1


def test_places_that_no_cell_needs_are_not_left_empty(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan, sweep = _plan("trials=9", "stop_after.divergences=1"), SweepPaths(tmp_path)
    pool = FakePool(4, {(0, 0): DIVERGES})
    _run(plan, sweep, pool)
    assert pool.launched == [(0, number) for number in range(4)]
    assert "seed=0: stopped after 1 of 9 trials: 1 diverged (3 more under way)" in capsys.readouterr().out.splitlines()


def test_no_more_are_in_flight_than_could_all_be_needed(tmp_path: Path) -> None:
    # With a cell that never ends beside them, none of the others goes beyond its third divergence.
    plan = _plan("trials=9", "stop_after.divergences=3", cells=6)
    pool = FakePool(4, {(seed, number): DIVERGES for seed in range(5) for number in range(9)})
    _run(plan, SweepPaths(tmp_path), pool)
    assert sorted(pool.launched) == [*((seed, number) for seed in range(5) for number in range(3)), *EVERY_OF_THE_LAST]


def test_on_a_cluster_a_round_is_as_wide_as_the_pool_and_begins_when_the_last_has_ended(tmp_path: Path) -> None:
    plan, sweep = _plan("trials=9", "stop_after.divergences=1", cells=2), SweepPaths(tmp_path)
    queue = deque(_outstanding(plan, sweep, FakePool(4, {})))  # type: ignore[arg-type]
    gate = Gate(plan, lambda cell: _settled(cell, sweep), rounds=True)
    first = gate.passed(queue, [], 4)
    # One of each cell is needed; the other two places would be empty.
    assert [(trial.cell.config["seed"], trial.number) for trial in first] == [(0, 0), (1, 0), (0, 1), (1, 1)]
    assert gate.passed(queue, first[2:], 4) == []
    for trial in first:
        write_trial(trial.paths, trial.cell, trial.number, differs={0: {(0, 2): INPUT}} if trial == first[0] else {})
        gate.ended(trial)
    assert [one.cell.config["seed"] for one in gate.withheld(queue, [])] == [0]
    assert [(trial.cell.config["seed"], trial.number) for trial in gate.passed(queue, [], 4)] == [
        (1, number) for number in (2, 3, 4, 5)
    ]


def test_what_failed_is_launched_again_though_its_cell_has_stopped(tmp_path: Path) -> None:
    plan, sweep = _plan("trials=9", "stop_after.divergences=1"), SweepPaths(tmp_path)
    _run(plan, sweep, FakePool(1, {(0, 0): FAILS, (0, 1): DIVERGES}))
    pool = FakePool(1, {})
    _run(plan, sweep, pool)
    assert pool.launched == [(0, 0)]


def test_everything_again_begins_anew(tmp_path: Path) -> None:
    sweep = SweepPaths(tmp_path)
    _run(_plan("trials=9", "stop_after.divergences=1"), sweep, FakePool(1, {(0, 2): DIVERGES}))
    pool = FakePool(1, {(0, 1): DIVERGES})
    _run(_plan("trials=9", "stop_after.divergences=1", "launch.rerun=all"), sweep, pool)
    assert pool.launched == [(0, 0), (0, 1)]


def test_without_the_rule_the_rest_is_launched_after_all(tmp_path: Path) -> None:
    sweep = SweepPaths(tmp_path)
    _run(_plan("trials=4", "stop_after.divergences=1"), sweep, FakePool(1, {(0, 0): DIVERGES}))
    pool = FakePool(1, {})
    _run(_plan("trials=4"), sweep, pool)
    assert pool.launched == [(0, 1), (0, 2), (0, 3)]


def test_launches_are_held_against_each_other_before_one_more_is_made(tmp_path: Path) -> None:
    plan, sweep = _plan("mode=relaunch", "trials=9", "runs=1", "stop_after.divergences=1"), SweepPaths(tmp_path)

    class Relaunched(FakePool):
        def _end(self, trial: Trial) -> Mapping[str, Any]:
            # By itself each passes; the third is another than the first.
            differs = {0: {(0, 1): INPUT}} if trial.number == 2 else {}
            return write_trial(trial.paths, trial.cell, trial.number, differs=differs)

    pool = Relaunched(1, {})
    _run(plan, sweep, pool)
    assert pool.launched == [(0, 0), (0, 1), (0, 2)]


def _numbers(trials: Sequence[Trial]) -> list[int]:
    return [trial.number for trial in trials]


def test_without_a_rule_all_passes_at_once_and_has_its_spec(tmp_path: Path) -> None:
    plan, sweep = _plan("trials=5"), SweepPaths(tmp_path)
    queue = deque(_outstanding(plan, sweep, FakePool(1, {})))  # type: ignore[arg-type]
    assert all(trial.paths.spec.exists() for trial in queue)
    gate = Gate(plan, lambda cell: _settled(cell, sweep), rounds=True)
    assert _numbers(gate.passed(queue, [], 1)) == [0, 1, 2, 3, 4]
    assert not queue
    assert list(gate.withheld(queue, [])) == []


def test_a_cell_that_has_its_answer_from_an_earlier_command_is_not_begun(tmp_path: Path) -> None:
    sweep = write_cells(tmp_path, _plan("trials=3", cells=2))
    plan = _plan("trials=3", "stop_after.divergences=1", cells=2)
    write_trial(trial_of(sweep, plan.cells[0]), plan.cells[0], differs={0: {(0, 2): INPUT}})
    pool = FakePool(2, {})
    _run(plan, sweep, pool)
    assert pool.launched == [(1, 0), (1, 1), (1, 2)]
