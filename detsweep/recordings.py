"""Recordings of trials as a user names them: found, held against the trial's own configuration, and compared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from detsweep.paths import RecordingPaths, TrialPaths, read_json
from detsweep.recording import Call, RankRecording, RecordingError, open_rank
from detsweep.recording.reading import about_of, ranges


@dataclass(frozen=True)
class Subject:
    """What is replayed: the recording of a trial (with its spec), or of a program of the user's own (without)."""

    folder: Path
    recording: RecordingPaths
    spec: Mapping[str, Any] | None
    about: Mapping[str, Any]

    def records(self, rank: int) -> Path:
        """The file with a rank's fingerprints."""
        return self.recording.records(rank) if self.spec is None else TrialPaths(self.folder).records(rank)


def subject_of(folder: Path) -> Subject:
    """The recording that a folder is, or the only one below it. Raises RecordingError where there is none."""
    if (own := RecordingPaths(folder.absolute())).about.exists():
        about = about_of(own)
        if "program" in about:
            return Subject(own.folder, own, None, about)
        # The recording of a trial, which is called by the folder of its own.
        folder = own.folder.parent
    trial = trial_of(folder)
    return Subject(trial.folder, trial.recording, spec_of(trial), about_of(trial.recording))


def trial_of(folder: Path) -> TrialPaths:
    """The trial that a folder is, or the only one that has a recording below a cell's or a sweep's folder.

    Raises RecordingError where there is none, or more than one.
    """
    folder = folder.absolute()
    if TrialPaths(folder).recording.about.exists():
        return TrialPaths(folder)
    if not folder.is_dir():
        raise RecordingError(f"{folder}: no such folder")
    name = TrialPaths(folder).recording.about.relative_to(folder)
    found = sorted(
        path.parents[len(name.parts) - 1]
        for pattern in (f"*/{name}", f"cells/*/*/{name}")
        for path in folder.glob(pattern)
    )
    if not found:
        raise RecordingError(f"{folder}: no recording here (mode=record makes one)")
    if len(found) > 1:
        listed = ", ".join(str(path.relative_to(folder)) for path in found[:4])
        raise RecordingError(f"{folder} has {len(found)} recordings, name one: {listed}")
    return TrialPaths(found[0])


def spec_of(trial: TrialPaths) -> dict[str, Any]:
    """A recorded trial's spec. Raises RecordingError where the recording is of another configuration."""
    spec = read_json(trial.spec)
    about = about_of(trial.recording)
    if about.get("config") != spec.get("config"):
        key = next(_differing(about.get("config") or {}, spec.get("config") or {}), "config")
        raise RecordingError(f"{trial.recording.about} is of another configuration than {trial.spec}: {key} differs")
    return spec


def notes(about: Mapping[str, Any], device: str) -> Iterator[str]:
    """What of this machine is not as it was when the recording was made, so that bits may differ for that alone."""
    here = metadata.version("torch")
    # What pip knows a build by may lack the part behind the plus.
    known, mine = about["torch"].split("+"), here.split("+")
    if known[: len(mine)] != mine[: len(known)]:
        yield f"recorded with torch {about['torch']}, replayed with {here}: kernels may give other bits"
    if about["device"] != device:
        yield f"recorded on {about['device']}, replayed on {device}: kernels are others, and give other bits"


def shortcomings(opened: Sequence[RankRecording]) -> Iterator[str]:
    """What the recordings of ranks lack of what was asked for, and why; each said once."""
    said: dict[str, list[int]] = {}
    for one in opened:
        if not one.paths.end.exists():
            lines = [f"the recording was broken off: the run ended before its time, in step {one.numbers[-1]} or later"]
        else:
            lines = list(read_json(one.paths.end)["notes"])
        for line in lines:
            said.setdefault(line, []).append(one.rank)
    for line, ranks in said.items():
        yield f"rank{'s' if len(ranks) > 1 else ''} {ranges(tuple(ranks))}: {line}"


def diff(one: RecordingPaths, other: RecordingPaths) -> tuple[list[str], bool]:
    """Two recordings, rank by rank, up to the first call in which they differ: lines, and whether all is equal.

    Where a collective is given the same and delivers something else, the difference came from another rank or from the
    collective; where it is given something else, from this rank's own compute since the call before.
    """
    pair = [about_of(recording) for recording in (one, other)]
    sizes = [int(about["world_size"]) for about in pair]
    if sizes[0] != sizes[1]:
        raise RecordingError(f"{one.folder} is of {sizes[0]} ranks, {other.folder} of {sizes[1]}")
    if pair[0]["checksum"] != pair[1]["checksum"]:
        raise RecordingError(f"checksum {pair[0]['checksum']} cannot be compared with {pair[1]['checksum']}")
    lines, same = [], True
    for rank in range(sizes[0]):
        mine, theirs = open_rank(one, rank), open_rank(other, rank)
        line, equal = _diff_rank(mine, theirs)
        same &= equal
        lines.append(f"rank {rank}: {line}")
    return lines, same


def _diff_rank(mine: RankRecording, theirs: RankRecording) -> tuple[str, bool]:
    common = [number for number in mine.numbers if number in theirs.numbers]
    if not common:
        raise RecordingError(f"{mine.paths.folder} and {theirs.paths.folder} have no step in common")
    calls = 0
    alone = {*mine.numbers} ^ {*theirs.numbers}
    for number in common:
        ours, others = mine.step(number), theirs.step(number)
        if ours.complete != others.complete:
            return f"step {number} is whole in only one of them", False
        for a, b in zip(ours.calls, others.calls, strict=False):
            if (what := _differs(a, b)) is not None:
                return f"differs first in step {number}, call {a.seq}: {what}", False
            calls += 1
        if len(ours.calls) != len(others.calls):
            return f"step {number} has {len(ours.calls)} calls in the one, {len(others.calls)} in the other", False
    if alone:
        return f"{calls} calls of {len(common)} steps are equal, only one has {ranges(tuple(sorted(alone)))}", False
    return f"{calls} calls of {len(common)} steps are equal", True


def _differs(a: Call, b: Call) -> str | None:
    if (a.operator, a.name, a.ranks, a.reduce, dict(a.arguments)) != (
        b.operator, b.name, b.ranks, b.reduce, dict(b.arguments),
    ):  # fmt: skip
        return f"{a.name} in the one, {b.name} in the other"
    where = f"{a.name} ({a.phase})"
    for mine, theirs, what in ((a.inputs, b.inputs, "is given"), (a.outputs, b.outputs, "delivers")):
        if [(s.dtype, s.shape) for s in mine] != [(s.dtype, s.shape) for s in theirs]:
            return f"{where} {what} other shapes or dtypes"
        if [side.digest for side in mine] != [side.digest for side in theirs]:
            given = ", though it is given the same" if what == "delivers" and a.inputs else ""
            return f"{where} {what} other bits{given}"
    return None


def _differing(one: Mapping[str, Any], other: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key in sorted({*one, *other}):
        a, b = one.get(key), other.get(key)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            yield from _differing(a, b, f"{prefix}{key}.")
        elif a != b:
            yield f"{prefix}{key}"
