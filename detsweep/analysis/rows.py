"""Rows of the frames, from the files of one cell: its trials, their divergences and faults."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from detsweep import results, stopping
from detsweep.analysis.cells import Broken
from detsweep.analysis.columns import DIVERGENCES, EFFECTS, TRIALS
from detsweep.analysis.injected import clean, injections
from detsweep.analysis.recount import recounted
from detsweep.analysis.verdicts import NO_VERDICT
from detsweep.baselines import value_of
from detsweep.crosstrial import COMPARABLE, settled
from detsweep.mitigations import EFFECTS as STATUSES
from detsweep.paths import CellPaths, TrialPaths

TRIAL_COLUMNS = tuple(column.name for column in TRIALS)
DIVERGENCE_COLUMNS = tuple(column.name for column in DIVERGENCES)
EFFECT_COLUMNS = tuple(column.name for column in EFFECTS)

NOT_REACHED: Mapping[str, Any] = {"verdict": NO_VERDICT}

Cell = Mapping[str, Any]
Trials = dict[int, tuple[TrialPaths, Mapping[str, Any]]]


def read_trials(paths: CellPaths, cell: Cell, *, recount: bool = False, whole: bool = False) -> Trials:
    """Every trial that a cell asks for or has, with its result; of mode `relaunch` as launches compare.

    `recount`: the results are made anew from the records. `whole`: records that are not what was written are errors.
    Of a cell that stopped early (`stop_after`) those that it did without are none of them.
    """
    numbers = {number for number, _ in paths.trials()} | set(range(cell["config"]["trials"]))
    found = {
        number: (
            paths.trial(number),
            _result(paths.trial(number), cell, recount=recount, whole=whole) or {"verdict": NO_VERDICT},
        )
        for number in sorted(numbers)
    }
    judged = settled(found, cell["config"])
    known = {number: result for number, result in judged.items() if result["verdict"] != NO_VERDICT}
    needless = judged.keys() - known.keys() if stopping.stopped(cell["config"], known) else ()
    return {number: (folder, judged[number]) for number, (folder, _) in found.items() if number not in needless}


def _result(trial: TrialPaths, cell: Cell, *, recount: bool, whole: bool) -> Mapping[str, Any] | None:
    stored = results.read_result(trial, whole=whole or recount)
    return recounted(trial, cell["config"], stored) if recount else stored


def described(cell: Cell, axes: tuple[str, ...]) -> dict[str, Any]:
    """What all trials of a cell have in common."""
    config = cell["config"]
    return {
        **{axis: value_of(config, axis, cell["overrides"]) for axis in axes},
        "cell": cell["id"],
        "slug": cell["slug"],
        "mitigation": value_of(config, "mitigation"),
        "fault": config["fault"]["kind"],
        "mode": config["mode"]["name"],
    }


def trial_row(number: int, trial: TrialPaths, result: Mapping[str, Any]) -> dict[str, Any]:
    """What one trial came to."""
    first = result.get("first") or {}
    ranks = _ranks_at(first, result)
    log = result.get("log")
    return {
        "trial": number,
        "verdict": result["verdict"],
        "effect": effect_words(result),
        "diverged_ranks": tuple(result.get("diverged_ranks", ())),
        **{f"first_{key}": first.get(key) for key in ("site", "block", "name", "phase", "kind", "step", "run")},
        "first_reference": first.get("reference"),
        "first_ranks": ranks,
        "first_nodes": tuple(dict.fromkeys(node for rank in ranks if (node := _node(rank, result)))),
        "cause": first.get("cause"),
        "closer": first.get("closer"),
        "loss": _loss(result.get("loss")),
        "replays": result.get("replays"),
        "diverged_replays": result.get("diverged_replays"),
        "error": result.get("error"),
        "error_ranks": tuple(result.get("error_ranks", ())),
        "notes": tuple(result.get("notes", ())),
        "log": str(trial.folder / log) if log else None,
        "log_tail": "\n".join(result.get("log_tail", ())) or None,
        "step_ms": result.get("step_ms"),
        "plain_step_ms": result.get("plain_step_ms"),
        "seconds": result.get("seconds"),
        "nodes": tuple(result.get("nodes") or ()),
        "retries": result.get("retries"),
        "requeues": result.get("requeues"),
        "folder": str(trial.folder),
    }


def effect_words(result: Mapping[str, Any]) -> str:
    """What became of a trial's mitigations: one word for one of them, of several how many came to each."""
    statuses = [one["status"] for one in (result.get("effects") or {}).values()]
    if len(statuses) == 1:
        return str(statuses[0])
    counts = Counter(statuses)
    return ", ".join(f"{counts[status]} {status}" for status in STATUSES if counts[status])


