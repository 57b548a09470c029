"""Where a recorded program of the user's own comes from: what it takes to start it again as it was started."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch

from detsweep.environment import changes_numerics, of_torchrun
from detsweep.worker import settings


def program() -> dict[str, Any]:
    """This process's program: script or module, arguments, working directory, and the variables that matter.

    `environment`: variables that change the bits of a step, and torchrun's own; `threads` and `settings`: what torch
    really had, to be read by people.
    """
    spec = sys.modules["__main__"].__spec__
    return {
        "module": None if spec is None else spec.name.removesuffix(".__main__"),
        "argv": [str(Path(sys.argv[0]).absolute()), *sys.argv[1:]],
        "cwd": str(Path.cwd()),
        "environment": {name: value for name, value in sorted(os.environ.items()) if _matters(name)},
        "threads": torch.get_num_threads(),
        "settings": settings.read_back(),
    }


def _matters(name: str) -> bool:
    return changes_numerics(name) or of_torchrun(name)
