"""Verdicts as they are shown: a sign and a word for each, and `inert` for a pass that says nothing."""

from __future__ import annotations

import pytest

from detsweep.analysis.marks import MARKS, mark, shown_as


def test_every_verdict_has_a_sign_and_a_word_that_no_other_has() -> None:
    signs, words = zip(*(text.split(" ", 1) for text in MARKS.values()), strict=True)
    assert len(set(signs)) == len(set(words)) == len(MARKS)


def test_what_cures_a_fault_that_was_put_in_is_no_idle_mitigation() -> None:
    row = {"verdict": "pass", "effect": "inert"}
    assert [shown_as({**row, "fault": fault}) for fault in ("bit_flip", "none", "")] == ["pass", "inert", "inert"]


@pytest.mark.parametrize(
    ("verdict", "effect", "expected"),
    [
        ("pass", "", "pass"),
        ("pass", None, "pass"),
        ("pass", "inert", "inert"),
        ("pass", "2 inert", "inert"),
        ("pass", "1 set, 1 inert", "pass"),
        ("pass", "effective", "pass"),
        # What diverged diverged, whatever was meant to cure it.
        ("diverged", "inert", "diverged"),
        ("error", "inert", "error"),
    ],
)
def test_only_a_pass_without_any_effect_is_shown_as_inert(verdict: str, effect: str | None, expected: str) -> None:
    row = {"verdict": verdict, "effect": effect}
    assert shown_as(row) == expected
    assert mark(row) == MARKS[expected]