def timing_rows(cell: Cell, number: int, result: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A row for each step that a rank timed unobserved, and one for the median of those that were observed."""
    for rank in result.get("ranks") or ():
        own = {"cell": cell["id"], "trial": number, "rank": rank["rank"]}
        for place, milliseconds in enumerate(rank.get("plain_ms") or ()):
            yield {**own, "observed": False, "number": place, "ms": milliseconds}
        if rank.get("step_ms") is not None:
            yield {**own, "observed": True, "number": None, "ms": rank["step_ms"]}


def effect_rows(cell: Cell, number: int, result: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A row for each setting of each mitigation of a trial."""
    for mitigation, one in (result.get("effects") or {}).items():
        for setting, effect in one["settings"].items():
            yield {"cell": cell["id"], "trial": number, "mitigation": mitigation, "setting": setting, **effect}


def fault_rows(cell: Cell, number: int, result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row for each fault that was put into a trial, or was to be."""
    if result["verdict"] not in COMPARABLE:
        return []
    return [{"cell": cell["id"], "trial": number, **row} for row in injections(cell["config"], result)]


def clean_counts(cell: Cell, result: Mapping[str, Any]) -> dict[str, int | None]:
    """How many comparisons of a trial had no fault in them, and how many of these diverged."""
    if result["verdict"] not in COMPARABLE:
        return {"clean_comparisons": None, "false_alarms": None}
    counted = clean(cell["config"], result)
    return {"clean_comparisons": counted.compared, "false_alarms": counted.false_alarms}


def divergence_rows(cell: Cell, number: int, result: Mapping[str, Any], *, shown_as: str) -> Iterator[dict[str, Any]]:
    """A row for each rank, step and run that differed, under the cell that it is `shown_as`."""
    config = cell["config"]
    own = {"cell": shown_as, "trial": number, "fault": config["fault"]["kind"], "level": config["observe"]["name"]}
    for rank in result.get("ranks", ()):
        node = _node(rank["rank"], result)
        yield from ({**own, **divergence, "node": node} for divergence in rank["divergences"])


def broken_row(broken: Broken, axes: tuple[str, ...]) -> dict[str, Any]:
    """The only trial of a cell that cannot be read."""
    return {
        **dict.fromkeys(axes, ""),
        "cell": broken.cell,
        "slug": broken.folder.name,
        "mitigation": "",
        "fault": "",
        "mode": "",
        **trial_row(0, TrialPaths(broken.folder), {"verdict": "error", "error": broken.error}),
    }


def _ranks_at(first: Mapping[str, Any], result: Mapping[str, Any]) -> tuple[int, ...]:
    """The ranks whose own first divergence is at the trial's first place: in that step and run, at that record."""
    if not first:
        return ()
    place = ("step", "run", "reference", "seq", "site", "name")
    return tuple(
        rank["rank"]
        for rank in result.get("ranks", ())
        if any(all(divergence.get(key) == first.get(key) for key in place) for divergence in rank["divergences"])
    )


def _node(rank: int, result: Mapping[str, Any]) -> str | None:
    """The node that a rank is on, of a trial that names its nodes: in their order each has as many ranks."""
    nodes = result.get("nodes") or ()
    each = len(result.get("ranks", ())) // len(nodes) if nodes else 0
    return str(nodes[rank // each]) if each else None


def _loss(loss: Mapping[str, Any] | None) -> str | None:
    """In how many of the diverged comparisons the loss differs, and how many steps later in a trajectory."""
    if not loss or not loss["of"]:
        return None
    if "steps_later" in loss:
        later = loss["steps_later"]
        return (
            "never" if later is None else "at once" if later == 0 else f"{later} step{'s' if later > 1 else ''} later"
        )
    return f"{loss['differs']}/{loss['of']}"
