"""The recorder and the player of a trial's rank, and what is written of the recording as a whole."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from detsweep import __version__, fingerprints
from detsweep.paths import RecordingPaths, TrialPaths
from detsweep.recording.calls import FORMAT, VERSION
from detsweep.recording.reading import write_about
from detsweep.worker.observe import Observer
from detsweep.worker.player import Player
from detsweep.worker.record import playback, record
from detsweep.worker.recorder import Options, Recorder
from detsweep.worker.replay import Done
from detsweep.worker.step import TrainingStep


@dataclass(frozen=True)
class Tape:
    """What records a rank, and in mode `playback` what feeds it."""

    recorder: Recorder
    player: Player | None

    def runs(self, step: TrainingStep, config: Mapping[str, Any], recording: RecordingPaths) -> Iterator[Done]:
        """The runs of the mode."""
        if self.player is None:
            return record(step, config, self.recorder)
        return playback(step, config, self.recorder, self.player, recording)


def tapes(spec: Mapping[str, Any], paths: TrialPaths, rank: int, step: TrainingStep, observer: Observer) -> Tape:
    """Begin the recording of a trial."""
    config = spec["config"]
    checksum, fingerprint = fingerprints.select(config["checksum"], step.device.type)
    if rank == 0:
        whole = {"cell": spec["cell"], "trial": spec["trial"], "config": config, "settings": spec["settings"]}
        write_about(paths.recording, about(spec["world_size"], checksum, step.device, whole))
    playing = config["mode"]["name"] == "playback"
    recorder = Recorder(
        observer.collectives,
        paths.recording.rank(rank),
        _options(config["record"], playing=playing),
        rank=rank,
        checksum=checksum,
        fingerprint=fingerprint,
        position=observer.position,
        device=step.device,
    )
    if not playing:
        return Tape(recorder, None)
    # Nobody reads what is not written yet: not the rank's own files, but whether there is a recording at all.
    dist.barrier()
    player = Player(observer.collectives, fingerprint=fingerprint, position=observer.position, device=step.device)
    return Tape(recorder, player)


def about(world_size: int, checksum: str, device: torch.device, whole: Mapping[str, Any]) -> dict[str, Any]:
    """The content of recording.json: format, versions, how many ranks, and of a trial its configuration."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "world_size": world_size,
        "checksum": checksum,
        "device": device.type,
        "detsweep": __version__,
        "torch": str(torch.__version__),
        "torch_cuda": torch.version.cuda,
        "torch_hip": torch.version.hip,
        "python": platform.python_version(),
        **whole,
    }


def _options(record: Mapping[str, Any], *, playing: bool) -> Options:
    gigabytes = record["max_gb"]
    return Options(
        payload=record["payload"],
        compress=record["compress"],
        every=record["every"],
        keep=1 if playing else record["keep"],
        limit=None if gigabytes is None else int(gigabytes * 1e9),
    )
