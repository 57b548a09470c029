"""Judgement: what the records of all ranks say together, in each mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from detsweep import modes
from detsweep.capture import Record, Stream
from detsweep.judgement import Judged, judge
from tests.support import compose, rank_result, record, stream_of

STEP = (
    record("rng", "torch", phase="before"),
    record("input", "input_ids", phase="before"),
    record("param", "w", phase="before"),
    record("block_post", "blocks.0", block=0),
    record("loss", "loss"),
    record("grad", "w", phase="backward"),
)
TRAINED = (*STEP, record("optim", "w.exp_avg", phase="after"), record("param", "w", phase="after"))
Change = Callable[[int, int, str], Sequence[str]]
"""Of a rank, step and run the sites that differ there."""


def _nothing(rank: int, step: int, run: str) -> Sequence[str]:
    return ()


def _judged(
    config: dict[str, Any],
    change: Change = _nothing,
    *,
    records: Sequence[Record] = STEP,
    ranks: int = 2,
    also: Callable[[Stream], Stream] = lambda one: one,
) -> Judged:
    """Judge ranks whose records are equal in every run but for what `change` names; `also` has the last word."""
    streams: dict[int, dict[tuple[int, str], Stream]] = {}
    for rank in range(ranks):
        for step, run in modes.expected_runs(config):
            # A rank's shards are its own; everything else is the same on all ranks.
            own = [replace(one, digest=100 * step + (rank if one.site in ("param", "grad") else 50)) for one in records]
            differing = change(rank, step, run)
            own = [replace(one, digest=9999) if one.site in differing else one for one in own]
            stream = also(stream_of(own, rank=rank, step=step, run=run))
            streams.setdefault(rank, {})[step, run] = stream
    results = [rank_result(rank, list(own.values()), []) for rank, own in streams.items()]
    return judge(config, results, streams)


def _found(judged: Judged, key: str = "divergences") -> list[tuple[int, int, str, str, str]]:
    """Rank, step, run, site and cause of every divergence."""
    return [
        (rank["rank"], d["step"], d["run"], d["site"], d["cause"]) for rank in judged.ranks for d in rank.get(key, ())
    ]


# --- replay ----------------------------------------------------------------------------------------------------------


def test_ranks_that_repeat_have_nothing_to_judge() -> None:
    judged = _judged(compose("steps=2", "runs=3"))
    assert (_found(judged), judged.compared, judged.notes) == ([], 4, [])
    assert judged.loss == {"differs": 0, "of": 0}
    assert [rank["verdict"] for rank in judged.ranks] == ["pass", "pass"]


def test_a_replay_that_diverged_gets_its_cause() -> None:
    def change(rank: int, step: int, run: str) -> Sequence[str]:
        return ("block_post", "loss") if (rank, step, run) == (1, 1, "r3") else ()

    judged = _judged(compose("steps=2", "runs=3"), change)
    assert _found(judged) == [(1, 1, "r3", "block_post", "compute")]
    assert judged.loss == {"differs": 1, "of": 1}
    (divergence,) = judged.ranks[1]["divergences"]
    assert (divergence["closer"], divergence["reference"]) == ("op", "r1")
    assert judged.ranks[1]["differs"] == {"block_post": 1, "loss": 1}


def test_causes_are_found_between_the_ranks() -> None:
    def change(rank: int, step: int, run: str) -> Sequence[str]:
        return () if run == "r1" else ("block_post", "grad") if rank == 0 else ("grad",)

    judged = _judged(compose(), change)
    assert _found(judged) == [(0, 0, "r2", "block_post", "compute"), (1, 0, "r2", "grad", "upstream")]
    assert judged.ranks[1]["divergences"][0]["origin"] == 0


def test_a_divergence_that_the_loss_does_not_show_is_counted() -> None:
    def change(rank: int, step: int, run: str) -> Sequence[str]:
        if run == "r1":
            return ()
        return ("grad",) if step == 0 else ("block_post", "loss") if rank == 0 else ("block_post",)

    judged = _judged(compose("steps=2", "runs=3"), change)
    assert judged.loss == {"differs": 2, "of": 4}


def test_groups_come_from_the_ranks_own_results() -> None:
    sent, got = (record(f"collective_{side}", "c10d.x #0 group pair in model") for side in ("in", "out"))
    config = compose("observe=collective", "world.nproc_per_node=3")
    streams = {}
    for rank, changed in ((0, "collective_out"), (1, "collective_in"), (2, "")):
        other = [replace(one, digest=9) if one.site == changed else one for one in (sent, got)]
        runs = stream_of([sent, got], rank=rank), stream_of(other, rank=rank, run="r2")
        streams[rank] = {(0, one.run): one for one in runs}

    def cause(members: list[int]) -> str:
        ranks = [
            {**rank_result(rank, list(own.values()), []), "groups": {"pair": members}} for rank, own in streams.items()
        ]
        return str(judge(config, ranks, streams).ranks[0]["divergences"][0]["cause"])

    assert (cause([0, 1]), cause([0, 2])) == ("upstream", "collective")


# --- lockstep --------------------------------------------------------------------------------------------------------


def _lockstep(*overrides: str) -> dict[str, Any]:
    return compose("mode=lockstep", "world.nproc_per_node=3", *overrides)


def test_what_repeats_itself_on_one_rank_is_found_by_the_others() -> None:
    def change(rank: int, step: int, run: str) -> Sequence[str]:
        return ("block_post", "loss") if rank == 2 else ()

    judged = _judged(_lockstep(), change, ranks=3)
    assert _found(judged) == [(2, 0, "r1", "block_post", "compute"), (2, 0, "r2", "block_post", "compute")]
    assert _found(judged, "replay_divergences") == []
    assert judged.compared == 2
    assert {d["reference"] for d in judged.ranks[2]["divergences"]} == {"vote"}
    assert judged.ranks[2]["differs"] == {"block_post": 2, "loss": 2}
    # The loss of a run is held against what the run was: the other ranks'.
    assert judged.loss == {"differs": 2, "of": 2}


def test_shards_are_no_divergence_between_ranks() -> None:
    judged = _judged(_lockstep("runs=1", "steps=2"), ranks=3)
    assert (_found(judged), judged.compared, judged.loss) == ([], 2, {"differs": 0, "of": 0})


def test_what_happens_in_one_run_is_kept_as_both() -> None:
    def change(rank: int, step: int, run: str) -> Sequence[str]:
        return ("block_post",) if (rank, run) == (1, "r2") else ()

    judged = _judged(_lockstep(), change, ranks=3)
    assert _found(judged) == [(1, 0, "r2", "block_post", "compute")]
    assert _found(judged, "replay_divergences") == [(1, 0, "r2", "block_post", "compute")]
    assert judged.ranks[1]["divergences"][0]["reference"] == "vote"
    assert judged.ranks[1]["replay_divergences"][0]["reference"] == "r1"
    assert judged.loss == {"differs": 0, "of": 1}


def test_what_ranks_do_not_have_in_common_still_must_repeat() -> None:
    def change(rank: int, step: int, run: str) -> Sequence[str]:
        return ("grad",) if (rank, run) == (0, "r3") else ()

    judged = _judged(_lockstep("runs=3"), change, ranks=3)
    assert _found(judged) == [(0, 0, "r3", "grad", "compute")]
    assert judged.ranks[0]["divergences"][0]["reference"] == "r1"


def test_two_ranks_cannot_say_which_is_odd() -> None:
    def change(rank: int, step: int, run: str) -> Sequence[str]:
        return ("block_post",) if (rank, run) == (1, "r1") else ()

    judged = _judged(compose("mode=lockstep", "runs=1"), change)
    assert [(rank, run, site) for rank, _, run, site, _ in _found(judged)] == [
        (0, "r1", "block_post"),
        (1, "r1", "block_post"),
    ]


def test_all_runs_are_in_order() -> None:
    def change(rank: int, step: int, run: str) -> Sequence[str]:
        if rank != 0:
            return ()
        return ("grad",) if (step, run) == (0, "r2") else ("loss",) if step == 1 else ()

    judged = _judged(_lockstep("steps=2"), change, ranks=3)
    assert [(step, run) for _, step, run, _, _ in _found(judged)] == [(0, "r2"), (1, "r1"), (1, "r2")]


# --- trajectories ----------------------------------------------------------------------------------------------------


def _train(parted: int, noticed: int | None, *overrides: str) -> Judged:
    """A trajectory that parts in one step, and whose loss differs from a later one on."""

    def change(rank: int, step: int, run: str) -> Sequence[str]:
        if run != "r2" or rank != 0 or step < parted:
            return ()
        return ("optim", "loss") if noticed is not None and step >= noticed else ("optim",)

    return _judged(compose("mode=train", "steps=5", *overrides), change, records=TRAINED)


@pytest.mark.parametrize(
    ("parted", "noticed", "loss"),
    [
        (1, 3, {"differs": 2, "of": 4, "steps_later": 2}),
        (2, 2, {"differs": 3, "of": 3, "steps_later": 0}),
        (1, None, {"differs": 0, "of": 4, "steps_later": None}),
    ],
)
def test_a_trajectory_says_how_long_the_loss_hid_it(parted: int, noticed: int | None, loss: dict[str, Any]) -> None:
    judged = _train(parted, noticed)
    assert judged.loss == loss
    assert judged.compared == 5


def test_a_later_trajectory_does_not_speak_for_the_first_that_parted() -> None:
    def change(rank: int, step: int, run: str) -> Sequence[str]:
        if rank != 0 or run == "r1":
            return ()
        return ("optim",) if run == "r2" and step >= 1 else ("loss",) if run == "r3" and step >= 2 else ()

    judged = _judged(compose("mode=train", "steps=4", "runs=3"), change, records=TRAINED)
    assert judged.loss == {"differs": 2, "of": 5, "steps_later": None}


def test_a_trajectory_that_repeats_has_no_steps_to_count() -> None:
    assert _judged(compose("mode=train", "steps=3"), records=TRAINED).loss == {"differs": 0, "of": 0}


@pytest.mark.parametrize(("step", "cause"), [(1, "memory"), (2, "checkpoint"), (3, "memory")])
def test_the_first_step_after_the_break_starts_from_the_checkpoint(step: int, cause: str) -> None:
    def only(one: Stream) -> Stream:
        if (one.rank, one.step, one.run) != (0, step, "r2"):
            return one
        before = [r.site == "param" and r.phase == "before" for r in one.records]
        changed = (replace(r, digest=9) if own else r for r, own in zip(one.records, before, strict=True))
        return replace(one, records=tuple(changed))

    judged = _judged(compose("mode=resume", "steps=4"), records=TRAINED, also=only)
    assert _found(judged) == [(0, step, "r2", "param", cause)]


# --- notes -----------------------------------------------------------------------------------------------------------


def test_values_that_are_not_finite_are_noted_once_for_each_rank() -> None:
    def infinite(one: Stream) -> Stream:
        return replace(one, nonfinite={"blocks.1.ffn.up.weight": 3, "loss": 1} if one.step == 1 else {})

    notes = _judged(compose("steps=2"), also=infinite).notes
    assert notes == [f"rank {rank}: 3 values of blocks.1.ffn.up.weight are not finite, step 1 r1" for rank in range(2)]


def test_a_recomputation_to_other_bits_is_noted_once_for_each_rank() -> None:
    rows = [
        record("module", "blocks.3.ffn", 5, block=3),
        record("module", "blocks.3.norm", 5, block=3),
        record("module", "blocks.3.ffn", 5, block=3, phase="recompute"),
        record("module", "blocks.3.norm", 5, block=3, phase="recompute"),
    ]

    def other(one: Stream) -> Stream:
        if one.rank == 0:
            return one
        last = replace(one.records[3], digest=9)
        return replace(one, records=(*one.records[:3], last))

    judged = _judged(compose("steps=2"), records=rows, also=other)
    place = "first module blocks.3.norm, step 0 r1"
    assert judged.notes == [f"rank 1: what checkpointing recomputes in block 3 is not what forward had, {place}"]
    assert _found(judged) == []
