"""`python -m detsweep.worker.rerun <request.json> <module> <script> <arguments>`: a user's program, as one rank alone.

The process group has the recorded size, and nobody else is in it.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch.distributed as dist

from detsweep.mitigations import torch_switches
from detsweep.orphans import die_with_parent
from detsweep.paths import FileError
from detsweep.replays import NOT_ITS_RECORDING, REPLAY_VARIABLE, Request
from detsweep.worker import sharding


def main() -> int:
    """Run the program to its end; leaves with NOT_ITS_RECORDING where the recording is not this program's."""
    die_with_parent(signal.SIGKILL)
    asked = Path(sys.argv[1])
    request = Request(**json.loads(asked.read_text()))
    os.environ[REPLAY_VARIABLE] = str(asked)
    if request.settings is not None:
        torch_switches.apply(request.settings["torch"])

    sharding.open_group_alone(request.rank, int(os.environ["WORLD_SIZE"]))
    # The group is there before the program opens it: whatever it names, it gets this one, and sub-groups like it.
    dist.init_process_group = _already_open
    dist.new_group = partial(_new_group, dist.new_group)
    module, sys.argv = sys.argv[2], sys.argv[3:]
    try:
        if module:
            sys.path.insert(0, str(Path.cwd()))
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        else:
            sys.path.insert(0, str(Path(sys.argv[0]).parent))
            runpy.run_path(sys.argv[0], run_name="__main__")
    except FileError as error:
        print(f"detsweep: {error}", file=sys.stderr)
        return NOT_ITS_RECORDING
    return 0


def _already_open(*_: Any, **__: Any) -> None:
    """What the program's own call of init_process_group comes to."""


def _new_group(new_group: Callable[..., Any], ranks: Any = None, timeout: Any = None, *_: Any, **kwargs: Any) -> Any:
    """A sub-group of the same kind, whatever backend the program names for it."""
    return new_group(ranks, timeout, **{**kwargs, "backend": None})


if __name__ == "__main__":
    sys.exit(main())
