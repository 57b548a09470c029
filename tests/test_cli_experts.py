"""Experts that are dealt out to ranks, from the command line: what is recorded, who is blamed, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import detsweep as package
from tests.conftest import Ran, Run

DEALT = ("experts=4", "moe.dispatch=all_to_all")
SMALL = ("model.num_layers=2", "model.seq_len=16")
EXCHANGE = "c10d.alltoall_base_"
STRUCK, OTHER = 0, 1


@pytest.fixture(scope="module")
def clean(detsweep: Run) -> Ran:
    return detsweep("-m", "dtype=bf16,fp32", *DEALT, "observe=collective")


@pytest.fixture(scope="module")
def faults(detsweep: Run) -> Ran:
    # Collective number 2 of those that carry values takes the rows of block 0 to their experts: the two before it
    # gather parameters. Token 1 goes to expert 1, which rank 0 holds, and misrouted to expert 2, which rank 1 holds.
    return detsweep(
        "-m",
        "fault=misrouted_expert,collective_flip",
        "observe=collective,op",
        f"fault.rank={STRUCK}",
        "fault.number=2",
        "fault.element=1",
        "moe=even",
        *DEALT,
        *SMALL,
    )


def exchanges(cell: Path, rank: int) -> list[list[Any]]:
    """The records of the first run that are of all-to-alls: site, name, block, dtype, shape, digest, phase."""
    line = json.loads((cell / "trial0" / f"rank{rank:03d}.jsonl").read_text().splitlines()[0])
    return [record for record in line["records"] if EXCHANGE in record[1]]


def of(sweep: package.Sweep, fault: str, level: str) -> pd.DataFrame:
    """Divergences of a fault's cell, by rank."""
    found: pd.DataFrame = sweep.divergences.query("fault == @fault and level == @level").set_index("rank")
    return found


def test_dealt_out_experts_repeat(clean: Ran) -> None:
    assert clean.code == 0, clean.out + clean.err
    assert list(package.load(clean.folder).trials["verdict"]) == ["pass", "pass"]


def test_all_to_alls_are_on_record_forward_and_backward(clean: Ran) -> None:
    assert len(clean.cells()) == 2
    for slug, cell in clean.cells().items():
        ranks = [exchanges(cell, rank) for rank in (0, 1)]
        names = [[(record[0], record[1], record[6]) for record in records] for records in ranks]
        assert names[0] == names[1]
        for block in range(4):
            here = [record for record in ranks[0] if record[2] == block and record[0] == "collective_in"]
            # How many rows, the rows to their experts, what became of them; and in backward what went, back.
            carried = "bfloat16" if "bf16" in slug else "float32"
            assert [record[3] for record in here] == ["int64", carried, carried, carried, carried]
            assert [record[6] for record in here] == ["forward"] * 3 + ["backward"] * 2
            assert all(record[1].endswith(f" in blocks.{block}") for record in here)
        # Routing is learned, so that ranks get other numbers of rows than they send, and together all that there are.
        arrived = [[r[4][0] for r in records if r[0] == "collective_out" and r[3] != "int64"] for records in ranks]
        assert arrived[0] != arrived[1]
        assert all(sum(rows) == 2 * 64 for rows in zip(*arrived, strict=True))


@pytest.mark.parametrize("level", ["collective", "op"])
def test_a_misrouted_token_crosses_and_is_traced_to_the_rank_that_sent_it(faults: Ran, level: str) -> None:
    found = of(package.load(faults.folder), "misrouted_expert", level)
    # At `op` the router is looked at, of which no operator wrote what the fault did.
    first = ("collective_in", "compute") if level == "collective" else ("module", "memory")
    assert (found.loc[STRUCK, "site"], found.loc[STRUCK, "cause"]) == first
    assert (found.loc[OTHER, "site"], found.loc[OTHER, "phase"]) == ("collective_out", "forward")
    assert (found.loc[OTHER, "cause"], found.loc[OTHER, "origin"]) == ("upstream", STRUCK)
    # The first to tell is how many tokens go to which expert, before any of them does.
    assert found.loc[OTHER, "name"].startswith(f"{EXCHANGE} #2 group default_pg in blocks.0")


@pytest.mark.parametrize("level", ["collective", "op"])
def test_rows_that_an_exchange_corrupts_come_back_to_the_rank_that_sent_them(faults: Ran, level: str) -> None:
    found = of(package.load(faults.folder), "collective_flip", level)
    assert (found.loc[STRUCK, "site"], found.loc[STRUCK, "cause"]) == ("collective_out", "collective")
    assert found.loc[STRUCK, "name"].startswith(f"{EXCHANGE} #3 group default_pg in blocks.0")
    assert (found.loc[OTHER, "cause"], found.loc[OTHER, "origin"]) == ("upstream", STRUCK)
    assert found.loc[OTHER, "site"] == "collective_out"
    assert EXCHANGE in found.loc[OTHER, "name"]


def test_every_one_of_these_was_placed_with_its_cause(faults: Ran) -> None:
    assert faults.code == 1
    injections = package.load(faults.folder).injections
    assert len(injections) == 4
    assert injections["placed"].all()
    assert injections["caused"].all()


def test_a_checkpoint_brings_every_ranks_experts_and_their_optimizer_back(detsweep: Run) -> None:
    ran = detsweep("mode=resume", "steps=4", "clip=0.1", *DEALT, *SMALL)
    assert ran.code == 0, ran.out + ran.err
    for cell in ran.cells().values():
        for rank in (0, 1):
            lines = [json.loads(line) for line in (cell / "trial0" / f"rank{rank:03d}.jsonl").read_text().splitlines()]
            last = [line for line in lines if line["step"] == 3]
            assert len(last) == 2
            states = [r for r in last[1]["records"] if r[0] == "optim" and f".experts.{2 * rank}." in r[1]]
            assert states
            assert last[0]["records"] == last[1]["records"]


def test_four_ranks_with_two_copies_of_the_rest_train(detsweep: Run) -> None:
    four = ("world.nproc_per_node=4", "world.shard_ranks=2", "checkpointing=block")
    ran = detsweep("mode=train", "moe=top2", "steps=2", "accum=2", "clip=0.1", *four, *DEALT, *SMALL)
    assert ran.code == 0, ran.out + ran.err


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["experts=3"], "experts=3: moe.dispatch=all_to_all deals them out to 2 ranks (valid: 2, 4, 6, ...)"),
        ([], "moe.dispatch=all_to_all: experts=1 is a dense FFN"),
        (["experts=4", "mode=lockstep"], "mode=lockstep: ranks with experts of their own do not do the same"),
    ],
)
def test_what_cannot_be_dealt_out_is_refused(detsweep: Run, arguments: list[str], line: str) -> None:
    ran = detsweep("moe.dispatch=all_to_all", *arguments)
    assert (ran.code, ran.folder.exists()) == (2, False)
    assert ran.err.startswith(f"detsweep: {line}")
    assert len(ran.err.splitlines()) == 1
