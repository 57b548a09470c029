"""What a trial asks Slurm for, and what of it does not go together: a line for each contradiction."""

from __future__ import annotations

from typing import Any

import pytest

from detsweep.resources import LEAST_MARGIN_MIN, MARGIN_MIN, contradictions, resources_of
from detsweep.validate import problems
from tests.support import compose

SLURM = "launch=slurm"
ON_A_NODE = ("device=cuda", "world.node=n1", "world.nproc_per_node=1")


def _lines(*overrides: str) -> list[str]:
    return list(contradictions(compose(*overrides)))


def _flags(*overrides: str) -> dict[str, Any]:
    return resources_of(compose(SLURM, *overrides)).flags()


def test_by_default_a_trial_asks_for_what_its_ranks_take_and_leaves_the_rest_to_slurm() -> None:
    assert _flags("world.nproc_per_node=3", "world.threads_per_rank=4") == {
        "nodes": 1,
        "cpus-per-task": 12,
        "time": 30 + MARGIN_MIN,
        "requeue": True,
    }


@pytest.mark.parametrize(("minutes", "time"), [("30", 35), ("0.5", 6), ("30.1", 36)])
def test_slurms_limit_comes_after_the_trials_own(minutes: str, time: int) -> None:
    assert _flags(f"launch.timeout_min={minutes}")["time"] == time
    assert _flags(f"launch.timeout_min={minutes}", "launch.time_min=99")["time"] == 99


@pytest.mark.parametrize(
    ("overrides", "gpus"),
    [
        (("device=cuda",), 2),
        (("device=cuda", "world.nproc_per_node=8"), 8),
        (("device=cuda", "launch.gpus_per_node=4"), 4),
        (("device=cpu", "launch.gpus_per_node=4"), 4),
        (("device=cpu",), None),
        (("device=cuda", "launch.gpus_per_node=0"), 0),
    ],
)
def test_a_rank_on_a_gpu_asks_for_one(overrides: tuple[str, ...], gpus: int | None) -> None:
    assert _flags(*overrides).get("gpus-per-node") == gpus


@pytest.mark.parametrize(("gigabytes", "memory"), [("4", "4096M"), ("1.5", "1536M"), ("0.0001", "1M"), ("0", "0M")])
def test_memory_is_rounded_up(gigabytes: str, memory: str) -> None:
    assert _flags(f"launch.memory_gb={gigabytes}")["mem"] == memory


def test_further_parameters_are_taken_as_they_are() -> None:
    flags = _flags("+launch.sbatch.licenses='a:1'", "+launch.sbatch.exclusive=true", "+launch.sbatch.comment=1")
    assert (flags["licenses"], flags["exclusive"], flags["comment"]) == ("a:1", True, "1")
    assert "--exclusive" in resources_of(compose(SLURM, "+launch.sbatch.exclusive=true")).words()


def test_a_cell_that_is_pinned_asks_for_its_node() -> None:
    assert _flags("world.node=n7")["nodelist"] == "n7"
    assert _flags("launch.nodelist='n[1-3]'")["nodelist"] == "n[1-3]"


def test_what_is_asked_for_is_told_in_keys() -> None:
    keys = resources_of(compose(SLURM, "launch.partition=p", "+launch.sbatch.licenses=a")).keys()
    assert keys == {
        "world.nodes": 1,
        "launch.cpus_per_node": 2,
        "launch.time_min": 35,
        "launch.partition": "p",
        "launch.sbatch.licenses": "a",
    }


def test_cells_that_compute_other_things_ask_for_the_same() -> None:
    assert resources_of(compose(SLURM, "seed=1")) == resources_of(compose(SLURM, "dtype=fp16", "trials=3"))
    assert resources_of(compose(SLURM)) != resources_of(compose(SLURM, "launch.requeue=false"))


@pytest.mark.parametrize(
    "override",
    [
        "launch.partition=p", "launch.account=a", "launch.qos=q", "launch.reservation=r", "launch.constraint=c",
        "launch.nodelist=n", "launch.exclude=n", "launch.time_min=60", "launch.gpus_per_node=1",
        "launch.cpus_per_node=1", "launch.memory_gb=1.0", "launch.platform=amd", "+launch.sbatch.licenses=a",
        "launch.srun_args=[x]", "launch.setup=[x]", "launch.python=x", "launch.requeue=false", "launch.retries=0",
        "launch.ask_s=30.0", "launch.detach=true",
    ],
)  # fmt: skip
def test_what_is_for_slurm_alone_is_refused_on_this_machine(override: str) -> None:
    (line,) = _lines(override)
    assert line.startswith(override.lstrip("+").split("=")[0].removesuffix(".licenses"))
    assert line.endswith(": only means something with launch=slurm")
    assert problems(compose(SLURM, override), gpus=0) == []


@pytest.mark.parametrize("override", ["launch.max_parallel=3", "launch.timeout_min=5", "launch.fail_fast=true"])
def test_what_both_have_is_not(override: str) -> None:
    assert _lines(override) == _lines(SLURM, override) == []


