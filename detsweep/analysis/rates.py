"""How often a cell diverged, per replay and per launch, with exact intervals; and which cells stopped early."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pandas as pd

from detsweep import modes, stopping
from detsweep.analysis.cells import rows_by_cell
from detsweep.analysis.verdicts import VALID
from detsweep.analysis.words import total
from detsweep.bounds import interval, interval_until, rate_below, upper_bound
from detsweep.chances import NOTHING, Chances, moot_steps, summed
from detsweep.stopping import Stopped

if TYPE_CHECKING:
    from detsweep.analysis.frames import Sweep

RATE_COLUMNS = ("rate", "rate_low", "rate_high")
NUMBERS_ALONE = ("rate_low", "rate_high", "launch_rate_low", "launch_rate_high", "launch_upper_bound", "p_against_none")
LAUNCH_COLUMNS = ("launch_rate", "launch_rate_low", "launch_rate_high", "launch_upper_bound")


@dataclass(frozen=True)
class Rate:
    """What the valid trials of a cell say of its rates.

    `stopped`: how it stopped early, None where it did not; `until`: its launches are those up to the one with which
    `stop_after.divergences` was reached.
    """

    seen: Chances
    stopped: Stopped | None = None
    until: bool = False

    @property
    def varies(self) -> bool:
        """Whether some launches diverged and others did not: replays of one may then stand or fall together."""
        return 0 < self.seen.diverged_launches < self.seen.launches

    @property
    def counted(self) -> str:
        """The replays that the rate is made of, as "diverged/compared"."""
        return f"{self.seen.diverged}/{self.seen.compared}"

    @property
    def bound(self) -> float | None:
        """The rate of a replay below which it lies with 95% confidence, one-sided, whether or not any diverged."""
        return rate_below(self.seen.diverged, self.seen.compared) if self.seen.compared else None

    @property
    def launch_interval(self) -> tuple[float, float]:
        """The two-sided 95% interval of the rate of launches; 0 to 1 where there is none."""
        seen = self.seen
        return (interval_until if self.until else interval)(seen.diverged_launches, seen.launches)

    def columns(self) -> dict[str, float | None]:
        """The columns of the cell table, as numbers; of launches only where there are several."""
        seen = self.seen
        found: dict[str, float | None] = dict.fromkeys((*RATE_COLUMNS, "upper_bound", *LAUNCH_COLUMNS))
        if seen.compared:
            low, high = interval(seen.diverged, seen.compared)
            found |= {"rate": seen.diverged / seen.compared, "rate_low": low, "rate_high": high}
            found["upper_bound"] = None if seen.diverged else upper_bound(seen.compared)
        if seen.launches > 1:
            low, high = self.launch_interval
            rate = seen.diverged_launches / seen.launches
            found |= {"launch_rate": rate, "launch_rate_low": low, "launch_rate_high": high}
            found["launch_upper_bound"] = None if rate else upper_bound(seen.launches)
        return found


def rates(sweep: Sweep) -> dict[str, Rate]:
    """The rates of each cell of a sweep, by its id; of one whose own file is broken nothing was counted."""
    by_trial = chances_by_trial(sweep)
    found = {}
    for cell, trials in rows_by_cell(sweep.trials).items():
        config = sweep.configs.get(cell)
        found[cell] = Rate(NOTHING) if config is None else _rate(cell, trials, config, by_trial)
    return found


def chances_by_trial(sweep: Sweep) -> dict[tuple[str, int], Chances]:
    """What each trial with a verdict about repeating adds to the chances of its cell, by cell and number.

    Nothing of cells whose own file is broken. Whatever is said of some of the trials is the sum of these.
    """
    parted = _parted(sweep)
    return {
        (cell, int(trial["trial"])): _chances(trial, sweep.configs[cell], parted, first=place == 0)
        for cell, trials in rows_by_cell(sweep.trials).items()
        if cell in sweep.configs
        for place, trial in enumerate(_valid(trials))
    }


def pooled(several: Iterable[Rate]) -> Rate:
    """One rate of several cells together, of the sum of their chances; of one cell it is that cell's.

    The intervals take all these cells to have one rate, and all their replays, or launches, to be independent. Where
    rates differ it is their mean, weighted by the chances of each, that is spoken of. What cells counted until so many
    of their launches diverged is negative binomial together, too; with others among them the ordinary interval is
    taken, whose upper end is higher.
    """
    cells = [one for one in several if one.seen.compared or one.seen.launches]
    return Rate(summed(one.seen for one in cells), until=bool(cells) and all(one.until for one in cells))


def rate_words(rate: float | None, low: float | None, high: float | None) -> str:
    """A rate with its interval, as tables have it; of nothing that diverged nothing: that has its bound."""
    if rate is None or pd.isna(rate) or rate == 0:
        return ""
    assert low is not None
    assert high is not None
    return f"{percent(rate)} ({percent(low).removesuffix('%')}-{percent(high)})"


def launch_words(row: Mapping[Any, Any]) -> str:
    """The rate over launches; where none diverged the bound below which it lies with 95% confidence."""
    if not pd.isna(row["launch_upper_bound"]):
        return f"< {row['launch_upper_bound']:.1%}"
    return rate_words(row["launch_rate"], row["launch_rate_low"], row["launch_rate_high"])


def percent(value: float) -> str:
    """A rate in percent with two digits at least, and never as all or nothing where it is not."""
    if value in (0, 1) or 0.0995 <= value < 0.995:
        return f"{value:.0%}"
    if value < 0.001:
        return f"{100 * value:.2g}%"
    return f"{value:.1%}" if value < 0.9995 else f"{math.floor(1e5 * value) / 1e3:g}%"


def with_rates_in_words(table: pd.DataFrame) -> pd.DataFrame:
    """A cell table for people: each rate and its interval in one column of words."""
    shown: pd.DataFrame = table.drop(columns=[name for name in NUMBERS_ALONE if name in table])
    rows = table.to_dict("records")
    shown["rate"] = [rate_words(*(row[name] for name in RATE_COLUMNS)) for row in rows]
    if "launch_rate" in shown:
        shown["launch_rate"] = [launch_words(row) for row in rows]
    return shown


def stopped_lines(known: Mapping[str, Rate]) -> list[str]:
    """How many cells stopped early, and what that spared; nothing where none did."""
    early = [one.stopped for one in known.values() if one.stopped is not None]
    if not early:
        return []
    spared = sum(one.of - one.after for one in early)
    cells = f"{len(early)} cell{'' if len(early) == 1 else 's'}"
    return [f"stop_after: {cells} stopped early, which spared {spared} of {sum(one.of for one in early)} trials"]


def _rate(
    cell: str,
    trials: Sequence[Mapping[str, Any]],
    config: Mapping[str, Any],
    by_trial: Mapping[tuple[str, int], Chances],
) -> Rate:
    valid = _valid(trials)
    diverged = [trial["verdict"] == "diverged" for trial in valid]
    seen = summed(by_trial[cell, int(trial["trial"])] for trial in valid)
    wanted, ended = int(config["trials"]), len(trials)
    why = stopping.reason(config, seen) if stopping.has_rule(config) else None
    stopped = Stopped(ended, wanted, why) if why is not None and ended < wanted else None
    until = bool(diverged) and diverged[-1] and sum(diverged) == stopping.rule_of(config)["divergences"]
    return Rate(seen, stopped, until)


def _valid(trials: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Those of a cell's trials that have a verdict about repeating, by their numbers."""
    return sorted((trial for trial in trials if trial["verdict"] in VALID), key=lambda trial: int(trial["trial"]))


