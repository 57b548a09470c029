"""A replay in a process of its own, in the environment that the recorded rank had."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from detsweep.dispatch.torchrun import environment_of
from detsweep.environment import changes_numerics, visible_gpus
from detsweep.orphans import PARENT_VARIABLE
from detsweep.paths import FileError, TrialPaths, read_json, write_json
from detsweep.recordings import Subject
from detsweep.replays import FAILED, NOT_ITS_RECORDING, WRONG, Pass, Request


def run(request: Request, subject: Subject) -> tuple[list[Pass] | int, float]:
    """Replay in a process of its own: its passes and the wall time, or the exit code where it failed."""
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as scratch:
        asked, answer = Path(scratch) / "request.json", Path(scratch) / "answer.json"
        write_json(asked, request.to_json())
        if subject.spec is not None:
            command, where = [sys.executable, "-m", "detsweep.worker.solo", str(asked), str(answer)], None
        else:
            program = subject.about["program"]
            own = [program["module"] or "", *program["argv"]]
            command, where = [sys.executable, "-m", "detsweep.worker.rerun", str(asked), *own], program["cwd"]
            for path in (Path(where), Path(program["argv"][0])):
                if not path.exists():
                    raise FileError(f"{path}, of the program that was recorded, is not there any more")
        ended = subprocess.run(command, env=_variables(request, subject), cwd=where, check=False)
        if not answer.exists():
            if ended.returncode == NOT_ITS_RECORDING:
                return WRONG, 0.0
            said = f"exit code {ended.returncode}" if ended.returncode else "it never came to the end of its steps"
            print(f"detsweep: the replay of rank {request.rank} failed ({said})", file=sys.stderr)
            return FAILED, 0.0
        found = read_json(answer)
        if ended.returncode != 0:
            print(f"note: after its steps the program ended with exit code {ended.returncode}")
        try:
            write_json(subject.recording.replay(request.rank), found)
        except OSError as error:
            print(f"note: {subject.recording.replay(request.rank)} could not be written: {error.strerror}")
    return [Pass.from_json(one) for one in found["passes"]], time.perf_counter() - begun


def _variables(request: Request, subject: Subject) -> dict[str, str]:
    """The environment of the process that replays: as the trial's ranks have it, or what matters of the program's."""
    spec = subject.spec
    if spec is None:
        recorded: dict[str, str] = subject.about["program"]["environment"]
        variables = {name: value for name, value in os.environ.items() if not changes_numerics(name)} | recorded
        for name, value in (request.settings or {"env": {}})["env"].items():
            variables.pop(name, None)
            variables |= {} if value is None else {name: value}
    else:
        gpus = visible_gpus()[:1] if request.device == "cuda" else ()
        settings = spec["settings"] if request.settings is None else request.settings
        wanted = {**spec, "settings": settings, "config": {**spec["config"], "device": request.device}}
        variables = environment_of(wanted, os.environ, gpus, TrialPaths(subject.folder)).variables
    return variables | {
        "RANK": str(request.rank),
        "LOCAL_RANK": "0",
        "WORLD_SIZE": str(subject.about["world_size"]),
        PARENT_VARIABLE: str(os.getpid()),
    }