LIMIT = "is to end it before Slurm does"


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (("world.nodes=2",), "world.nodes=2: launch=local has one node; several need launch=slurm"),
        (("world.node=n1",), "world.node=n1: launch=local has this machine alone; use launch=slurm"),
        (("fleet=nodes",), "fleet=nodes: launch=local has this machine alone; use launch=slurm, or fleet=gpus"),
        ((SLURM, "launch.gpus_per_node=-1"), "launch.gpus_per_node=-1: must be at least 0, or null"),
        ((SLURM, "launch.cpus_per_node=0"), "launch.cpus_per_node=0: must be at least 1, or null"),
        ((SLURM, "launch.memory_gb=-2"), "launch.memory_gb=-2.0: must be at least 0, or null"),
        ((SLURM, "launch.platform=intel"), "launch.platform=intel: valid: nvidia, amd, or null"),
        ((SLURM, "+launch.sbatch.mem_per_cpu=1"), ("launch.sbatch.mem_per_cpu: write mem-per-cpu, as in "
         "launch.sbatch.mem-per-cpu=...")),
        ((SLURM, "+launch.sbatch.mem=4G"), "launch.sbatch.mem: use launch.memory_gb"),
        ((SLURM, "+launch.sbatch.no-requeue=true"), "launch.sbatch.no-requeue: use launch.requeue"),
        ((SLURM, "+launch.sbatch.array=0-9"), "launch.sbatch.array: detsweep sets it itself"),
        ((SLURM, "+launch.sbatch.wait=true"), "launch.sbatch.wait: detsweep sets it itself"),
        ((SLURM, "launch.nodelist=n1", "fleet=nodes"), ("launch.nodelist=n1: the cell has its node already "
         "(world.node, fleet=nodes)")),
        ((SLURM, "launch.nodelist=n1", "world.node=n2"), ("launch.nodelist=n1: the cell has its node already "
         "(world.node, fleet=nodes)")),
        ((SLURM, "launch.detach=true", "launch.fail_fast=true"), ("launch.detach=true: launch.fail_fast=true needs "
         "somebody who watches; give one of the two")),
        ((SLURM, "launch.detach=true", "drill=true"), ("launch.detach=true: drill=true looks closer once results are "
         "there; give it when you come back")),
        ((SLURM, "world.nodes=2", "world.node=n1"), ("world.node=n1: pins a cell of one node, this one has "
         "world.nodes=2")),
        ((SLURM, "world.gpu=0", *ON_A_NODE[:2]), ("world.gpu=0: pins a cell of one rank; world.nodes=1 "
         "world.nproc_per_node=1")),
        ((SLURM, "world.gpu=0", "device=cpu", *ON_A_NODE[1:]), "world.gpu=0: needs device=cuda, this is cpu"),
        ((SLURM, "fleet=gpus", "device=cuda"), "world.nproc_per_node=2: fleet=gpus has one rank on each GPU; use 1"),
        ((SLURM, "fleet=nodes", "world.nodes=2"), "world.nodes=2: fleet=nodes has a cell on each node alone; use 1"),
        ((*ON_A_NODE[::2], "world.gpu=1", "launch.max_parallel=2"), ("launch.max_parallel=2: cells that are pinned to "
         "a GPU run one at a time; use 1")),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)  # fmt: skip
def test_each_contradiction_is_one_line(overrides: tuple[str, ...], line: str) -> None:
    assert _lines(*overrides) == [line]


def test_a_search_is_not_left_alone() -> None:
    (line,) = _lines(SLURM, "launch.detach=true", "search=minimal")
    assert line == "launch.detach=true: search=minimal decides by results what to launch; leave it on"


@pytest.mark.parametrize(("minutes", "least"), [("30", 33), ("0.5", 4)])
def test_slurms_limit_may_not_come_first(minutes: str, least: int) -> None:
    own = (SLURM, f"launch.timeout_min={minutes}")
    assert least == -(-float(minutes) // 1) + LEAST_MARGIN_MIN
    assert _lines(*own, f"launch.time_min={least}") == []
    (line,) = _lines(*own, f"launch.time_min={least - 1}")
    assert line.startswith(f"launch.time_min={least - 1}: must be at least {least}: ")
    assert line.endswith(LIMIT)


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("+launch.sbatch.clusters=b", "its jobs would be looked for on this cluster; start the command with"),
        ("+launch.sbatch.hold=true", "nothing would ever begin; launch.detach=true leaves a sweep alone"),
        ("+launch.sbatch.part=x", "write it out; as partition it cannot be given here"),
        ("+launch.sbatch.exclusive=false", "must be a word, a number or true"),
        ("+launch.sbatch.gres=[a,b]", "must be a word, a number or true"),
    ],
)
def test_a_parameter_of_sbatch_that_would_mislead_is_refused(override: str, line: str) -> None:
    (said,) = contradictions(compose(SLURM, override))
    assert line in said
