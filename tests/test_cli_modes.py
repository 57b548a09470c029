"""What is held against what: launches, ranks, trajectories, and a resumed one against one without a break."""

from __future__ import annotations

import json
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import detsweep as package
from detsweep.analysis import Sweep, exit_code
from detsweep.paths import TrialPaths
from tests.conftest import Ran, Run
from tests.support import as_written

PERSISTENT = ("fault=bit_flip", "fault.persistence=persistent", "fault.rank=1", "fault.block=2", "fault.bit=9")


@pytest.fixture(scope="module")
def relaunched(detsweep: Run) -> Ran:
    # One run in each launch: nothing but the comparison between launches can say that they are equal.
    ran = detsweep("mode=relaunch", "trials=2", "runs=1", "steps=2")
    assert ran.code == 0, ran.out + ran.err
    return ran


@pytest.fixture(scope="module")
def three_ranks(detsweep: Run) -> Ran:
    return detsweep("-m", "mode=lockstep,replay", "world.nproc_per_node=3", *PERSISTENT)


@pytest.fixture(scope="module")
def two_ranks(detsweep: Run) -> Ran:
    return detsweep("-m", "mode=lockstep", "fault=bit_flip,none", *PERSISTENT[1:])


@pytest.fixture(scope="module")
def trained(detsweep: Run) -> Ran:
    return detsweep("-m", "mode=train", "optimizer=adamw,sgd", "accum=2", "clip=1.0", "steps=3")


@pytest.fixture(scope="module")
def parted(detsweep: Run) -> Ran:
    return detsweep(
        "-m",
        "mode=train",
        "steps=4",
        "dtype=fp32",
        "fault=bit_flip",
        "fault.site=block_post,grad",
        "fault.step=1",
        "fault.rank=1",
        "fault.block=2",
        "fault.bit=29",
    )


@pytest.fixture(scope="module")
def resumed(detsweep: Run) -> Ran:
    return detsweep("-m", "mode=resume", "steps=4", "model.dropout=0.1", "fault=none,rng_not_restored", "fault.rank=1")


def row(sweep: Sweep, **values: Any) -> pd.Series[Any]:
    """The only trial with these values."""
    trials = sweep.trials
    for key, value in values.items():
        trials = trials[trials[key] == value]
    (number,) = trials.index
    found: pd.Series[Any] = trials.loc[number]
    return found


def test_launches_in_fresh_processes_are_equal(relaunched: Ran) -> None:
    sweep = package.load(relaunched.folder)
    assert list(sweep.trials["verdict"]) == ["pass", "pass"]
    # Both steps of the second launch were compared with the first's.
    assert list(sweep.trials["replays"]) == [0, 2]
    assert "0/2" in relaunched.out


