"""What the streams of all ranks of a trial say together: divergences with their causes, and what else stands out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from detsweep import modes, playbacks
from detsweep.capture import Stream
from detsweep.causes import attribute
from detsweep.compare import Divergence, compare, recomputed, run_number, vote, when

Streams = Mapping[tuple[int, str], Stream]
"""A rank's streams by step and run."""


@dataclass(frozen=True)
class Judged:
    """The results of all ranks, with the causes of their divergences.

    `compared`: how many comparisons each rank was part of. `loss`: in how many of the diverged comparisons the loss
    differs on any rank, and in trajectories how many steps after the first divergence it does for the first time
    (None: never). `notes`: a line each.
    """

    ranks: list[dict[str, Any]]
    compared: int
    loss: Mapping[str, int | None]
    notes: list[str]


def needed(config: Mapping[str, Any], ranks: Sequence[Mapping[str, Any]]) -> set[tuple[int, str]] | None:
    """Step and run of the streams that a judgement needs of every rank; None for all of them."""
    if config["mode"]["name"] == "lockstep":
        return None
    diverged = diverged_runs(ranks)
    before = {(step - 1, run) for step, run in diverged} if modes.trajectories(config) else set()
    return diverged | {(step, "r1") for step, _ in diverged} | before


def judge(
    config: Mapping[str, Any],
    ranks: Sequence[Mapping[str, Any]],
    streams: Mapping[int, Streams],
    notes: Sequence[str] | None = None,
) -> Judged:
    """Judge a trial. `ranks`: each rank's own result, in order; `streams`: each rank's records, all that are `needed`.

    `notes`: what stands out in the records of all ranks; None where `streams` has all of them.
    """
    level = config["observe"]["name"]
    groups = {rank["rank"]: {k: tuple(v) for k, v in rank.get("groups", {}).items()} for rank in ranks}
    diverged = diverged_runs(ranks)
    replayed = _by_rank(
        divergence
        for step, run in modes.expected_runs(config)
        if (step, run) in diverged
        for divergence in attribute(
            {rank: (own[step, "r1"], own[step, run]) for rank, own in streams.items()},
            level=level,
            groups=groups,
            restored=config["mode"]["name"] == "resume" and step == modes.resumed_at(config),
            before=_step_before(config, streams, step, run),
            exchanges=modes.exchanges(config),
        ).values()
    )
    played: list[str] = []
    if config["mode"]["name"] == "playback":
        replayed = playbacks.attributed(config, replayed)
        played = list(playbacks.notes(config, replayed))
    if config["mode"]["name"] != "lockstep":
        judged = [{**rank, "divergences": _json(replayed.get(rank["rank"], []))} for rank in ranks]
        compared = modes.replays(config)
    else:
        judged = _lockstep(config, ranks, streams, replayed)
        compared = config["steps"] * config["runs"]
    if notes is None:
        notes = [note for rank, own in streams.items() for note in notes_of(rank, own)]
    return Judged(judged, compared, _loss(config, judged, streams), [*_ties(config, judged), *played, *notes])


def _lockstep(
    config: Mapping[str, Any],
    ranks: Sequence[Mapping[str, Any]],
    streams: Mapping[int, Streams],
    replayed: Mapping[int, list[Divergence]],
) -> list[dict[str, Any]]:
    """Each rank against what most ranks saw, in every run.

    Where ranks agree and a run differs from the first all the same, in what they do not have in common, that counts.
    """
    comparable = partial(modes.comparable_between_ranks, config)
    found: dict[int, list[Divergence]] = {}
    differs: dict[int, Counter[str]] = {rank["rank"]: Counter(rank["differs"]) for rank in ranks}
    for step, run in modes.expected_runs(config):
        pairs = vote({rank: own[step, run] for rank, own in streams.items()}, comparable)
        for rank, divergence in attribute(pairs, level=config["observe"]["name"]).items():
            found.setdefault(rank, []).append(divergence)
            differs[rank].update(compare(*pairs[rank]).differs)
    merged = []
    for result in ranks:
        number = result["rank"]
        seen = {(d.step, d.run) for one in found.values() for d in one}
        alone = [d for d in replayed.get(number, []) if (d.step, d.run) not in seen]
        merged.append(
            {
                **result,
                "divergences": _json(
                    sorted([*found.get(number, []), *alone], key=lambda d: (d.step, run_number(d.run)))
                ),
                "replay_divergences": _json(replayed.get(number, [])),
                "differs": dict(differs[number]),
            }
        )
    return merged


