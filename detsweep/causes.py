"""From the streams of all ranks to the cause of a divergence: who started it, with what, and who only received it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

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
    "earlier": "what an earlier step of the trajectory left",
}
_STATE = ("param", "buffer", "optim")
# Where the work of other ranks has come in, in a step in which no collective was looked at.
_REDUCED = ("grad", "norm", "global", *_STATE)


EXCHANGED = ("block_post", "block_grad_in")
"""What a block gives, forward and backward: at level `block` all that shows of an exchange inside of it."""
Groups = Mapping[int, Mapping[str, tuple[int, ...]]]


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

    @cached_property
    def sent(self) -> frozenset[tuple[str, str]]:
        """Name and phase of the collectives into which this rank put other bits."""
        return frozenset((d.record.name, d.record.phase) for d in self.found if d.record.site == "collective_in")


@dataclass(frozen=True)
class _Scene:
    """What is known of one step and run of all ranks: see `attribute`."""

    ranks: Mapping[int, _Rank]
    level: str
    collectives: bool
    exchanges: bool
    groups: Groups
    before: Mapping[int, Stream]
    restored: bool


def attribute(
    pairs: Mapping[int, tuple[Stream, Stream]],
    *,
    level: str,
    groups: Groups | None = None,
    restored: bool = False,
    before: Mapping[int, Stream] | None = None,
    aligned: bool = True,
    exchanges: bool = False,
) -> dict[int, Divergence]:
    """The first divergence of each rank that has one, with its cause.

    `pairs`: each rank's reference and the stream held against it, all of one step and run. `level`: what was
    observed. `groups`: by rank the members of each process group by its name, where collectives were observed.
    `restored`: the state before the step came from a checkpoint. `before`: of a trajectory the step before, as each
    rank's stream has it. `aligned`: see `compare`. `exchanges`: activations go from rank to rank inside blocks.

    The first divergence of a rank is the earliest record in its own order that differs. Ranks run one program, so
    places in it can be compared between them.
    """
    ranks = {
        rank: _Rank(rank, other, reference.run, found)
        for rank, (reference, other) in pairs.items()
        if (found := tuple(differences(reference, other, aligned=aligned)))
    }
    # Programs that need not do the same have no collective in common.
    collectives = aligned and level in ("collective", "op")
    scene = _Scene(ranks, level, collectives, exchanges, groups or {}, before or {}, restored)
    return {rank: _attributed(own, scene) for rank, own in ranks.items()}


def _attributed(own: _Rank, scene: _Scene) -> Divergence:
    divergence = described(own.stream, own.first, own.reference)
    if own.first.partner is not None and own.first.partner.digest == NO_MAJORITY:
        # Who is wrong cannot be told, and with it not how.
        return replace(divergence, kind="tie")
    if own.rank in scene.before and own.first.kind == "value" and _left_so(own.first.record, scene.before[own.rank]):
        return replace(divergence, cause="earlier")
    origin = _origin(own, scene)
    if origin is not None:
        closer = None if scene.collectives else "collective"
        return replace(divergence, cause="upstream", origin=origin, closer=closer)
    # What a block gives may be what another rank's experts made of it; no rank was seen to begin, so that it is open.
    unknown = own.first.kind == "value" and _exchanged(own.first.record, scene)
    cause = None if unknown else _direct(own.first, own.stream, scene.level, scene.restored)
    return replace(divergence, cause=cause, closer=_closer(cause, scene.level))


def _left_so(record: Record, left: Stream) -> bool:
    """Whether a record of the state before a step is what this rank itself had after the step before."""
    return record.phase == "before" and any(
        (r.site, r.name, r.phase, r.digest) == (record.site, record.name, "after", record.digest) for r in left.records
    )


def _origin(own: _Rank, scene: _Scene) -> int | None:
    """The rank that started what this rank received; None where it started something itself."""
    visited = {own.rank}
    sender = _sender(own, scene)
    if sender is None:
        return None
    while sender.rank not in visited:
        visited.add(sender.rank)
        further = _sender(sender, scene)
        if further is None:
            break
        sender = further
    return None if sender.rank == own.rank else sender.rank


def _sender(own: _Rank, scene: _Scene) -> _Rank | None:
    """The rank from which this one received what differs first; None where it did not receive it."""
    record = own.first.record
    exchanged = _exchanged(record, scene)
    # Where tokens cross ranks, how many rows come is up to the others too.
    if own.first.kind == "sequence" or (own.first.kind == "layout" and not exchanged):
        return None
    if record.phase == "before" or record.site in ("rng", "input"):
        return None
    others = [other for other in scene.ranks.values() if other.rank != own.rank]
    if scene.collectives:
        if record.site != "collective_out":
            return None
        members = scene.groups.get(own.rank, {}).get(group_of(record.name))
        sent = (record.name, record.phase)
        senders = [o for o in others if (members is None or o.rank in members) and sent in o.sent]
    else:
        # What other ranks did reaches this one through all-gathers of parameters and reductions of gradients only, and
        # where their experts take part in it.
        received = record.site in _REDUCED or exchanged
        senders = [
            other
            for other in others
            if other.first.record.seq < record.seq
            and (received or (other.first.record.site in _STATE and other.first.record.phase == "before"))
        ]
    return min(senders, key=lambda other: (other.first.record.seq, other.rank), default=None)


def _exchanged(record: Record, scene: _Scene) -> bool:
    """Whether a record is where an exchange of tokens between ranks first shows, as it was not itself looked at."""
    if not scene.exchanges or scene.collectives:
        return False
    if scene.level in ("module", "op"):
        # Experts are given rows of other ranks, and the layer gets from other ranks' experts what it gives.
        return record.site.startswith("module") and (record.name.endswith(".ffn") or ".ffn.experts" in record.name)
    return record.site in EXCHANGED


def _direct(first: Difference, stream: Stream, level: str, restored: bool) -> str | None:
    """What a rank did itself; None where the level of observation does not tell."""
    record, site = first.record, first.record.site
    if first.kind in ("sequence", "layout"):
        return "sequence"
    if site == "input" or (site == "rng" and not (restored and record.phase == "before")):
        # Data are not restored from anywhere.
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
    if level != "collective" and (site in _REDUCED or level == "off"):
        # A gradient is what is left of it after the reduction: whose work it was, or whether of the reduction, is open.
        return None
    return "compute"


def _closer(cause: str | None, level: str) -> str | None:
    """The level that would say more about a cause."""
    return "op" if cause in ("compute", None) and level != "op" else None


def group_of(name: str) -> str:
    """The process group in the name of a collective's record: see `collective_name`."""
    return name.partition(" group ")[2].partition(" in ")[0]


def collective_name(operator: str, number: int, group: str) -> str:
    """A collective: its operator, its number in its group and run, the group. A record's name adds ` in MODULE`."""
    return f"{operator} #{number} group {group}"