def _chances(
    trial: Mapping[str, Any],
    config: Mapping[str, Any],
    parted: Mapping[tuple[str, int], Sequence[int]],
    *,
    first: bool,
) -> Chances:
    compared, differed = total([trial], "replays"), total([trial], "diverged_replays")
    if modes.trajectories(config):
        steps = parted.get((str(trial["cell"]), int(trial["trial"])), ())
        compared, differed = compared - moot_steps(steps, config), len(steps)
    diverged = trial["verdict"] == "diverged"
    moot = first and config["mode"]["name"] == "relaunch" and not diverged
    return Chances(differed, compared, int(diverged), int(not moot))


def _parted(sweep: Sweep) -> dict[tuple[str, int], list[int]]:
    """Of trials that train, by cell and number: the first step that differs of each trajectory that parted."""
    cells = {cell: config for cell, config in sweep.configs.items() if modes.trajectories(config)}
    valid = sweep.trials[sweep.trials["verdict"].isin(VALID)]
    trials = set(zip(valid["cell"], valid["trial"], strict=True))
    found: dict[tuple[str, int], dict[str, int]] = {}
    rows = sweep.divergences[sweep.divergences["cell"].isin(list(cells))]
    for cell, trial, step, run, level in zip(
        *(rows[name] for name in ("cell", "trial", "step", "run", "level")), strict=True
    ):
        # A closer look at the cell stands under its name too, at another level.
        if (cell, trial) in trials and level == cells[cell]["observe"]["name"]:
            own = found.setdefault((str(cell), int(trial)), {})
            own[str(run)] = min(int(step), own.get(str(run), int(step)))
    return {trial: list(own.values()) for trial, own in found.items()}
