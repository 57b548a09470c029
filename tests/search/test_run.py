"""The two searches over launches that are functions of a set: what is found, what is said, and what is kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from detsweep.bounds import lower_bound
from detsweep.plan import Cell
from detsweep.search.run import ROUNDS, Answer, Task, search
from tests.search.launching import Launches, Outcome

ITEMS = tuple("abcdef")
NONE = "neither all that go together of these 6 mitigations nor any of them alone cures it"
Parts = Mapping[str, Sequence[str]]


@dataclass
class Searched:
    """An answer, the lines that were printed on the way, and every state that was kept."""

    answer: Answer
    said: list[str]
    states: list[dict[str, Any]]

    @property
    def path(self) -> list[tuple[str, str]]:
        """What was tried and what it came to, in the end."""
        return [("".join(one["members"]), one["came_to"]) for one in self.states[-1]["path"]]


def run(
    launches: Launches,
    name: str = "minimal",
    items: Sequence[str] = ITEMS,
    *,
    parts: Parts | None = None,
    apart: Sequence[str] = (),
    cell_of: Callable[[Sequence[str]], Cell] | None = None,
    believable_only_if_read: bool = True,
    **settings: Any,
) -> Searched:
    task = Task(
        name,
        tuple(items),
        cell_of or launches.cell_of,
        lambda members: not set(members).issuperset(apart or "-"),
        lambda item: (parts or {}).get(item, ()),
        {**launches.settings, "verify": 1, **settings},
        believable_only_if_read,
    )
    said: list[str] = []
    states: list[dict[str, Any]] = []
    return Searched(search(task, launches.launch, said.append, states.append), said, states)


def launching(outcome: Outcome, *, inert: bool = False) -> Launches:
    """Launches of ten comparisons each: where all of them differ one clean launch says enough of a set."""
    return Launches(outcome, "steps=10", inert=inert)


def cured_by(*cures: str) -> Outcome:
    return lambda members, _: 0 if any(members.issuperset(cure) for cure in cures) else 10


# --- minimal: what cures ---------------------------------------------------------------------------------------------


def test_a_single_cure_is_found_verified_and_told() -> None:
    launches = launching(cured_by("d"))
    searched = run(launches)
    assert searched.answer.members == ("d",)
    assert searched.answer.verified
    # Six launches of the cell itself, all of which diverge, and four clean ones: 1 - 0.05^(1/6) of launches are fewer.
    assert searched.answer.lines == (
        "smallest set that cures: d",
        "verified: 0/40 diverged in 4 launches, without it 60/60 in 6 of 6",
        "needed: d; with nothing alone: diverged, 60/60",
        f"{len(searched.path)} sets of 6 mitigations tried in {len(launches.started)} launches",
    )
    assert (searched.answer.baseline_cell, searched.answer.answer_cell) == ("nothing", "d")


@pytest.mark.parametrize("pair", ["ab", "be", "ef"])
def test_a_pair_is_found_and_each_of_it_shown_to_be_needed(pair: str) -> None:
    launches = launching(cured_by(pair))
    searched = run(launches)
    assert searched.answer.members == tuple(pair)
    assert searched.answer.lines == (
        f"smallest set that cures: {pair[0]}, {pair[1]}",
        "verified: 0/40 diverged in 4 launches, without it 60/60 in 6 of 6",
        f"needed: {pair[0]}; with {pair[1]} alone: diverged, 10/10",
        f"needed: {pair[1]}; with {pair[0]} alone: diverged, 10/10",
        f"{len(searched.path)} sets of 6 mitigations tried in {len(launches.started)} launches",
    )


def test_of_three_it_is_said_that_pairs_were_not_tried() -> None:
    searched = run(launching(cured_by("ace")))
    assert searched.answer.members == tuple("ace")
    limit = "none of its members can be left out; other sets that are smaller were tried up to one member"
    assert limit in searched.answer.lines


def test_a_set_that_diverges_costs_one_launch_and_a_clean_one_as_many_as_it_takes() -> None:
    launches = launching(lambda members, _: 0 if "c" in members else 3)
    searched = run(launches)
    assert searched.answer.members == ("c",)
    for one in searched.states[-1]["path"][1:]:
        if one["members"] != ("c",):
            assert one["evidence"]["launches"] == (1 if one["came_to"] == "diverged" else 2)


def test_without_a_cure_every_item_was_tried_alone_and_together() -> None:
    searched = run(launching(cured_by()))
    assert (searched.answer.members, searched.answer.verified) == (None, True)
    assert searched.answer.lines == (NONE, "8 sets of 6 mitigations tried in 10 launches")
    assert searched.path == [(members, "diverged") for members in ("", "abcdef", *ITEMS)]


def test_a_cure_that_one_item_undoes_is_found_alone() -> None:
    searched = run(launching(lambda members, _: 0 if "d" in members and "b" not in members else 10))
    assert searched.answer.members == ("d",)
    alone = "together with the other candidates it does not cure: one of them brings a divergence of its own"
    assert alone in searched.answer.lines


def test_items_that_contradict_each_other_are_not_launched_together() -> None:
    launches = launching(cured_by("b"))
    searched = run(launches, apart="ab")
    assert searched.answer.members == ("b",)
    assert not any({"a", "b"} <= set(name) for name, _ in launches.started)


# --- unions ----------------------------------------------------------------------------------------------------------

UNIONS: Parts = {"U": ("x", "y", "V"), "V": ("z", "w")}


def _with_parts(cure: str) -> Outcome:
    """A cure of atoms, which unions bring with them."""
    brings = {"U": frozenset("xyzw"), "V": frozenset("zw")}

    def outcome(members: frozenset[str], _: int) -> int:
        atoms = members.union(*(brings.get(member, frozenset()) for member in members))
        return 0 if atoms.issuperset(cure) else 10

    return outcome


@pytest.mark.parametrize("cure", ["x", "z", "yw", "xyzw"])
def test_a_union_is_taken_apart_down_to_the_parts_that_cure(cure: str) -> None:
    searched = run(launching(_with_parts(cure)), items=["a", "U", "b"], parts=UNIONS)
    assert searched.answer.members == tuple(sorted(cure, key="xyzw".index))
    assert searched.answer.answer_cell == "+".join(sorted(cure))
    assert ("xyzw", "clean") in searched.path


def test_a_union_beside_another_item_is_taken_apart_too() -> None:
    searched = run(launching(_with_parts("az")), items=["a", "U", "b"], parts=UNIONS)
    assert searched.answer.members == ("a", "z")


def test_a_union_that_cures_only_as_a_whole_stays() -> None:
    searched = run(launching(cured_by("U")), items=["a", "U", "b"], parts=UNIONS)
    assert searched.answer.members == ("U",)
    assert ("xyzw", "diverged") in searched.path
    # Where all parts together do not cure, none of them is launched alone.
    assert not {"x", "y", "z", "w"} & {members for members, _ in searched.path}


# --- fresh launches --------------------------------------------------------------------------------------------------


def test_an_answer_that_falls_with_a_fresh_launch_is_none_and_the_search_goes_on() -> None:
    # b alone is clean once, by chance; what cures is d.
    launches = launching(lambda members, trial: 0 if "d" in members or ("b" in members and trial == 0) else 10)
    searched = run(launches)
    assert searched.answer.members == ("d",)
    assert ("b", "diverged") in searched.path
    assert ("b", 1) in launches.started


def test_where_answers_fall_again_and_again_there_is_none() -> None:
    # Every set is clean at first, and never again.
    searched = run(launching(lambda members, trial: 10 if not members or trial else 0), items="abcdefgh")
    assert searched.answer.members is None
    assert not searched.answer.verified
    (line,) = searched.answer.lines
    assert line == f"{ROUNDS} answers fell with fresh launches: it diverges too seldom for search.confidence"


@pytest.mark.parametrize(("verify", "most"), [(1, 20), (5, 20), (5, 4)])
def test_the_cell_itself_is_launched_in_turns_with_the_answer(verify: int, most: int) -> None:
    launches = launching(cured_by("c"))
    assert run(launches, verify=verify, max_trials=most).answer.verified
    fresh = [name for name, trial in launches.started if trial > 0][2:]
    # The cell itself was launched three times before; of launches that all diverge three more and four clean ones do.
    assert fresh == ["nothing", "c"] * max(3, verify)


def test_where_launches_differ_an_answer_must_be_clean_in_many_of_them() -> None:
    # A launch of the cell itself in four is clean, and its first three are not.
    launches = launching(lambda members, trial: 0 if "c" in members or trial % 4 == 3 else 10)
    searched = run(launches)
    assert searched.answer.members == ("c",)
    evidence = {one["members"]: one["evidence"] for one in searched.states[-1]["path"]}
    bare, cured = evidence[()], evidence[("c",)]
    assert bare["diverged_launches"] < bare["launches"]
    # At the rate of launches that the cell itself has at least, so many clean ones are as improbable as 5%.
    rate = lower_bound(bare["diverged_launches"], bare["launches"])
    assert (1 - rate) ** cured["launches"] <= 0.05


def test_an_answer_that_takes_more_launches_than_there_may_be_is_none() -> None:
    # After its first three launches the cell itself diverges no more.
    searched = run(launching(lambda members, trial: 0 if "c" in members or trial > 2 else 10), max_trials=6)
    assert searched.answer.members is None
    assert not searched.answer.verified
    (line,) = searched.answer.lines
    assert line.startswith("c stood 7 launches, but the cell diverges in 3 of 9: search.max_trials=6 is too few")


# --- no answer -------------------------------------------------------------------------------------------------------


def test_a_cell_that_does_not_diverge_is_not_searched() -> None:
    launches = launching(cured_by(""))
    searched = run(launches, max_trials=3)
    line = "without a mitigation the cell does not diverge here: 0/30 in 3 launches"
    assert searched.answer == Answer(None, False, (line,))
    assert launches.started == [("nothing", trial) for trial in range(3)]
    assert searched.states[-1]["state"] == "done"
    assert searched.states[-1]["lines"] == [line]


def test_sets_whose_launches_fail_are_told_from_sets_that_do_not_cure() -> None:
    searched = run(launching(lambda members, _: "rank 0: no kernel" if "e" in members else 10))
    assert searched.answer.members is None
    # All together failed, so that no two of them cure is not known.
    assert not searched.answer.verified
    (line,) = searched.answer.lines
    assert line.startswith("no set of these 6 mitigations is known to cure it, but 2 of the 9 sets that were tried")
    assert line.endswith(" came to no answer: rank 0: no kernel")
    # What fails alone is left out of the rest, which is tried too.
    assert searched.path[-1] == ("abcdf", "diverged")


@pytest.mark.parametrize("cure", ["b", "bd", "bdf"])
def test_a_cure_is_found_beside_an_item_with_which_every_launch_fails(cure: str) -> None:
    def outcome(members: frozenset[str], trial: int) -> int | str:
        return "rank 0: x" if "e" in members else cured_by(cure)(members, trial)

    searched = run(launching(outcome))
    assert searched.answer.members == tuple(cure)
    assert searched.answer.verified
    assert searched.answer.lines[-1].endswith(" of them came to no answer, and counted as no cure")


def test_a_cure_that_nothing_reads_is_not_believed() -> None:
    launches = launching(cured_by("c"), inert=True)
    searched = run(launches)
    assert searched.answer.members == ("c",)
    assert not searched.answer.verified
    assert any(line.startswith("but nothing here reads what it sets") for line in searched.answer.lines)
    # Of a fault that somebody put in, and that looks at the variables itself, it is.
    assert run(launches, believable_only_if_read=False).answer.verified


def test_a_member_without_which_there_is_no_answer_is_not_known_to_be_needed() -> None:
    # d cannot be without e, and the two together cure.
    launches = launching(cured_by("de"))
    searched = run(launches, cell_of=_with_e(launches))
    assert searched.answer.members == ("d", "e")
    assert "needed: d; with e alone: diverged, 10/10" in searched.answer.lines
    assert "not known to be needed: e; with d alone: no answer, 0/0" in searched.answer.lines
    assert not searched.answer.verified


def _with_e(launches: Launches) -> Callable[[Sequence[str]], Cell]:
    def cell_of(members: Sequence[str]) -> Cell:
        if "d" in members and "e" not in members:
            raise ValueError("d: needs e")
        return launches.cell_of(members)

    return cell_of


def test_sets_of_which_there_can_be_no_cell_do_not_keep_the_search_from_saying_none() -> None:
    launches = launching(cured_by())

    def cell_of(members: Sequence[str]) -> Cell:
        if "e" in members:
            raise ValueError("e: no such thing here")
        return launches.cell_of(members)

    searched = run(launches, cell_of=cell_of)
    assert searched.answer.verified
    assert searched.answer.lines[0] == NONE
    assert ("e", "no answer") in searched.path


# --- what is kept ----------------------------------------------------------------------------------------------------


def test_the_state_is_kept_at_the_start_after_every_set_and_at_the_end() -> None:
    searched = run(launching(cured_by("be")))
    *running, done = searched.states
    assert {state["state"] for state in running} == {"running"}
    assert all(state["answer"] is None and not state["found"] and not state["verified"] for state in running)
    assert {len(state["path"]) for state in running} == set(range(len(done["path"]) + 1))
    assert done | {"path": [], "lines": [], "launches": 0} == {
        "name": "minimal",
        "items": list(ITEMS),
        "path": [],
        "launches": 0,
        "answer": ["b", "e"],
        "found": True,
        "verified": True,
        "baseline_cell": "nothing",
        "answer_cell": "b+e",
        "lines": [],
        "state": "done",
    }
    assert done["lines"] == list(searched.answer.lines)
    assert done["path"][0]["why"] == "without a mitigation the cell"


@pytest.mark.parametrize("outcome", [cured_by("be"), cured_by("d", "ab"), cured_by()])
def test_the_same_search_again_goes_the_same_way_and_launches_nothing(outcome: Outcome) -> None:
    launches = launching(outcome)
    first = run(launches, verify=2)
    launches.forget()
    again = run(launches, verify=2)
    assert launches.started == []
    assert (again.said, again.states, again.answer) == (first.said, first.states, first.answer)


def test_a_search_that_was_stopped_anywhere_goes_on_as_if_it_had_not_been() -> None:
    whole = run(launching(cured_by("be")))
    for stop in range(1, whole.states[-1]["launches"]):
        launches = launching(cured_by("be"))
        launches.outcome = _stopping(launches, stop)
        with pytest.raises(KeyboardInterrupt):
            run(launches)
        launches.outcome = cured_by("be")
        again = run(launches)
        assert (again.said, again.states) == (whole.said, whole.states)
        assert len(set(launches.started)) == len(launches.started) - 1


def _stopping(launches: Launches, at: int) -> Outcome:
    def outcome(members: frozenset[str], trial: int) -> int | str:
        if len(launches.started) > at:
            raise KeyboardInterrupt
        return cured_by("be")(members, trial)

    return outcome


def test_trials_of_an_earlier_command_do_not_change_the_way() -> None:
    def outcome(members: frozenset[str], trial: int) -> int:
        # What is beyond the launches that the search needs says something else.
        return 10 if not members.issuperset("be") or trial > 5 else 0

    plain = run(launching(outcome))
    launches = launching(outcome)
    for members in ("", "a", "be", "abcdef"):
        launches.launch(launches.cell_of(members), 8)
    assert run(launches).states == plain.states


# --- culprit ---------------------------------------------------------------------------------------------------------


def takes(*causes: str) -> Outcome:
    """Cells that have all of a cause diverge."""
    return lambda members, _: 10 if any(members.issuperset(cause) for cause in causes) else 0


@pytest.mark.parametrize("cause", ["a", "f", "bd", "ace", "abcdef"])
def test_the_settings_that_it_takes_are_found(cause: str) -> None:
    launches = launching(takes(cause))
    searched = run(launches, "culprit")
    assert searched.answer.members == tuple(cause)
    assert searched.answer.verified
    lines = list(searched.answer.lines)
    alone = "30/30" if len(cause) == len(ITEMS) else "10/10"
    assert lines[:2] == [f"it takes: {' x '.join(cause)}", f"with these alone: {alone} diverged"]
    # What is clean without one of them was clean in a fresh launch too.
    assert lines[2 : 2 + len(cause)] == [f"needed: {member}; without it: clean, 0/20" for member in cause]
    innocent = [item for item in ITEMS if item not in cause]
    assert lines[2 + len(cause) : -1] == ([f"not needed: {', '.join(innocent)}"] if innocent else [])
    assert lines[-1] == f"{len(searched.path)} sets of 6 axes tried in {len(launches.started)} launches"
    assert searched.path[:2] == [("abcdef", "diverged"), ("", "clean")]


def test_of_two_causes_it_is_the_smaller_one() -> None:
    assert run(launching(takes("bc", "f")), "culprit").answer.members == ("f",)


def test_where_the_cell_does_not_diverge_no_axis_is_tried() -> None:
    searched = run(launching(takes()), "culprit", max_trials=2)
    line = "as it is the cell does not diverge here: 0/20 in 2 launches"
    assert searched.answer == Answer(None, False, (line,))
    assert len(searched.path) == 1


def test_where_it_diverges_with_every_axis_harmless_they_are_not_the_cause() -> None:
    searched = run(launching(takes("")), "culprit")
    line = "with every axis at its harmless value it is not clean (10/10): the cause is none of these axes"
    assert searched.answer == Answer(None, False, (line,))
    assert len(searched.path) == 2


def test_where_the_harmless_cell_fails_nothing_is_said_of_the_cause() -> None:
    searched = run(launching(lambda members, _: 10 if members else "rank 0: x"), "culprit")
    line = "with every axis at its harmless value it is not clean (0/0): rank 0: x"
    assert searched.answer == Answer(None, False, (line,))


def test_settings_that_cannot_be_had_alone_come_to_no_answer_and_are_told_so() -> None:
    # d cannot be without e; the two together are the cause.
    launches = launching(takes("de"))
    searched = run(launches, "culprit", cell_of=_with_e(launches))
    assert searched.answer.members == ("d", "e")
    assert "needed: d; without it: clean, 0/20" in searched.answer.lines
    assert "not known to be needed: e; without it: no answer, 0/0" in searched.answer.lines
    assert not searched.answer.verified


def test_a_setting_that_was_clean_by_chance_is_found_out_by_fresh_launches() -> None:
    # Without b it diverges too, but not in its first launch.
    launches = launching(lambda members, trial: 10 if "d" in members and ("b" in members or trial) else 0)
    searched = run(launches, "culprit")
    assert searched.answer.members == ("d",)
    assert "not needed: a, b, c, e, f" in searched.answer.lines
    assert ("d", 1) in launches.started
