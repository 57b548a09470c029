"""The files of a sweep and its cells, and where the configuration lies."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from detsweep.paths.trials import TrialPaths


def conf_dir() -> Path:
    """The folder of Hydra groups: inside the package where a wheel put it, else beside it in a checkout.

    An editable install copies conf into the package once and lets it go stale, so the checkout's own comes first.
    """
    package = Path(__file__).resolve().parents[1]
    beside = package.parent / "conf"
    if (package.parent / "pyproject.toml").is_file() and beside.is_dir():
        return beside
    return package / "conf"


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
    def matrix_json(self) -> Path:
        return self.folder / "matrix.json"

    @property
    def matrix_html(self) -> Path:
        return self.folder / "matrix.html"

    @property
    def frames(self) -> Path:
        """The folder of the frames as Parquet."""
        return self.folder / "frames"

    @property
    def search(self) -> Path:
        """What a search has tried and found."""
        return self.folder / "search.json"

    def tracker(self, name: str) -> Path:
        """What a tracker keeps of this sweep, where it keeps it here."""
        return self.folder / {"mlflow": "mlruns"}.get(name, name)

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


@dataclass(frozen=True)
class FramesPaths:
    """The files in which a sweep's frames are kept."""

    folder: Path

    @property
    def content(self) -> Path:
        """What is no table: axes, configurations, commands."""
        return self.folder / "frames.json"

    def frame(self, name: str) -> Path:
        return self.folder / f"{name}.parquet"
