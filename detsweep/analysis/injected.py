"""Faults that were put in on purpose, one by one: was each found, and in its place?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from detsweep import modes
from detsweep.compare import run_number
from detsweep.injections import expected_cause, ledger

INJECTION_COLUMNS = (
    "cell", "trial", "mode", "persistence", "kind", "ranks", "step", "run", "site", "block", "name", "detected",
    "placed", "caused", "detected_by_replay", "found_cause",
)  # fmt: skip


Hits = list[tuple[int, Mapping[str, Any]]]
"""The ranks on which a fault was put in, and what each says of it."""
Struck = dict[tuple[int, int], Hits]
"""Hits by step and run."""


@dataclass(frozen=True)
class Clean:
    """Comparisons of ranks in which no fault was put in: how many, and in how many a divergence was seen."""

    compared: int
    false_alarms: int


def injections(config: Mapping[str, Any], result: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A row for each fault of a trial, struck or only planned; `detected` is missing where it was not put in.

    `placed`: the earliest divergence of that step and run is on the ranks that were struck and on no other, at the
    place where the fault was put in; `caused`: its cause is the one that such a fault has. All of a fault's runs count.
    """
    ranks = result.get("ranks", ())
    struck = _struck(ranks)
    for faults in _by_fault(struck).values():
        runs = [_found(config, ranks, step, run, hits) for (step, run), hits in faults]
        (step, _), hits = faults[0]
        yield {
            **_described(config, hits[0][1]),
            "ranks": tuple(rank for rank, _ in hits),
            "step": step,
            "run": ", ".join(f"r{run}" for (_, run), _ in faults),
            **{key: all(run[key] for run in runs) for key in ("detected", "placed", "caused")},
            "detected_by_replay": any(run["detected_by_replay"] for run in runs),
            "found_cause": runs[0]["found_cause"],
        }
    put_in = {(hits[0][1]["kind"], step) for (step, _), hits in struck.items()}
    for injection in ledger(config):
        if injection.step is not None and (injection.kind, injection.step) not in put_in:
            yield {**_described(config, vars(injection)), "ranks": (), "step": injection.step, "run": None}


def _by_fault(struck: Struck) -> dict[tuple[str, int], list[tuple[tuple[int, int], Hits]]]:
    """The runs in which each fault struck, by its kind and step: a persistent one strikes in every run."""
    faults: dict[tuple[str, int], list[tuple[tuple[int, int], Hits]]] = {}
    for place, hits in sorted(struck.items()):
        faults.setdefault((hits[0][1]["kind"], place[0]), []).append((place, hits))
    return faults


def _found(
    config: Mapping[str, Any], ranks: Sequence[Mapping[str, Any]], step: int, run: int, hits: Hits
) -> dict[str, Any]:
    """How a fault was found in one run."""
    lockstep = config["mode"]["name"] == "lockstep"
    # A fault in the first run, the reference, shows in each run after it.
    found = _at(ranks, "divergences", step, run if lockstep else max(2, run))
    first = min(found, key=_order, default=None)
    put = hits[0][1]
    return {
        "detected": first is not None,
        "placed": _in_place(hits, found),
        "caused": first is not None and first["cause"] == expected_cause(put["kind"], put["site"], config, step),
        "detected_by_replay": bool(_at(ranks, "replay_divergences", step, run) if lockstep else found),
        "found_cause": None if first is None else first["cause"],
    }


def clean(config: Mapping[str, Any], result: Mapping[str, Any]) -> Clean:
    """How many comparisons of a rank had no fault in them, of all that a trial made."""
    ranks = result.get("ranks", ())
    struck = set(_struck(ranks))
    against_first = config["mode"]["name"] != "lockstep"
    compared = false_alarms = 0
    for step, run in modes.expected_runs(config):
        number = run_number(run)
        # A fault in the first run shows in every run that is held against it, in lockstep too.
        if (against_first and number == 1) or (step, number) in struck or (step, 1) in struck:
            continue
        if modes.trajectories(config) and any(earlier <= step and other in (1, number) for earlier, other in struck):
            # In a trajectory what one step changed is still changed in the next.
            continue
        compared += len(ranks)
        false_alarms += len(_at(ranks, "divergences", step, number))
    return Clean(compared, false_alarms)


def _struck(ranks: Sequence[Mapping[str, Any]]) -> Struck:
    """The faults of each step and run, with the ranks on which they were put in."""
    found: Struck = {}
    for rank in ranks:
        for one in rank.get("injected", ()):
            # What is put into a micro-batch or module several times is one fault.
            hits = found.setdefault((one["step"], one["run"]), [])
            if rank["rank"] not in [number for number, _ in hits]:
                hits.append((rank["rank"], one))
    return found


def _at(ranks: Sequence[Mapping[str, Any]], key: str, step: int, run: int) -> list[dict[str, Any]]:
    return [d for rank in ranks for d in rank.get(key, ()) if (d["step"], d["run"]) == (step, f"r{run}")]


def _in_place(hits: Hits, found: list[dict[str, Any]]) -> bool:
    if not found:
        return False
    earliest = min(d["seq"] for d in found)
    first = [d for d in found if d["seq"] == earliest]
    put = hits[0][1]
    place_known = put["name"] is None or all(d["name"].partition(" in ")[0] == put["name"] for d in first)
    block_known = put["block"] is None or all(d["block"] == put["block"] for d in first)
    return (
        {d["rank"] for d in first} == {rank for rank, _ in hits}
        and all(d["site"] == put["site"] for d in first)
        and place_known
        and block_known
    )


def _order(divergence: Mapping[str, Any]) -> tuple[int, int]:
    return divergence["seq"], divergence["rank"]


def _described(config: Mapping[str, Any], fault: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "mode": config["mode"]["name"],
        "persistence": config["fault"]["persistence"],
        "kind": fault["kind"],
        "site": fault["site"],
        "block": fault["block"],
        "name": fault.get("name"),
    }
