"""Judgement: what the records of all ranks say together, in each mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from detsweep import modes
from detsweep.capture import Record, Stream
from detsweep.judgement import Judged, judge, needed, notes_of
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


def _found(judged: Judged, key: str = "divergences") -> list[tuple[int, int, str, str, str | None]]:
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
    assert _found(judged) == [(0, 0, "r3", "grad", None)]
    assert judged.ranks[0]["divergences"][0]["reference"] == "r1"
    # Between runs it can be told which one is odd, if not why.
    assert judged.notes == []


def test_two_ranks_cannot_say_which_is_odd() -> None:
    def change(rank: int, step: int, run: str) -> Sequence[str]:
        return ("block_post",) if (rank, run) == (1, "r1") else ()

    judged = _judged(compose("mode=lockstep", "runs=1"), change)
    assert [(rank, run, site) for rank, _, run, site, _ in _found(judged)] == [
        (0, "r1", "block_post"),
        (1, "r1", "block_post"),
    ]


def test_ranks_in_two_orders_are_a_tie_of_which_a_note_tells() -> None:
    def swapped(one: Stream) -> Stream:
        if one.rank == 0:
            return one
        rows = one.records
        return stream_of([*rows[:3], rows[4], rows[3], *rows[5:]], rank=one.rank, step=one.step, run=one.run)

    judged = _judged(compose("mode=lockstep", "runs=1"), also=swapped)
    assert _found(judged) == [(0, 0, "r1", "block_post", None), (1, 0, "r1", "loss", None)]
    (note,) = judged.notes
    assert note.startswith("ranks differ at block_post blocks.0, step 0 r1, and no value has a majority")


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


def _trajectories(
    config: dict[str, Any],
    computes: Sequence[tuple[int, int]] = (),
    loses: Sequence[tuple[int, int]] = (),
    *,
    site: str = "param",
    ranks: int = 2,
) -> Judged:
    """Judge trajectories in which each step starts from what the one before left.

    `computes`: rank and step at which r2 computes other bits, which everything after them is made of. `loses`: rank
    and step at whose beginning the state at `site` is another than the step before left.
    """
    streams: dict[int, dict[tuple[int, str], Stream]] = {}
    for rank in range(ranks):
        for step, run in modes.expected_runs(config):
            parted = [at for of, at in (*computes, *loses) if of == rank and run == "r2"]
            lost = site if run == "r2" and (rank, step) in loses else None
            inside = 1000 * step + 500 * any(at <= step for at in parted)

            def before(name: str, step: int = step, parted: list[int] = parted, lost: str | None = lost) -> Record:
                # What was lost is another state than that which was there, whether or not that had diverged.
                digest = 1000 * step + 500 * any(at < step for at in parted) + 300 * (name == lost)
                return record(name, "w", digest, phase="before")

            rows = [
                before("rng"),
                record("input", "input_ids", 5, phase="before"),
                before("optim"),
                before("param"),
                record("block_post", "blocks.0", inside, block=0),
                record("loss", "loss", inside),
                record("grad", "w", inside, phase="backward"),
                *(record(name, "w", inside + 1000, phase="after") for name in ("optim", "param", "rng")),
            ]
            if site != "rng":
                # Nothing is drawn: it stays what it was.
                rows = [replace(one, digest=7) if one.site == "rng" else one for one in rows]
            streams.setdefault(rank, {})[step, run] = stream_of(rows, rank=rank, step=step, run=run)
    results = [rank_result(rank, list(own.values()), []) for rank, own in streams.items()]
    wanted = needed(config, results)
    assert wanted is not None
    kept = {rank: {place: one for place, one in own.items() if place in wanted} for rank, own in streams.items()}
    judged = judge(config, results, streams)
    # Of all that the ranks saw this is enough.
    assert judge(config, results, kept, []) == judged
    return judged


def test_a_trajectory_diverges_once_and_goes_on_from_there() -> None:
    judged = _trajectories(compose("mode=train", "steps=4"), computes=[(0, 1)])
    assert _found(judged) == [
        (0, 1, "r2", "block_post", "compute"),
        (0, 2, "r2", "optim", "earlier"),
        (0, 3, "r2", "optim", "earlier"),
    ]
    closer = [(d["origin"], d["closer"]) for d in judged.ranks[0]["divergences"]]
    assert closer == [(None, "op"), (None, None), (None, None)]


def test_all_ranks_that_an_earlier_step_changed_say_so() -> None:
    judged = _trajectories(compose("mode=train", "steps=3"), computes=[(0, 0), (1, 1)])
    assert _found(judged) == [
        (0, 0, "r2", "block_post", "compute"),
        (0, 1, "r2", "optim", "earlier"),
        (0, 2, "r2", "optim", "earlier"),
        (1, 1, "r2", "block_post", "upstream"),
        (1, 2, "r2", "optim", "earlier"),
    ]


def test_the_first_step_of_a_trajectory_has_none_before_it() -> None:
    judged = _trajectories(compose("mode=train", "steps=2"), loses=[(1, 0)])
    assert _found(judged) == [(1, 0, "r2", "param", "memory"), (1, 1, "r2", "optim", "earlier")]


def test_what_changes_between_two_steps_of_a_trajectory_was_not_left_by_the_first() -> None:
    judged = _trajectories(compose("mode=train", "steps=4"), loses=[(0, 2)])
    assert _found(judged) == [(0, 2, "r2", "param", "memory"), (0, 3, "r2", "optim", "earlier")]


def test_steps_that_each_start_clean_have_nothing_left_of_another() -> None:
    def change(rank: int, step: int, run: str) -> Sequence[str]:
        # Step 1 starts with the very bits that step 0 had in the end.
        return ("param",) if run == "r2" and rank == 0 else ()

    judged = _judged(compose("steps=2"), change, records=TRAINED)
    assert [cause for *_, cause in _found(judged)] == ["memory", "memory"]


def test_a_divergence_before_the_break_is_no_loss_of_the_checkpoint() -> None:
    judged = _trajectories(compose("mode=resume", "steps=4"), computes=[(1, 1)])
    assert _found(judged) == [
        (1, 1, "r2", "block_post", "compute"),
        (1, 2, "r2", "optim", "earlier"),
        (1, 3, "r2", "optim", "earlier"),
    ]


@pytest.mark.parametrize(("site", "left"), [("rng", "rng"), ("param", "optim"), ("optim", "optim")])
def test_what_the_checkpoint_lost_shows_at_the_break_and_is_left_from_there(site: str, left: str) -> None:
    judged = _trajectories(compose("mode=resume", "steps=4"), loses=[(0, 2)], site=site)
    assert _found(judged) == [(0, 2, "r2", site, "checkpoint"), (0, 3, "r2", left, "earlier")]


def test_a_checkpoint_that_loses_what_had_diverged_is_to_blame_at_the_break() -> None:
    judged = _trajectories(compose("mode=resume", "steps=4"), computes=[(0, 0)], loses=[(0, 2)], site="rng")
    assert [(step, cause) for _, step, _, _, cause in _found(judged)] == [
        (0, "compute"),
        (1, "earlier"),
        (2, "checkpoint"),
        (3, "earlier"),
    ]


def test_of_two_ranks_only_the_one_whose_state_was_lost_blames_the_checkpoint() -> None:
    judged = _trajectories(compose("mode=resume", "steps=4"), computes=[(0, 1)], loses=[(1, 2)])
    assert [(rank, step, cause) for rank, step, _, _, cause in _found(judged)] == [
        (0, 1, "compute"),
        (0, 2, "earlier"),
        (0, 3, "earlier"),
        (1, 2, "checkpoint"),
        (1, 3, "earlier"),
    ]


# --- what a judgement needs ------------------------------------------------------------------------------------------


def _diverged(*places: tuple[int, str]) -> list[dict[str, Any]]:
    """Results of two ranks, of which the first diverged in the first of these and the other in the rest."""
    own = [[{"step": step, "run": run} for step, run in one] for one in (places[:1], places[1:])]
    return [{"rank": rank, "divergences": divergences} for rank, divergences in enumerate(own)]


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("replay", {(1, "r2"), (1, "r1"), (3, "r3"), (3, "r1")}),
        ("train", {(1, "r2"), (1, "r1"), (0, "r2"), (3, "r3"), (3, "r1"), (2, "r3")}),
        ("lockstep", None),
    ],
)
def test_a_judgement_needs_what_diverged_and_what_it_is_held_against(
    mode: str, expected: set[tuple[int, str]] | None
) -> None:
    config = compose(f"mode={mode}", "steps=4", "runs=3")
    assert needed(config, _diverged((1, "r2"), (3, "r3"))) == expected
    assert needed(config, _diverged()) == (None if expected is None else set())


def test_a_judgement_has_the_notes_that_it_is_given() -> None:
    config = compose()
    streams = {0: {(0, run): stream_of(STEP, run=run) for run in ("r1", "r2")}}
    infinite = {0: {place: replace(one, nonfinite={"loss": 1}) for place, one in streams[0].items()}}
    results = [rank_result(0, list(streams[0].values()), [])]
    assert judge(config, results, infinite, ["a note"]).notes == ["a note"]
    assert judge(config, results, infinite, []).notes == []
    assert judge(config, results, infinite).notes == list(notes_of(0, infinite[0]))


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
