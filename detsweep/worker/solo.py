"""`python -m detsweep.worker.solo <request.json> <answer.json>`: one rank of a recording, alone.

Its process group has the size of the recording's, and nobody else is in it: collectives are answered from the tape.
"""

from __future__ import annotations

import json
import pdb
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import xxhash

from detsweep.capture import Stream, read_streams, to_line
from detsweep.compare import Comparison, compare, keyed
from detsweep.environment import thread_variables
from detsweep.paths import FileError, TrialPaths, write_json
from detsweep.recording import RankRecording, RecordingError, open_rank
from detsweep.replays import Pass, Request
from detsweep.schema import FaultConfig, StressConfig

WRONG, FAILED = 2, 3


def main() -> int:
    """Leaves with 0 when the replay is over, whatever it found; 2 where the recording does not fit."""
    request = Request(**json.loads(Path(sys.argv[1]).read_text()))
    try:
        passes = replay(request)
    except (RecordingError, FileError) as error:
        print(f"detsweep: {error}", file=sys.stderr)
        return WRONG
    write_json(Path(sys.argv[2]), {"request": request.to_json(), "passes": [one.to_json() for one in passes]})
    return 0


def replay(request: Request) -> list[Pass]:
    """Replay as often as is asked. Raises RecordingError where the recording is not whole or is of another program."""
    import torch

    from detsweep.worker import sharding

    spec = json.loads(TrialPaths(Path(request.trial)).spec.read_text())
    device = torch.device("cuda", 0) if request.device == "cuda" else torch.device("cpu")
    sharding.open_group_alone(request.rank, spec["world_size"])
    alone = _Alone(request, spec, device)
    return [alone.once() for _ in range(request.repeat)]


@dataclass
class _Seen:
    """What one pass saw."""

    streams: list[Stream]
    parted: str | None = None
    ended: str | None = None


class _Alone:
    """One rank, built once and replayed from the same snapshot as often as is asked."""

    def __init__(self, request: Request, spec: Mapping[str, Any], device: Any) -> None:
        from detsweep.worker import settings
        from detsweep.worker.player import Player
        from detsweep.worker.progress import Progress
        from detsweep.worker.rank import prepare

        self._request, self._device = request, device
        trial = TrialPaths(Path(request.trial))
        self._recording: RankRecording = open_rank(trial.recording, request.rank)
        wanted = request.settings or spec["settings"]
        settings.apply(thread_variables(spec["config"]["world"]["threads_per_rank"], wanted["env"]), wanted["torch"])
        self._config = _config(spec["config"], request, str(self._recording.about["checksum"]))
        progress = Progress(trial.recording.progress(request.rank))
        _, self._observer, self._step = prepare(self._config, request.rank, device, progress)
        self._recorded = {stream.step: stream for stream in _first_runs(trial, request)}
        self._aligned = self._config["observe"]["name"] == spec["config"]["observe"]["name"]
        self._player = Player(
            self._observer.collectives,
            fingerprint=self._observer.fingerprint,
            position=self._observer.position,
            device=device,
            noticed=self._stop_at if request.stop else None,
            at_once=request.stop,
        )

    def once(self) -> Pass:
        """Load the snapshot, run the steps, and compare what they were with what was recorded."""
        from detsweep.worker import state

        begun = time.perf_counter()
        step, request = self._step, self._request
        first = self._recording.step(request.start)
        first.check_snapshot()
        self._player.begin()
        if step.optimizer is not None:
            step.optimizer.zero_grad(set_to_none=True)
        state.load(first.paths.snapshot(request.start), step.model, step.optimizer, self._device)
        seen = self._run()
        return self._judged(seen, time.perf_counter() - begun)

    def _run(self) -> _Seen:
        from detsweep.worker.player import PartedError, UntilError
        from detsweep.worker.record import through

        seen, request = _Seen([]), self._request
        for number in range(request.start, request.last + 1):
            recorded = self._recording.step(number)
            until = request.until if number == request.last else None
            watcher = _Watcher(self._recorded.get(number), self._stop_at) if request.stop else None
            self._observer.noticed = None if watcher is None else watcher.look
            try:
                with through(self._step, self._player.batch), self._player.step(recorded, until=until):
                    seen.streams.append(self._step.observed(number, 1).stream)
            except UntilError as reached:
                seen.ended = f"stopped at {reached}"
                if request.stop:
                    self._stop_at(seen.ended)
            except PartedError as parted:
                if recorded.complete:
                    seen.parted = str(parted)
                else:
                    seen.ended = f"the recording breaks off in step {number}, after {len(recorded.calls)} calls"
            if seen.ended or seen.parted:
                self._step.faults.end()
                seen.streams.append(self._observer.finish(rank=request.rank, step=number, run="r1"))
                break
        return seen

    def _judged(self, seen: _Seen, seconds: float) -> Pass:
        wanted = [stream for stream in seen.streams if stream.step >= self._request.first]
        compared, differs, first = 0, Counter[str](), None
        between: tuple[str, ...] = ()
        for stream in wanted:
            reference = self._recorded.get(stream.step)
            if reference is None:
                continue
            whole = seen.ended is None and seen.parted is None
            comparison = compare(reference, stream, aligned=self._aligned and (whole or stream is not wanted[-1]))
            compared += comparison.compared
            differs.update(comparison.differs)
            if first is None and comparison.first is not None:
                first = comparison.first.to_json()
                between = tuple(_between(reference, stream, comparison))
        mismatches = [one for one in self._player.mismatches if one.step >= self._request.first]
        lines = "\n".join(to_line(stream, world_size=0) for stream in wanted)
        return Pass(
            compared,
            dict(differs),
            first,
            between,
            self._player.checked,
            len(mismatches),
            {**asdict(mismatches[0]), "words": mismatches[0].words} if mismatches else None,
            seen.parted,
            seen.ended,
            seconds,
            f"{xxhash.xxh3_64_intdigest(lines.encode()):016x}",
        )

    def _stop_at(self, what: Any) -> None:
        words = getattr(what, "words", str(what))
        print(f"detsweep: {words}\n  (the frames above this one are the model's: `where`, `up`)", file=sys.stderr)
        # The debugger is what was asked for.
        pdb.set_trace()


