"""Observation: every block in the order of execution, and at level off nothing at all."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch

from detsweep.failures import position
from detsweep.fingerprints import bitsum, combine, mixed, sha256, xxh3
from detsweep.worker.model import RepeatedBlockModel, batch, build
from detsweep.worker.observe import Observer
from detsweep.worker.progress import Progress
from tests.support import compose

CPU = torch.device("cpu")


@pytest.fixture
def model() -> RepeatedBlockModel:
    return build(compose("model.num_layers=3"), CPU)


def _observer(model: RepeatedBlockModel, folder: Path, level: str = "block") -> Observer:
    progress = Progress(folder / "rank000.progress")
    return Observer(model, level=level, checksum="xxh3", fingerprint=xxh3, progress=progress)


def test_blocks_are_recorded_in_the_order_of_execution(model: RepeatedBlockModel, tmp_path: Path) -> None:
    observer = _observer(model, tmp_path)
    ids, _ = batch(compose(), 0, CPU)
    observer.record("input", "input_ids", ids)
    with observer.observed():
        logits = model(ids)
    observer.record("logits", "logits", logits)
    stream = observer.finish(rank=3, step=2, run="r4")
    assert (stream.rank, stream.step, stream.run, stream.checksum) == (3, 2, "r4", "xxh3")
    assert [(record.seq, record.site, record.name, record.block) for record in stream.records] == [
        (0, "input", "input_ids", None),
        (1, "block_pre", "blocks.0", 0),
        (2, "block_post", "blocks.0", 0),
        (3, "block_pre", "blocks.1", 1),
        (4, "block_post", "blocks.1", 1),
        (5, "block_pre", "blocks.2", 2),
        (6, "block_post", "blocks.2", 2),
        (7, "logits", "logits", None),
    ]


def test_records_are_of_what_the_blocks_really_get_and_give(model: RepeatedBlockModel, tmp_path: Path) -> None:
    ids, _ = batch(compose(), 0, CPU)
    hidden = [model.embedding(ids)]
    for block in model.blocks:
        hidden.append(block(hidden[-1]))
    observer = _observer(model, tmp_path)
    with observer.observed():
        model(ids)
    stream = observer.finish(rank=0, step=0, run="r1")
    assert stream.digests("block_pre") == [xxh3(one) for one in hidden[:-1]]
    assert stream.digests("block_post") == [xxh3(one) for one in hidden[1:]]
    assert {(record.dtype, record.shape) for record in stream.records} == {("bfloat16", (2, 32, 64))}


def test_hooks_are_gone_after_the_step_even_where_it_failed(model: RepeatedBlockModel, tmp_path: Path) -> None:
    observer = _observer(model, tmp_path)
    with pytest.raises(IndexError), observer.observed():
        model(torch.full((1, 4), 10_000))
    assert not any(block._forward_hooks or block._forward_pre_hooks for block in model.blocks)


def test_at_level_off_nothing_is_hooked(model: RepeatedBlockModel, tmp_path: Path) -> None:
    observer = _observer(model, tmp_path, "off")
    with observer.observed():
        assert not any(block._forward_hooks or block._forward_pre_hooks for block in model.blocks)
        model(batch(compose(), 0, CPU)[0])
    assert observer.finish(rank=0, step=0, run="r1").records == ()


def test_at_level_off_what_the_caller_records_is_there(model: RepeatedBlockModel, tmp_path: Path) -> None:
    observer = _observer(model, tmp_path, "off")
    observer.record("param", "norm.weight", model.norm.weight)
    assert observer.finish(rank=0, step=0, run="r1").digests("param") == [xxh3(model.norm.weight)]


def test_each_run_starts_empty(model: RepeatedBlockModel, tmp_path: Path) -> None:
    observer = _observer(model, tmp_path)
    observer.record("loss", "loss", torch.tensor(1.0))
    assert len(observer.finish(rank=0, step=0, run="r1").records) == 1
    observer.record("loss", "loss", torch.tensor(2.0))
    stream = observer.finish(rank=0, step=0, run="r2")
    assert [(record.seq, record.digest) for record in stream.records] == [(0, xxh3(torch.tensor(2.0)))]


def test_a_digest_of_ones_own_takes_the_place_of_the_fingerprint(model: RepeatedBlockModel, tmp_path: Path) -> None:
    observer = _observer(model, tmp_path)
    assert observer.record("loss", "loss", torch.tensor(1.0), digest=42) == 42
    assert observer.finish(rank=0, step=0, run="r1").digests("loss") == [42]


@pytest.mark.parametrize("fingerprint", [mixed, bitsum])
def test_a_digest_is_taken_at_once_and_not_at_the_end(
    model: RepeatedBlockModel, tmp_path: Path, fingerprint: object
) -> None:
    progress = Progress(tmp_path / "rank000.progress")
    observer = Observer(model, level="block", checksum="x", fingerprint=fingerprint, progress=progress)  # type: ignore[arg-type]
    buffer = torch.arange(10.0)
    observer.record("buffer", "a", buffer)
    buffer.add_(1.0)
    observer.record("buffer", "b", buffer)
    one, other = observer.finish(rank=0, step=0, run="r1").digests("buffer")
    assert one != other


def test_a_rank_says_which_block_it_is_in(model: RepeatedBlockModel, tmp_path: Path) -> None:
    observer = _observer(model, tmp_path)
    with observer.observed():
        model(batch(compose(), 0, CPU)[0])
    place = position(tmp_path / "rank000.progress")
    assert place is not None
    assert place.block == 2


def test_digests_inputs_and_counts_are_told_apart(model: RepeatedBlockModel, tmp_path: Path) -> None:
    progress = Progress(tmp_path / "rank000.progress")
    observer = Observer(model, level="op", checksum="mixed", fingerprint=mixed, progress=progress)
    one, other = torch.arange(3.0), torch.arange(4.0)
    bad = torch.tensor([1.0, torch.inf, torch.nan, -torch.inf])
    observer.record("op", "a", one, inputs=observer.digest([other]))
    observer.count_nonfinite("a", one)
    observer.record("op", "b", other)
    observer.count_nonfinite("b", bad)
    observer.record("op", "c", other, inputs=observer.digest([one, other]), digest=7)
    observer.count_nonfinite("c", bad[:2])
    stream = observer.finish(rank=0, step=0, run="r1")
    both = combine([mixed(one), mixed(other)])
    assert [(record.name, record.digest, record.inputs) for record in stream.records] == [
        ("a", int(mixed(one)), int(mixed(other))),
        ("b", int(mixed(other)), None),
        ("c", 7, int(both)),
    ]
    assert stream.nonfinite == {"b": 3, "c": 1}


def test_after_a_run_nothing_is_left(model: RepeatedBlockModel, tmp_path: Path) -> None:
    observer = _observer(model, tmp_path)
    observer.record("op", "a", torch.ones(2), inputs=5)
    observer.count_nonfinite("a", torch.tensor([torch.nan]))
    observer.finish(rank=0, step=0, run="r1")
    stream = observer.finish(rank=0, step=0, run="r2")
    assert (stream.records, stream.nonfinite) == ((), {})


def test_a_record_is_of_the_current_phase_unless_it_says_so(model: RepeatedBlockModel, tmp_path: Path) -> None:
    observer = _observer(model, tmp_path)
    for phase in ("before", "forward", "after"):
        observer.phase = phase
        observer.record("param", "w", torch.ones(2))
        observer.record("param", "w", torch.ones(2), phase="optimizer")
    phases = [record.phase for record in observer.finish(rank=0, step=0, run="r1").records]
    assert phases == ["before", "optimizer", "forward", "optimizer", "after", "optimizer"]


def test_a_digest_is_of_all_tensors_in_their_order(model: RepeatedBlockModel, tmp_path: Path) -> None:
    observer = _observer(model, tmp_path)
    one, other = torch.ones(2), torch.zeros(3)
    assert observer.digest([one]) == xxh3(one)
    assert observer.digest([one, other]) == combine([xxh3(one), xxh3(other)]) != observer.digest([other, one])


def test_a_random_state_lies_in_host_memory_whatever_the_checksum(model: RepeatedBlockModel, tmp_path: Path) -> None:
    progress = Progress(tmp_path / "rank000.progress")
    observer = Observer(model, level="block", checksum="bitsum", fingerprint=bitsum, progress=progress)
    observer.record_random("torch", torch.get_rng_state(), block=3, phase="recompute")
    (record,) = observer.finish(rank=0, step=0, run="r1").records
    assert (record.site, record.name, record.block, record.phase) == ("rng", "torch", 3, "recompute")
    assert record.digest == xxh3(torch.get_rng_state())


def test_what_is_unseen_may_be_nested(model: RepeatedBlockModel, tmp_path: Path) -> None:
    observer = _observer(model, tmp_path)
    looked = [observer.looking]
    with observer.unseen():
        with pytest.raises(RuntimeError), observer.unseen():
            raise RuntimeError
        looked.append(observer.looking)
    looked.append(observer.looking)
    assert looked == [True, False, True]


@pytest.mark.parametrize("compiled", [True, False])
def test_what_is_compiled_is_not_hooked_inside(tmp_path: Path, compiled: bool) -> None:
    model = build(compose("model.num_layers=2", "model.dropout=0.1"), CPU)
    progress = Progress(tmp_path / "rank000.progress")
    observer = Observer(model, level="block", checksum="xxh3", fingerprint=xxh3, progress=progress, compiled=compiled)
    assert observer.compiled is compiled
    with observer.observed():
        hooked = {name for name, module in model.named_modules() if module._forward_pre_hooks}
    dropouts = {f"blocks.{block}.{part}_dropout" for block in (0, 1) for part in ("attention", "ffn")}
    assert hooked == {"blocks.0", "blocks.1"} | (set() if compiled else dropouts)


@pytest.mark.parametrize("level", ["block", "collective", "op"])
def test_a_step_may_be_observed_in_parts(tmp_path: Path, level: str) -> None:
    model = build(compose("model.num_layers=2", "checkpointing=block"), CPU)
    observer = _observer(model, tmp_path, level)
    ids, _ = batch(compose(), 0, CPU)
    for _ in range(2):
        with observer.observed():
            observer.phase = "forward"
            model(ids)
    digests = observer.finish(rank=0, step=0, run="r1").digests("block_post")
    assert digests[:2] == digests[2:]
    assert not any("inside" in vars(block) for block in model.blocks)


LEVELS = {
    "off": set(),
    "block": {"block_pre", "block_post"},
    "module": {"block_pre", "block_post", "module"},
    "collective": {"block_pre", "block_post"},
    "op": {"block_pre", "block_post", "module", "op"},
}


@pytest.mark.parametrize("level", LEVELS)
def test_each_level_sees_its_own_sites(model: RepeatedBlockModel, tmp_path: Path, level: str) -> None:
    observer = _observer(model, tmp_path, level)
    observer.phase = "forward"
    with observer.observed():
        model(batch(compose(), 0, CPU)[0])
    stream = observer.finish(rank=0, step=0, run="r1")
    assert {record.site for record in stream.records} == LEVELS[level]
    model(batch(compose(), 0, CPU)[0])
    assert observer.finish(rank=0, step=0, run="r2").records == ()


def test_of_sha256_random_states_and_several_tensors_have_all_256_bits(
    model: RepeatedBlockModel, tmp_path: Path
) -> None:
    progress = Progress(tmp_path / "rank000.progress")
    observer = Observer(model, level="op", checksum="sha256", fingerprint=sha256, progress=progress)
    one, other = torch.arange(4.0), torch.arange(5.0)
    together = observer.digest([one, other])
    listed = b"".join(hashlib.sha256(tensor.numpy().tobytes()).digest() for tensor in (one, other))
    assert f"{together:064x}" == hashlib.sha256(listed).hexdigest()
    observer.record_random("torch", torch.get_rng_state())
    (record,) = observer.finish(rank=0, step=0, run="r1").records
    assert f"{record.digest:064x}" == hashlib.sha256(torch.get_rng_state().numpy().tobytes()).hexdigest()
