"""Job arrays: their files, who shares one, and the lanes that hold a sweep's width over all of them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from detsweep.dispatch.pools import Trial
from detsweep.dispatch.slurm.arrays import Array, Lanes, Member, grouped, key_of, members_of, read_arrays
from detsweep.paths import FileError, SweepPaths, write_json
from tests.support import plan_of, trial_of

MEMBERS = (Member("0123456789", 0, 0), Member("abcdefabcd", 3, 2))


def _trials(folder: Path, *points: list[str]) -> list[Trial]:
    sweep = SweepPaths(folder)
    plan = plan_of(*points, common=["launch=slurm"])
    return [Trial(cell, 0, trial_of(sweep, cell)) for cell in plan.cells]


def test_an_array_is_read_as_it_was_written_before_and_after_it_has_a_job(tmp_path: Path) -> None:
    sweep = SweepPaths(tmp_path)
    arrays = [Array(number, f"n-{number}", job, (0, 4), MEMBERS) for number, job in ((2, "12"), (1, None), (10, "7"))]
    for array in arrays:
        array.write(sweep)
    assert list(read_arrays(sweep)) == sorted(arrays, key=lambda array: array.number)
    assert arrays[0].width == 2


def test_a_folder_without_arrays_has_none(tmp_path: Path) -> None:
    assert list(read_arrays(SweepPaths(tmp_path))) == []


def test_an_array_of_another_schema_is_named(tmp_path: Path) -> None:
    sweep = SweepPaths(tmp_path)
    write_json(sweep.array(1), {"schema": 0})
    with pytest.raises(FileError, match=r"array00001\.json has schema 0, this version reads"):
        list(read_arrays(sweep))


def test_a_single_trial_is_no_array_to_slurm() -> None:
    assert [Array(1, "n", "12", (0,), MEMBERS).element(index) for index in range(2)] == ["12_0", "12_1"]
    assert Array(1, "n", "12", (0,), MEMBERS[:1]).element(0) == "12"


def test_trials_that_ask_for_the_same_share_arrays_up_to_the_largest_in_the_order_of_the_first(tmp_path: Path) -> None:
    large = "launch.memory_gb=9"
    trials = _trials(tmp_path, *([f"seed={n}", *([large] if n % 3 == 1 else [])] for n in range(11)))
    found = [(resources.memory_gb, [t.cell.config["seed"] for t in group]) for resources, group in grouped(trials, 3)]
    assert found == [(None, [0, 2, 3]), (None, [5, 6, 8]), (None, [9]), (9.0, [1, 4, 7]), (9.0, [10])]


def test_cells_that_compute_other_things_share_an_array(tmp_path: Path) -> None:
    trials = _trials(tmp_path, ["seed=1"], ["dtype=fp16"], ["experts=4"])
    assert len(list(grouped(trials, 100))) == 1
    assert len(list(grouped(_trials(tmp_path, ["seed=1"], ["world.nproc_per_node=4"]), 100))) == 2


def test_members_know_how_often_they_were_given_again(tmp_path: Path) -> None:
    trials = _trials(tmp_path, ["seed=1"], ["seed=2"])
    members = members_of(trials, {key_of(trials[1]): 2})
    assert members == (Member(trials[0].cell.id, 0, 0), Member(trials[1].cell.id, 0, 2))


# --- lanes -----------------------------------------------------------------------------------------------------------


@dataclass
class _Job:
    """An array with Slurm: what its trials still take, which run, and what it waits for."""

    left: list[int]
    width: int
    after: tuple[str, ...]
    lanes: tuple[int, ...]
    running: list[int] = field(default_factory=list)

    @property
    def over(self) -> bool:
        return not self.left and not self.running


class _Slurm:
    """Runs arrays as Slurm does: each up to its own width, once those that it is to run after are over."""

    def __init__(self) -> None:
        self.jobs: dict[str, _Job] = {}

    def submit(self, lanes: Lanes, durations: list[int]) -> None:
        place = lanes.take(len(durations), lambda job: self.jobs[job].over)
        job = str(100 + len(self.jobs))
        self.jobs[job] = _Job(list(durations), len(place.lanes), place.after, place.lanes)
        lanes.give(place.lanes, len(durations), job)

    def pass_time(self) -> int:
        """One tick; returns how many trials run in it."""
        begun = {
            job: all(self.jobs[other].over for other in one.after) for job, one in self.jobs.items() if not one.over
        }
        for job, may in begun.items():
            one = self.jobs[job]
            while may and one.left and len(one.running) < one.width:
                one.running.append(one.left.pop(0))
        count = sum(len(one.running) for one in self.jobs.values())
        for one in self.jobs.values():
            one.running = [ticks - 1 for ticks in one.running if ticks > 1]
        return count

    def remembered(self, width: int) -> Lanes:
        """The lanes as the next command makes them from the arrays that are on disk."""
        lanes = Lanes(width)
        for job, one in self.jobs.items():
            if not one.over:
                lanes.give(one.lanes, len(one.left) + len(one.running), job)
        return lanes


def _counts(chance: random.Random, width: int, *, restarts: bool) -> Iterator[tuple[int, int]]:
    """How many trials run in each tick of a random sweep, and how many were still to run before it."""
    slurm, lanes = _Slurm(), Lanes(width)
    for _ in range(chance.randint(1, 12)):
        slurm.submit(lanes, [chance.randint(1, 9) for _ in range(chance.randint(1, 2 * width))])
        for _ in range(chance.choice((0, 0, 1, 3, 12))):
            yield slurm.pass_time(), 0
        if restarts and chance.random() < 0.4:
            lanes = slurm.remembered(width)
    left = sum(len(one.left) + len(one.running) for one in slurm.jobs.values())
    while left:
        yield slurm.pass_time(), left
        left = sum(len(one.left) + len(one.running) for one in slurm.jobs.values())


@pytest.mark.parametrize("restarts", [False, True], ids=["one command", "several commands"])
@pytest.mark.parametrize("width", [1, 2, 3, 5, 16])
def test_however_arrays_come_and_end_no_more_trials_run_at_once_than_may_and_none_waits_for_ever(
    width: int, restarts: bool
) -> None:
    chance = random.Random(width)
    most = 0
    for _ in range(150):
        for running, left in _counts(chance, width, restarts=restarts):
            assert running <= width
            assert running or not left
            most = max(most, running)
    assert most == width


def _take(lanes: Lanes, trials: int, over: str = "") -> tuple[tuple[int, ...], tuple[str, ...]]:
    place = lanes.take(trials, lambda job: job == over)
    return place.lanes, place.after


def test_one_array_runs_as_wide_as_it_may() -> None:
    assert _take(Lanes(4), 10) == ((0, 1, 2, 3), ())
    assert _take(Lanes(4), 3) == ((0, 1, 2), ())


def test_an_array_that_finds_free_lanes_waits_for_none() -> None:
    lanes = Lanes(4)
    lanes.give((0, 1), 2, "1")
    assert _take(lanes, 2) == ((2, 3), ())
    lanes.give((2, 3), 3, "2")
    assert _take(lanes, 1) == ((0,), ("1",))
    assert _take(lanes, 4) == ((0, 1, 2, 3), ("1", "2"))
    assert _take(lanes, 3, over="1") == ((0, 1, 2), ("2",))


def test_an_array_that_was_never_submitted_takes_no_lane() -> None:
    lanes = Lanes(1)
    lanes.take(1, lambda _: False)
    assert _take(lanes, 1) == ((0,), ())


def test_the_arrays_to_wait_for_are_in_the_order_of_their_ids() -> None:
    lanes = Lanes(3)
    for lane, job in enumerate(("1000", "9", "10")):
        lanes.give((lane,), 1, job)
    assert _take(lanes, 3)[1] == ("9", "10", "1000")


def test_lanes_that_an_earlier_command_had_more_of_are_all_taken() -> None:
    lanes = Lanes(2)
    lanes.give((0, 3, 7), 3, "1")
    assert _take(lanes, 1)[1] == ("1",)
    assert _take(lanes, 2)[1] == ("1",)
