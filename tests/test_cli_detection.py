"""Faults put in on purpose are found, and found in their place."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import detsweep as package
from tests.conftest import Ran, Run


@pytest.fixture(scope="module")
def flipped_input(detsweep: Run) -> Ran:
    return detsweep("fault=input_flip")


@pytest.fixture(scope="module")
def flipped_bit(detsweep: Run) -> Ran:
    return detsweep("fault=bit_flip", "fault.rank=1", "fault.block=2")


def ranks(ran: Ran) -> list[dict[str, Any]]:
    (result,) = ran.results().values()
    return result["ranks"]  # type: ignore[no-any-return]


def test_flipped_input_is_first_on_every_rank_and_leaves_parameters_alone(flipped_input: Ran) -> None:
    assert flipped_input.code == 1
    for rank in ranks(flipped_input):
        assert rank["verdict"] == "diverged"
        assert rank["divergences"][0]["site"] == "input"
        assert rank["divergences"][0]["name"] == "input_ids"
        assert rank["divergences"][0]["cause"] == "input"
        differs = Counter(rank["differs"])
        assert (differs["input"], differs["block_pre"], differs["block_post"]) == (1, 4, 4)
        assert (differs["logits"], differs["loss"]) == (1, 1)
        assert differs["grad"] > 30
        assert differs["param"] == differs["rng"] == 0


def test_flipped_bit_is_named_on_its_rank_and_block(flipped_bit: Ran) -> None:
    assert flipped_bit.code == 1
    first = ranks(flipped_bit)[1]["divergences"][0]
    assert (first["site"], first["block"], first["step"], first["run"]) == ("block_post", 2, 0, "r2")
    trial = package.load(flipped_bit.folder).trials.iloc[0]
    assert (trial["first_site"], trial["first_block"], trial["first_ranks"]) == ("block_post", 2, (1,))
    assert trial["diverged_ranks"] == (0, 1)


def test_the_other_rank_is_clean_up_to_the_gradients_that_a_reduce_scatter_brought(flipped_bit: Ran) -> None:
    clean, struck = ranks(flipped_bit)
    assert set(clean["differs"]) == {"grad"}
    # Backward reaches block 3 first: its reduce-scatter is the first collective that carries rank 1's other bits.
    assert clean["divergences"][0]["block"] == 3
    assert {"block_post", "block_pre", "logits", "loss", "block_grad_out", "block_grad_in", "grad"} == set(
        struck["differs"]
    )


def test_divergences_have_a_row_for_each_rank_and_are_marked_as_a_fault(flipped_bit: Ran) -> None:
    sweep = package.load(flipped_bit.folder)
    assert list(sweep.divergences["rank"]) == [0, 1]
    assert list(sweep.divergences["site"]) == ["grad", "block_post"]
    assert set(sweep.divergences["fault"]) == {"bit_flip"}
    for text in (flipped_bit.out, (flipped_bit.folder / "matrix.md").read_text()):
        assert "bit_flip" in text
        assert "those rows are not findings" in text
        assert "block_post of block 2, rank 1, step 0 r2" in text


def test_a_positive_control_ends_with_0_because_every_fault_was_found_in_place(detsweep: Run) -> None:
    ran = detsweep("-m", "fault=none,input_flip,bit_flip", "positive_control=true")
    assert ran.code == 0, ran.out + ran.err
    assert "positive control: 3 of 3 cells as they should be" in ran.out


def test_a_fault_that_no_record_can_place_fails_the_positive_control(detsweep: Run) -> None:
    # With nothing observed inside the step the flip only shows in the loss: detected, but not where it was put in.
    ran = detsweep("fault=bit_flip", "observe=off", "positive_control=true")
    assert ran.code == 1
    assert "misplaced" in ran.out


def test_observation_changes_no_bit_of_the_outcome(detsweep: Run) -> None:
    ran = detsweep("-m", "observe=off,block", "dtype=bf16_mixed", "experts=4", "moe=top2")
    assert ran.code == 0
    off, block = (outcome(ran.cells()[slug]) for slug in sorted(ran.cells(), reverse=True))
    assert off == block
    assert len(off) > 100


def outcome(cell: Path) -> dict[tuple[Any, ...], int]:
    return {
        (line["rank"], line["run"], site, name): digest
        for path in cell.glob("trial0/rank*.jsonl")
        for line in map(json.loads, path.read_text().splitlines())
        for site, name, *_, digest in line["records"]
        if site in ("loss", "grad", "param", "rng")
    }
