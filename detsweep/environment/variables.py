"""The variables and the configuration files by which a process's bits are decided."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from detsweep.environment.child import KEPT_NAMES, changes_numerics

# Files that NCCL and RCCL read, and in them variables that no launcher sees. The first two are kept away from trials
# by NCCL_CONF_FILE; those of the machine cannot be.
_CONFIGURATION_FILES = ("~/.nccl.conf", "~/.rccl.conf", "/etc/nccl.conf", "/etc/rccl.conf")
_OTHERS = (
    "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "MASTER_ADDR",
    "MASTER_PORT",
    "LD_PRELOAD",
)


def relevant(variables: Mapping[str, str]) -> dict[str, str]:
    """Of these variables those that change bits, or say where to run, in the order of their names."""
    kept = (*KEPT_NAMES, *_OTHERS)
    return {name: value for name, value in sorted(variables.items()) if changes_numerics(name) or name in kept}


def configuration_files() -> dict[str, list[str]]:
    """The configuration files of NCCL and RCCL that there are, with the settings in them."""
    found = {}
    for name in _CONFIGURATION_FILES:
        try:
            text = Path(name).expanduser().read_text(errors="replace")
        except (OSError, RuntimeError):
            # Not there, not ours to read, or a user without a home.
            continue
        found[name] = [line.strip() for line in text.splitlines() if "=" in line]
    return found
