"""One search's trials: when a set is clean, what is launched for that, and that nothing is asked for twice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from detsweep.crosstrial import settled
from detsweep.paths import SweepPaths
from detsweep.plan import Cell
from detsweep.results import read_result
from detsweep.search.evidence import Evidence
from detsweep.search.session import SURE_OF_LAUNCHES, SURE_OF_RATE, NoAnswerError, Session
from tests.search.launching import Launches, Outcome
from tests.support import BLOCK_0_POST, trial_of, write_trial

TEN = ("steps=10",)
"""Ten comparisons in a launch. If three of them differ in each a set is clean after 17, which is two launches."""


def three_unless(*cure: str) -> Outcome:
    return lambda members, _: 0 if members.issuperset(cure) else 3


def seen(*diverged: int, error: str | None = None) -> Evidence:
    """Evidence of launches of which so many of ten comparisons differ."""
    launches, bad = len(diverged), sum(differ > 0 for differ in diverged)
    return Evidence(launches, 10 * launches, sum(diverged), error, diverged_launches=bad, compared_launches=launches)


def session(launches: Launches, **settings: Any) -> tuple[Session, list[str]]:
    said: list[str] = []
    return Session(launches.cell_of, launches.launch, {**launches.settings, **settings}, said.append), said


def calibrated(outcome: Outcome, *overrides: str, **settings: Any) -> tuple[Session, Launches]:
    launches = Launches(outcome, *(overrides or TEN))
    found, _ = session(launches, **settings)
    found.calibrate((), "the cell itself")
    launches.forget()
    return found, launches


# --- how often the cell diverges -------------------------------------------------------------------------------------


def test_the_cell_is_launched_until_it_has_diverged_often_enough() -> None:
    launches = Launches(lambda *_: 1, *TEN)
    found, said = session(launches)
    found.calibrate((), "the cell itself")
    assert launches.started == [("nothing", trial) for trial in range(SURE_OF_RATE)]
    assert found.known(()).evidence == seen(1, 1, 1)
    assert found.clean_at == 107
    counted, line = said
    assert counted == "  1. diverged  3/30 in 3 launches: nothing  [the cell itself]"
    assert line.startswith("the cell itself: 3/30 in 3 of 3 launches diverged, so at least 2.8%; a set is clean after")
    assert line.endswith(" after 107 comparisons in 1 launch or more without one (95% confidence)")


@pytest.mark.parametrize(("differ", "clean_at"), [(3, 17), (5, 8), (10, 2)])
def test_of_a_cell_that_diverges_often_a_few_launches_tell_enough(differ: int, clean_at: int) -> None:
    found, _ = calibrated(lambda *_: differ)
    assert found.launches == SURE_OF_LAUNCHES
    assert found.clean_at == clean_at


def test_more_confidence_takes_more_comparisons() -> None:
    clean_at = [calibrated(three_unless("a"), confidence=level)[0].clean_at for level in (0.8, 0.95, 0.99)]
    assert clean_at == [7, 17, 34]


def test_it_is_launched_on_while_its_rate_asks_for_more_launches_than_a_set_may_take() -> None:
    # Two of three launches would ask for 21 clean ones; three of four ask for 11.
    found, _ = calibrated(lambda _, trial: 0 if trial == 1 else 10)
    assert found.known(()).evidence == seen(10, 0, 10, 10)
    # Three of sixty comparisons would ask for 217 clean ones; four of eighty ask for 173.
    found, _ = calibrated(lambda _, trial: trial % 2)
    assert found.known(()).evidence == seen(0, 1, 0, 1, 0, 1, 0, 1)


@pytest.mark.parametrize(
    ("outcome", "line"),
    [
        (lambda *_: 0, "the cell itself does not diverge here: 0/50 in 5 launches"),
        (lambda *_: "rank 0: x", "the cell itself could not be run: rank 0: x"),
        (lambda _, trial: "rank 1: OSError: y" if trial else 0, "the cell itself could not be run: rank 1: OSError: y"),
        # 1 - 0.95^(1/50) is 0.1%, and a clean set would have to be clean in ln 0.05 / ln 0.95 times as many.
        (
            lambda _, trial: int(trial == 4),
            (
                "the cell itself diverges in 1/50 in 1 of 5 launches: that a set is clean takes 2921 comparisons in "
                "293 launches or more, 293 launches at this size, and search.max_trials is 5; raise it, or steps"
            ),
        ),
    ],
)
def test_where_it_does_not_diverge_or_too_seldom_there_is_no_answer(outcome: Outcome, line: str) -> None:
    launches = Launches(outcome, *TEN)
    found, _ = session(launches, max_trials=5)
    with pytest.raises(NoAnswerError) as raised:
        found.calibrate((), "the cell itself")
    assert str(raised.value) == line
    assert len(launches.started) <= 5


def test_a_launch_that_fails_after_divergences_does_not_undo_them() -> None:
    found, _ = calibrated(lambda _, trial: "rank 0: x" if trial else 2)
    assert found.known(()).evidence == seen(2, error="rank 0: x")
    assert found.known(()).came_to == "diverged"
    # Two of ten: at least 3.7%.
    assert found.clean_at == 80


# --- what a set comes to ---------------------------------------------------------------------------------------------


def test_a_set_is_clean_after_as_many_comparisons_as_that_takes() -> None:
    found, launches = calibrated(three_unless("a"))
    assert found.clean(["a", "b"], "why")
    assert launches.started == [("a+b", 0), ("a+b", 1)]
    tried = found.known(["a", "b"])
    assert (tried.members, tried.why, tried.cell, tried.came_to) == (("a", "b"), "why", "a+b", "clean")
    assert tried.evidence == seen(0, 0)


def test_exactly_as_many_comparisons_are_enough() -> None:
    # Six of six: at least 60.7%, so four comparisons, which are two launches of two steps.
    found, launches = calibrated(lambda members, _: 0 if members else 2, "steps=2")
    assert found.clean_at == 4
    assert found.clean(["a"], "why")
    assert launches.started == [("a", 0), ("a", 1)]


def test_where_not_every_launch_diverges_a_set_must_be_clean_in_many_of_them() -> None:
    # Thirty of forty comparisons, but in three of four launches: at least 24.9% of launches.
    found, launches = calibrated(lambda members, trial: 0 if members or trial == 1 else 10)
    assert found.clean_at < 10
    assert found.clean(["a"], "why")
    assert launches.started == [("a", trial) for trial in range(11)]


def test_a_set_has_diverged_at_its_first_divergence() -> None:
    found, launches = calibrated(lambda members, trial: trial if members else 3)
    assert not found.clean(["a"], "why")
    assert found.diverges(["a"], "why")
    assert launches.started == [("a", 0), ("a", 1)]
    assert found.known(["a"]).evidence == seen(0, 1)
    assert not found.clean(["b"], "why")


def test_a_set_whose_launch_fails_has_no_answer_and_costs_no_more_launches() -> None:
    found, launches = calibrated(lambda members, trial: ("rank 0: x" if trial else 0) if members else 3)
    assert not found.failed(["a"])
    assert found.came_to(["a"], "why") == "no answer"
    assert found.failed(["a"])
    assert not found.clean(["a"], "why")
    assert not found.diverges(["a"], "why")
    assert launches.started == [("a", 0), ("a", 1)]
    assert found.known(["a"]).evidence == seen(0, error="rank 0: x")


def test_a_set_of_which_no_cell_can_be_made_has_no_answer_and_is_not_launched() -> None:
    launches = Launches(three_unless("a"), *TEN)

    def cell_of(members: Sequence[str]) -> Cell:
        if len(members) > 1:
            raise ValueError("A cannot be both 1 and 2\nand more")
        return launches.cell_of(members)

    said: list[str] = []
    found = Session(cell_of, launches.launch, launches.settings, said.append)
    found.calibrate((), "the cell itself")
    launches.forget()
    assert found.came_to(["a", "b"], "why") == "no answer"
    assert found.failed(["b", "a"])
    assert launches.started == []
    assert found.known(["a", "b"]).cell == ""
    assert said[-1] == "  2. no answer 0/0 in 0 launches: a, b  [why] (A cannot be both 1 and 2)"


def test_a_set_is_asked_for_once_in_whatever_order() -> None:
    found, launches = calibrated(three_unless("a"))
    assert [found.clean(members, "why") for members in (["a", "b"], ["b", "a"], ["a", "b"])] == [True] * 3
    assert launches.started == [("a+b", 0), ("a+b", 1)]
    assert [tried.members for tried in found.tried] == [(), ("a", "b")]
    assert not found.clean([], "it is known")
    assert launches.started == [("a+b", 0), ("a+b", 1)]


def test_a_cell_is_made_once_and_stays_what_it_was() -> None:
    launches = Launches(three_unless("a"), *TEN)
    made: list[Sequence[str]] = []

    def cell_of(members: Sequence[str]) -> Cell:
        made.append(members)
        return launches.cell_of(members)

    found = Session(cell_of, launches.launch, launches.settings, [].append)
    found.calibrate((), "the cell itself")
    assert found.clean(["a"], "why")
    found.again(["a"], 2)
    found.again([], 2)
    assert made == [(), ["a"]]


def test_launches_are_counted_and_long_sets_shortened() -> None:
    launches = Launches(three_unless("a"), *TEN)
    found, said = session(launches)
    found.calibrate((), "the cell itself")
    assert found.clean(list("abcdefg"), "all")
    assert found.launches == len(launches.started) == 5
    assert said[-1] == "  2. clean     0/20 in 2 launches: a, b, c, d, e and 2 more  [all]"
    kept = found.known(list("abcdefg")).to_json()
    assert kept["members"] == tuple("abcdefg")
    assert (kept["why"], kept["cell"], kept["came_to"]) == ("all", "a+b+c+d+e+f+g", "clean")
    numbers = {key: kept["evidence"][key] for key in ("launches", "compared", "diverged", "error")}
    assert numbers == {"launches": 2, "compared": 20, "diverged": 0, "error": None}


# --- what an earlier command has left --------------------------------------------------------------------------------


def test_trials_beyond_those_that_are_needed_do_not_count() -> None:
    launches = Launches(lambda members, trial: (5 if trial == 4 else 0) if members else 3, *TEN)
    before, _ = session(launches)
    before.calibrate((), "the cell itself")
    assert before.clean(["a"], "why")
    for members in ([], ["a"], ["b"]):
        launches.launch(launches.cell_of(members), 6)
    launches.forget()
    after, _ = session(launches)
    after.calibrate((), "the cell itself")
    assert after.clean(["a"], "why")
    assert after.tried == before.tried
    assert after.clean(["b"], "why")
    assert launches.started == []


def test_what_failed_is_launched_again_by_the_next_command() -> None:
    outcome: dict[int, int | str] = {0: 0, 1: "rank 0: x"}
    launches = Launches(lambda members, trial: outcome[trial] if members else 3, *TEN)
    before, _ = session(launches)
    before.calibrate((), "the cell itself")
    assert before.came_to(["a"], "why") == "no answer"
    outcome[1] = 0
    launches.forget()
    after, _ = session(launches)
    after.calibrate((), "the cell itself")
    assert after.came_to(["a"], "why") == "clean"
    assert launches.started == [("a", 1)]


# --- fresh launches --------------------------------------------------------------------------------------------------


def test_fresh_launches_are_beyond_those_that_decided_and_can_overturn() -> None:
    found, launches = calibrated(lambda members, trial: int(trial == 4) if members else 3)
    assert found.clean(["a"], "why")
    assert found.again(["a"], 1).came_to == "clean"
    assert found.again(["a"], 2).came_to == "clean"
    assert launches.started == [("a", trial) for trial in range(4)]
    # The same again is no launch.
    found.again(["a"], 1)
    assert len(launches.started) == 4
    fallen = found.again(["a"], 3)
    assert (fallen.came_to, fallen.evidence.rate, fallen.why) == ("diverged", "1/50", "why")
    assert not found.clean(["a"], "another time")


def test_a_fresh_launch_that_fails_takes_the_answer_back() -> None:
    found, _ = calibrated(lambda members, trial: ("rank 0: x" if trial == 2 else 0) if members else 3)
    assert found.clean(["a"], "why")
    assert found.again(["a"], 1).came_to == "no answer"


def test_several_at_a_time_are_launched_and_fresh_ones_are_beyond_all_of_them() -> None:
    found, launches = calibrated(three_unless("a"), *TEN, "launch.max_parallel=4")
    assert found.clean(["a"], "why")
    # One, and then four more at once.
    assert launches.started == [("a", trial) for trial in range(5)]
    found.again(["a"], 3)
    assert launches.started == [("a", trial) for trial in range(8)]
    assert found.known(["a"]).evidence.launches == 8


# --- modes -----------------------------------------------------------------------------------------------------------


def test_trajectories_are_what_is_counted_where_a_mode_trains() -> None:
    found, launches = calibrated(lambda members, _: 0 if members else 2, "mode=train", "steps=10", "runs=3")
    # Two trajectories of a launch, and both differ.
    evidence = found.known(()).evidence
    assert (evidence.launches, evidence.compared, evidence.diverged) == (3, 6, 6)
    assert found.clean_at == 4
    assert found.clean(["a"], "why")
    assert launches.started == [("a", 0), ("a", 1)]
    assert found.known(["a"]).evidence.rate == "0/4"


class Relaunched(Launches):
    """Launches of which each is held against the first, as `mode=relaunch` does, from what they wrote."""

    def __init__(self, outcome: Outcome, folder: Path) -> None:
        super().__init__(outcome, "mode=relaunch", "steps=10", "runs=1", "trials=2")
        self._sweep = SweepPaths(folder)

    def launch(self, cell: Cell, trials: int) -> Mapping[int, Mapping[str, Any]]:
        found = {}
        for number in range(trials):
            trial = trial_of(self._sweep, cell, number)
            if not trial.result.exists():
                self.started.append((cell.id, number))
                differ = self.outcome(self._members[cell.id], number)
                assert isinstance(differ, int)
                struck = {(step, 1): BLOCK_0_POST for step in range(differ)}
                write_trial(trial, cell, number, differs={0: struck})
            result = read_result(trial)
            assert result is not None
            found[number] = (trial, result)
        return settled(found, cell.config)


def _relaunched(folder: Path, differ: int, **settings: Any) -> tuple[Session, Relaunched]:
    launches = Relaunched(lambda members, trial: differ if trial and not members else 0, folder)
    found, _ = session(launches, **settings)
    found.calibrate((), "the cell itself")
    return found, launches


def test_launches_that_are_compared_with_each_other_are_two_at_least(tmp_path: Path) -> None:
    found, launches = _relaunched(tmp_path, 3)
    # Of three launches two can differ from the first one, and do: no launch was clean by luck.
    evidence = found.known(()).evidence
    assert (evidence.launches, evidence.rate, evidence.compared_launches, evidence.diverged_launches) == (
        3,
        "6/20",
        2,
        2,
    )
    assert found.clean_at == 20
    # Two of two, not two of three.
    assert found.launches_needed(evidence) == 12
    launches.forget()
    assert found.clean(["a"], "why")
    # Twenty comparisons are two launches beside the first.
    assert launches.started == [("a", trial) for trial in range(3)]
    assert found.known(["a"]).evidence.rate == "0/20"


def test_where_two_launches_decide_a_fresh_one_is_the_third(tmp_path: Path) -> None:
    found, launches = _relaunched(tmp_path, 10)
    launches.forget()
    assert found.clean(["a"], "why")
    assert launches.started == [("a", 0), ("a", 1)]
    assert found.again(["a"], 1).evidence.rate == "0/20"
    assert launches.started == [("a", trial) for trial in range(3)]


def test_the_launch_that_others_are_held_against_is_one_of_those_that_a_set_takes(tmp_path: Path) -> None:
    with pytest.raises(
        NoAnswerError, match=r"in 1 launch or more, 2 launches at this size, and search\.max_trials is 1"
    ):
        _relaunched(tmp_path, 10, max_trials=1)
