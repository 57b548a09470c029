"""A smallest set that holds, against sets of hidden causes: it holds, nothing can be left out, and it asks little."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Sequence
from functools import partial
from itertools import combinations

import pytest

from detsweep.search.smallest import Found, smallest

ITEMS = tuple("abcdefghijkl")


class Asked:
    """Whether a set holds, kept for each set; fails where they are not in the order of the items."""

    def __init__(self, holds: Callable[[frozenset[str]], bool], items: Sequence[str] = ITEMS) -> None:
        self._holds = holds
        self._items = list(items)
        self.sets: list[frozenset[str]] = []
        self.questions = 0

    def __call__(self, members: Sequence[str], why: str) -> bool:
        assert members
        assert why
        assert list(members) == sorted(set(members), key=self._items.index)
        self.questions += 1
        if frozenset(members) not in self.sets:
            self.sets.append(frozenset(members))
        return self._holds(frozenset(members))


def cured_by(*cures: Collection[str]) -> Callable[[frozenset[str]], bool]:
    """Every set that has one of these in it holds."""
    return lambda members: any(members.issuperset(cure) for cure in cures)


def apart(*conflicts: Collection[str]) -> Callable[[Sequence[str]], bool]:
    """Any items go together but for those of a conflict."""
    return lambda members: not any(set(members).issuperset(conflict) for conflict in conflicts)


def find(*cures: Collection[str], items: Sequence[str] = ITEMS) -> tuple[Found, Asked]:
    asked = Asked(cured_by(*cures), items)
    return smallest(items, asked, apart()), asked


# --- all items go together -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cure", ITEMS)
def test_a_single_cure_is_found_in_few_questions(cure: str) -> None:
    found, asked = find(cure)
    assert found == Found((cure,))
    assert len(asked.sets) <= 2 * math.log2(len(ITEMS)) + 2
    # Nothing is asked for twice, even if nobody keeps the answers.
    assert asked.questions == len(asked.sets)


@pytest.mark.parametrize("count", range(1, 34))
def test_questions_grow_with_the_logarithm_of_the_number_of_items(count: int) -> None:
    items = [f"m{number}" for number in range(count)]
    for cure in items:
        found, asked = find([cure], items=items)
        assert found.members == (cure,)
        assert len(asked.sets) <= 2 * math.log2(count) + 2


def test_every_pair_is_found() -> None:
    for pair in combinations(ITEMS, 2):
        found, asked = find(pair)
        assert found == Found(pair)
        # Each item of it is searched for, and every item is tried alone for a smaller one.
        assert len(asked.sets) <= 2 * (2 * math.log2(len(ITEMS)) + 2) + len(ITEMS)


def test_every_triple_is_found_and_smaller_ones_are_not_ruled_out() -> None:
    for triple in combinations(ITEMS[:8], 3):
        found, _ = find(triple, items=ITEMS[:8])
        assert found == Found(triple, smaller_tried=False)


@pytest.mark.parametrize("pair", ["ab", "kl", "al", "fg"])
@pytest.mark.parametrize("single", ["c", "j"])
def test_of_a_pair_and_a_single_cure_it_is_the_single_one(pair: str, single: str) -> None:
    assert find(pair, single)[0] == Found((single,))


def test_all_items_can_be_needed() -> None:
    found, _ = find(ITEMS[:5], items=ITEMS[:5])
    assert found.members == ITEMS[:5]


def test_nothing_is_found_where_nothing_cures() -> None:
    found, asked = find()
    assert found == Found(None)
    assert asked.sets == [frozenset(ITEMS), *(frozenset(item) for item in ITEMS)]


@pytest.mark.parametrize("items", [(), ("a",), ("a", "b")])
def test_few_items_are_no_other_case(items: tuple[str, ...]) -> None:
    assert find(items=items)[0] == Found(None)
    for item in items:
        assert find(item, items=items)[0] == Found((item,))


@pytest.mark.parametrize(
    ("cures", "found"),
    [
        (("a", "b"), ("a",)),
        (("d", "k"), ("d",)),
        (("l", "b", "f"), ("b",)),
        (("ab", "cd"), ("a", "b")),
        (("ad", "be", "cf"), ("a", "d")),
        (("kl", "hi"), ("h", "i")),
    ],
)
def test_of_several_cures_it_is_the_one_of_earlier_items(cures: tuple[str, ...], found: tuple[str, ...]) -> None:
    assert find(*cures)[0].members == found


# --- items that contradict each other --------------------------------------------------------------------------------


@pytest.mark.parametrize("cure", ["a", "b", "c", "l", "ac", "bc", "kl", "bkl"])
def test_a_cure_is_found_on_either_side_of_a_conflict(cure: str) -> None:
    asked = Asked(cured_by(cure))
    assert smallest(ITEMS, asked, apart("ab")).members == tuple(cure)
    assert not any(members >= {"a", "b"} for members in asked.sets)


def test_a_cure_of_two_that_contradict_each_other_is_none() -> None:
    assert smallest(ITEMS, Asked(cured_by("ab")), apart("ab")) == Found(None)


def test_every_pair_that_goes_together_is_found_whatever_else_does_not() -> None:
    conflicts = ("ab", "cd", "ef")
    for pair in combinations("abcdefgh", 2):
        found = smallest("abcdefgh", Asked(cured_by(pair)), apart(*conflicts))
        assert found.members == (None if "".join(pair) in conflicts else pair)


def test_items_that_go_with_nothing_are_tried_alone() -> None:
    alone = apart(*combinations("abcd", 2))
    for cure in "abcd":
        asked = Asked(cured_by(cure))
        assert smallest("abcd", asked, alone).members == (cure,)
        assert all(len(members) == 1 for members in asked.sets)


def test_an_item_that_cannot_be_had_at_all_costs_one_question() -> None:
    asked = Asked(lambda members: "b" not in members and "cd" in "".join(sorted(members)))
    assert smallest("abcd", asked, lambda members: "b" not in members).members == ("c", "d")
    assert [members for members in asked.sets if "b" in members] == [{"b"}]


# --- more items undo it ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cure", "acl")
def test_a_cure_is_found_beside_one_item_that_breaks_the_whole(cure: str) -> None:
    asked = Asked(lambda members: cure in members and "b" not in members)
    assert smallest(ITEMS, asked, apart()) == Found((cure,), only_alone=True)
    assert all(len(members) in (1, len(ITEMS)) for members in asked.sets)


def test_what_an_item_undoes_only_among_some_is_still_a_set_that_holds() -> None:
    # d holds alone, and with c only where b is there too.
    def holds(members: frozenset[str]) -> bool:
        return "d" in members and ("c" not in members or "b" in members)

    found = smallest("abcd", Asked(holds, "abcd"), apart())
    assert found == Found(("d",))


def test_whatever_the_answers_are_the_set_was_asked_for_holds_and_has_nothing_to_leave_out() -> None:
    for seed in range(300):
        chance = random.Random(seed)
        answers: dict[frozenset[str], bool] = {frozenset("abcdef"): True}
        draw = partial(_drawn, answers=answers, chance=chance)
        found = smallest("abcdef", Asked(draw, "abcdef"), apart())
        assert found.members is not None, seed
        assert answers[frozenset(found.members)], seed
        rests = [frozenset(found.members) - {member} for member in found.members]
        assert not any(answers[rest] for rest in rests), seed


def _drawn(members: frozenset[str], *, answers: dict[frozenset[str], bool], chance: random.Random) -> bool:
    # Seldom a pair and never one item: else hardly an answer would have anything that could be left out.
    return answers.setdefault(members, len(members) > 1 and chance.random() < (0.2 if len(members) == 2 else 0.6))


# --- some cannot be tried --------------------------------------------------------------------------------------------


def failing_with(item: str) -> Callable[[Sequence[str]], bool]:
    """Every set that has this item in it fails."""
    return lambda members: item in members


@pytest.mark.parametrize("cure", ["a", "l", "bd", "dk", "bdk"])
def test_a_cure_is_found_without_the_items_that_fail_alone_too(cure: str) -> None:
    asked = Asked(lambda members: "e" not in members and cured_by(cure)(members))
    found = smallest(ITEMS, asked, apart(), failing_with("e"))
    assert found.members == tuple(cure)
    if len(cure) == 1:
        # Every item is tried alone until one holds.
        assert asked.sets == [frozenset(ITEMS), *(frozenset(item) for item in ITEMS[: ITEMS.index(cure) + 1])]
    else:
        assert asked.sets[0] == frozenset(ITEMS)
        assert asked.sets[1 + len(ITEMS)] == frozenset(ITEMS) - {"e"}


def test_where_nothing_else_cures_an_item_that_fails_leaves_nothing() -> None:
    asked = Asked(lambda _: False)
    assert smallest(ITEMS, asked, apart(), failing_with("e")) == Found(None)
    assert frozenset(ITEMS) - {"e"} in asked.sets


def test_items_that_fail_only_together_are_still_tried_alone() -> None:
    asked = Asked(lambda members: members == {"k"})
    assert smallest(ITEMS, asked, apart(), lambda members: len(members) > 1).members == ("k",)
    # None of them fails alone, so there is nothing to leave out.
    asked = Asked(lambda _: False)
    assert smallest(ITEMS, asked, apart(), lambda members: len(members) > 1) == Found(None)
    assert {len(members) for members in asked.sets} == {1, len(ITEMS)}


# --- hidden families of cures ----------------------------------------------------------------------------------------


def test_of_any_family_of_cures_the_answer_is_a_minimal_one() -> None:
    for seed in range(200):
        chance = random.Random(seed)
        items = ITEMS[: chance.randint(3, 12)]
        cures = [chance.sample(items, chance.randint(1, min(4, len(items)))) for _ in range(chance.randint(1, 4))]
        found, asked = find(*cures, items=items)
        assert found.members is not None, seed
        members = frozenset(found.members)
        assert cured_by(*cures)(members), seed
        assert not any(cured_by(*cures)(members - {member}) for member in members), seed
        if any(len(cure) == 1 for cure in cures):
            assert len(members) == 1, seed
        if found.smaller_tried:
            assert len(members) <= min(len(set(cure)) for cure in cures), seed
        assert len(asked.sets) <= max(map(len, cures)) * (2 * math.log2(len(items)) + 2) + len(items), seed


def test_with_conflicts_too_it_is_a_set_that_goes_together() -> None:
    for seed in range(200):
        chance = random.Random(seed)
        fits = apart(*(chance.sample(ITEMS, 2) for _ in range(chance.randint(1, 4))))
        cures = [cure for cure in (chance.sample(ITEMS, chance.randint(1, 2)) for _ in range(2)) if fits(cure)]
        asked = Asked(cured_by(*cures))
        found = smallest(ITEMS, asked, fits)
        assert all(fits(sorted(members)) for members in asked.sets), seed
        assert (found.members is None) == (not cures), seed
        if found.members is not None:
            assert cured_by(*cures)(frozenset(found.members)), seed
            assert len(found.members) <= max(map(len, cures)), seed
