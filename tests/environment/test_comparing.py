"""Environments by their names, and how they are held against each other, ranks together."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from detsweep.capture import SCHEMA
from detsweep.environment.capture import ENVIRONMENT_SCHEMA
from detsweep.environment.comparing import among_ranks, compare
from detsweep.environment.sources import source
from detsweep.paths import FileError, TrialPaths, write_json


def _rank(rank: int, **more: Any) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "rank": rank,
        "host": f"node{rank // 2}",
        "torch": "2.13.0",
        "device": {"type": "cuda", "name": "A GPU", "index": rank % 2, "uuid": f"GPU-{rank}"},
        "variables": {"NCCL_ALGO": "Ring", "MASTER_ADDR": f"node{rank}"},
        "versions": {"nccl": "2.21.5"},
        **more,
    }


def _trial(folder: Path, ranks: Mapping[int, Mapping[str, Any]], world_size: int | None = None) -> TrialPaths:
    trial = TrialPaths(folder)
    write_json(trial.spec, {"world_size": len(ranks) if world_size is None else world_size})
    for rank, content in ranks.items():
        write_json(trial.environment(rank), content)
    return trial


def _compared(one: Path, other: Path) -> list[str]:
    return compare(source(str(one)), source(str(other)))


def test_ranks_of_one_trial_that_are_alike_have_no_difference_wherever_they_are(tmp_path: Path) -> None:
    trial = _trial(tmp_path / "t", {rank: _rank(rank) for rank in range(4)})
    assert among_ranks(source(str(trial.folder))) == []


def test_what_ranks_do_not_have_alike_is_told_once_with_who_has_what(tmp_path: Path) -> None:
    ranks = {rank: _rank(rank) for rank in range(5)}
    ranks[3] = _rank(3, versions={"nccl": "2.20.3"})
    ranks[4] = _rank(4, versions={"nccl": "2.20.3"}, variables={})
    trial = _trial(tmp_path / "t", ranks)
    assert among_ranks(source(str(trial.folder))) == [
        "versions: nccl: 2.21.5 (ranks 0-2), 2.20.3 (ranks 3-4)",
        "variables: NCCL_ALGO: Ring (ranks 0-3), not there (rank 4)",
    ]


def test_two_trials_are_compared_rank_by_rank_and_equal_differences_said_once(tmp_path: Path) -> None:
    one = _trial(tmp_path / "a", {rank: _rank(rank) for rank in range(4)})
    ranks = {rank: _rank(rank, variables={"NCCL_ALGO": "Tree"}) for rank in range(4)}
    ranks[2] = _rank(2, variables={"NCCL_ALGO": "Tree"}, torch="2.12.0")
    other = _trial(tmp_path / "b", ranks)
    assert _compared(one.folder, other.folder) == [
        "torch: torch: 2.13.0 -> 2.12.0 (rank 2)",
        "variables: NCCL_ALGO: Ring -> Tree (ranks 0-3)",
    ]
    assert _compared(one.folder, one.folder) == []


def test_a_trial_with_more_ranks_says_which_are_alone(tmp_path: Path) -> None:
    one = _trial(tmp_path / "a", {rank: _rank(rank) for rank in range(2)})
    other = _trial(tmp_path / "b", {rank: _rank(rank) for rank in range(4)})
    assert _compared(one.folder, other.folder) == [f"ranks 2-3: only in {other.folder}"]


def test_a_rank_is_compared_with_another_by_their_files(tmp_path: Path) -> None:
    trial = _trial(tmp_path / "a", {0: _rank(0), 1: _rank(1, versions={})})
    assert _compared(trial.environment(0), trial.environment(1)) == [
        "versions: nccl: 2.21.5 -> not there",
        "device: index: 0 -> 1",
        "device: uuid: GPU-0 -> GPU-1",
    ]


def test_of_a_machine_and_a_rank_only_what_both_say_is_compared(tmp_path: Path) -> None:
    machine = {
        "kind": "environment",
        "schema": ENVIRONMENT_SCHEMA,
        "host": "node0",
        "torch": {"torch": "2.12.0", "cxx11_abi": True},
        "packages": {"torch": "2.12.0"},
        "variables": {},
        "machine": {"kernel": "6.1"},
    }
    write_json(tmp_path / "here.json", machine)
    trial = _trial(tmp_path / "a", {rank: _rank(rank, machine={"kernel": "6.2"}) for rank in range(2)})
    assert _compared(tmp_path / "here.json", trial.folder) == [
        "torch: torch: 2.12.0 -> 2.13.0 (ranks 0-1)",
        "variables: NCCL_ALGO: not there -> Ring (ranks 0-1)",
        "machine: kernel: 6.1 -> 6.2 (ranks 0-1)",
    ]
    assert len(_compared(trial.folder, tmp_path / "here.json")) == 3


def test_a_rank_that_cannot_be_read_is_named_and_all_others_are_compared(tmp_path: Path) -> None:
    trial = _trial(tmp_path / "a", {0: _rank(0), 1: _rank(1), 2: _rank(2, torch="2.12.0")}, world_size=4)
    trial.environment(1).write_text("{torn")
    lines = among_ranks(source(str(trial.folder)))
    assert [line.partition(":")[0] for line in lines] == ["rank 1", "rank 3", "torch"]
    assert "is missing" in lines[1]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "no such file or folder (valid: an environment file, or a trial's folder)"),
        ("{}", "is no environment: neither a rank's nor one of `python -m detsweep.environment`"),
        ("[]", "holds list, not a JSON object"),
        ('{"kind": "environment", "schema": 99}', "has schema 99, this version reads 1"),
        ('{"rank": 0, "variables": {}, "schema": 1}', f"has schema 1, this version reads {SCHEMA}"),
    ],
)
def test_what_is_no_environment_is_refused_by_name(tmp_path: Path, content: str | None, words: str) -> None:
    file = tmp_path / "x.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(FileError) as raised:
        source(str(file))
    assert str(file) in str(raised.value)
    assert words in str(raised.value)


def test_a_sweeps_folder_is_no_trial_and_its_trials_are_named(tmp_path: Path) -> None:
    trial = _trial(tmp_path / "cells" / "x-1" / "trial0", {0: _rank(0)})
    with pytest.raises(FileError, match="no trial's folder") as raised:
        source(str(tmp_path))
    assert str(trial.folder) in str(raised.value)


def test_a_trial_without_any_environment_is_refused(tmp_path: Path) -> None:
    trial = _trial(tmp_path / "a", {}, world_size=2)
    with pytest.raises(FileError, match=r"no rank's environment can be read; rank 0: .* is missing"):
        source(str(trial.folder))