class _Watcher:
    """Compares records as they are made, to stop at the very first that differs."""

    def __init__(self, recorded: Stream | None, stop: Any) -> None:
        self._expected = {key: record.digest for key, record in keyed(recorded)} if recorded is not None else {}
        self._seen: Counter[tuple[str, str, str]] = Counter()
        self._stop = stop

    def look(self, site: str, name: str, phase: str, digest: Any) -> None:
        key = (site, name, phase)
        expected = self._expected.get((*key, self._seen[key]))
        self._seen[key] += 1
        if expected is not None and int(digest) != expected:
            self._expected.clear()
            self._stop(f"first difference: {site} {name} ({phase})")


def _config(config: Mapping[str, Any], request: Request, checksum: str) -> dict[str, Any]:
    """The recorded cell's configuration, as it is replayed: observed as asked, without company and without faults."""
    own = {**config, "device": request.device, "checksum": checksum, "stress": asdict(StressConfig("none"))}
    if request.observe is not None:
        own["observe"] = {"name": request.observe}
    if not request.faulty:
        own["fault"] = asdict(FaultConfig())
    return own


def _first_runs(trial: TrialPaths, request: Request) -> Iterator[Stream]:
    """What the rank saw when it was recorded; a run that was broken off has left nothing."""
    steps = range(request.first, request.last + 1)
    for stream in read_streams(trial.records(request.rank)):
        if stream.run == "r1" and stream.step in steps:
            yield stream


def _between(reference: Stream, stream: Stream, comparison: Comparison) -> Sequence[str]:
    """The operators that ran between the last record that is equal and the first that differs.

    Empty where the recording has operators itself, or the replay has none.
    """
    assert comparison.first is not None
    known = {key for key, _ in keyed(reference)}
    ran: list[str] = []
    for key, record in keyed(stream):
        if record.seq == comparison.first.seq:
            return ran
        if key in known:
            ran = []
        elif record.site == "op":
            ran.append(f"{record.name} ({record.phase})")
    return ()


if __name__ == "__main__":
    sys.exit(main())
