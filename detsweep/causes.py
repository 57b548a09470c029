"""From the streams of all ranks to the cause of a divergence: who started it, with what, and who only received it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from detsweep.capture import Record, Stream
from detsweep.compare import NO_MAJORITY, Difference, Divergence, described, differences

CAUSES: Mapping[str, str] = {
    "input": "the data differ",
    "rng": "the random state differs",
    "compute": "an operator gave other bits for the same inputs",
    "collective": "a collective gave other bits though its inputs are equal on all ranks",
    "upstream": "only what this rank received differs",
    "optimizer": "the optimizer gave other bits for the same gradients",
    "sequence": "other operations, or in another order",
    "checkpoint": "what was loaded is not what was saved",
    "memory": "bits changed while nothing wrote them",
}
_STATE = ("param", "buffer", "optim")
# Where the work of other ranks has come in, in a step in which no collective was looked at.
_REDUCED = ("grad", "norm", "global", *_STATE)


@dataclass(frozen=True)
class _Rank:
    """One rank's side of a divergence: its streams, and everything in them that differs, in order."""

    rank: int
    stream: Stream
    reference: str
    found: tuple[Difference, ...]

    @property
    def first(self) -> Difference:
        return self.found[0]

    def differs_at(self, site: str, name: str, phase: str) -> bool:
        return any((d.record.site, d.record.name, d.record.phase) == (site, name, phase) for d in self.found)


def attribute(
    pairs: Mapping[int, tuple[Stream, Stream]],
    *,
    level: str,
    groups: Mapping[int, Mapping[str, tuple[int, ...]]] | None = None,
    restored: bool = False,
    aligned: bool = True,
) -> dict[int, Divergence]:
    """The first divergence of each rank that has one, with its cause.

    `pairs`: each rank's reference and the stream held against it, all of one step and run. `level`: what was
    observed. `groups`: by rank the members of each process group by its name, where collectives were observed.
    `restored`: the state before the step came from a checkpoint. `aligned`: see `compare`.

    The first divergence of a rank is the earliest record in its own order that differs. Ranks run one program, so
    places in it can be compared between them.
    """
    ranks = {
        rank: _Rank(rank, other, reference.run, found)
        for rank, (reference, other) in pairs.items()
        if (found := tuple(differences(reference, other, aligned=aligned)))
    }
    return {rank: _attributed(ranks[rank], ranks, level, groups or {}, restored) for rank in ranks}


def _attributed(
    own: _Rank,
    ranks: Mapping[int, _Rank],
    level: str,
    groups: Mapping[int, Mapping[str, tuple[int, ...]]],
    restored: bool,
) -> Divergence:
    divergence = described(own.stream, own.first, own.reference)
    if own.first.partner is not None and own.first.partner.digest == NO_MAJORITY:
        return divergence  # who is wrong cannot be told, and with it not how
    origin = _origin(own, ranks, level, groups)
    if origin is not None:
        closer = None if level in ("collective", "op") else "collective"
        return replace(divergence, cause="upstream", origin=origin, closer=closer)
    cause = _direct(own.first, own.stream, level, restored)
    return replace(divergence, cause=cause, closer=_closer(cause, own.first.record, level))


def _origin(
    own: _Rank, ranks: Mapping[int, _Rank], level: str, groups: Mapping[int, Mapping[str, tuple[int, ...]]]
) -> int | None:
    """The rank that started what this rank received; None where it started something itself."""
    record = own.first.record
    if own.first.kind == "sequence":
        return None
    others = [other for other in ranks.values() if other.rank != own.rank]
    if level in ("collective", "op"):
        if record.site != "collective_out":
            return None
        members = groups.get(own.rank, {}).get(group_of(record.name))
        senders = [
            other
            for other in others
            if (members is None or other.rank in members)
            and other.differs_at("collective_in", record.name, record.phase)
        ]
    else:
        # What other ranks did reaches this one through all-gathers of parameters and reductions of gradients only.
        received = record.site in _REDUCED and record.phase not in ("before",)
        senders = [
            other
            for other in others
            if other.first.record.seq < record.seq
            and (received or (other.first.record.site in _STATE and other.first.record.phase == "before"))
        ]
    if not senders:
        return None
    return min(senders, key=lambda other: (other.first.record.seq, other.rank)).rank


def _direct(first: Difference, stream: Stream, level: str, restored: bool) -> str:
    record, site = first.record, first.record.site
    if first.kind == "sequence":
        return "sequence"
    if site in ("input", "rng") and not (restored and record.phase == "before"):
        return site
    if record.phase == "before":
        return "checkpoint" if restored else "memory"
    if site == "collective_out":
        return "collective"
    if record.phase == "optimizer" or site == "optim":
        return "optimizer"
    if site == "param":
        return "optimizer" if any(r.site == "optim" for r in stream.records) else "memory"
    if level == "op":
        same_inputs = first.partner is not None and first.partner.inputs == record.inputs
        return "compute" if site == "op" and same_inputs else "memory"
    return "compute"


def _closer(cause: str, record: Record, level: str) -> str | None:
    """The level that would say more about a cause."""
    if cause != "compute" or level == "op" or record.site == "loss":
        return None
    return "op"


def group_of(name: str) -> str:
    """The process group in the name of a collective's record: see `collective_name`."""
    return name.partition(" group ")[2].partition(" in ")[0]


def collective_name(operator: str, number: int, group: str, module: str) -> str:
    """`operator`, its sequence number in its group, the group, and the module in whose course it was issued."""
    return f"{operator} #{number} group {group} in {module}"
