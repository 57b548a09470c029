"""How the environments of two trials differ, rank by rank, and what is no difference."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from detsweep.diff.environments import Environments, compare_environments, pinned_facts
from detsweep.diff.sides import FolderTrial
from detsweep.paths import CellPaths, TrialPaths, write_json
from tests.comparing import environment, write_environments

RANKS = 4


def _trial(folder: Path, cell: str = "seed-1-0123456789", **more: Any) -> TrialPaths:
    trial = CellPaths(folder / "cells" / cell).trial(0)
    write_environments(trial, RANKS, **more)
    return trial


def _compared(one: TrialPaths, other: TrialPaths) -> Environments:
    sides = [FolderTrial(0, trial, {"verdict": "pass"}) for trial in (one, other)]
    return compare_environments(sides[0], sides[1], range(RANKS))


def _apart(one: TrialPaths, other: TrialPaths) -> list[tuple[str, tuple[int, ...]]]:
    return [(str(fact), fact.ranks) for fact in _compared(one, other).apart]


def test_processes_are_told_apart_by_nothing_of_their_own(tmp_path: Path) -> None:
    one, other = _trial(tmp_path / "a"), _trial(tmp_path / "b")
    for rank in range(RANKS):
        mine = environment(rank)
        own = {"pid": 99, "variables": {**mine["variables"], "MASTER_PORT": "1", "MASTER_ADDR": "198.51.100.12"}}
        write_json(other.environment(rank), {**mine, **own, "started_with": {"A": "1"}})
    found = _compared(one, other)
    assert (found.apart, found.unread, found.ranks) == ((), {}, (0, 1, 2, 3))


def test_one_variable_is_named_once_for_all_ranks(tmp_path: Path) -> None:
    one, other = _trial(tmp_path / "a"), _trial(tmp_path / "b", variables={"NCCL_ALGO": "Tree"})
    assert _apart(one, other) == [("variables: NCCL_ALGO: not there -> Tree", (0, 1, 2, 3))]
    assert _apart(other, one) == [("variables: NCCL_ALGO: Tree -> not there", (0, 1, 2, 3))]


def test_versions_of_loaded_libraries_come_first_and_ranks_with_their_own_are_named(tmp_path: Path) -> None:
    one = _trial(tmp_path / "a")
    other = _trial(tmp_path / "b", variables={"A": "1"}, torch="2.14.0+cpu")
    for rank in (1, 3):
        more = {"variables": {"A": "1"}, "torch": "2.14.0+cpu", "versions": {"mkl": "2025.0", "onednn": "3.12.0"}}
        write_json(other.environment(rank), environment(rank, **more))
    assert _apart(one, other) == [
        ("versions: mkl: 2024.2 -> 2025.0", (1, 3)),
        ("torch: torch: 2.13.0+cpu -> 2.14.0+cpu", (0, 1, 2, 3)),
        ("variables: A: not there -> 1", (0, 1, 2, 3)),
    ]


def test_the_folder_of_a_cell_is_no_difference_wherever_it_lies(tmp_path: Path) -> None:
    def cached(folder: Path, cell: str) -> TrialPaths:
        own = folder / "cells" / cell
        return _trial(
            folder, cell, variables={"TORCHINDUCTOR_CACHE_DIR": f"{own}/cache/inductor", "B": f"{own}/trial0:x"}
        )

    one, other = cached(tmp_path / "a", "seed-1-0123456789"), cached(tmp_path / "b/c", "seed-2-abcdef0123")
    assert _apart(one, other) == []
    moved = tmp_path / "moved"
    (tmp_path / "a").rename(moved)
    assert _apart(CellPaths(moved / "cells/seed-1-0123456789").trial(0), other) == []


def test_another_path_is_a_difference(tmp_path: Path) -> None:
    one, other = (_trial(tmp_path / name, variables={"TORCHINDUCTOR_CACHE_DIR": f"/scratch/{name}"}) for name in "ab")
    assert [fact for fact, _ in _apart(one, other)] == ["variables: TORCHINDUCTOR_CACHE_DIR: /scratch/a -> /scratch/b"]


def test_another_machine_of_the_same_kind_is_a_place_and_no_difference(tmp_path: Path) -> None:
    one = _trial(tmp_path / "a", host="node1", device={"type": "cuda", "name": "GPU", "index": 0, "uuid": "1"})
    other = _trial(tmp_path / "b", host="node2", device={"type": "cuda", "name": "GPU", "index": 1, "uuid": "2"})
    found = _compared(one, other)
    assert found.apart == ()
    assert {(fact.section, fact.name) for fact in found.places} == {
        ("machine", "host"), ("device", "index"), ("device", "uuid"),
    }  # fmt: skip
    kind = _trial(tmp_path / "c", host="node2", device={"type": "cuda", "name": "Other", "index": 1, "uuid": "2"})
    assert [fact for fact, _ in _apart(one, kind)] == ["device: name: GPU -> Other"]


@pytest.mark.parametrize(
    ("jobs", "apart", "shells"),
    [
        (({}, {}), [], []),
        # What a shell had and no trial got is told, and is no difference between trials.
        (({"environment_removed": {"NCCL_PROTO": "LL"}}, {}), [], ["launch: kept out NCCL_PROTO: LL -> not there"]),
        (({}, {"environment_overruled": {"A": "9"}}), [], ["launch: overruled A: not there -> 9"]),
        # The environment of the ranks says so already.
        (({}, {"environment_set": {"NEW": "1"}}), [], []),
        (({}, {"environment_set": {"NEW": "2"}}), ["launch: set NEW: not there -> 2"], []),
        (({"started": 1, "job_id": "7", "task_pid": 3}, {"started": 2, "job_id": "8", "task_pid": 4}), [], []),
        (
            ({"environment_set": {"CUDA_VISIBLE_DEVICES": "0"}}, {"environment_set": {"CUDA_VISIBLE_DEVICES": "1"}}),
            [],
            [],
        ),
    ],
)
def test_what_the_launcher_did_is_told_where_the_ranks_do_not_show_it(
    tmp_path: Path, jobs: tuple[Mapping[str, Any], Mapping[str, Any]], apart: list[str], shells: list[str]
) -> None:
    one, other = _trial(tmp_path / "a"), _trial(tmp_path / "b", variables={"NEW": "1"})
    for trial, job in zip((one, other), jobs, strict=True):
        write_json(trial.job, job)
    found = _compared(one, other)
    assert [str(fact) for fact in found.apart] == ["variables: NEW: not there -> 1", *apart]
    assert [str(fact) for fact in found.shells] == shells


def test_a_file_that_cannot_be_read_is_named_once_and_the_other_ranks_are_compared(tmp_path: Path) -> None:
    one, other = _trial(tmp_path / "a"), _trial(tmp_path / "b", torch="x")
    for rank in (1, 2):
        other.environment(rank).unlink()
    found = _compared(one, other)
    assert found.unread == {f"{other.folder}/environment-rank<NNN>.json is missing": (1, 2)}
    assert [(str(fact), fact.ranks) for fact in found.apart] == [("torch: torch: 2.13.0+cpu -> x", (0, 3))]
    one.job.write_text("{")
    assert any("job.json cannot be read" in line for line in _compared(one, other).unread)


def test_what_is_pinned_decides_bits_and_holds_no_name_of_a_machine() -> None:
    kept = pinned_facts(environment(0, variables={"A": "1", "B": "/home/somebody/cache", "MASTER_ADDR": "node1"}))
    assert kept["variables"] == {"A": "1", "OMP_NUM_THREADS": "1"}
    assert kept["versions"] == {"mkl": "2024.2", "onednn": "3.12.0"}
    assert (kept["torch"]["torch"], kept["device"]["name"]) == ("2.13.0+cpu", "A CPU")
    assert "machine" not in kept
    assert "somebody" not in str(kept)
