"""From what became of each setting on each rank to one word for a mitigation."""

from __future__ import annotations

from itertools import combinations_with_replacement, permutations

import pytest

from detsweep.mitigations import EFFECTS, merged
from detsweep.mitigations.effect import overall


def _rank(**statuses: str) -> dict[str, dict[str, dict[str, str]]]:
    return {"m": {name: {"status": status, "evidence": f"{name} is {status}"} for name, status in statuses.items()}}


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        (["effective", "effective"], "effective"),
        (["effective", "set", "inert"], "effective"),
        (["set", "inert"], "set"),
        (["inert", "inert"], "inert"),
        (["effective", "set", "inert", "lost"], "lost"),
    ],
)
def test_a_mitigation_is_the_best_of_its_settings_unless_one_is_lost(statuses: list[str], expected: str) -> None:
    assert {overall(order) for order in permutations(statuses)} == {expected}


def test_no_ranks_say_nothing() -> None:
    assert merged([]) == {}


def test_one_rank_is_told_as_it_is() -> None:
    assert merged([_rank(A="effective", B="inert")]) == {
        "m": {
            "status": "effective",
            "settings": {
                "A": {"status": "effective", "evidence": "A is effective"},
                "B": {"status": "inert", "evidence": "B is inert"},
            },
        }
    }


@pytest.mark.parametrize("pair", list(combinations_with_replacement(EFFECTS, 2)), ids="-".join)
def test_a_setting_is_the_worst_that_it_is_on_any_rank(pair: tuple[str, str]) -> None:
    better, worse = pair
    for ranks in ([better, worse], [worse, better]):
        found = merged([_rank(A=status) for status in ranks])
        assert found["m"]["settings"]["A"] == {"status": worse, "evidence": f"A is {worse}"}
        assert found["m"]["status"] == worse


def test_a_setting_that_one_rank_lost_costs_the_mitigation() -> None:
    ranks = [_rank(A="effective", B="effective"), _rank(A="effective", B="lost"), _rank(A="set", B="effective")]
    found = merged(ranks)["m"]
    assert found["status"] == "lost"
    assert {name: one["status"] for name, one in found["settings"].items()} == {"A": "set", "B": "lost"}


def test_mitigations_are_told_apart() -> None:
    rank = {**_rank(A="lost"), "other": {"A": {"status": "set", "evidence": "there"}}}
    assert {name: one["status"] for name, one in merged([rank, rank]).items()} == {"m": "lost", "other": "set"}
