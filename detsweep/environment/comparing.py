"""Two environments, two trials, or the ranks of one, held against each other: equal differences of ranks said once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from detsweep.environment.differences import SECTIONS, EnvironmentDifference, environment_differences, facts, shown
from detsweep.environment.files import ranges
from detsweep.environment.sources import ALONE, Source

# What tells one rank's place from another's, and is meant to differ among them.
_MEETING = ("variables", "MASTER_ADDR")
_OF_A_PLACE = (("machine", "host"), ("machine", "node"), ("device", "index"), ("device", "uuid"), _MEETING)


def compare(ours: Source, theirs: Source) -> list[str]:
    """The differences between two sources, a line each, rank by rank where both have ranks; empty without any."""
    lines = [*(f"{ours.name}: {line}" for line in ours.broken), *(f"{theirs.name}: {line}" for line in theirs.broken)]
    pairs = _pairs(ours, theirs)
    for ranks, other, source in ((ours, theirs, ours.name), (theirs, ours, theirs.name)):
        if not ours.single and not theirs.single:
            alone = sorted(ranks.environments.keys() - other.environments.keys())
            if alone and not other.broken:
                lines.append(f"{_ranks(alone)}: only in {source}")
    found: dict[EnvironmentDifference, list[int]] = {}
    for rank, (before, after) in pairs.items():
        for one in environment_differences(before, after):
            if (one.section, one.name) != _MEETING and (ours.whole == theirs.whole or _of_both(one)):
                found.setdefault(one, []).append(rank)
    places = sorted(found, key=lambda one: (SECTIONS.index(one.section), one.name, found[one]))
    return lines + [f"{one}{_where(found[one], pairs)}" for one in places]


def _pairs(ours: Source, theirs: Source) -> dict[int, tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """What is compared with what, by rank; an environment that stands alone with every rank of the other side."""
    if ours.single:
        return {rank: (ours.environments[ALONE], one) for rank, one in theirs.environments.items()}
    if theirs.single:
        return {rank: (one, theirs.environments[ALONE]) for rank, one in ours.environments.items()}
    both = ours.environments.keys() & theirs.environments.keys()
    return {rank: (ours.environments[rank], theirs.environments[rank]) for rank in sorted(both)}


def _of_both(one: EnvironmentDifference) -> bool:
    """Whether a file of a machine and one of a rank could both have said it: a rank says less of the machine."""
    return one.section == "variables" or (one.before is not None and one.after is not None)


def _where(ranks: list[int], pairs: Mapping[int, Any]) -> str:
    return "" if ranks == [ALONE] or len(pairs) == 1 else f" ({_ranks(ranks)})"


def among_ranks(trial: Source) -> list[str]:
    """The facts that the ranks of a trial do not have alike, a line each, with which ranks have what.

    Where a rank is (host, node, number and UUID of its GPU) is no difference.
    """
    lines = list(trial.broken)
    said = {rank: facts(one) for rank, one in trial.environments.items()}
    places = {place for one in said.values() for place in one} - set(_OF_A_PLACE)
    for section, name in sorted(places, key=lambda place: (SECTIONS.index(place[0]), place[1])):
        values: dict[str, list[int]] = {}
        for rank, one in said.items():
            values.setdefault(shown(one.get((section, name))), []).append(rank)
        if len(values) > 1:
            lines.append(f"{section}: {name}: {', '.join(_values(values))}")
    return lines


def _values(values: Mapping[str, list[int]]) -> Iterator[str]:
    for value, ranks in sorted(values.items(), key=lambda item: (-len(item[1]), item[1])):
        yield f"{value} ({_ranks(ranks)})"


def _ranks(ranks: list[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {ranges(ranks)}"
