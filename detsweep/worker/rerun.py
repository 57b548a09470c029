"""`python -m detsweep.worker.rerun <request.json> <script> <arguments>`: a program of the user's, as one rank alone.

The process group has the recorded size, and nobody else is in it.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import sys
from pathlib import Path
from typing import Any

import torch.distributed as dist

from detsweep.mitigations import torch_switches
from detsweep.orphans import die_with_parent
from detsweep.paths import FileError
from detsweep.replays import REPLAY_VARIABLE, Request
from detsweep.worker import sharding

WRONG = 2


def main() -> int:
    """Run the program to its end; leaves with 2 where the recording is not this program's."""
    die_with_parent(signal.SIGKILL)
    asked = Path(sys.argv[1])
    request = Request(**json.loads(asked.read_text()))
    os.environ[REPLAY_VARIABLE] = str(asked)
    if request.settings is not None:
        torch_switches.apply(request.settings["torch"])

    sharding.open_group_alone(request.rank, int(os.environ["WORLD_SIZE"]))
    # The group is there before the program opens it: whatever it names, it gets this one.
    dist.init_process_group = _already_open
    sys.argv = sys.argv[2:]
    sys.path.insert(0, str(Path(sys.argv[0]).parent))
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except FileError as error:
        print(f"detsweep: {error}", file=sys.stderr)
        return WRONG
    return 0


def _already_open(*_: Any, **__: Any) -> None:
    """What the program's own call of init_process_group comes to."""


if __name__ == "__main__":
    sys.exit(main())
