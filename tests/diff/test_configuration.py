"""The keys in which two configurations differ, as a user would name them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from detsweep.diff.configuration import aside_differences, flat, key_differences
from tests.support import one_cell


def _told(before: Sequence[str], after: Sequence[str]) -> list[str]:
    one, other = one_cell(*before), one_cell(*after)
    return [str(found) for found in key_differences(one.config, other.config, (one.overrides, other.overrides))]


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ([], [], []),
        ([], ["+env.NCCL_ALGO=Tree"], ["env.NCCL_ALGO: unset -> Tree"]),
        (["+env.NCCL_ALGO=Ring"], ["+env.NCCL_ALGO=Tree"], ["env.NCCL_ALGO: Ring -> Tree"]),
        ([], ["+env.NCCL_ALGO=null"], ["env.NCCL_ALGO: unset -> null"]),
        (["seed=1"], ["seed=2"], ["seed: 1 -> 2"]),
        (["dtype=bf16"], ["dtype=fp32"], ["dtype: bf16 -> fp32"]),
        # The group's own choice is one difference, and what the command line says beside it another.
        (["dtype=bf16"], ["dtype=fp32", "dtype.reduce=bf16"], ["dtype: bf16 -> fp32"]),
        (["dtype=bf16", "dtype.reduce=fp32"], ["dtype=fp32", "dtype.reduce=bf16"],
         ["dtype: bf16 -> fp32", "dtype.reduce: fp32 -> bf16"]),
        ([], ["dtype.reduce=fp32"], ["dtype.reduce: bf16 -> fp32"]),
        (["model=tiny"], ["model=small"], ["model: tiny -> small"]),
        ([], ["model.num_layers=2"], ["model.num_layers: 4 -> 2"]),
        ([], ["experts=4"], ["experts: 1 -> 4"]),
        (["experts=4"], ["experts=4", "moe=top2"], ["moe: top1 -> top2"]),
        (["experts=4", "moe=topk", "top_k=2"], ["experts=4", "moe=topk", "top_k=4"], ["top_k: 2 -> 4"]),
        ([], ["mode=record"], ["mode: replay -> record"]),
        ([], ["mode=record", "runs=3"], ["mode: replay -> record", "runs: 2 -> 3"]),
        ([], ["fault=bit_flip", "fault.rank=1"], ["fault: none -> bit_flip", "fault.rank: null -> 1"]),
        ([], ["mitigation=[torch_det]"], ["mitigation: none -> torch_det"]),
        (["mitigation=[torch_det]"], ["mitigation=[cpu_1thread,torch_det]"],
         ["mitigation: torch_det -> cpu_1thread+torch_det"]),
        (["mitigation=[nccl_ring]", "mitigation_force=true"],
         ["mitigation=[nccl_ring]", "mitigation_force=true", "mitigation.nccl_ring.env.NCCL_ALGO=Tree"],
         ["mitigation.nccl_ring.env.NCCL_ALGO: Ring -> Tree"]),
        (["folder=runs/a", "trials=3", "launch.timeout_min=1"], ["folder=runs/b"], []),
    ],
)  # fmt: skip
def test_what_a_user_would_name_is_named_and_nothing_else(before: list[str], after: list[str], told: list[str]) -> None:
    assert _told(before, after) == told


def test_the_other_way_round_the_values_change_places() -> None:
    assert _told(["+env.A=1"], []) == ["env.A: 1 -> unset"]


def test_without_the_command_lines_a_group_still_stands_for_what_follows_from_it() -> None:
    one, other = one_cell("dtype=bf16"), one_cell("dtype=fp32")
    assert [found.key for found in key_differences(one.config, other.config)] == ["dtype"]


def test_what_says_nothing_about_the_bits_is_told_apart() -> None:
    one, other = (one_cell(*words).to_json()["config"] for words in (["trials=1"], ["trials=3", "drill=true"]))
    assert [str(found) for found in aside_differences(one, other)] == ["trials: 1 -> 3", "drill: false -> true"]
    assert key_differences(one, other) == []


def test_every_difference_of_identity_has_a_key() -> None:
    # A cell's id is made of the same keys: where it is another one, something must be told.
    one = one_cell()
    for words in (["steps=2"], ["world.shard_ranks=1"], ["stress=jitter"], ["record.payload=all", "mode=record"]):
        other = one_cell(*words)
        assert other.id != one.id
        assert flat(one.config) != flat(other.config)
        assert _told([], words)
