"""Places of a fleet: what each came to by itself, before it is compared with the others of its kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import xxhash

from detsweep.analysis.cells import world_size
from detsweep.analysis.hardware import Hardware, hardware
from detsweep.analysis.rows import Cell, Trials
from detsweep.analysis.verdicts import NO_VERDICT, worst
from detsweep.crosstrial import cross_compare, streams_of
from detsweep.paths import FileError, TrialPaths
from detsweep.results import check_records

CHUNK = 1 << 22


@dataclass(frozen=True)
class Place:
    """A cell that is pinned to a node or a GPU.

    `verdict` is that of its own trials, `first` where it does not repeat itself, `error` why it says nothing. `trial`:
    the one whose records stand for it, and `files` a digest of the files that hold them; None and empty where there
    are none, or where they would stand for nothing: it does not repeat them.
    """

    cell: Cell
    verdict: str
    error: str | None = None
    first: Mapping[str, Any] | None = None
    trial: TrialPaths | None = None
    files: str = ""
    hardware: Hardware | None = None

    @property
    def config(self) -> Mapping[str, Any]:
        config: Mapping[str, Any] = self.cell["config"]
        return config

    @property
    def name(self) -> str:
        return place_name(self.config["world"]["node"], self.config["world"]["gpu"])

    def broken(self, error: str) -> Place:
        """This place once its records could not be read."""
        return replace(self, verdict="error", error=error, trial=None, files="")


def place_name(node: str | None, gpu: int | None) -> str:
    """A place in words."""
    words = [*([node] if node is not None else []), *([f"GPU {gpu}"] if gpu is not None else [])]
    return " ".join(words)


def place_of(cell: Cell, trials: Trials) -> Place:
    """A place from its trials. Of their records, which may be large, only digests are kept."""
    results = [result for _, result in trials.values()]
    verdict = worst([str(result["verdict"]) for result in results])
    said = next((result for result in results if result["verdict"] == verdict), {})
    error = "no result yet" if verdict == NO_VERDICT else said.get("error")
    started = next((folder for folder, result in trials.values() if result["verdict"] in ("pass", "diverged")), None)
    own = Place(cell, verdict, error, hardware=None if started is None else hardware(started, cell))
    if verdict == "diverged":
        return replace(own, first=said["first"], error=None)
    passed = [folder for folder, result in trials.values() if result["verdict"] == "pass"]
    if not passed:
        return own
    try:
        for folder, result in trials.values():
            if result["verdict"] == "pass":
                check_records(folder, result)
        digests = [files_digest(folder, cell["config"]) for folder in passed]
        first = _between(passed, digests, cell["config"])
    except (FileError, ValueError) as unread:
        return own.broken(str(unread))
    if first is not None:
        return replace(own, verdict="diverged", first=first, error=None)
    return replace(own, trial=passed[0], files=digests[0])


def files_digest(trial: TrialPaths, config: Mapping[str, Any]) -> str:
    """A digest of the bytes of all ranks' records; a rank writes the same records as the same bytes."""
    state = xxhash.xxh3_128()
    for rank in range(world_size(config)):
        path = trial.records(rank)
        try:
            with path.open("rb") as file:
                while chunk := file.read(CHUNK):
                    state.update(chunk)
                # Or lines could move from one rank's file to the next.
                state.update(f"{rank}:{file.tell()}".encode())
        except OSError as error:
            raise FileError(f"{path} cannot be read: {error.strerror}") from None
    return state.hexdigest()


def _between(passed: Sequence[TrialPaths], digests: Sequence[str], config: Mapping[str, Any]) -> dict[str, Any] | None:
    """Where a trial of a place first differs from the first trial there."""
    others = {digest: folder for folder, digest in zip(passed, digests, strict=True) if digest != digests[0]}
    if not others:
        return None
    reference = streams_of(passed[0], config)
    for folder in others.values():
        first = cross_compare(reference, streams_of(folder, config), config, groups={}).first
        if first is not None:
            return {**first.to_json(), "reference": passed[0].folder.name}
    return None
