"""`python -m detsweep.worker.solo <request.json> <answer.json>`: one rank of a recording, alone.

Its process group has the size of the recording's, and nobody else is in it: collectives are answered from the tape.
"""

from __future__ import annotations

import json
import pdb
import signal
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from detsweep.capture import Stream
from detsweep.compare import keyed
from detsweep.environment import thread_variables
from detsweep.orphans import die_with_parent
from detsweep.paths import FileError, TrialPaths, write_json
from detsweep.recording import RankRecording, open_rank
from detsweep.recording.streams import streams_of
from detsweep.replays import NOT_ITS_RECORDING, Pass, Request
from detsweep.schema import FaultConfig, StressConfig
from detsweep.worker import settings, sharding, state
from detsweep.worker.parted import PartedError, UntilError
from detsweep.worker.passes import Seen, judged
from detsweep.worker.player import Player
from detsweep.worker.progress import Progress
from detsweep.worker.rank import prepare
from detsweep.worker.record import through


def main() -> int:
    """Leaves with 0 when the replay is over, whatever it found; NOT_ITS_RECORDING where the recording does not fit."""
    die_with_parent(signal.SIGKILL)
    request = Request(**json.loads(Path(sys.argv[1]).read_text()))
    try:
        passes = replay(request, Progress(Path(sys.argv[1]).with_name("progress")))
    except FileError as error:
        print(f"detsweep: {error}", file=sys.stderr)
        return NOT_ITS_RECORDING
    write_json(Path(sys.argv[2]), {"request": request.to_json(), "passes": [one.to_json() for one in passes]})
    return 0


def replay(request: Request, progress: Progress) -> list[Pass]:
    """Replay as often as is asked. Raises RecordingError where the recording is not whole or is of another program."""
    spec = json.loads(TrialPaths(Path(request.trial)).spec.read_text())
    device = torch.device("cuda", 0) if request.device == "cuda" else torch.device("cpu")
    sharding.open_group_alone(request.rank, spec["world_size"])
    alone = _Alone(request, spec, device, progress)
    return [alone.once() for _ in range(request.repeat)]


class _Alone:
    """One rank, built once and replayed from the same snapshot as often as is asked."""

    def __init__(self, request: Request, spec: Mapping[str, Any], device: torch.device, progress: Progress) -> None:
        self._request, self._device = request, device
        trial = TrialPaths(Path(request.trial))
        self._recording: RankRecording = open_rank(trial.recording, request.rank)
        wanted = request.settings or spec["settings"]
        settings.apply(thread_variables(spec["config"]["world"]["threads_per_rank"], wanted["env"]), wanted["torch"])
        self._config = _config(spec["config"], request, str(self._recording.about["checksum"]))
        _, self._observer, self._step = prepare(self._config, request.rank, device, progress)
        steps = range(request.first, request.last + 1)
        self._recorded = streams_of(self._recording, trial.records(request.rank), steps)
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
        begun = time.perf_counter()
        step, request = self._step, self._request
        first = self._recording.step(request.start)
        first.check_snapshot()
        self._player.begin()
        if step.optimizer is not None:
            step.optimizer.zero_grad(set_to_none=True)
        state.load(first.paths.snapshot(request.start), step.model, step.optimizer, self._device)
        seen = self._run()
        seconds = time.perf_counter() - begun
        return judged(request, seen, self._recorded, self._player, seconds=seconds, aligned=self._aligned)

    def _run(self) -> Seen:
        seen, request = Seen([]), self._request
        for number in range(request.start, request.last + 1):
            recorded = self._recording.step(number)
            until = request.until if number == request.last else None
            watcher = _Watcher(self._recorded.get(number), self._stop_at) if request.stop else None
            self._observer.noticed = None if watcher is None else watcher.look
            try:
                with through(self._step, self._player.batch), self._player.step(recorded, until=until):
                    seen.streams.append(self._step.observed(number, 1).stream)
            except (UntilError, PartedError) as over:
                seen.end(over, recorded)
                if request.stop:
                    self._stop_at(seen.ended or seen.parted)
                self._step.faults.end()
                seen.streams.append(self._observer.finish(rank=request.rank, step=number, run="r1"))
                break
        return seen

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


if __name__ == "__main__":
    sys.exit(main())
