"""Faults: exactly what was asked for, where and when it was asked for, on record, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from detsweep.capture import Stream
from detsweep.compare import compare
from detsweep.injections import KINDS
from detsweep.worker.faults import Struck, fail
from detsweep.worker.model import batch
from detsweep.worker.replay import replay
from detsweep.worker.step import TrainingStep
from tests.support import compose, one_rank, prepared

Streams = dict[tuple[int, int], Stream]
"""By step and run."""


@pytest.fixture(autouse=True)
def _group() -> Iterator[None]:
    with one_rank():
        yield


def _replayed(step: TrainingStep, steps: int = 1, runs: int = 2) -> Streams:
    done = [run.stream for one in replay(step, steps, runs, cold=True, plain_steps=steps) for run in one.runs]
    return {(stream.step, int(stream.run[1:])): stream for stream in done}


def _places(streams: Streams) -> dict[tuple[int, int], tuple[str, str, int | None]]:
    """Of each run that differs from the first of its step: where it does first."""
    firsts = {place: compare(streams[place[0], 1], stream).first for place, stream in streams.items() if place[1] > 1}
    return {place: (one.site, one.name, one.block) for place, one in firsts.items() if one is not None}


QKV = "blocks.1.attention.qkv.weight"
BLOCK_1 = ("block_post", "blocks.1", 1)
FAULTS: dict[str, tuple[tuple[str, ...], tuple[str, str | None, int | None]]] = {
    "input_flip": ((), ("input", "input_ids", None)),
    "bit_flip": ((), BLOCK_1),
    "bit_flip block_grad_in": (("fault.site=block_grad_in",), ("block_grad_in", "blocks.1", 1)),
    "bit_flip logits": (("fault.site=logits",), ("logits", "logits", None)),
    "bit_flip grad": (("fault.site=grad",), ("grad", QKV, 1)),
    "bit_flip op": (("fault.site=op", "observe=op", "fault.number=3"), ("op", "aten.bmm", 1)),
    "stride_flip": ((), BLOCK_1),
    "swap": ((), BLOCK_1),
    "ulp_pair": ((), BLOCK_1),
    "zero_sign": (("dtype=fp32",), BLOCK_1),
    "zero_sign logits": (("fault.site=logits",), ("logits", "logits", None)),
    "zero_sign grad": (("fault.site=grad",), ("grad", QKV, 1)),
    "nan_payload": (("dtype=fp32",), BLOCK_1),
    "nan_payload grad": (("fault.site=grad",), ("grad", QKV, 1)),
    "zeroed_shard": ((), ("param", QKV, 1)),
    "param_drift": ((), ("param", QKV, 1)),
    "rng_not_restored": (("model.dropout=0.1",), ("rng", "torch", None)),
    "misrouted_expert": (("experts=2",), BLOCK_1),
    "misrouted_expert module": (("experts=2", "observe=module"), ("module", "blocks.1.ffn.router", 1)),
}
"""Of each fault what its cell needs, and where it is put in and to be found."""


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_noted_and_found_where_it_was_put_in(tmp_path: Path, fault: str) -> None:
    overrides, (site, name, block) = FAULTS[fault]
    kind = fault.partition(" ")[0]
    step = prepared(tmp_path, f"fault={kind}", "fault.block=1", "runs=3", *overrides)
    places = _places(_replayed(step, runs=3))
    assert step.faults.struck == [Struck(kind, 0, 2, site, name, block)]
    assert places.keys() == {(0, 2)}
    found = places[0, 2]
    # Of an operator the record's name says where it ran, too.
    assert (found[0], found[1].partition(" in ")[0], found[2]) == (site, name, block)


def test_every_kind_that_one_rank_can_have_is_among_them() -> None:
    elsewhere = {"stale_tensor", "collective_flip", "reordered_collectives"}
    assert {fault.partition(" ")[0] for fault in FAULTS} == KINDS.keys() - elsewhere


@pytest.mark.parametrize("site", KINDS["stale_tensor"])
def test_a_stale_tensor_is_that_of_the_step_before(tmp_path: Path, site: str) -> None:
    overrides = ("fault=stale_tensor", "steps=3", "runs=3", "fault.block=1", f"fault.site={site}")
    step = prepared(tmp_path, *overrides)
    streams = _replayed(step, 3, 3)
    name, block = ("logits", None) if site == "logits" else ("blocks.1", 1)
    assert step.faults.struck == [Struck("stale_tensor", 1, 2, site, name, block)]
    assert _places(streams) == {(1, 2): (site, name, block)}
    before, stale, own = (
        [one.digest for one in streams[place].records if (one.site, one.name) == (site, name)]
        for place in ((0, 2), (1, 2), (1, 1))
    )
    assert stale == before != own


@pytest.mark.parametrize("strikes", [(0, 1), (2, 3)], ids=str)
def test_a_fault_is_in_its_step_and_run_alone(tmp_path: Path, strikes: tuple[int, int]) -> None:
    number, run = strikes
    fault = ("fault=bit_flip", f"fault.step={number}", f"fault.run={run}", "steps=3", "runs=3")
    step = prepared(tmp_path, *fault)
    streams = _replayed(step, 3, 3)
    clean = _replayed(prepared(tmp_path, "steps=3", "runs=3"), 3, 3)
    assert {place for place in streams if streams[place].records != clean[place].records} == {strikes}
    assert [(one.step, one.run) for one in step.faults.struck] == [strikes]


@pytest.mark.parametrize(("chosen", "struck"), [("0", [0]), ("1", [1]), ("null", [0, 1, 2])])
@pytest.mark.parametrize("kind", ["input_flip", "bit_flip", "param_drift", "rng_not_restored"])
def test_a_fault_is_in_its_rank_alone_or_in_all(tmp_path: Path, kind: str, chosen: str, struck: list[int]) -> None:
    steps = [
        prepared(tmp_path, f"fault={kind}", f"fault.rank={chosen}", "model.dropout=0.1", rank=rank) for rank in range(3)
    ]
    differing = [rank for rank, step in enumerate(steps) if _places(_replayed(step))]
    assert [rank for rank, step in enumerate(steps) if step.faults.struck] == differing == struck


def test_a_persistent_fault_is_in_every_run(tmp_path: Path) -> None:
    step = prepared(tmp_path, "fault=bit_flip", "fault.persistence=persistent", "runs=3")
    streams = _replayed(step, runs=3)
    assert _places(streams) == {}
    assert [one.run for one in step.faults.struck] == [1, 2, 3]
    assert streams[0, 1].records != _replayed(prepared(tmp_path))[0, 1].records


def test_plain_runs_are_never_struck(tmp_path: Path) -> None:
    clean, struck = prepared(tmp_path), prepared(tmp_path, "fault=zeroed_shard", "fault.persistence=persistent")
    for step in (clean, struck):
        step.plain(0)
    expected = clean.loss.clone()
    assert torch.equal(struck.loss, expected)
    _replayed(struck)
    # The last run of a replay is a plain one.
    assert torch.equal(struck.loss, expected)
    stream = _replayed(struck)[0, 2]
    assert stream.digests("loss") != _replayed(clean)[0, 2].digests("loss")


def test_what_is_planted_is_in_every_run_of_its_step_alone(tmp_path: Path) -> None:
    step = prepared(tmp_path, "fault=zero_sign", "dtype=fp32", "steps=2", "fault.step=1", "runs=3")
    clean = _replayed(prepared(tmp_path, "dtype=fp32", "steps=2", "runs=3"), 2, 3)
    streams = _replayed(step, 2, 3)
    changed = {place for place in streams if streams[place].records != clean[place].records}
    assert changed == {(1, 1), (1, 2), (1, 3)}
    assert _places(streams).keys() == {(1, 2)}


def _sequence(stream: Stream) -> list[tuple[str, str, str]]:
    return [(one.site, one.name, one.phase) for one in stream.records]


def test_putting_a_fault_in_is_no_part_of_the_step(tmp_path: Path) -> None:
    overrides = ("observe=op", "experts=2", "steps=2", "fault.step=1")
    clean = _sequence(_replayed(prepared(tmp_path, *overrides), 2)[1, 2])
    for kind in ("bit_flip", "stale_tensor", "param_drift", "swap", "misrouted_expert"):
        assert _sequence(_replayed(prepared(tmp_path, f"fault={kind}", *overrides), 2)[1, 2]) == clean, kind


def test_only_blocks_that_may_be_struck_are_hooked(tmp_path: Path) -> None:
    def hooks(*overrides: str) -> list[int]:
        return [len(block._forward_hooks) for block in prepared(tmp_path, *overrides).model.blocks]

    clean = hooks()
    assert hooks("fault=bit_flip", "fault.block=1") == [clean[0], clean[1] + 1]
    assert hooks("fault=rank_failure") == clean


def test_a_campaign_strikes_once_in_each_step_after_the_first(tmp_path: Path) -> None:
    overrides = ("fault=campaign", "steps=9", "observe=op", "experts=2", "model.dropout=0.1")
    step = prepared(tmp_path, *overrides, "fault.kinds=[bit_flip,param_drift,rng_not_restored,misrouted_expert]")
    streams = _replayed(step, 9)
    assert [one.step for one in step.faults.struck] == list(range(1, 9))
    assert {one.run for one in step.faults.struck} == {2}
    for struck in step.faults.struck:
        found = compare(streams[struck.step, 1], streams[struck.step, 2]).first
        assert found is not None
        assert (found.site, found.block) == (struck.site, struck.block)
    assert compare(streams[0, 1], streams[0, 2]).first is None


# --- input flips -----------------------------------------------------------------------------------------------------


def _changed(step: TrainingStep, number: int, run: int) -> list[int]:
    ids, _ = batch(compose(), 0, torch.device("cpu"))
    before = ids.clone()
    step.faults.begin(number, run)
    given = step.faults.batch(ids)
    step.faults.end()
    assert torch.equal(ids, before)
    return torch.nonzero((given != ids).flatten()).flatten().tolist()


def test_an_input_flip_changes_one_token_in_its_step_and_run_alone(tmp_path: Path) -> None:
    step = prepared(tmp_path, "fault=input_flip", "steps=3", "fault.step=1", "runs=3", "fault.element=33")
    changed = {(number, run): _changed(step, number, run) for number in range(3) for run in range(1, 4)}
    assert changed == {place: [33] if place == (1, 2) else [] for place in changed}


def test_a_flipped_token_stays_in_the_vocabulary(tmp_path: Path) -> None:
    faults = prepared(tmp_path, "fault=input_flip", "model.vocab_size=5").faults
    faults.begin(0, 2)
    assert faults.batch(torch.tensor([[4, 4]])).tolist() == [[0, 4]]
    assert faults.batch(torch.tensor([[2, 4]])).tolist() == [[3, 4]]


def test_after_the_run_everything_is_clean_again(tmp_path: Path) -> None:
    step = prepared(tmp_path, "fault=input_flip")
    ids = torch.zeros(1, 4, dtype=torch.int64)
    step.faults.begin(0, 2)
    assert step.faults.batch(ids) is not ids
    step.faults.end()
    assert step.faults.batch(ids) is ids
    assert step.faults.logits(logits := torch.randn(2)) is logits


# --- collectives -----------------------------------------------------------------------------------------------------


def _reduced(step: TrainingStep, run: int) -> list[Tensor]:
    """What five collectives of a run deliver."""
    tensors = [torch.full((4,), float(number)) for number in range(5)]
    step.faults.begin(0, run)
    with step.faults.dispatched():
        for tensor in tensors:
            dist.all_reduce(tensor)
    step.faults.end()
    return tensors


@pytest.mark.parametrize(("number", "struck"), [(3, 3), (5, 0), (104, 4)])
def test_a_flip_is_in_the_collective_of_its_number_modulo_those_of_the_run_before(
    tmp_path: Path, number: int, struck: int
) -> None:
    overrides = ("fault=collective_flip", "observe=collective", f"fault.number={number}", "fault.bit=31")
    step = prepared(tmp_path, *overrides, "fault.element=2")
    clean, found = _reduced(step, 1), _reduced(step, 2)
    changed = [place for place in range(5) if str(clean[place].tolist()) != str(found[place].tolist())]
    assert changed == [struck]
    name = f"c10d.allreduce_ #{struck} group default_pg"
    assert str(found[struck].tolist()) == str([*[float(struck)] * 2, -float(struck), float(struck)])
    assert step.faults.struck == [Struck("collective_flip", 0, 2, "collective_out", name, None)]


def test_in_another_order_block_2_is_gathered_with_block_0(tmp_path: Path) -> None:
    step = prepared(tmp_path, "fault=reordered_collectives", "observe=collective", "model.num_layers=4")

    def gathered_ahead() -> list[Any]:
        # What FSDP2 was told to gather ahead; it has no public way to ask.
        return [state._fsdp_param_group for state in first._get_fsdp_state()._states_to_forward_prefetch]

    first: Any = step.model.blocks[0]
    second: Any = step.model.blocks[2]
    for run, expected in ((1, []), (2, [second._get_fsdp_state()._fsdp_param_group]), (3, [])):
        step.faults.begin(0, run)
        assert gathered_ahead() == expected
        step.faults.end()
        assert gathered_ahead() == []
    assert step.faults.struck == [Struck("reordered_collectives", 0, 2, "collective_in", None, None)]


# --- rank failures ---------------------------------------------------------------------------------------------------


def test_a_rank_fails_when_its_run_begins(tmp_path: Path) -> None:
    faults = prepared(tmp_path, "fault=rank_failure", "fault.run=2").faults
    faults.begin(0, 1)
    with pytest.raises(RuntimeError, match="told to fail"):
        faults.begin(0, 2)


def test_a_rank_that_is_not_meant_does_not_fail(tmp_path: Path) -> None:
    prepared(tmp_path, "fault=rank_failure", "fault.rank=1", rank=0).faults.begin(0, 1)


def test_running_out_of_memory_is_torchs_own_error() -> None:
    with pytest.raises(RuntimeError, match="memory"):
        fail("oom")


def test_what_was_struck_is_plain_json() -> None:
    struck = Struck("swap", 1, 2, "op", None, 3)
    assert Struck(**struck.to_json()) == struck
    assert replace(struck, name="x").to_json()["name"] == "x"
