"""Live progress: a bar on a terminal, plain lines elsewhere; one line for every trial that ends."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from detsweep.dispatch.pools import Trial
from detsweep.plan import Plan

STYLES = {"pass": "green", "diverged": "bold red", "unsupported": "dim"}


class Progress:
    """Counts trials of a sweep; `left` of all trials of the plan are still to be launched.

    `width`: how many trials run side by side. `queued`: they wait for a cluster before they begin, and what a trial
    took is what it says of itself. `quiet`: nothing but the bar; whoever asked for the trials says what came of them.
    """

    def __init__(self, plan: Plan, *, left: int, width: int, queued: bool = False, quiet: bool = False) -> None:
        total = sum(cell.trials for cell in plan.cells)
        self._plan = plan
        self._console = Console(soft_wrap=True, highlight=False)
        self._quiet = quiet
        self._total = total
        self._done = total - left
        self._left = left
        self._started: dict[str, float] = {}
        self._durations: list[float] = []
        self._width = width
        self._queued = queued
        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        self._task = self._bar.add_task("trials", total=total, completed=self._done)

    def __enter__(self) -> Progress:
        unsupported = sum(cell.trials for cell in self._plan.cells if cell.unsupported)
        if unsupported:
            self.note(f"{unsupported} of {self._total} trials are unsupported here")
        if self._done > unsupported:
            self.note(f"{self._done - unsupported} of {self._total} trials have a result already")
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def started(self, trial: Trial) -> None:
        """A trial was submitted."""
        self._started[str(trial.paths.folder)] = time.monotonic()
        self._bar.update(self._task, description=escape(self._plan.label(trial.cell)))

    def finished(self, trial: Trial, result: Mapping[str, Any]) -> None:
        """A trial ended: print which, its verdict, how long it took and about how long the rest will."""
        seconds = time.monotonic() - self._started.pop(str(trial.paths.folder), time.monotonic())
        if self._queued:
            seconds = float(result.get("seconds") or 0.0)
        if seconds:
            self._durations.append(seconds)
        self._done += 1
        self._left -= 1
        verdict = str(result["verdict"])
        if verdict == "pass" and trial.cell.config["mode"]["name"] == "relaunch":
            # Whether it repeats is known when it is held against the other launches.
            verdict = "done"
        number = f" trial {trial.number}" if trial.cell.trials > 1 else ""
        line = (
            f"[{self._done}/{self._total}] {escape(self._plan.label(trial.cell))}{number}: "
            f"[{STYLES.get(verdict, 'yellow')}]{verdict}[/]"
        )
        line += f" in {seconds:.1f} s" if seconds else ""
        if self._left and self._durations:
            mean = sum(self._durations) / len(self._durations)
            line += f", about {mean * self._left / min(self._width, self._left):.0f} s left"
        if result.get("error"):
            line += f"\n    {escape(str(result['error']))}"
        if not self._quiet:
            self._console.print(line)
        self._bar.update(self._task, completed=self._done)

    def spared(self, count: int, text: str) -> None:
        """So many trials need not be launched: say why, and count them out."""
        self._total -= count
        self._left -= count
        self.note(text)
        self._bar.update(self._task, total=self._total)

    def note(self, text: str) -> None:
        """Print a line."""
        if not self._quiet:
            self._console.print(escape(text))
