"""What is asked of a replay and what comes out of it, as it travels between the command and the process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

WRONG, FAILED = 2, 3
NOT_ITS_RECORDING = 62
"""Exit code of the process that replays where what it would replay is not what was recorded; one line says why."""
REPLAY_VARIABLE = "DETSWEEP_REPLAY"
"""Names the file with the request in the process that replays a program of the user's own."""


@dataclass(frozen=True)
class Request:
    """Replay steps `start` to `last` of a rank, and report on those from `first` on.

    `observe`: another level than the recording's; `repeat`: how often; `until`: the call at which to stop in the last
    step; `stop`: enter the debugger at the first difference (or at `until`); `faulty`: put in the fault that the
    recording had; `settings`: variables and switches, where they are not the recording's own.
    """

    trial: str
    rank: int
    start: int
    first: int
    last: int
    device: str
    observe: str | None = None
    repeat: int = 1
    until: int | None = None
    stop: bool = False
    faulty: bool = False
    settings: Mapping[str, Mapping[str, Any]] | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Pass:
    """One replay of the steps.

    `records`: how many fingerprints were compared, `differs` how many of each site differ; `first`: the first that
    does; `operators`: what ran between the last that is equal and the first that differs, where that was observed.
    `inputs`: how many inputs of collectives were checked, `mismatches` how many differ; `mismatch`: the first of them.
    `parted`: where the program went another way than when it was recorded; `ended`: where the replay stopped because
    it was told to, or because the recording does. `notes`: what else stands out. `digest`: of all
    that was seen, to compare passes with each other.
    """

    records: int
    differs: Mapping[str, int]
    first: Mapping[str, Any] | None
    operators: tuple[str, ...]
    inputs: int
    mismatches: int
    mismatch: Mapping[str, Any] | None
    parted: str | None
    ended: str | None
    notes: tuple[str, ...]
    seconds: float
    digest: str

    @property
    def clean(self) -> bool:
        return not (self.differs or self.mismatches or self.parted)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(payload: Mapping[str, Any]) -> Pass:
        lists = {key: tuple(payload[key]) for key in ("operators", "notes")}
        return Pass(**{**payload, **lists})
