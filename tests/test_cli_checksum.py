"""SHA-256 of what training leaves, to be handed over: the same in every run and sweep, and what hashlib says it is."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

import pandas as pd
import pytest
import torch

import detsweep as package
from detsweep.worker import model as models
from detsweep.worker import settings
from detsweep.worker.snapshot import RandomState
from tests.conftest import Ran, Run
from tests.support import compose

CELL = ("mode=train", "steps=2", "checksum=sha256", "dtype.param=bf16")
DIGITS = re.compile("[0-9a-f]{64}")


@pytest.fixture(scope="module")
def trained(detsweep: Run) -> Ran:
    return detsweep(*CELL)


@pytest.fixture(scope="module")
def once_more(detsweep: Run) -> Ran:
    return detsweep(*CELL)


def _lines(ran: Ran, rank: int) -> dict[tuple[int, str], dict[str, Any]]:
    """The lines of a rank as any reader of JSON has them, by step and run."""
    assert ran.code == 0, ran.out + ran.err
    (path,) = ran.folder.glob(f"cells/*/trial0/rank{rank:03d}.jsonl")
    lines = [json.loads(text) for text in path.read_text().splitlines()]
    return {(line["step"], line["run"]): line for line in lines}


@pytest.mark.parametrize("rank", [0, 1])
def test_gradients_are_64_hex_digits_and_equal_in_both_runs_and_both_sweeps(
    trained: Ran, once_more: Ran, rank: int
) -> None:
    one, other = _lines(trained, rank), _lines(once_more, rank)
    assert set(one) == set(other) == {(step, run) for step in (0, 1) for run in ("r1", "r2")}
    for place, line in one.items():
        assert line["checksum"] == "sha256"
        assert line["grads"]
        assert all(DIGITS.fullmatch(digest) for digest in line["grads"].values())
        assert line["grads"] == one[place[0], "r1"]["grads"] == other[place]["grads"]
        assert line["params"] == other[place]["params"]
    assert not set(one[0, "r1"]["grads"].values()) & set(one[1, "r1"]["grads"].values())


def test_ranks_have_digests_of_their_own_shards(trained: Ran) -> None:
    one, other = (_lines(trained, rank)[0, "r1"]["grads"] for rank in (0, 1))
    assert one.keys() == other.keys()
    assert not set(one.values()) & set(other.values())


@pytest.mark.parametrize("rank", [0, 1])
def test_weights_at_the_start_are_what_hashlib_says_of_the_ranks_part(trained: Ran, rank: int) -> None:
    config, state = compose(*CELL), RandomState.now(torch.device("cpu"))
    settings.seed_everything(config["seed"])
    model = models.build(config, torch.device("cpu"))
    state.restore(torch.device("cpu"))
    # FSDP2 gives each rank its part of the rows.
    parts = {name: weight.detach().chunk(2)[rank] for name, weight in model.named_parameters()}
    assert {part.dtype for part in parts.values()} == {torch.bfloat16}
    expected = {
        name: hashlib.sha256(part.view(torch.int16).numpy().tobytes()).hexdigest() for name, part in parts.items()
    }
    rows = _lines(trained, rank)[0, "r1"]["records"]
    assert {name: digest for site, name, *_, digest, phase in rows if (site, phase) == ("param", "before")} == expected


def test_the_frame_shows_the_digits_of_the_file(trained: Ran) -> None:
    records = package.load(trained.folder).records(rank=1)
    shown = records[(records["site"] == "grad") & (records["step"] == 1) & (records["run"] == "r2")]
    assert dict(zip(shown["name"], shown["digest"], strict=True)) == _lines(trained, 1)[1, "r2"]["grads"]
    lengths: pd.Series[int] = records["digest"].str.len()
    assert set(records.loc[lengths == 16, "site"]) == {"loss"}
    assert set(records.loc[lengths == 64, "site"]) == set(records["site"]) - {"loss"}


def test_digests_of_another_kind_are_not_compared_with_them(detsweep: Run) -> None:
    ran = detsweep("-m", "checksum=xxh3,sha256", "against=checksum:xxh3")
    assert ran.code == 0, ran.out + ran.err
    assert "not compared: checksum xxh3 cannot be compared with sha256" in ran.out
