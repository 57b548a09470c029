"""What a cell asks for beyond its own settings: that others are in force too; and what of its settings is idle."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from detsweep import environment, mitigations
from detsweep.mitigations import Settings
from detsweep.validate import like

NOTHING = Settings({}, {})


def required(config: Mapping[str, Any], presets: Mapping[str, mitigations.Preset], platform: str) -> Settings:
    """What the presets that a cell requires ask for. Raises ValueError where they cannot all be in force."""
    wanted = mitigations.chosen(presets, config["require"], "require")
    for preset in wanted:
        if not preset.supports(platform) and not config["mitigation_force"]:
            reason = mitigations.unsupported_reason({preset.name: preset.raw()}, platform)
            raise ValueError(f"require={preset.name}: {reason}; mitigation_force=true requires it all the same")
    try:
        return mitigations.settings_of_all(wanted)
    except ValueError as error:
        raise ValueError(f"require={','.join(config['require'])}: {error}") from None


def notes(config: Mapping[str, Any]) -> Iterator[str]:
    """What of a cell's settings changes nothing, is not what the shell has, or is perhaps misspelt."""
    yield from mitigations.redundant(config["mitigation"], config["env"])
    wanted = mitigations.combine(config["mitigation"], config["env"]).env
    for name, value in environment.overruled(os.environ, wanted).items():
        sources = [f"mitigation {one!r}" for one, preset in config["mitigation"].items() if name in preset["env"]]
        asked = "unset" if wanted[name] is None else wanted[name]
        yield f"{name}={value} in this shell, {asked} by {' and '.join(sources) or 'env'}: trials get the latter"
    threads = environment.thread_variables(config["world"]["threads_per_rank"], wanted)
    for name, value in environment.overruled(os.environ, threads).items():
        if name not in wanted:
            yield f"{name}={value} in this shell: trials have world.threads_per_rank={threads[name]}"
    for name in config["env"]:
        known = mitigations.catalogue()
        if name not in known and environment.changes_numerics(name):
            yield f"env.{name}: not in the catalogue of variables{like(name, known)}"
