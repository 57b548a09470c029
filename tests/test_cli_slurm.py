"""Sweeps on a real Slurm of several nodes: the same digests as on this machine, several nodes, arrays, detach."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import detsweep as package
from tests.cluster import accounted, at_once, needs_cluster
from tests.conftest import Ran, Run, clean_environment, run_detsweep
from tests.running import eventually

pytestmark = [pytest.mark.slurm, needs_cluster]
SWEEP = ("-m", "dtype=bf16,fp32", "experts=1,4")
SLURM = ("launch=slurm", "launch.ask_s=2")


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ran]:
    """The same sweep on this machine and on the cluster."""
    folder = tmp_path_factory.mktemp("both")
    where = {"local": (), "slurm": (*SLURM, "launch.max_parallel=2")}
    return {name: run_detsweep(folder / name, *SWEEP, *words) for name, words in where.items()}


def test_a_sweep_on_slurm_has_the_verdicts_and_the_digests_of_one_on_this_machine(swept: dict[str, Ran]) -> None:
    for ran in swept.values():
        assert ran.code == 0, ran.out + ran.err
    here, there = (package.load(swept[name].folder) for name in ("local", "slurm"))
    assert list(there.trials["verdict"]) == ["pass"] * 4
    assert list(here.trials["cell"]) == list(there.trials["cell"])
    assert len(here.records()) > 1000
    assert here.records().equals(there.records())


def test_cells_of_equal_resources_are_one_array_that_is_throttled(swept: dict[str, Ran]) -> None:
    ran = accounted(swept["slurm"].folder)
    assert len({job.id.partition("_")[0] for job in ran}) == 1
    assert [job.state for job in ran] == ["COMPLETED"] * 4
    assert at_once(ran) == 2


def test_nothing_of_submitit_is_left_when_all_is_done(swept: dict[str, Ran]) -> None:
    left = {path.name for path in (swept["slurm"].folder / ".jobs").iterdir()}
    assert {name for name in left if not name.endswith(("_result.pkl", ".lock"))} == {"cluster.json"}


@pytest.fixture(scope="module")
def spread(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """Cells of two and of three nodes, one at a time, from a shell that is in an allocation and sets other values."""
    shell = {
        "NCCL_ALGO": "Tree",
        "SLURM_JOB_ID": "7",
        "SLURM_NNODES": "64",
        "SLURM_NTASKS": "512",
        "SLURM_MEM_PER_NODE": "999999999",
        "SLURM_JOB_NODELIST": "elsewhere[1-64]",
        "SBATCH_PARTITION": "nowhere",
        "PMIX_RANK": "3",
    }
    words = ("-m", "world.nodes=2,3", "world.nproc_per_node=2", "model.num_layers=1", "mitigation=[nccl_ring]")
    folder = tmp_path_factory.mktemp("spread") / "runs"
    return run_detsweep(folder, *words, "mitigation_force=true", *SLURM, "launch.max_parallel=1", **shell)


def _environments(ran: Ran, slug: str) -> list[dict[str, object]]:
    (trial,) = ran.folder.glob(f"cells/*{slug}*/trial0")
    return [json.loads(path.read_text()) for path in sorted(trial.glob("environment-rank*.json"))]


@pytest.mark.parametrize("nodes", [2, 3])
def test_ranks_have_their_places_on_nodes_of_distinct_addresses(spread: Ran, nodes: int) -> None:
    assert spread.code == 0, spread.out + spread.err
    hosts = [told["host"] for told in _environments(spread, f"world.nodes-{nodes}")]
    assert hosts == [f"node{number}" for number in range(1, nodes + 1) for _ in range(2)]
    (trial,) = spread.folder.glob(f"cells/*world.nodes-{nodes}*/trial0")
    addresses = [json.loads((trial / f"node{number:03d}.json").read_text())["address"] for number in range(nodes)]
    assert len(set(addresses)) == nodes
    job = json.loads((trial / "job.json").read_text())
    assert [(one["name"], one["ranks"]) for one in job["nodes"]][1] == ("node2", [2, 3])
    assert job["meeting"]["address"] == "node1"


def test_a_mitigation_reaches_every_rank_of_every_node_and_what_the_shell_had_is_said(spread: Ran) -> None:
    environments = _environments(spread, "world.nodes-2")
    assert [told["variables"]["NCCL_ALGO"] for told in environments] == ["Ring"] * 4  # type: ignore[index]
    trials = package.load(spread.folder).trials
    line = "NCCL_ALGO=Tree came with the job's environment and is overruled: Ring"
    assert list(trials["notes"]) == [(f"{line} (node1, node2)",), (f"{line} (node1, node2, node3)",)]
    assert "NCCL_ALGO=Tree" in spread.out


def test_an_allocation_around_the_command_does_not_leak_into_its_jobs(spread: Ran) -> None:
    assert "kept out of the submission: this shell's SBATCH_PARTITION" in spread.err
    assert [job.state for job in accounted(spread.folder)] == ["COMPLETED"] * 2


def test_max_parallel_holds_over_several_arrays(spread: Ran) -> None:
    ran = accounted(spread.folder)
    assert len({job.id for job in ran}) == 2
    assert at_once(ran) == 1


def _status(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "detsweep.status", str(folder), *words],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture(scope="module")
def detached(tmp_path_factory: pytest.TempPathFactory) -> tuple[Ran, list[str], Ran]:
    """A sweep that was left alone, what its status said meanwhile, and the same command again."""
    folder = tmp_path_factory.mktemp("detached") / "runs"
    words = ("-m", "seed=1,2,3", "model.num_layers=1", *SLURM, "launch.max_parallel=1")
    left = run_detsweep(folder, *words, "launch.detach=true")
    seen: list[str] = []

    def watch() -> bool | None:
        seen.append(_status(folder).stdout)
        return True if "running (on node" in seen[-1] and "queued" in seen[-1] else None

    eventually(watch)
    local = run_detsweep(folder, "-m", "seed=1,2,3", "model.num_layers=1")
    assert local.code == 2, local.out
    assert "Slurm still has" in local.err
    followed = _status(folder, "--follow")
    return left, seen, Ran(folder, followed.returncode, followed.stdout, followed.stderr)


def test_a_detached_sweep_says_how_to_come_back(detached: tuple[Ran, list[str], Ran]) -> None:
    left, _, _ = detached
    assert left.code == 0, left.err
    assert f"python -m detsweep.status {left.folder}" in left.out
    assert "verdict" not in left.out


def test_status_says_of_each_cell_where_it_is(detached: tuple[Ran, list[str], Ran]) -> None:
    _, seen, _ = detached
    assert "of 3 trials of 3 cells have a result" in seen[-1]
    assert len([line for line in seen[-1].splitlines() if line.startswith("seed=")]) == 3


def test_coming_back_waits_for_what_runs_and_repeats_nothing(detached: tuple[Ran, list[str], Ran]) -> None:
    left, _, followed = detached
    assert followed.code == 0, followed.out + followed.err
    assert "under way since an earlier command" in followed.out
    assert list(package.load(left.folder).trials["verdict"]) == ["pass"] * 3
    assert [job.state for job in accounted(left.folder)] == ["COMPLETED"] * 3
    assert _status(left.folder).returncode == 0


def test_a_cell_of_the_fleet_runs_on_its_own_node(tmp_path: Path) -> None:
    words = ("experiment=fleet", "model.num_layers=1", "world.nproc_per_node=1", "steps=2", *SLURM)
    fault = ("fault=bit_flip", "fault.persistence=persistent", "fault.node=node3")
    ran = run_detsweep(tmp_path / "runs", *words, *fault)
    assert ran.code == 1, ran.out + ran.err
    assert "node3 differs from 3 of 3 other nodes of its kind" in ran.out
    found = package.load(ran.folder).fleet
    assert dict(zip(found["node"], found["verdict"], strict=True)) == {
        **dict.fromkeys(("node1", "node2", "node4"), "equal"),
        "node3": "odd",
    }
    assert sorted(job.node for job in accounted(ran.folder)) == ["node1", "node2", "node3", "node4"]


REFUSED = [
    (("launch.partition=nowhere",), "launch.partition=nowhere"),
    (("world.nodes=9",), "world.nodes=9"),
    (("launch.constraint=h100",), "launch.constraint=h100"),
    (("launch.memory_gb=9999",), "launch.memory_gb="),
    (("launch.time_min=20",), "launch.time_min=20: must be at least 33"),
    (("fleet=nodes", "fault=bit_flip", "fault.node=node9"), "fault.node=node9: no cell is pinned to it; valid: node1"),
    (("fleet=nodes", "launch.partition=nowhere"), "launch.partition=nowhere: no such partition; valid: high, main"),
]


@pytest.mark.parametrize(
    ("words", "line"), REFUSED, ids=lambda value: " ".join(value) if isinstance(value, tuple) else ""
)
def test_what_slurm_would_refuse_is_one_line_before_anything_starts(
    detsweep: Run, words: tuple[str, ...], line: str
) -> None:
    ran = detsweep("launch=slurm", *words)
    assert ran.code == 2, ran.out
    lines = [said for said in ran.err.splitlines() if "note:" not in said]
    assert len(lines) == 1, ran.err
    assert line in lines[0]
    assert not (ran.folder / "sweep.json").exists()
