"""How two environments differ: loaded versions first, and nothing that only tells two processes apart."""

from __future__ import annotations

from typing import Any

from detsweep.environment import environment_differences, facts

RANK: dict[str, Any] = {
    "schema": 2,
    "rank": 0,
    "pid": 17,
    "host": "one",
    "torch": "2.13.0",
    "torch_cuda": None,
    "device": {"type": "cpu", "name": "a CPU", "cores": 2},
    "settings": {"num_threads": 1, "matmul": {"tf32": False}},
    "variables": {"OMP_NUM_THREADS": "1", "MASTER_PORT": "29500"},
    "started_with": {"OMP_NUM_THREADS": "1"},
    "libraries": ["/somewhere/libmkl_core.so.2", "/somewhere/libgomp.so.1"],
    "versions": {"mkl": "2024.2", "onednn": "3.12"},
}


def test_two_processes_of_one_environment_do_not_differ() -> None:
    other = {**RANK, "rank": 5, "pid": 99, "variables": {**RANK["variables"], "MASTER_PORT": "1"}, "started_with": None}
    assert environment_differences(RANK, other) == []


def test_versions_of_loaded_libraries_come_first_then_what_is_nearest_to_the_bits() -> None:
    other = {
        **RANK,
        "host": "two",
        "torch": "2.14.0",
        "versions": {"mkl": "2025.0", "nccl": "2.26"},
        "variables": {"OMP_NUM_THREADS": "2"},
        "settings": {"num_threads": 2, "matmul": {"tf32": False}},
        "libraries": ["/elsewhere/libmkl_core.so.2"],
    }
    assert [str(one) for one in environment_differences(RANK, other)] == [
        "versions: mkl: 2024.2 -> 2025.0",
        "versions: nccl: not there -> 2.26",
        "versions: onednn: 3.12 -> not there",
        "torch: torch: 2.13.0 -> 2.14.0",
        "settings: num_threads: 1 -> 2",
        "variables: OMP_NUM_THREADS: 1 -> 2",
        "machine: host: one -> two",
        "libraries: libgomp.so.1: loaded -> not there",
    ]


def test_facts_have_names_with_dots_and_values_as_text() -> None:
    told = facts(RANK)
    assert told["settings", "matmul.tf32"] == "false"
    assert told["device", "cores"] == "2"
    assert not {name for _, name in told} & {"pid", "rank", "schema", "MASTER_PORT", "torch_cuda"}
