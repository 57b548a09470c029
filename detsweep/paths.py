"""Where everything lies on disk: the one module that knows file names, and how a file is written and read whole."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class FileError(Exception):
    """A file that is missing, half-written or not ours; the message names it."""


def conf_dir() -> Path:
    """The folder of Hydra groups: inside the package where a wheel put it, else beside it in a checkout.

    An editable install copies conf into the package once and lets it go stale, so the checkout's own comes first.
    """
    package = Path(__file__).resolve().parent
    beside = package.parent / "conf"
    if (package.parent / "pyproject.toml").is_file() and beside.is_dir():
        return beside
    return package / "conf"


@dataclass(frozen=True)
class TrialPaths:
    """The files of one launch of one cell."""

    folder: Path

    @property
    def spec(self) -> Path:
        return self.folder / "spec.json"

    @property
    def job(self) -> Path:
        return self.folder / "job.json"

    @property
    def result(self) -> Path:
        return self.folder / "result.json"

    @property
    def exits(self) -> Path:
        return self.exits_of(0)

    def exits_of(self, node: int) -> Path:
        """Exit codes of the ranks that failed, as torchrun on a node of the trial saw them."""
        return self.folder / (f"exits-node{node:03d}.json" if node else "exits.json")

    def all_exits(self) -> list[Path]:
        return sorted(self.folder.glob("exits*.json"))

    @property
    def logs(self) -> Path:
        return self.folder / "log"

    @property
    def launcher_log(self) -> Path:
        return self.launcher_log_of(0)

    def launcher_log_of(self, node: int) -> Path:
        """What torchrun on a node of the trial printed."""
        return self.logs / (f"torchrun-node{node:03d}.log" if node else "torchrun.log")

    def node(self, node: int) -> Path:
        """What a node of a trial on a cluster says of itself: name, ranks, environment, and how its torchrun ended."""
        return self.folder / f"node{node:03d}.json"

    @property
    def failed(self) -> Path:
        """There as soon as torchrun has failed on any node of a trial on a cluster."""
        return self.folder / ".failed"

    @property
    def meeting(self) -> Path:
        """Where the nodes of a trial meet: address and ports, written by the first of them when all may start."""
        return self.folder / "meeting.json"

    @property
    def claim(self) -> Path:
        """Names the attempt that gives a trial its result: whoever made this file, and nobody else."""
        return self.folder / ".claimed"

    def rank_log(self, rank: int) -> Path:
        return self.logs / f"rank{rank:03d}.log"

    def records(self, rank: int) -> Path:
        return self.folder / f"rank{rank:03d}.jsonl"

    @property
    def cache(self) -> Path:
        """What libraries find out and keep in this trial alone (kernel_cache=trial)."""
        return self.folder / "cache"

    @property
    def cell_cache(self) -> Path:
        """The same for all trials of the cell (kernel_cache=cell)."""
        return self.folder.parent / "cache"

    def nccl_log(self, host: str, process: int | str) -> Path:
        """What NCCL or RCCL says of itself in a process; NCCL puts host name and pid in the places of %h and %p."""
        return self.logs / f"nccl-{host}-{process}.log"

    @property
    def checkpoint(self) -> Path:
        """What mode `resume` saves in its middle, and removes when all was equal."""
        return self.folder / "checkpoint"

    @property
    def recording(self) -> RecordingPaths:
        """What mode `record` keeps: collectives with their payloads, and snapshots."""
        return RecordingPaths(self.folder / "recording")

    def rank_result(self, rank: int) -> Path:
        return self.folder / f"rank{rank:03d}.result.json"

    def environment(self, rank: int) -> Path:
        return self.folder / f"environment-rank{rank:03d}.json"

    def progress(self, rank: int) -> Path:
        return self.folder / f"rank{rank:03d}.progress"


@dataclass(frozen=True)
class RecordingPaths:
    """The files of a recording: of a trial, or of a program of one's own."""

    folder: Path

    @property
    def about(self) -> Path:
        """Format, versions, configuration and how many ranks there are."""
        return self.folder / "recording.json"

    def rank(self, rank: int) -> RankRecordingPaths:
        return RankRecordingPaths(self.folder / f"rank{rank:03d}")

    def records(self, rank: int) -> Path:
        """The fingerprints of a program of one's own; those of a trial lie with the trial."""
        return self.folder / f"rank{rank:03d}.jsonl"

    def set_aside(self, rank: int) -> None:
        """Move what an earlier attempt has recorded of a rank out of the way."""
        number = 1
        while (aside := self.folder / "superseded" / f"attempt{number}" / f"rank{rank:03d}").exists():
            number += 1
        for path in (self.rank(rank).folder, self.records(rank)):
            if path.exists():
                aside.parent.mkdir(parents=True, exist_ok=True)
                path.rename(aside.parent / path.name)

    def replay(self, rank: int) -> Path:
        """What came out of the last replay of a rank."""
        return self.folder / f"replay-rank{rank:03d}.json"


@dataclass(frozen=True)
class RankRecordingPaths:
    """The files of one rank's recording, three for each step at most."""

    folder: Path

    def log(self, step: int) -> Path:
        return self.folder / f"step{step:06d}.jsonl"

    def payload(self, step: int) -> Path:
        return self.folder / f"step{step:06d}.bin"

    def snapshot(self, step: int) -> Path:
        """The state at the start of a step."""
        return self.folder / f"step{step:06d}.safetensors"

    @property
    def end(self) -> Path:
        """How the recording of this rank ended, and how much was written."""
        return self.folder / "end.json"

    def logs(self) -> list[int]:
        """The steps that have a log, in order."""
        return self._steps("jsonl")

    def snapshots(self) -> list[int]:
        return self._steps("safetensors")

    def _steps(self, kind: str) -> list[int]:
        names = (re.fullmatch(rf"step(\d+)\.{kind}", path.name) for path in self.folder.glob(f"step*.{kind}"))
        return sorted(int(name[1]) for name in names if name)


