"""Trial against trial, from the disk: launches of one cell (mode `relaunch`), and a cell against its baseline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from detsweep import modes
from detsweep.capture import Stream, read_streams
from detsweep.causes import attribute
from detsweep.compare import Divergence, when
from detsweep.paths import FileError, TrialPaths
from detsweep.results import check_records

COMPARABLE = ("pass", "diverged")
RAN = ("pass", "recorded", "diverged")
"""Trials that ran to their end and have all their records; of those that only recorded nothing was compared yet."""


@dataclass(frozen=True)
class CrossComparison:
    """A trial held against another, run by run: how many were compared, and what each rank's first divergences are.

    `loss_differs`: in how many of them the loss of any rank does.
    """

    compared: int
    divergences: tuple[Divergence, ...]
    loss_differs: int

    @property
    def first(self) -> Divergence | None:
        return min(self.divergences, key=lambda divergence: when(divergence.to_json()), default=None)


Trials = Mapping[int, tuple[TrialPaths, Mapping[str, Any]]]
"""Folder and result of each trial of a cell, by number."""


def settled(trials: Trials, config: Mapping[str, Any]) -> dict[int, Mapping[str, Any]]:
    """The results of a cell's trials, of mode `relaunch` with what the comparison between launches says.

    Each launch is held against the first one that came to a verdict and has its records. A launch whose records cannot
    be read is an error that names the file.
    """
    results = {number: result for number, (_, result) in trials.items()}
    valid = [number for number, result in sorted(results.items()) if result["verdict"] in COMPARABLE]
    if config["mode"]["name"] != "relaunch" or len(valid) < 2:
        return results
    reference: dict[int, dict[tuple[int, str], Stream]] | None = None
    name = ""
    for number in valid:
        folder, result = trials[number]
        try:
            check_records(folder, result)
            other = streams_of(folder, config)
        except FileError as error:
            results[number] = {**result, "verdict": "error", "error": str(error)}
            continue
        if reference is None:
            reference, name = other, f"trial{number}"
        else:
            cross = cross_compare(reference, other, config, groups=_groups(result))
            results[number] = _merged(result, cross, name)
    return results


def _merged(result: Mapping[str, Any], cross: CrossComparison, reference: str) -> dict[str, Any]:
    """A launch's own result, and how it differs from another launch."""
    found = [{**divergence.to_json(), "reference": reference} for divergence in cross.divergences]
    ranks = [
        {**rank, "divergences": [*rank["divergences"], *(d for d in found if d["rank"] == rank["rank"])]}
        for rank in result["ranks"]
    ]
    diverged = [rank["rank"] for rank in ranks if rank["divergences"]]
    firsts = [d for d in (result["first"], min(found, key=when, default=None)) if d is not None]
    verdict = "diverged" if result["verdict"] == "pass" and diverged else result["verdict"]
    return {
        **result,
        "verdict": verdict,
        "ranks": ranks,
        "diverged_ranks": diverged,
        "first": min(firsts, key=when, default=None),
        "replays": result["replays"] + cross.compared,
        "diverged_replays": result["diverged_replays"] + len({(d["step"], d["run"]) for d in found}),
        "loss": {
            **result["loss"],
            "differs": result["loss"]["differs"] + cross.loss_differs,
            "of": result["loss"]["of"] + len({(d["step"], d["run"]) for d in found}),
        },
    }


def against_baseline(
    own: TrialPaths, own_config: Mapping[str, Any], baseline: TrialPaths, baseline_config: Mapping[str, Any]
) -> CrossComparison:
    """A cell's trial against its baseline's, as programs that need not do the same things in the same order.

    Runs that only one of them has are not compared. Raises FileError where records are missing or torn, ValueError
    where the two were fingerprinted by different algorithms.
    """
    reference = streams_of(baseline, baseline_config)
    return cross_compare(reference, streams_of(own, own_config), own_config, groups={}, aligned=False)


def cross_compare(
    reference: Mapping[int, Mapping[tuple[int, str], Stream]],
    other: Mapping[int, Mapping[tuple[int, str], Stream]],
    config: Mapping[str, Any],
    *,
    groups: Mapping[int, Mapping[str, tuple[int, ...]]],
    aligned: bool = True,
) -> CrossComparison:
    """Compare two trials' streams, each by rank and then by step and run."""
    ranks = sorted(reference.keys() & other.keys())
    compared, loss_differs = 0, 0
    found: list[Divergence] = []
    for place in modes.expected_runs(config):
        pairs = {rank: (reference[rank][place], other[rank][place]) for rank in ranks if place in reference[rank]}
        if not pairs:
            continue
        compared += 1
        found += attribute(
            pairs,
            level=config["observe"]["name"],
            groups=groups,
            aligned=aligned,
            exchanges=modes.exchanges(config),
        ).values()
        loss_differs += any(one.digests("loss") != two.digests("loss") for one, two in pairs.values())
    return CrossComparison(compared, tuple(found), loss_differs)


def streams_of(trial: TrialPaths, config: Mapping[str, Any]) -> dict[int, dict[tuple[int, str], Stream]]:
    """All records of a trial, by rank and then by step and run.

    Raises FileError, naming the file, where records of a rank are missing or torn.
    """
    ranks = range(config["world"]["nodes"] * config["world"]["nproc_per_node"])
    return {rank: {(stream.step, stream.run): stream for stream in read_streams(trial.records(rank))} for rank in ranks}


def _groups(result: Mapping[str, Any]) -> dict[int, dict[str, tuple[int, ...]]]:
    return {
        rank["rank"]: {name: tuple(members) for name, members in rank.get("groups", {}).items()}
        for rank in result.get("ranks", ())
    }
