"""A sweep that is still running: its processes by pid, so that a test can end one and see that all are gone."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from detsweep.failures import position
from tests.conftest import clean_environment

T = TypeVar("T")
PATIENCE_S = 60.0


class Driver:
    """`python -m detsweep` in a session of its own, as a terminal's foreground job would be."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.seen: set[int] = set()
        self.out = ""
        self._process: subprocess.Popen[str] | None = None

    @property
    def process(self) -> subprocess.Popen[str]:
        assert self._process is not None
        return self._process

    def start(self, *arguments: str) -> None:
        """Start the command; its sweep goes into this driver's folder."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "detsweep", *arguments, f"folder={self.folder}"],
            cwd=self.folder.parent,
            env=clean_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def wait(self) -> int:
        """Wait for the command's end; its exit code."""
        self.out, _ = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode

    def ranks_in_a_run(self, count: int) -> dict[int, int]:
        """Pids of the ranks of the trial that runs now, once all `count` of them are inside a run."""

        def look() -> dict[int, int] | None:
            assert self.process.poll() is None, self.process.communicate()[0]
            places = {int(p.name[4:7]): position(p) for p in self.folder.glob("cells/*/trial0/rank*.progress")}
            pids = {rank: place.pid for rank, place in places.items() if place is not None and place.run > 0}
            return pids if len(pids) == count else None

        ranks = eventually(look)
        job = self.job()
        self.seen |= {*ranks.values(), job["agent_pid"], job["task_pid"]}
        return ranks

    def jobs(self) -> list[dict[str, Any]]:
        """job.json of each cell's first trial, in the order of the sweep."""
        cells = json.loads((self.folder / "sweep.json").read_text())["cells"]
        paths = [next(self.folder.glob(f"cells/*-{cell}")) / "trial0" / "job.json" for cell in cells]
        return [json.loads(path.read_text()) for path in paths if path.exists()]

    def job(self) -> dict[str, Any]:
        """job.json of the trial that runs now."""
        (running,) = [job for job in self.jobs() if job["state"] == "running"]
        return running  # type: ignore[no-any-return]

    def results(self) -> list[dict[str, Any]]:
        """The results there are, in the order of the sweep."""
        cells = json.loads((self.folder / "sweep.json").read_text())["cells"]
        paths = [next(self.folder.glob(f"cells/*-{cell}")) / "trial0" / "result.json" for cell in cells]
        return [json.loads(path.read_text()) for path in paths if path.exists()]

    def kill(self) -> None:
        """End whatever is left of the command, by pid."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.communicate()


def eventually(look: Callable[[], T | None], patience_s: float = PATIENCE_S) -> T:
    """The first value that is not None; fails when there is none in time."""
    deadline = time.monotonic() + patience_s
    while (value := look()) is None:
        assert time.monotonic() < deadline, "nothing happened in time"
        time.sleep(0.02)
    return value


def gone(pids: Iterable[int], patience_s: float = 10.0) -> None:
    """Fails unless every process has ended; one that was not reaped yet counts as ended."""
    left = set(pids)
    assert left

    def none_left() -> bool | None:
        return None if {pid for pid in left if alive(pid)} else True

    eventually(none_left, patience_s)


def processes_of(folder: Path) -> set[int]:
    """Pids of all that run for trials of a sweep: what a trial starts has the paths of its locks in its environment."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if str(folder).encode() in path.read_bytes() and alive(int(path.parent.name)):
                found.add(int(path.parent.name))
        except OSError:
            continue
    return found


def parent(pid: int) -> int | None:
    """The process that started another one; None when that is gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return Path(f"/proc/{pid}").exists()
