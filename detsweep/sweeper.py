"""Makes the sweeper of plugins/hydra_plugins/detsweep.py the one that Hydra takes."""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from pathlib import Path

from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins


@dataclass
class SweeperConf:
    """The configuration of the sweeper in Hydra's own terms."""

    _target_: str = "hydra_plugins.detsweep.PointsSweeper"
    max_batch_size: int | None = None
    params: dict[str, str] | None = None


def register() -> None:
    """Make ours what Hydra takes for its sweeper `basic`; `hydra.sweeper._target_` can still name Hydra's."""
    # Hydra takes a sweeper from no other package than `hydra_plugins`, which may have parts in any folder of the path.
    folder = str(Path(__file__).parent / "plugins")
    if folder not in sys.path:
        sys.path.append(folder)
    ours = importlib.import_module("hydra_plugins.detsweep")
    # Hydra's own is stored while it looks for plugins, and would take the place of one that was stored before. It looks
    # once in a process.
    Plugins.instance().register(ours.PointsSweeper)
    ConfigStore.instance().store(group="hydra/sweeper", name="basic", node=SweeperConf, provider="detsweep")
