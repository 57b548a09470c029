"""The files of a recording."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path


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
