"""From cells that repeat to a golden file; what does not repeat, or was made to differ, is refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from detsweep.diff.environments import pinned_facts
from detsweep.diff.sides import CellSide, Side, Trial
from detsweep.diff.streams import compare_streams
from detsweep.diff.words import place
from detsweep.golden.file import KIND, GoldenError, step_content
from detsweep.paths import FileError
from detsweep.plan import NOT_IDENTITY


def golden_cells(side: Side) -> tuple[list[dict[str, Any]], list[str]]:
    """What a golden file is to keep of each cell of a side, and a line for each cell that is left out.

    Raises GoldenError, a line for each reason, where a cell is not fit to be one.
    """
    if side.kind == KIND:
        raise GoldenError(f"{side.name} is a golden file already")
    refused = [*side.unread]
    kept, left_out = [], []
    for cell in side.cells:
        if all(trial.result["verdict"] == "unsupported" for trial in cell.trials.values()):
            left_out.append(f"{cell.label}: unsupported, left out")
            continue
        try:
            reasons = list(_unfit(cell))
            if not reasons:
                kept.append(_content(cell))
        except FileError as error:
            reasons = [str(error)]
        refused += [f"{cell.label}: {reason}" for reason in reasons]
    if not kept and not refused:
        refused = [f"{side.name}: every cell is unsupported, there is nothing to keep"]
    if refused:
        raise GoldenError("\n".join(refused))
    return kept, left_out


def _unfit(cell: CellSide) -> Iterator[str]:
    """Why a cell cannot be a golden one."""
    if cell.config["fault"]["kind"] != "none":
        yield f"fault={cell.config['fault']['kind']} was put in on purpose"
    found = list(_without_pass(cell))
    yield from found
    if found:
        return
    first, *others = cell.trials.values()
    for trial in others:
        streams = compare_streams(first, trial, (cell, cell), range(cell.world_size))
        if streams.first:
            where = f"rank {streams.first[0].rank}, {place(streams.first[0])}"
            yield f"trial {trial.number} is not as trial {first.number}, first {where}: a golden must repeat"
        yield from (f"trial {trial.number}: {line}" for line in streams.unread)


def _without_pass(cell: CellSide) -> Iterator[str]:
    for number, trial in cell.trials.items():
        verdict = trial.result["verdict"]
        if verdict != "pass":
            why = f" ({trial.result['error']})" if trial.result.get("error") else ""
            yield f"trial {number} is {verdict}{why}: a golden must have passed"
        elif not trial.result.get("replays"):
            yield f"trial {number} compared no replay: a golden must have been seen to repeat"


def _content(cell: CellSide) -> dict[str, Any]:
    trial = next(iter(cell.trials.values()))
    ranks = range(cell.world_size)
    groups = {rank["rank"]: rank.get("groups", {}) for rank in trial.result.get("ranks", ())}
    return {
        "id": cell.id,
        "slug": cell.slug,
        "overrides": dict(cell.overrides),
        "config": {key: value for key, value in cell.config.items() if key not in NOT_IDENTITY},
        "trial": trial.number,
        "replays": sum(int(one.result["replays"]) for one in cell.trials.values()),
        "groups": [groups.get(rank, {}) for rank in ranks],
        "environments": _environments(trial, ranks),
        "ranks": [_steps(trial, rank) for rank in ranks],
    }


def _environments(trial: Trial, ranks: range) -> list[dict[str, Any]]:
    """The environments of all ranks, each of them once."""
    found: list[dict[str, Any]] = []
    for rank in ranks:
        facts = pinned_facts(trial.environment(rank))
        same = next((one for one in found if one["facts"] == facts), None)
        if same is None:
            found.append({"ranks": [rank], "facts": facts})
        else:
            same["ranks"].append(rank)
    return found


def _steps(trial: Trial, rank: int) -> list[Mapping[str, Any]]:
    lines = trial.lines(rank)
    return [step_content(lines.stream(place)) for place in lines.places if place[1] == "r1"]