def test_one_other_digest_in_a_launch_is_found_and_placed_against_the_first(relaunched: Ran, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(relaunched.folder, folder)
    (path,) = folder.glob("cells/*/trial1/rank001.jsonl")
    lines = path.read_text().splitlines(keepends=True)
    (digest,) = [row[5] for row in json.loads(lines[1])["records"] if row[:3] == ["block_post", "blocks.2", 2]]
    # In place, and as long as before: the file is whole, only its content is another one.
    changed = f"{digest:d}"[:-1] + str((digest + 1) % 10)
    lines[1] = lines[1].replace(str(digest), changed)
    path.write_text("".join(lines))
    # What was changed afterwards is no finding; as the launch's own record it is one.
    assert list(package.load(folder).trials["verdict"]) == ["pass", "error"]
    as_written(TrialPaths(path.parent))
    sweep = package.load(folder)
    assert list(sweep.trials["verdict"]) == ["pass", "diverged"]
    trial = sweep.trials.iloc[1]
    assert (trial["first_site"], trial["first_block"], trial["first_step"]) == ("block_post", 2, 1)
    assert (trial["first_ranks"], trial["first_reference"], trial["cause"]) == ((1,), "trial0", "compute")
    assert trial["loss"] == "0/1"
    (found,) = sweep.divergences.to_dict("records")
    assert (found["trial"], found["rank"], found["step"], found["run"]) == (1, 1, 1, "r1")
    assert exit_code(sweep) == 1


def test_three_ranks_vote_on_what_repeats_itself(three_ranks: Ran) -> None:
    assert three_ranks.code == 1, three_ranks.out + three_ranks.err
    sweep = package.load(three_ranks.folder)
    voted = row(sweep, mode="lockstep")
    assert (voted["verdict"], voted["cause"], voted["first_reference"]) == ("diverged", "compute", "vote")
    assert (voted["first_site"], voted["first_block"], voted["first_ranks"]) == ("block_post", 2, (1,))
    # Both runs have it, and no other rank has: what ranks do with each other's gradients is not compared.
    assert voted["diverged_ranks"] == (1,)
    assert list(sweep.divergences["run"]) == ["r1", "r2"]
    assert set(sweep.divergences["reference"]) == {"vote"}
    assert voted["replays"] == 2
    # The corrupted rank agrees with itself.
    assert row(sweep, mode="replay")["verdict"] == "pass"
    injections = sweep.injections[sweep.injections["mode"] == "lockstep"]
    assert injections["placed"].all()
    assert not injections["detected_by_replay"].any()


def test_two_ranks_can_only_say_that_they_differ(two_ranks: Ran) -> None:
    assert two_ranks.code == 1
    sweep = package.load(two_ranks.folder)
    tied = row(sweep, fault="bit_flip")
    assert (tied["verdict"], tied["first_ranks"]) == ("diverged", (0, 1))
    assert pd.isna(tied["cause"])
    assert (tied["first_site"], tied["first_block"]) == ("block_post", 2)
    assert "ranks differ at block_post blocks.2, step 0 r1, and no value has a majority" in two_ranks.out
    assert "with world.nproc_per_node=3 or more it can be voted on" in two_ranks.out
    assert row(sweep, fault="none")["verdict"] == "pass"


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_trajectories_with_micro_batches_and_clipping_are_equal(trained: Ran, optimizer: str) -> None:
    assert trained.code == 0, trained.out + trained.err
    sweep = package.load(trained.folder)
    trial = row(sweep, optimizer=optimizer)
    assert (trial["verdict"], trial["replays"]) == ("pass", 3)
    records = sweep.records(cell=trial["cell"], rank=1)
    first, last = (records[(records["run"] == "r1") & (records["step"] == step)] for step in (0, 2))
    sites = list(dict.fromkeys(zip(first["site"], first["phase"], strict=True)))
    assert sites[-5:] == [
        ("grad", "backward"),
        ("norm", "optimizer"),
        ("optim", "after"),
        ("param", "after"),
        ("rng", "after"),
    ]
    # Two micro-batches, each with data, forward and loss of its own.
    assert list(first["name"]).count("input_ids") == 2
    assert first.loc[first["name"] == "input_ids", "digest"].nunique() == 2
    assert first.loc[first["site"] == "loss", "digest"].nunique() == 2
    optim = {name.rpartition(".")[2] for name in first.loc[first["site"] == "optim", "name"]}
    assert optim == ({"exp_avg", "exp_avg_sq", "step"} if optimizer == "adamw" else {"momentum_buffer"})
    # The optimizer's state is there before a step too, as soon as it has one.
    assert ("optim", "before") not in sites
    assert ("optim", "before") in set(zip(last["site"], last["phase"], strict=True))


def test_a_trajectory_moves(trained: Ran) -> None:
    for path in trained.folder.glob("cells/*/trial0/rank*.jsonl"):
        lines = [json.loads(text) for text in path.read_text().splitlines()]
        assert [(line["run"], line["step"]) for line in lines] == [(r, s) for r in ("r1", "r2") for s in range(3)]
        assert len({line["params"]["blocks.0.attention.qkv.weight"] for line in lines}) == 3
        # A step begins with what the one before left.
        for before, after in pairwise(lines[:3]):
            begun = {row[1]: row[5] for row in after["records"] if row[0] == "param" and row[6] == "before"}
            assert begun == before["params"]


def test_trajectories_part_at_the_step_of_the_fault(parted: Ran) -> None:
    assert parted.code == 1, parted.out + parted.err
    sweep = package.load(parted.folder)
    for site in ("block_post", "grad"):
        trial = row(sweep, **{"fault.site": site})
        assert (trial["first_step"], trial["first_run"], trial["first_ranks"]) == (1, "r2", (1,))
        assert (trial["first_site"], trial["first_block"], trial["closer"]) == (site, 2, "op")
        # A gradient is seen after its reduction: whose work differs is not known at this level.
        assert trial["cause"] == "compute" if site == "block_post" else pd.isna(trial["cause"])
        own = sweep.divergences[sweep.divergences["cell"] == trial["cell"]]
        # Nothing brings them together again, and no later step has a cause of its own.
        assert own["step"].min() == 1
        later = own[own["step"] > 1].set_index(["step", "rank"])["cause"]
        assert set(later.index) == {(step, rank) for step in (2, 3) for rank in (0, 1)}
        assert set(later) <= {"earlier", "upstream"}
        assert later[2, 1] == "earlier"


def test_the_loss_column_says_when_the_loss_would_have_told(parted: Ran) -> None:
    sweep = package.load(parted.folder)
    assert row(sweep, **{"fault.site": "block_post"})["loss"] == "at once"
    trial = row(sweep, **{"fault.site": "grad"})
    records = sweep.records(cell=trial["cell"])
    losses = records[records["site"] == "loss"].pivot(index=["step", "rank"], columns="run", values="digest")
    differs = [step for step, _ in losses.index[losses["r1"] != losses["r2"]]]
    # The loss of the step itself was computed before its gradients were; on some CPUs no later one tells.
    assert min(differs, default=2) > 1
    assert str(trial["loss"]).startswith(f"{min(differs) - 1} step" if differs else "never")
    assert "at once" in parted.out
    assert str(trial["loss"]) in parted.out


def test_a_resumed_run_is_the_uninterrupted_one(resumed: Ran) -> None:
    sweep = package.load(resumed.folder)
    trial = row(sweep, fault="none")
    assert (trial["verdict"], trial["replays"]) == ("pass", 4)
    assert not (Path(trial["folder"]) / "checkpoint").exists()
    records = sweep.records(cell=trial["cell"], rank=1)
    places = list(dict.fromkeys(zip(records["run"], records["step"], strict=True)))
    assert places == [(run, step) for run in ("r1", "r2") for step in range(4)]


def test_a_random_state_that_was_not_loaded_is_found_at_the_first_step_after_the_break(resumed: Ran) -> None:
    assert resumed.code == 1, resumed.out + resumed.err
    sweep = package.load(resumed.folder)
    trial = row(sweep, fault="rng_not_restored")
    assert (trial["first_site"], trial["first_step"], trial["first_run"]) == ("rng", 2, "r2")
    assert (trial["first_ranks"], trial["cause"]) == ((1,), "checkpoint")
    assert (Path(trial["folder"]) / "checkpoint").is_dir()
    own = sweep.divergences[sweep.divergences["cell"] == trial["cell"]]
    assert own["step"].min() == 2
    later = own[(own["rank"] == 0) & (own["step"] == 2)]
    assert list(zip(later["cause"], later["origin"], strict=True)) == [("upstream", 1)]
