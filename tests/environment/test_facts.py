"""How two environments differ, as facts; and what of a process is none."""

from __future__ import annotations

from typing import Any

from detsweep.environment import EnvironmentDifference, environment_differences, facts

RANK: dict[str, Any] = {
    "schema": 2,
    "rank": 0,
    "host": "a",
    "node": None,
    "pid": 1,
    "torch": "2.13.0",
    "variables": {
        "NCCL_ALGO": "Ring",
        "MASTER_PORT": "1",
        "MASTER_ADDR": "a",
        "TRITON_CACHE_DIR": "/x/cells/a-0123456789/cache",
    },
    "started_with": {"NCCL_ALGO": "Ring"},
    "machine": {"kernel": "6.1", "numa": {"node0": {"cpus": "0-3"}}},
    "libraries": ["/a/libmkl.so", "/a/libnccl.so.2"],
    "versions": {"nccl": "2.21.5"},
    "configuration_files": {"/etc/nccl.conf": ["NCCL_PROTO=LL"]},
    "effects": {},
    "appeared": {},
}


def _changed(**sections: Any) -> list[str]:
    return [str(one) for one in environment_differences(RANK, {**RANK, **sections})]


def test_an_environment_and_itself_differ_in_nothing() -> None:
    assert _changed() == []


def test_what_tells_one_process_from_another_is_no_fact() -> None:
    own = {"MASTER_PORT": "2", "TRITON_CACHE_DIR": "/elsewhere/cells/b-abcdef0123/cache"}
    assert _changed(rank=1, pid=2, started_with={}, variables={**RANK["variables"], **own}) == []


def test_versions_of_loaded_libraries_are_told_first() -> None:
    lines = _changed(
        host="b",
        torch="2.12.0",
        versions={"nccl": "2.22.3"},
        variables={**RANK["variables"], "NCCL_ALGO": "", "TRITON_CACHE_DIR": "/scratch"},
        machine={"kernel": "6.1", "numa": {"node0": {"cpus": "0-7"}}},
        libraries=["/elsewhere/libmkl.so"],
    )
    assert lines == [
        "versions: nccl: 2.21.5 -> 2.22.3",
        "torch: torch: 2.13.0 -> 2.12.0",
        'variables: NCCL_ALGO: Ring -> ""',
        "variables: TRITON_CACHE_DIR: <its cell>/cache -> /scratch",
        "machine: host: a -> b",
        "machine: numa.node0.cpus: 0-3 -> 0-7",
        "libraries: libnccl.so.2: loaded -> not there",
    ]


def test_of_a_list_only_what_is_new_is_told() -> None:
    files = {"/etc/nccl.conf": ["NCCL_PROTO=LL", "NCCL_ALGO=Tree"]}
    assert _changed(configuration_files=files) == [
        "configuration_files: /etc/nccl.conf NCCL_ALGO=Tree: not there -> there"
    ]


def test_which_build_a_library_is_is_a_fact_of_its_own() -> None:
    one = {"libraries": [{"path": "/a/libx.so", "size": 3, "build_id": "01", "sha256": "aa"}]}
    other = {"libraries": [{"path": "/b/libx.so", "size": 4, "build_id": "02", "sha256": "bb"}]}
    assert environment_differences(one, other) == [
        EnvironmentDifference("libraries", "libx.so build_id", "01", "02"),
        EnvironmentDifference("libraries", "libx.so sha256", "aa", "bb"),
    ]
    assert facts({"libraries": ["/c/libx.so"]}) == {("libraries", "libx.so"): "loaded"}


def test_of_an_environment_file_what_is_of_the_moment_or_not_known_is_no_fact() -> None:
    one = {"kind": "environment", "now": {"captured": 1.0}, "not_known": {"gpus": "x"}, "variables_unset": ["A"]}
    assert facts(one) == {}
