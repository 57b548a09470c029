"""Anything can be an axis: world size, depth, runs, checksums, routing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import detsweep as package
from tests.conftest import Ran, Run
from tests.running import processes_of


def all_lines(cell: Path, *, rank: int) -> list[dict[str, Any]]:
    return [json.loads(text) for text in (cell / "trial0" / f"rank{rank:03d}.jsonl").read_text().splitlines()]


def first_line(cell: Path) -> dict[str, Any]:
    return all_lines(cell, rank=0)[0]


def outcome(cell: Path, rank: int) -> list[int]:
    return [record[5] for line in all_lines(cell, rank=rank) for record in line["records"]]


@pytest.fixture(scope="module")
def worlds(detsweep: Run) -> Ran:
    return detsweep("-m", "world.nproc_per_node=1,2,4", "model.num_layers=2,3")


def test_world_size_and_depth_are_axes(worlds: Ran) -> None:
    assert worlds.code == 0, worlds.out + worlds.err
    sweep = package.load(worlds.folder)
    assert sweep.axes == ("world.nproc_per_node", "model.num_layers")
    assert sweep.matrix().shape == (3, 2)
    for cell in worlds.cells().values():
        config = json.loads((cell / "cell.json").read_text())["config"]
        world = config["world"]["nproc_per_node"]
        assert len(list(cell.glob("trial0/rank*.jsonl"))) == world
        assert len(first_line(cell)["block_pre"]) == config["model"]["num_layers"]


def test_shards_get_smaller_with_more_ranks(worlds: Ran) -> None:
    rows = {}
    for slug, cell in worlds.cells().items():
        record = next(r for r in first_line(cell)["records"] if r[:2] == ["param", "embedding.weight"])
        rows[slug] = record[4][0]
    assert rows["model.num_layers-2_world.nproc_per_node-1"] == 512
    assert rows["model.num_layers-2_world.nproc_per_node-4"] == 128


def test_the_first_ranks_loss_does_not_depend_on_how_many_there_are(worlds: Ran) -> None:
    cells = worlds.cells()
    bits = {first_line(cells[f"model.num_layers-2_world.nproc_per_node-{n}"])["loss_bits"] for n in (1, 2, 4)}
    assert len(bits) == 1


def test_steps_runs_and_global_checksum(detsweep: Run) -> None:
    ran = detsweep("steps=3", "runs=3", "checksum_mode=global", "checksum=bitsum", "moe=even", "experts=4", "top_k=2")
    assert ran.code == 0, ran.out + ran.err
    (cell,) = ran.cells().values()
    lines = all_lines(cell, rank=1)
    assert [(line["step"], line["run"]) for line in lines] == [(s, f"r{r}") for s in range(3) for r in (1, 2, 3)]
    assert {line["checksum"] for line in lines} == {"bitsum"}
    # Each step has a batch of its own, and its runs have the same one.
    assert [line["loss_bits"] for line in lines[::3]] == [line["loss_bits"] for line in lines[1::3]]
    assert len({line["loss_bits"] for line in lines}) == 3
    for line, other in zip(lines, all_lines(cell, rank=0), strict=True):
        total = sum(one["loss_bits"] ^ one["output_bits"] for one in (line, other))
        assert (line["global_bits"] - total) % 2**64 == 0
        assert line["global_bits"] == other["global_bits"]
    (result,) = ran.results().values()
    assert result["replays"] == 6


def test_trials_and_slots(detsweep: Run) -> None:
    ran = detsweep("-m", "seed=1,2", "trials=2", "launch.max_parallel=2", "world.nproc_per_node=1")
    assert ran.code == 0, ran.out + ran.err
    sweep = package.load(ran.folder)
    assert list(sweep.trials["trial"]) == [0, 1, 0, 1]
    assert list(sweep.trials["verdict"]) == ["pass"] * 4
    # Fresh processes, the same bits.
    for cell in ran.cells().values():
        one, two = ((cell / f"trial{n}" / "rank000.jsonl").read_text() for n in (0, 1))
        assert one == two


def test_company_that_changes_no_bit(detsweep: Run) -> None:
    ran = detsweep("-m", "stress=none,jitter,contention,churn", "model.dropout=0.1", "experts=4", "steps=2")
    assert ran.code == 0, ran.out + ran.err
    sweep = package.load(ran.folder)
    assert list(sweep.trials["verdict"]) == ["pass"] * 4
    # Nor does the company of one cell make it another than the one without.
    lines = {tuple(map(tuple, (outcome(cell, rank) for rank in (0, 1)))) for cell in ran.cells().values()}
    assert len(lines) == 1
    assert processes_of(ran.folder) == set()


def test_mitigations_reach_every_rank_and_the_shell_does_not(detsweep: Run) -> None:
    ran = detsweep(
        "-m", "mitigation=none,recipe,primus", NCCL_ALGO="Tree", CUBLAS_WORKSPACE_CONFIG=":16:8", OMP_NUM_THREADS="7"
    )
    assert ran.code == 0, ran.out + ran.err
    results, cells = ran.results(), ran.cells()
    assert results["mitigation-primus"]["verdict"] == "unsupported"
    assert "is for amd, this is cpu" in ran.out
    for name, workspace, level in (("none", None, "off"), ("recipe", ":4096:8", "warn")):
        cell = cells[f"mitigation-{name}"]
        job = json.loads((cell / "trial0" / "job.json").read_text())
        assert job["environment_removed"]["NCCL_ALGO"] == "Tree"
        for rank in (0, 1):
            report = json.loads((cell / "trial0" / f"environment-rank00{rank}.json").read_text())
            assert report["variables"].get("CUBLAS_WORKSPACE_CONFIG") == workspace
            assert "NCCL_ALGO" not in report["variables"]
            assert report["variables"]["OMP_NUM_THREADS"] == "1"
            assert report["settings"]["deterministic_algorithms"] == level
    assert "this sweep says nothing about what they cure" in ran.out
