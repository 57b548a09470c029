"""A cell against another one of the sweep: does a variant compute the same bits, and if not, from where on?"""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

import detsweep as package
from detsweep.analysis import Sweep
from tests.conftest import Ran, Run


@pytest.fixture(scope="module")
def recomputed(detsweep: Run) -> Ran:
    return detsweep(
        "-m",
        "checkpointing=none,block",
        "preserve_rng_state=true,false",
        "model.dropout=0.1",
        "model.num_layers=3",
        "against=checkpointing:none",
    )


@pytest.fixture(scope="module")
def sweep(recomputed: Ran) -> Sweep:
    return package.load(recomputed.folder)


def cell_of(sweep: Sweep, *, checkpointing: str, preserved: bool) -> str:
    trials = sweep.trials
    (cell,) = trials.loc[
        (trials["checkpointing"] == checkpointing) & (trials["preserve_rng_state"] == preserved), "cell"
    ]
    return str(cell)


def against(sweep: Sweep, *, preserved: bool) -> pd.Series[Any]:
    """How the cell with recomputation compares with the one without."""
    rows = sweep.baselines.set_index("cell")
    row: pd.Series[Any] = rows.loc[cell_of(sweep, checkpointing="block", preserved=preserved)]
    return row


def test_each_cell_repeats_itself(recomputed: Ran, sweep: Sweep) -> None:
    # A variant that computes other bits is no nondeterminism.
    assert recomputed.code == 0, recomputed.out + recomputed.err
    assert list(sweep.trials["verdict"]) == ["pass"] * 3
    assert "1 of 4 cells are the same as another" in recomputed.out


def test_recomputation_with_the_random_state_preserved_is_equal(sweep: Sweep) -> None:
    compared = against(sweep, preserved=True)
    assert compared["baseline"] == cell_of(sweep, checkpointing="none", preserved=True)
    assert (compared["equal"], compared["compared"], compared["differing"]) == (True, 2, 0)
    assert pd.isna(compared["error"])


def test_without_it_the_recomputation_of_a_block_draws_other_numbers(sweep: Sweep) -> None:
    compared = against(sweep, preserved=False)
    assert (compared["equal"], compared["loss_equal"], compared["differing"]) == (False, True, 2)
    assert (compared["cause"], compared["site"], compared["phase"]) == ("rng", "rng", "recompute")
    # Backward comes to the last block first.
    assert (compared["block"], compared["name"]) == (2, "blocks.2.attention_dropout")


def test_only_gradients_differ(sweep: Sweep) -> None:
    baseline, without = (
        sweep.records(cell=cell_of(sweep, checkpointing=checkpointing, preserved=preserved)).set_index(
            ["rank", "run", "site", "name", "phase"]
        )["digest"]
        for checkpointing, preserved in (("none", True), ("block", False))
    )
    shared = baseline.index.intersection(without.index)
    differing = {site for _, _, site, *_ in shared[baseline[shared] != without[shared]]}
    # Backward draws nothing: after it the random state is the one after the last block's recomputation.
    assert differing - {"rng"} == {"grad", "block_grad_in", "block_grad_out"}


def test_the_table_and_a_note_say_so(recomputed: Ran) -> None:
    rows = [line for line in recomputed.out.splitlines() if "✓ pass" in line]
    assert len(rows) == 3
    assert sum("checkpointing=none" in line for line in rows) == 2
    assert sum("rng: rng blocks.2.attention_dropout (recompute), rank 0, step 0" in line for line in rows) == 1
    note = "what checkpointing recomputes in block 2 is not what forward had, first rng blocks.2.attention_dropout"
    assert note in recomputed.out