def _ties(config: Mapping[str, Any], ranks: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if config["mode"]["name"] != "lockstep":
        return
    tied = [d for rank in ranks for d in rank["divergences"] if d["kind"] == "tie"]
    if tied:
        first = min(tied, key=when)
        yield (
            f"ranks differ at {first['site']} {first['name']}, step {first['step']} {first['run']}, and no value has a "
            f"majority: which rank is wrong is not known (with world.nproc_per_node=3 or more it can be voted on)"
        )


def _loss(
    config: Mapping[str, Any], ranks: Sequence[Mapping[str, Any]], streams: Mapping[int, Streams]
) -> dict[str, int | None]:
    diverged = sorted(diverged_runs(ranks), key=lambda place: (run_number(place[1]), place[0]))
    noticed = [place for place in diverged if _loss_differs(config, streams, *place)]
    loss: dict[str, int | None] = {"differs": len(noticed), "of": len(diverged)}
    if modes.trajectories(config) and diverged:
        # In the first run that parted: later ones may part later.
        first, run = diverged[0]
        loss["steps_later"] = next((step - first for step, other in noticed if other == run), None)
    return loss


def _loss_differs(config: Mapping[str, Any], streams: Mapping[int, Streams], step: int, run: str) -> bool:
    """Whether the loss of any rank is another one than in the first run, in lockstep also than on another rank."""
    losses = [own[step, run].digests("loss") for own in streams.values()]
    apart = config["mode"]["name"] == "lockstep" and any(loss != losses[0] for loss in losses)
    return apart or losses != [own[step, "r1"].digests("loss") for own in streams.values()]


def notes_of(rank: int, own: Streams) -> Iterator[str]:
    """What stands out in a rank's records beside divergences, once of each kind."""
    for (step, run), stream in own.items():
        if stream.nonfinite:
            name, count = next(iter(stream.nonfinite.items()))
            yield f"rank {rank}: {count} values of {name} are not finite, step {step} {run}"
            break
    for (step, run), stream in own.items():
        if (first := next(recomputed(stream), None)) is not None:
            record = first.record
            yield (
                f"rank {rank}: what checkpointing recomputes in block {record.block} is not what forward had, "
                f"first {record.site} {record.name}, step {step} {run}"
            )
            break


def _by_rank(divergences: Iterator[Divergence]) -> dict[int, list[Divergence]]:
    found: dict[int, list[Divergence]] = {}
    for divergence in divergences:
        found.setdefault(divergence.rank, []).append(divergence)
    return found


def diverged_runs(ranks: Sequence[Mapping[str, Any]]) -> set[tuple[int, str]]:
    """Step and run of everything in which any rank diverged."""
    return {(d["step"], d["run"]) for rank in ranks for d in rank["divergences"]}


def _step_before(
    config: Mapping[str, Any], streams: Mapping[int, Streams], step: int, run: str
) -> dict[int, Stream] | None:
    """Of a trajectory what each rank saw in the step before; None where there is none."""
    if not modes.trajectories(config) or step == 0:
        return None
    return {rank: own[step - 1, run] for rank, own in streams.items()}


def _json(divergences: Sequence[Divergence]) -> list[dict[str, Any]]:
    return [divergence.to_json() for divergence in divergences]
