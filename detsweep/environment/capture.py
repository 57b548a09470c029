"""All that can be found out of this machine and this Python: what a vendor needs to know of where it happened."""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from detsweep.environment import libraries
from detsweep.environment.child import NODE_VARIABLE
from detsweep.environment.devices import devices
from detsweep.environment.gpus import gpu_platform
from detsweep.environment.host import Unknown, host
from detsweep.environment.machine import memory
from detsweep.environment.network import network
from detsweep.environment.packages import packages
from detsweep.environment.torchbuild import build, device, switches
from detsweep.environment.variables import configuration_files, relevant
from detsweep.mitigations import catalogue

ENVIRONMENT_SCHEMA = 1
"""Of the file that `python -m detsweep.environment -o` writes; `kind` tells it from a rank's."""
KIND = "environment"


def environment(*, whole_digests: bool = False) -> dict[str, Any]:
    """The content of an environment file. It never raises: what could not be found out is in `not_known`, with why.

    Sections that a rank's environment has too have the same names in it. `now` holds what is another in the next
    moment. `variables` are those that are set, `variables_unset` those of the catalogue that are not.
    """
    unknown: Unknown = {}
    told_torch = _safe("torch", unknown, lambda: build(unknown), {})
    with_torch = "torch" in told_torch
    gpus, gpus_now = _safe("gpus", unknown, lambda: devices(unknown), ({}, {}))
    # After the GPUs were asked: what asking them loads counts among what is loaded.
    loaded = _safe("libraries", unknown, libraries.loaded, []) if with_torch else []
    set_here = _safe("variables", unknown, lambda: relevant(os.environ), {})
    return {
        "schema": ENVIRONMENT_SCHEMA,
        "kind": KIND,
        "host": socket.gethostname(),
        "node": os.environ.get(NODE_VARIABLE),
        "gpu_platform": _safe("gpu_platform", unknown, gpu_platform, None),
        "machine": _safe("machine", unknown, lambda: host(unknown), {}),
        "torch": told_torch,
        "device": _safe("device", unknown, device, {}) if with_torch else {},
        "settings": _safe("settings", unknown, switches, {}) if with_torch else {},
        "versions": _safe("versions", unknown, lambda: libraries.versions(loaded), {}) if with_torch else {},
        "libraries": [libraries.described(path, whole=whole_digests) for path in loaded],
        "packages": _safe("packages", unknown, packages, {}),
        "gpus": gpus,
        "network": _safe("network", unknown, lambda: network(unknown), {}),
        "variables": set_here,
        "variables_unset": sorted(catalogue().keys() - set_here.keys()),
        "configuration_files": _safe("configuration_files", unknown, configuration_files, {}),
        "now": {"captured": round(time.time(), 3), **_safe("now", unknown, _now, {}), "gpus": gpus_now},
        "not_known": dict(sorted(unknown.items())),
    }


def _safe(name: str, unknown: Unknown, ask: Callable[[], Any], otherwise: Any) -> Any:
    """What a question comes to; where it fails, in whatever way, that is said and the others are asked all the same."""
    try:
        return ask()
    except Exception as error:
        unknown[name] = f"{type(error).__name__}: {error}"
        return otherwise


def _now() -> dict[str, Any]:
    sizes = memory()
    shared = Path("/dev/shm")  # noqa: S108 - asked how large it is, nothing is written there
    return {
        "load": list(os.getloadavg()),
        "memory_available": sizes.get("MemAvailable"),
        "shared_memory_free": shutil.disk_usage(shared).free if shared.is_dir() else None,
    }
