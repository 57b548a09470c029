"""Why runs part: each cause is told from the others, named where it began and not where it only arrived."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

import detsweep as package
from detsweep.analysis import Sweep
from tests.conftest import Ran, Run

# Cause, site, and where in the step it first shows, on the rank that was struck.
EXPECTED = {
    "input_flip": ("input", "input", "before"),
    "rng_not_restored": ("rng", "rng", "before"),
    "param_drift": ("memory", "param", "before"),
    "reordered_collectives": ("sequence", "collective_in", "forward"),
    "collective_flip": ("collective", "collective_out", "forward"),
    "bit_flip": ("compute", "block_post", "forward"),
}
STRUCK, OTHER = 1, 0
PRODUCT = "aten.mm in blocks.2.attention.qkv"


@pytest.fixture(scope="module")
def faults(detsweep: Run) -> Ran:
    return detsweep(
        "-m",
        f"fault={','.join(EXPECTED)}",
        f"fault.rank={STRUCK}",
        "fault.block=2",
        "fault.number=2",
        "model.dropout=0.1",
        "model.seq_len=16",
        "observe=collective",
    )


@pytest.fixture(scope="module")
def operators(detsweep: Run) -> Ran:
    # The 8193rd element of what the first operator, a product, gives belongs to a value of a later token; that of the
    # fourth, wrapped around, to the score of a first token, whose softmax is 1 whatever it is.
    return detsweep(
        "-m",
        "observe=op",
        "fault=bit_flip",
        "fault.site=op",
        "fault.rank=1",
        "fault.block=2",
        "fault.number=0,3",
        "fault.element=8192",
    )


@pytest.fixture(scope="module")
def drilled(detsweep: Run) -> Ran:
    return detsweep("fault=bit_flip", "fault.rank=1", "fault.block=2", "drill=true")


def of(sweep: Sweep, fault: str) -> pd.DataFrame:
    """Divergences of the cell of a fault, by rank."""
    found: pd.DataFrame = sweep.divergences[sweep.divergences["fault"] == fault].set_index("rank")
    return found


@pytest.mark.parametrize("fault", EXPECTED)
def test_the_struck_rank_has_the_cause_at_its_place(faults: Ran, fault: str) -> None:
    cause, site, phase = EXPECTED[fault]
    sweep = package.load(faults.folder)
    found = of(sweep, fault).loc[STRUCK]
    assert (found["cause"], found["site"], found["phase"], found["run"]) == (cause, site, phase, "r2")
    trial = sweep.trials.set_index("fault").loc[fault]
    assert (trial["verdict"], trial["cause"], trial["first_site"]) == ("diverged", cause, site)
    assert trial["first_ranks"] == ((OTHER, STRUCK) if fault == "reordered_collectives" else (STRUCK,))


@pytest.mark.parametrize("fault", [fault for fault in EXPECTED if fault != "reordered_collectives"])
def test_the_other_rank_only_received_it_and_says_from_whom(faults: Ran, fault: str) -> None:
    found = of(package.load(faults.folder), fault).loc[OTHER]
    assert (found["cause"], found["origin"], found["site"]) == ("upstream", STRUCK, "collective_out")
    # A parameter comes with the next all-gather of its block, all else with the gradients that backward reduces first.
    kind, place, phase = "reduce_scatter", "blocks.3", "backward"
    if fault == "param_drift":
        kind, place, phase = "allgather", "blocks.2", "forward"
    assert (found["block"], found["phase"]) == (int(place[-1]), phase)
    assert kind in found["name"]
    assert found["name"].endswith(f" in {place}")


def test_a_struck_collective_has_its_name_and_its_number(faults: Ran) -> None:
    sweep = package.load(faults.folder)
    found = of(sweep, "collective_flip").loc[STRUCK]
    assert found["name"] == "c10d._allgather_base_ #2 group default_pg in blocks.1"
    assert f"collective_out {found['name']} (forward), rank {STRUCK}, step 0 r2" in faults.out


def test_all_ranks_change_the_order_of_collectives_together(faults: Ran) -> None:
    found = of(package.load(faults.folder), "reordered_collectives")
    assert set(found["kind"]) == {"sequence"}
    assert set(found["cause"]) == {"sequence"}
    assert len(set(found["seq"])) == 1
    assert "sequence differs at collective_in c10d._allgather_base_ #2" in faults.out


def test_every_one_of_these_was_placed_by_name(faults: Ran) -> None:
    assert faults.code == 1
    injections = package.load(faults.folder).injections
    assert set(injections["kind"]) == set(EXPECTED)
    assert injections["placed"].all()
    assert list(injections["found_cause"]) == [EXPECTED[kind][0] for kind in injections["kind"]]


def test_a_struck_operator_is_named_with_its_module(operators: Ran) -> None:
    assert operators.code == 1, operators.out + operators.err
    sweep = package.load(operators.folder)
    trial = sweep.trials.set_index("fault.number").loc[0]
    assert (trial["first_name"], trial["first_site"], trial["first_phase"]) == (PRODUCT, "op", "forward")
    assert (trial["cause"], trial["first_block"], trial["first_ranks"]) == ("compute", 2, (STRUCK,))
    found = sweep.divergences[sweep.divergences["cell"] == trial["cell"]].set_index("rank")
    assert (found.loc[OTHER, "cause"], found.loc[OTHER, "origin"]) == ("upstream", STRUCK)
    assert set(found["level"]) == {"op"}
    assert found["closer"].isna().all()
    assert f"op {PRODUCT} (forward), rank {STRUCK}, step 0 r2" in operators.out
    assert sweep.injections["placed"].all()


def test_what_goes_no_further_is_seen_all_the_same(operators: Ran) -> None:
    sweep = package.load(operators.folder)
    trial = sweep.trials.set_index("fault.number").loc[3]
    assert (trial["first_name"], trial["cause"]) == ("aten.bmm in blocks.2.attention", "compute")
    # The loss, every output and the other rank never hear of it: no coarser level could see it.
    assert (trial["diverged_ranks"], trial["loss"]) == ((STRUCK,), "0/1")
    differing = sweep.differing(cell=trial["cell"])
    assert set(differing["site"]) == {"op"}
    last = differing.iloc[-1]
    assert (last["name"], last["kind"]) == ("aten._softmax in blocks.2.attention", "inputs")


def test_at_block_level_the_cause_leaves_a_closer_look_to_be_had(drilled: Ran) -> None:
    sweep = package.load(drilled.folder)
    found = sweep.divergences[sweep.divergences["level"] == "block"].set_index("rank")
    assert (found.loc[STRUCK, "cause"], found.loc[STRUCK, "closer"]) == ("compute", "op")
    # What came over the wire has no more to it than which collective brought it.
    assert (found.loc[OTHER, "cause"], found.loc[OTHER, "closer"]) == ("upstream", "collective")
    assert found.loc[OTHER, "origin"] == STRUCK


def test_a_drill_adds_the_closer_look_and_no_row(drilled: Ran) -> None:
    assert drilled.code == 1, drilled.out + drilled.err
    assert "looking closer at 1 of 1 cells" in drilled.out
    sweep = package.load(drilled.folder)
    (cell,) = sweep.trials["cell"]
    assert list(sweep.drills) == [cell]
    drill = sweep.drills[cell]
    assert drill.verdict == "diverged"
    # Between the block's last operator and its output nothing wrote: that is what the fault did.
    assert (drill.first["cause"], drill.first["first_site"], drill.first["first_block"]) == ("memory", "block_post", 2)
    assert set(sweep.divergences["cell"]) == {cell}
    assert set(sweep.divergences["level"]) == {"block", "op"}
    assert len(list(drilled.folder.glob("cells/*/trial0/result.json"))) == 2
    assert "memory: block_post of block 2, rank 1, step 0 r2" in drilled.out
    assert "1 trial of 1 cell: 1 diverged" in drilled.out
    assert "look closer: " not in drilled.out
    table = pd.read_csv(Path(drilled.folder) / "matrix.csv")
    assert list(table["closer_look"]) == ["memory: block_post of block 2, rank 1, step 0 r2"]