@dataclass(frozen=True)
class CellPaths:
    """The files of one cell."""

    folder: Path

    @property
    def cell(self) -> Path:
        return self.folder / "cell.json"

    def trial(self, number: int) -> TrialPaths:
        return TrialPaths(self.folder / f"trial{number}")

    def trials(self) -> Iterator[tuple[int, TrialPaths]]:
        """Trials on disk in the order of their numbers; superseded attempts are not among them."""
        found = [(int(m[1]), p) for p in self.folder.glob("trial*") if (m := re.fullmatch(r"trial(\d+)", p.name))]
        for number, path in sorted(found):
            yield number, TrialPaths(path)

    def attempt(self, number: int, name: str) -> TrialPaths:
        """Where a trial on a cluster works until it has a result; `name` tells its job and how often that was begun."""
        return TrialPaths(self.folder / f"trial{number}-attempt-{name}")

    def attempts(self, number: int) -> list[TrialPaths]:
        """Attempts of a trial that have not become its result, by their age."""
        found = [path for path in self.folder.glob(f"trial{number}-attempt-*") if path.is_dir()]
        return [TrialPaths(path) for path in sorted(found, key=lambda path: path.stat().st_mtime)]

    def set_aside(self, number: int) -> None:
        """Move earlier attempts of a trial out of the way: their records are kept and never mix with new ones.

        A folder that holds no more than the spec was never launched, and stays.
        """
        for attempt in self.attempts(number):
            self._supersede(attempt.folder, number)
        current, spec = self.trial(number).folder, self.trial(number).spec
        if current.exists() and list(current.iterdir()) != [spec]:
            self._supersede(current, number)

    def set_attempts_aside(self, number: int, *, keep: TrialPaths) -> None:
        """Move the attempts of a trial out of the way that were begun before `keep`."""
        for attempt in self.attempts(number):
            if attempt != keep:
                self._supersede(attempt.folder, number)

    def _supersede(self, folder: Path, number: int) -> None:
        aside = self.folder / "superseded"
        aside.mkdir(exist_ok=True)
        attempt = 1
        while (aside / f"trial{number}-{attempt}").exists():
            attempt += 1
        folder.rename(aside / f"trial{number}-{attempt}")


@dataclass(frozen=True)
class SweepPaths:
    """The files of one sweep."""

    folder: Path

    @property
    def sweep(self) -> Path:
        return self.folder / "sweep.json"

    @property
    def matrix_md(self) -> Path:
        return self.folder / "matrix.md"

    @property
    def matrix_csv(self) -> Path:
        return self.folder / "matrix.csv"

    @property
    def search(self) -> Path:
        """What a search has tried and found."""
        return self.folder / "search.json"

    @property
    def jobs(self) -> Path:
        """What only a running sweep needs: submitit's own files and the locks."""
        return self.folder / ".jobs"

    def trial_lock(self, cell_id: str, number: int) -> Path:
        """Held by every process of a trial."""
        return self.jobs / f"{cell_id}-trial{number}.lock"

    def job_log(self, job_id: str) -> Path:
        """What the process that launches a trial printed, as submitit keeps it."""
        return self.jobs / f"{job_id}_0_log.out"

    @property
    def cluster(self) -> Path:
        """The name under which Slurm has this sweep's jobs."""
        return self.jobs / "cluster.json"

    def array(self, number: int) -> Path:
        """A job array: written before it is submitted, and again with its job id as soon as there is one."""
        return self.jobs / f"array{number:05d}.json"

    def arrays(self) -> list[Path]:
        return sorted(self.jobs.glob("array*.json"))

    @property
    def driver_lock(self) -> Path:
        return self.jobs / "driver.lock"

    @property
    def trials_lock(self) -> Path:
        return self.jobs / "trials.lock"

    def cell(self, slug: str, cell_id: str, known: Mapping[str, Path] | None = None) -> CellPaths:
        """The folder of a cell, found by its id: another sweep of the same folder may have given another slug.

        `known`: what `cell_folders` has found, or it is looked for again, among all that there are.
        """
        known = self.cell_folders() if known is None else known
        return CellPaths(known.get(cell_id) or self.folder / "cells" / f"{slug}-{cell_id}")

    def cell_folders(self) -> dict[str, Path]:
        """The folders that cells have, by the cells' ids."""
        folders = sorted((self.folder / "cells").glob("*-*"), reverse=True)
        return {path.name.rpartition("-")[2]: path for path in folders}

    def all_cells(self) -> list[CellPaths]:
        return [CellPaths(path) for path in sorted((self.folder / "cells").glob("*")) if path.is_dir()]


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all: to a temporary name in the same folder, then renamed."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_json(path: Path, payload: Mapping[str, Any]) -> None:
    """Write one JSON object, whole or not at all."""
    write_text(path, json.dumps(payload, indent=1, ensure_ascii=False) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """Read one JSON object.

    Raises FileError, naming the file, when it is missing, torn or not an object.
    """
    try:
        payload = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FileError(f"{path} is missing") from None
    except (OSError, ValueError) as error:
        raise FileError(f"{path} cannot be read: {error}") from None
    if not isinstance(payload, dict):
        raise FileError(f"{path} holds {type(payload).__name__}, not a JSON object")
    return payload
