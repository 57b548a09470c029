"""The files of a trial."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from detsweep.paths.recordings import RecordingPaths


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
