"""Levels of observation: each sees what it is for, and none changes a bit of what it looks at."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import detsweep as package
from detsweep.analysis import Sweep
from tests.conftest import Run

LEVELS = ("off", "block", "module", "collective", "op")
OUTSIDE = {"rng", "input", "param", "loss", "grad"}
BLOCK = OUTSIDE | {"block_pre", "block_post", "logits", "block_grad_in", "block_grad_out"}
MODULE = {"module", "module_grad_in", "module_grad_out"}
COLLECTIVE = {"collective_in", "collective_out"}
SITES = {
    "off": OUTSIDE,
    "block": BLOCK,
    "module": BLOCK | MODULE,
    "collective": BLOCK | COLLECTIVE,
    "op": BLOCK | MODULE | COLLECTIVE | {"op"},
}
MEGABYTE = 1_000_000


@pytest.fixture(scope="module")
def levels(detsweep: Run) -> Sweep:
    ran = detsweep(
        "-m",
        f"observe={','.join(LEVELS)}",
        "dtype=bf16,fp32",
        "experts=1,4",
        "model.num_layers=2",
        "model.seq_len=16",
        "warmup=0",
    )
    assert ran.code == 0, ran.out + ran.err
    return package.load(ran.folder)


@pytest.fixture(scope="module")
def at_op(levels: Sweep) -> pd.DataFrame:
    return records(levels, "op", "bf16", 4, rank=0)


def trial(sweep: Sweep, level: str, dtype: str, experts: int) -> pd.Series[Any]:
    """The only trial of a cell."""
    trials = sweep.trials
    wanted = (trials["observe"] == level) & (trials["dtype"] == dtype) & (trials["experts"] == experts)
    (number,) = trials.index[wanted]
    found: pd.Series[Any] = trials.loc[number]
    return found


def records(sweep: Sweep, level: str, dtype: str, experts: int, *, rank: int) -> pd.DataFrame:
    """Records of the first run of a rank."""
    found = sweep.records(cell=trial(sweep, level, dtype, experts)["cell"], rank=rank)
    first: pd.DataFrame = found[found["run"] == "r1"]
    return first


def outcome(folder: Path) -> dict[tuple[Any, ...], int]:
    """Digests of what a step comes to, of every rank and run: loss, gradients, and parameters after the step."""
    return {
        (line["rank"], line["run"], site, name, line["step"]): digest
        for path in folder.glob("rank*.jsonl")
        for line in map(json.loads, path.read_text().splitlines())
        for site, name, _, _, _, digest, phase, *_ in line["records"]
        if site in ("loss", "grad", "norm") or (site in ("param", "optim", "rng") and phase == "after")
    }


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("experts", [1, 4])
def test_no_level_changes_a_bit_of_the_outcome(levels: Sweep, dtype: str, experts: int) -> None:
    plain = outcome(Path(trial(levels, "off", dtype, experts)["folder"]))
    assert len(plain) > 100
    assert {site for _, _, site, *_ in plain} == {"loss", "grad", "param", "rng"}
    for level in LEVELS[1:]:
        assert outcome(Path(trial(levels, level, dtype, experts)["folder"])) == plain, level


@pytest.mark.parametrize("level", LEVELS)
def test_each_level_has_its_sites(levels: Sweep, level: str) -> None:
    for experts in (1, 4):
        for rank in (0, 1):
            assert set(records(levels, level, "bf16", experts, rank=rank)["site"]) == SITES[level]


def test_blocks_have_their_gradients_in_the_order_of_backward(levels: Sweep) -> None:
    found = records(levels, "block", "bf16", 1, rank=1)
    assert set(found.loc[found["site"].str.startswith("block_grad"), "phase"]) == {"backward"}
    in_order = [(site, block) for site, block in zip(found["site"], found["block"], strict=True) if "block_" in site]
    assert in_order[4:] == [("block_grad_out", 1), ("block_grad_in", 1), ("block_grad_out", 0), ("block_grad_in", 0)]


def test_submodules_are_recorded_by_name_with_their_gradients(levels: Sweep) -> None:
    found = records(levels, "module", "bf16", 4, rank=0)
    for site, phase in (("module", "forward"), ("module_grad_out", "backward"), ("module_grad_in", "backward")):
        own = found[found["site"] == site]
        assert set(own["phase"]) == {phase}
        assert {"blocks.1.attention", "blocks.1.attention.qkv", "blocks.0.ffn", "norm"} <= set(own["name"])
        assert set(own.loc[own["name"] == "blocks.1.attention.qkv", "block"]) == {1}
    # The router is of the experts' kind alone, and its second output is another record.
    forward = found.loc[found["site"] == "module", "name"]
    assert {"embedding", "blocks.0.ffn.router", "blocks.0.ffn.router[1]", "blocks.0.ffn.experts.3"} <= set(forward)


def test_collectives_have_a_name_a_number_and_a_group(levels: Sweep) -> None:
    named = re.compile(r"c10d\._?(allgather|reduce_scatter)_base_ #(\d+) group (\S+) in (model|blocks\.\d)")
    found = records(levels, "collective", "bf16", 1, rank=0)
    sent, received = (found[found["site"] == site] for site in ("collective_in", "collective_out"))
    assert list(sent["name"]) == list(received["name"])
    parts = [re.fullmatch(named, name) for name in sent["name"]]
    assert all(parts)
    matched = [part.groups() for part in parts if part is not None]
    assert [int(number) for _, number, _, _ in matched] == list(range(len(matched)))
    assert len({group for *_, group, _ in matched}) == 1
    assert {(kind, place) for kind, _, _, place in matched} >= {
        ("allgather", "blocks.0"),
        ("allgather", "blocks.1"),
        ("reduce_scatter", "blocks.0"),
        ("reduce_scatter", "blocks.1"),
    }
    assert set(sent["phase"]) == {"forward", "backward"}
    # Two ranks gather what each has half of, and get half of what they reduce.
    for kind, factor in (("allgather", 2.0), ("reduce_scatter", 0.5)):
        of_kind = [kind in name for name in sent["name"]]
        sizes = zip(sent[of_kind]["shape"], received[of_kind]["shape"], strict=True)
        rows = [[int(shape.split("x")[0]) for shape in pair] for pair in sizes]
        assert {after / before for before, after in rows} == {factor}


def test_every_rank_sees_the_same_operators_and_collectives(levels: Sweep) -> None:
    for level, site in (("collective", "collective_in"), ("op", "collective_in"), ("op", "op")):
        one, other = (records(levels, level, "bf16", 1, rank=rank) for rank in (0, 1))
        assert list(one.loc[one["site"] == site, "name"]) == list(other.loc[other["site"] == site, "name"])


def test_operators_are_named_with_their_module_forward_and_backward(at_op: pd.DataFrame) -> None:
    operators = at_op[at_op["site"] == "op"]
    forward = set(operators.loc[operators["phase"] == "forward", "name"])
    backward = set(operators.loc[operators["phase"] == "backward", "name"])
    assert {
        "aten.embedding in embedding",
        "aten.mm in blocks.0.attention.qkv",
        "aten.bmm in blocks.1.attention",
        "aten.index_put in blocks.1.ffn",
    } <= forward
    assert {"aten.embedding_dense_backward in embedding", "aten.native_layer_norm_backward in norm"} <= backward
    assert any(name.startswith("aten.mm in blocks.0.attention") for name in backward)
    # Nobody looks at what puts no bits anywhere.
    assert not [name for name in forward | backward if re.match(r"aten\.(empty|view|detach|transpose|t) ", name)]


def test_operators_have_digests_of_what_they_read(levels: Sweep) -> None:
    path = Path(trial(levels, "op", "bf16", 4)["folder"]) / "rank000.jsonl"
    rows = [row for row in json.loads(path.read_text().splitlines()[0])["records"] if row[0] == "op"]
    assert len(rows) > 200
    # Where there is nothing to read, as for zeros, there is no digest.
    assert {len(row) for row in rows} == {7, 8}
    assert {row[1].partition(" in ")[0] for row in rows if len(row) == 7} <= {
        "aten.zeros",
        "aten.zero_",
        "aten.zeros_like",
        "aten.new_zeros",
        "aten.ones",
        "aten.ones_like",
        "aten.arange",
        "aten.scalar_tensor",
        "aten.full",
        "aten.full_like",
        "aten.fill_",
    }


def test_the_closest_level_sees_the_optimizer_and_changes_no_bit_of_a_training_run(detsweep: Run) -> None:
    ran = detsweep("-m", "mode=train", "observe=off,op", "steps=2", "clip=1.0", "model.num_layers=2", "warmup=0")
    assert ran.code == 0, ran.out + ran.err
    sweep = package.load(ran.folder)
    off, op = (Path(folder) for folder in sweep.trials["folder"])
    plain = outcome(off)
    assert {site for _, _, site, *_ in plain} == {"loss", "grad", "norm", "optim", "param", "rng"}
    assert outcome(op) == plain
    found = sweep.records(cell=sweep.trials["cell"].iloc[1], rank=0)
    of_optimizer = found[(found["phase"] == "optimizer") & (found["site"] != "norm")]
    assert {"op", "collective_in", "collective_out"} == set(of_optimizer["site"])
    # The norm of all gradients is reduced over the ranks.
    assert any("allreduce" in name or "all_reduce" in name for name in of_optimizer["name"])


def test_24_blocks_take_at_most_a_megabyte_for_a_rank_and_run(detsweep: Run) -> None:
    ran = detsweep("model.num_layers=24", "experts=4", "warmup=0", "model.seq_len=8")
    assert ran.code == 0, ran.out + ran.err
    for path in ran.folder.glob("cells/*/trial0/rank*.jsonl"):
        sizes = [len(line) for line in path.read_bytes().splitlines()]
        assert len(sizes) == 2
        assert max(sizes) <= MEGABYTE
