"""One search: sets of items are tried in launches like any others, kept on disk, and asked for once only."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from detsweep.bounds import clean_needed, lower_bound
from detsweep.plan import Cell
from detsweep.search.evidence import Evidence, evidence

Launch = Callable[[Cell, int], Mapping[int, Mapping[str, Any]]]
"""Runs those of a cell's first trials that have no result yet; the results of all its trials."""
SURE_OF_RATE = 3
"""Divergences of the cell itself after which its rate is known well enough: more launches cost more than they save."""

SURE_OF_LAUNCHES = 3
"""Launches of the cell itself that tell at least whether all of them diverge."""
NAMED = 5


class NoAnswerError(Exception):
    """The search cannot say anything, and why."""


@dataclass(frozen=True)
class Tried:
    """One set: its members, why it was tried, its cell, and what came out: `clean`, `diverged` or `no answer`."""

    members: tuple[str, ...]
    why: str
    cell: str
    came_to: str
    evidence: Evidence

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class Session:
    """Tries sets of items.

    `cell_of` makes a set's cell (it raises ValueError where there can be none), `launch` runs it, `say` gets a line
    for each set. `settings` is the cell's `search`.
    """

    def __init__(
        self,
        cell_of: Callable[[Sequence[str]], Cell],
        launch: Launch,
        settings: Mapping[str, Any],
        say: Callable[[str], None],
    ) -> None:
        self._cell_of = cell_of
        self._launch = launch
        self._settings = settings
        self._say = say
        self._clean_at = self._launches_at = 1
        self._decided_by: dict[frozenset[str], int] = {}
        self._tried: dict[frozenset[str], Tried] = {}
        self._cells: dict[frozenset[str], Cell] = {}

    @property
    def tried(self) -> list[Tried]:
        """Every set in the order in which it was tried first."""
        return list(self._tried.values())

    @property
    def clean_at(self) -> int:
        """After how many comparisons without a divergence a set is clean."""
        return self._clean_at

    @property
    def launches(self) -> int:
        """Launches of all sets that came to a verdict."""
        return sum(tried.evidence.launches for tried in self.tried)

    def calibrate(self, members: Sequence[str], words: str) -> None:
        """Learn from the set that diverges how often it does, and with that when another one is clean.

        It is launched until that is known well enough for the launches that a set may take. Raises NoAnswerError where
        it does not diverge, or still too seldom after as many launches.
        """
        cell, most, confidence = self._cell(members), self._settings["max_trials"], self._settings["confidence"]

        def known(found: Evidence) -> bool:
            often = found.diverged >= SURE_OF_RATE and found.launches >= min(SURE_OF_LAUNCHES, most)
            return often and self._takes(found)[2] <= most

        seen = self._run(cell, known, most)
        self._note(members, words, cell, seen)
        if seen.diverged == 0:
            told = f"{seen.rate} in {_launches(seen.launches)}"
            raise NoAnswerError(
                f"{words} does not diverge here: {told}"
                if seen.error is None
                else f"{words} could not be run: {seen.error}"
            )
        rate = lower_bound(seen.diverged, seen.compared, confidence)
        self._clean_at, self._launches_at, needed = self._takes(seen)
        told = f"{seen.rate} in {seen.diverged_launches} of {_launches(seen.compared_launches)}"
        takes = f"{self._clean_at} comparisons in {_launches(self._launches_at)} or more"
        if needed > most:
            raise NoAnswerError(
                f"{words} diverges in {told}: that a set is clean takes {takes}, {_launches(needed)} at this size, and "
                f"search.max_trials is {most}; raise it, or steps"
            )
        self._say(
            f"{words}: {told} diverged, so at least {rate:.1%}; a set is clean after {takes} without one "
            f"({confidence:.0%} confidence)"
        )

    def _takes(self, seen: Evidence) -> tuple[int, int, int]:
        """What says that a set is clean, by how often the cell itself diverges: comparisons, in how many launches at
        least, and how many launches that is.
        """
        confidence = self._settings["confidence"]
        clean_at = clean_needed(lower_bound(seen.diverged, seen.compared, confidence), confidence)
        # What differs from launch to launch is no chance of its own in each of a launch's comparisons.
        launches_at = self.launches_needed(seen) if seen.diverged_launches < seen.compared_launches else 1
        held, others = seen.compared_launches, seen.launches - seen.compared_launches
        return clean_at, launches_at, max(math.ceil(clean_at * held / seen.compared), launches_at) + others

    def launches_needed(self, seen: Evidence) -> int:
        """How many clean launches say that a set is clean, by how many of the cell's own launches diverged."""
        confidence = self._settings["confidence"]
        return clean_needed(lower_bound(seen.diverged_launches, seen.compared_launches, confidence), confidence)

    def clean(self, members: Sequence[str], why: str) -> bool:
        """Whether a set is clean: not one divergence in as many comparisons as that takes."""
        return self.came_to(members, why) == "clean"

    def diverges(self, members: Sequence[str], why: str) -> bool:
        """Whether a set diverges."""
        return self.came_to(members, why) == "diverged"

    def failed(self, members: Sequence[str]) -> bool:
        """Whether a set was tried, and came to nothing."""
        known = self._tried.get(frozenset(members))
        return known is not None and known.came_to == "no answer"

    def came_to(self, members: Sequence[str], why: str) -> str:
        """What a set comes to: `clean`, `diverged`, or `no answer` where it cannot be or its launches fail."""
        known = self._tried.get(frozenset(members))
        if known is not None:
            return known.came_to
        try:
            cell = self._cell(members)
        except ValueError as error:
            impossible = Evidence(0, 0, 0, str(error).splitlines()[0])
            return self._remember(Tried(tuple(members), why, "", "no answer", impossible)).came_to
        seen = self._run(cell, lambda found: found.diverged > 0, self._settings["max_trials"])
        return self._note(members, why, cell, seen).came_to

    @property
    def verify(self) -> int:
        """How many fresh launches an answer must stand."""
        return int(self._settings["verify"])

    def known(self, members: Sequence[str]) -> Tried:
        """What is known of a set that was tried."""
        return self._tried[frozenset(members)]

    @property
    def most(self) -> int:
        """How many launches one set may take."""
        return int(self._settings["max_trials"])

    def again(self, members: Sequence[str], fresh: int) -> Tried:
        """A set with `fresh` launches beyond those that decided it, whatever they come to; what it is now."""
        known = self.known(members)
        cell = self._cell(members)
        decided_by = self._decided_by[frozenset(members)]
        seen = self._first(cell, max(known.evidence.launches, decided_by + fresh))
        return self._remember(self._judged(known.members, known.why, cell, seen), quiet=True)

    def _run(self, cell: Cell, enough: Callable[[Evidence], bool], most: int) -> Evidence:
        """Launch a cell until it is said to be enough, or clean, or it fails."""
        at_a_time = int(cell.config["launch"]["max_parallel"])
        trials = 2 if cell.config["mode"]["name"] == "relaunch" else 1
        while True:
            found = self._first(cell, trials)
            clean = self._calibrated and self._is_clean(found)
            if enough(found) or clean or found.error is not None or trials >= most:
                return found
            trials = min(most, trials + at_a_time)

    def _cell(self, members: Sequence[str]) -> Cell:
        """A set's cell, composed once: it stays what it was, whatever becomes of the files it was made from."""
        key = frozenset(members)
        if key not in self._cells:
            self._cells[key] = self._cell_of(members)
        return self._cells[key]

    def _first(self, cell: Cell, trials: int) -> Evidence:
        """What the first trials of a cell say. Those that an earlier command has made beyond them do not count yet:
        the search goes the same way again.
        """
        results = self._launch(cell, trials)
        return evidence({number: result for number, result in results.items() if number < trials}, cell.config)

    def _is_clean(self, seen: Evidence) -> bool:
        enough = seen.compared >= self._clean_at and seen.compared_launches >= self._launches_at
        return seen.diverged == 0 and enough

    @property
    def _calibrated(self) -> bool:
        return bool(self._tried)

    def _note(self, members: Sequence[str], why: str, cell: Cell, seen: Evidence) -> Tried:
        self._decided_by[frozenset(members)] = seen.launches
        return self._remember(self._judged(members, why, cell, seen))

    def _judged(self, members: Sequence[str], why: str, cell: Cell, seen: Evidence) -> Tried:
        came_to = "no answer"
        if seen.diverged:
            came_to = "diverged"
        elif seen.error is None and self._is_clean(seen):
            came_to = "clean"
        return Tried(tuple(members), why, cell.id, came_to, seen)

    def _remember(self, tried: Tried, *, quiet: bool = False) -> Tried:
        self._tried[frozenset(tried.members)] = tried
        if not quiet:
            names = _named(tried.members)
            error = f" ({tried.evidence.error})" if tried.evidence.error else ""
            self._say(
                f"{len(self._tried):3}. {tried.came_to:9} {tried.evidence.rate} in "
                f"{_launches(tried.evidence.launches)}: {names}  [{tried.why}]{error}"
            )
        return tried


def _named(members: Sequence[str]) -> str:
    """A set in a line; search.json has all of its members."""
    more = f" and {len(members) - NAMED} more" if len(members) > NAMED else ""
    return (", ".join(members[:NAMED]) or "nothing") + more


def _launches(count: int) -> str:
    return f"{count} launch{'' if count == 1 else 'es'}"
