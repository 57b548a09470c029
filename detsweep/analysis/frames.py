"""A sweep as tidy pandas frames. Reads only the disk: during a sweep, after a crash, in a notebook."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from detsweep.analysis import columns, problems
from detsweep.analysis.recordframes import Asked, Records, Selection
from detsweep.capture import Stream
from detsweep.captured import Line, collecting_nothing, read_lines
from detsweep.compare import differences
from detsweep.environment import facts
from detsweep.paths import FileError, TrialPaths, read_json

if TYPE_CHECKING:
    from pandas.io.formats.style import Styler

DIFFERING_COLUMNS = (
    "cell", "trial", "rank", "step", "run", "seq", "site", "block", "name", "phase", "kind",
)  # fmt: skip


@dataclass(frozen=True)
class Drill:
    """A diverged cell once more at a closer level: its verdict, and where it diverged first, as in `trials`.

    `error`: why it has no verdict about repeating, None where it has.
    """

    verdict: str
    first: Mapping[str, Any]
    error: str | None = None


@dataclass(frozen=True)
class TrialFiles:
    """What of a trial can be read: its files, how many ranks it has, and whether each of them must have records.

    `unreadable`: why its result says nothing, None where it does. `judged`: whether it has a result.
    `alone`: there are records and nothing else, as of captures.
    """

    paths: TrialPaths
    ranks: int
    complete: bool
    unreadable: str | None = None
    judged: bool = True
    alone: bool = False

    def recorded(self, asked: Asked) -> Iterator[int]:
        """The ranks that are asked for and have records, or must have some."""
        for rank in range(self.ranks):
            if asked.of("rank", rank) and (self.complete or self.paths.records(rank).exists()):
                yield rank


@dataclass(frozen=True)
class Sweep:
    """What a sweep's folder holds.

    `trials`: a row for each trial that the sweep asks for; `verdict` is `none` where it has no result yet. The
    columns named in `axes` tell the cells apart, and stand first. `divergences`: a row for each rank, step and run
    that differed from what it is compared with. `timings`: a row for each step that a rank timed. `columns("trials")`
    says what the columns of a frame mean. `configs`: each cell's whole configuration by its id, `overrides` what the
    command line said of it. `sessions`: the commands that were given on the folder, as in sweep.json.
    `injections`: a row for each fault that was put in. `baselines`: a row for each cell that is compared with another
    one (`against`). `drills`: what a closer look at a cell found, by the cell's id. `effects`: a row for each setting
    of a mitigation in each trial: whether it was in force, and did anything. `costs`: a row for each cell with a
    mitigation whose cell without it is there too. `fleet`: a row for each place of each fleet, empty without one; see
    detsweep.analysis.fleet. `search`: what the last command's search has tried and found, None without one.
    `files`: the files of each trial, by its cell's id and its number; none with `frames_only`: of a sweep of which only
    frames were kept (`save`). `roots`: the folders of the sweeps that it is made of.
    """

    folder: Path
    trials: pd.DataFrame
    divergences: pd.DataFrame
    axes: tuple[str, ...]
    configs: Mapping[str, Mapping[str, Any]]
    overrides: Mapping[str, Mapping[str, str]]
    injections: pd.DataFrame
    baselines: pd.DataFrame
    drills: Mapping[str, Drill]
    effects: pd.DataFrame
    costs: pd.DataFrame
    fleet: pd.DataFrame
    search: Mapping[str, Any] | None
    timings: pd.DataFrame
    files: Mapping[tuple[str, int], TrialFiles]
    sessions: Sequence[Mapping[str, Any]] = ()
    unread: Sequence[problems.Problem] = ()
    frames_only: bool = False
    roots: Sequence[Path] = ()

    @property
    def positive_control(self) -> bool:
        """Whether the sweep is one of faults that are to be found."""
        return any(config.get("positive_control", False) for config in self.configs.values())

    @staticmethod
    def columns(frame: str) -> pd.DataFrame:
        """What the columns of a frame mean. Raises KeyError, listing the frames, for another name."""
        return columns.described(frame)

    def records(
        self,
        *,
        cell: str | Sequence[str] | None = None,
        trial: int | Sequence[int] | None = None,
        rank: Selection = None,
        step: Selection = None,
        run: Selection = None,
        site: Selection = None,
        block: Selection = None,
        name: Selection = None,
        phase: Selection = None,
    ) -> pd.DataFrame:
        """The records that match: a row for each fingerprint, `digest` in hexadecimal.

        Of trials that have a result; of one without, which may still be writing, where it is named by `trial`.
        Each argument is a value, several, or None for all; what is not asked for is left out while reading. A digest
        has 16 digits, with checksum=sha256 the 64 that sha256sum prints, but for the loss and the sum over ranks.
        Raises FileError, naming the file, where records of a rank are missing or torn; the arguments read around it.
        """
        asked = Asked(rank=rank, step=step, run=run, site=site, block=block, name=name, phase=phase)
        records = Records(asked)
        with collecting_nothing():
            for (one, number), files in self._chosen(cell, trial):
                for own in files.recorded(asked):
                    for line in read_lines(files.paths.records(own)):
                        records.add(one, number, line)
            return records.frame()

    def record_batches(
        self, *, cell: str | Sequence[str] | None = None, trial: int | Sequence[int] | None = None, **asked: Selection
    ) -> Iterator[pd.DataFrame]:
        """As `records`, but a frame for each trial, one in memory at a time. Raises what `records` does."""
        for (one, number), _ in self._chosen(cell, trial):
            yield self.records(cell=one, trial=number, **asked)

    def differing(
        self,
        *,
        cell: str | Sequence[str] | None = None,
        trial: int | Sequence[int] | None = None,
        rank: Selection = None,
    ) -> pd.DataFrame:
        """Every record, not the first alone, in which a run differs from the first run of its step.

        Raises FileError as `records` does.
        """
        asked = Asked(rank=rank)
        rows = [
            (one, number, stream.rank, stream.step, stream.run, r.seq, r.site, r.block, r.name, r.phase, found.kind)
            for (one, number), files in self._chosen(cell, trial)
            for own in files.recorded(asked)
            for reference, stream in _differing(files.paths.records(own))
            for found in differences(reference, stream)
            for r in (found.record,)
        ]
        return columns.conformed(pd.DataFrame(rows, columns=list(DIFFERING_COLUMNS)), columns.DIVERGENCES)

    def _chosen(
        self, cell: str | Sequence[str] | None, trial: int | Sequence[int] | None
    ) -> Iterator[tuple[tuple[str, int], TrialFiles]]:
        cells = [cell] if isinstance(cell, str) else cell
        trials = [trial] if isinstance(trial, int) else trial
        if self.frames_only:
            raise FileError(f"{self.folder} holds frames alone, no records: load the sweep's own folder")
        for (one, number), files in self.files.items():
            named = trials is not None and number in trials
            if (cells is None or one in cells) and (named or (trials is None and files.judged)):
                yield (one, number), files

    @cached_property
    def environment(self) -> pd.DataFrame:
        """What each rank had, a row for each fact: versions, variables, switches, device.

        A rank whose file cannot be read has no rows, and is named in `problems`.
        """
        rows: list[tuple[Any, ...]] = []
        for (cell, number), files in self.files.items():
            for rank in range(files.ranks):
                try:
                    own = facts(read_json(files.paths.environment(rank)))
                except FileError:
                    continue
                rows += [(cell, number, rank, section, name, value) for (section, name), value in own.items()]
        names = [column.name for column in columns.ENVIRONMENT]
        return columns.conformed(pd.DataFrame(rows, columns=names), columns.ENVIRONMENT)

    @cached_property
    def problems(self) -> pd.DataFrame:
        """Every file that is missing, torn, changed or none of detsweep's, a row each, with what is wrong.

        All files are looked at, the records too: of a large sweep that takes as long as reading them.
        """
        return self.checked(records=True)

    def checked(self, *, records: bool) -> pd.DataFrame:
        """As `problems`; without `records` these are left unread, however large they are."""
        if self.frames_only:
            return self.problems
        found = problems.found(self.folder, self.roots, self.files, self.unread, records=records)
        names = [column.name for column in columns.PROBLEMS]
        rows = [(one.file, one.cell, one.trial, one.problem) for one in found]
        return columns.conformed(pd.DataFrame(rows, columns=names), columns.PROBLEMS)

    def matrix(
        self, *, rows: str | list[str] | None = None, columns: str | list[str] | None = None, value: str = "verdict"
    ) -> pd.DataFrame:
        """The wide table: see `detsweep.analysis.matrix.pivot`."""
        from detsweep.analysis.matrix import pivot

        return pivot(self, rows=rows, columns=columns, value=value)

    def styled(
        self, *, rows: str | list[str] | None = None, columns: str | list[str] | None = None, value: str = "verdict"
    ) -> Styler:
        """The wide table for a notebook, with a sign of its own for each verdict; as `matrix`. Needs jinja2."""
        from detsweep.analysis.styled import styled

        return styled(self, rows=rows, columns=columns, value=value)

    def save(self, folder: str | Path, *, records: bool = False) -> Path:
        """Keep all frames as Parquet files in a folder, which `detsweep.load` reads again; needs pyarrow.

        `records`: these too, written trial by trial. Raises FileExistsError where the folder holds something else.
        """
        from detsweep.analysis.parquet import save

        return save(self, Path(folder), records=records)


def _differing(path: Path) -> Iterator[tuple[Stream, Stream]]:
    """The streams of a rank's file that are not those of the first run of their step, each behind that one."""
    first: dict[int, Line] = {}
    for line in read_lines(path):
        step, run = line.place
        if run == "r1":
            first[step] = line
        elif step not in first:
            raise line.unreadable(ValueError(f"there is no r1 of step {step} before it"))
        elif not line.equals(first[step]):
            yield first[step].stream(), line.stream()
