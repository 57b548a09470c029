"""A cell with a mitigation against the same cell without one: Fisher's exact test instead of better or worse."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from detsweep.analysis.costs import has_settings, without_mitigations
from detsweep.analysis.rates import Rate
from detsweep.analysis.words import counted
from detsweep.bounds import CONFIDENCE, Counts, fisher, holm

if TYPE_CHECKING:
    from detsweep.analysis.frames import Sweep

NEVER = "baseline never diverged"
NAMED = 4


@dataclass(frozen=True)
class Against:
    """A cell against its baseline, the same without mitigations.

    `own` and `other`: how often each diverged, in how many chances, counted over `unit` (replays or launches). `p`: how
    probable that is, or what is more uneven, if both have one rate, adjusted for all the comparisons of the sweep; None
    where neither diverged, and nothing can be said. `few`: how many launches these replays are of, own and other, where
    they are too few to tell by themselves; None where they are not.
    """

    baseline: str
    own: Counts
    other: Counts
    unit: str
    p: float | None
    few: tuple[int, int] | None = None

    @property
    def sure(self) -> bool:
        """Whether a difference is called."""
        return self.p is not None and self.p < 1 - CONFIDENCE

    @property
    def resting(self) -> bool:
        """Whether it is called from replays alone, of which nobody knows whether they are independent."""
        return self.sure and self.few is not None

    @property
    def words(self) -> str:
        """As tables have it."""
        if self.p is None:
            return NEVER
        fewer = self.own[0] * self.other[1] < self.other[0] * self.own[1]
        over = "" if self.unit == "replays" else f", {self.unit}"
        if self.few is not None and self.sure:
            over = f" if replays are independent; {_launches(*self.few)}"
        never = "" if self.other[0] else f", {NEVER}"
        return f"{'no difference seen' if not self.sure else 'fewer' if fewer else 'more'} ({_p(self.p)}{over}){never}"


def against_none(sweep: Sweep, rates: Mapping[str, Rate]) -> dict[str, Against]:
    """The comparisons of a sweep, by the ids of the cells with a mitigation.

    Cells whose mitigations are inert are not compared, nor is what has no verdict on either side, nor the sets of a
    search, which is its own judge. What is counted are replays; launches, where in either cell some of them diverged
    and others did not, or where launches are what is compared: then replays of one launch may stand or fall together.
    Where neither is so they still may, and a launch be no more than one observation: of so few launches that these
    could not be said to differ if all of one cell diverged and none of the other, it is said that p rests on that.
    """
    if sweep.search:
        return {}
    cells = [cell for cell in rates if cell in sweep.configs]
    bare = {without_mitigations(sweep.configs[c]): c for c in cells if not has_settings(sweep.configs[c])}
    idle = _idle(sweep)
    pairs: dict[str, Against] = {}
    for cell in cells:
        baseline = bare.get(without_mitigations(sweep.configs[cell]))
        if baseline is None or not has_settings(sweep.configs[cell]) or cell in idle:
            continue
        own, other = rates[cell], rates[baseline]
        launches = own.varies or other.varies or sweep.configs[cell]["mode"]["name"] == "relaunch"
        counts = [_counts(one, launches=launches) for one in (own, other)]
        if all(chances for _, chances in counts):
            p = fisher(counts[0], counts[1]) if counts[0][0] or counts[1][0] else None
            few = None if launches else _too_few(own.seen.launches, other.seen.launches)
            pairs[cell] = Against(baseline, counts[0], counts[1], "launches" if launches else "replays", p, few)
    # Where neither diverged no outcome could have told them apart: such a pair is no comparison.
    asked = [cell for cell, one in pairs.items() if one.p is not None]
    values = holm([p for cell in asked if (p := pairs[cell].p) is not None])
    adjusted = dict(zip(asked, values, strict=True))
    return {cell: replace(one, p=adjusted.get(cell)) for cell, one in pairs.items()}


def against_lines(sweep: Sweep, pairs: Mapping[str, Against]) -> Iterator[str]:
    """By what cells were compared with those without mitigations, and of which of these the sweep says nothing."""
    tests = sum(one.p is not None for one in pairs.values())
    if tests:
        several = f", p adjusted for {tests} comparisons (Holm)" if tests > 1 else ""
        yield f"against no mitigation: Fisher's exact test, two-sided{several}"
    if any(one.resting for one in pairs.values()):
        yield "if replays of a launch stand or fall together, so few launches tell nothing: trials=4 or more would"
    faulty = {cell for cell, config in sweep.configs.items() if config["fault"]["kind"] != "none"}
    found = {one.baseline: one.other[0] for cell, one in pairs.items() if cell not in faulty}
    clean = [baseline for baseline, diverged in found.items() if not diverged]
    if clean and len(clean) == len(found):
        yield "without mitigations nothing diverged: this sweep says nothing about what they cure"
    elif clean:
        names = [_name(sweep, cell) for cell in clean[:NAMED]]
        more = f" and {len(clean) - NAMED} more" if len(clean) > NAMED else ""
        yield (
            f"without mitigations {len(clean)} of {counted(len(found), 'cell')} never diverged "
            f"({', '.join(names)}{more}): this sweep says nothing about what cures those"
        )


def _counts(rate: Rate, *, launches: bool) -> Counts:
    seen = rate.seen
    return (seen.diverged_launches, seen.launches) if launches else (seen.diverged, seen.compared)


def _too_few(own: int, other: int) -> tuple[int, int] | None:
    """These numbers of launches where not even all against none of them would be a difference; 4 each are enough."""
    return (own, other) if fisher((own, own), (0, other)) >= 1 - CONFIDENCE else None


def _launches(own: int, other: int) -> str:
    return f"{counted(own, 'launch', 'launches')} each" if own == other else f"{own} and {other} launches"


def _idle(sweep: Sweep) -> set[str]:
    """Cells of whose mitigations nothing read any, in any of their trials."""
    read: dict[str, bool] = {}
    for cell, effect in zip(sweep.trials["cell"], sweep.trials["effect"], strict=True):
        if isinstance(effect, str) and effect:
            read[str(cell)] = read.get(str(cell), False) or not all(w.endswith("inert") for w in effect.split(", "))
    return {cell for cell, any_read in read.items() if not any_read}


def _name(sweep: Sweep, cell: str) -> str:
    told = sweep.overrides[cell]
    axes = {key: told[key] for key in sweep.axes if key in told and key != "mitigation"}
    return " ".join(f"{key}={value}" for key, value in (axes or told).items()) or cell


def _p(value: float) -> str:
    """A probability with as many digits as tell something."""
    if value < 0.0001:
        return "p<0.0001"
    return f"p={value:.2f}" if value >= 0.095 else f"p={value:.2g}" if value >= 0.01 else f"p={value:.1g}"
