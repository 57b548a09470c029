"""Are the settings of a mitigation in force? For a trial, for any process, and for anyone's launcher."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from detsweep.mitigations.presets import chosen, load_presets, settings_of_all
from detsweep.mitigations.stack import Settings
from detsweep.paths import conf_dir


class NotInForceError(RuntimeError):
    """A setting that must hold does not; the message has a line for each."""


def missing(settings: Settings, variables: Mapping[str, str], switches: Mapping[str, Any] | None = None) -> list[str]:
    """What of the settings does not hold among these variables and switches of torch, a line each.

    `switches` None: they are not looked at.
    """
    lines = [
        f"{name} must be {'unset' if value is None else value}, is {variables.get(name, 'unset')}"
        for name, value in settings.env.items()
        if variables.get(name) != value
    ]
    if switches is None:
        return lines
    wrong = {name: value for name, value in settings.torch.items() if switches[name] != value}
    return [*lines, *(f"{name} must be {value}, is {switches[name]}" for name, value in wrong.items())]


def require(*names: str, config_dir: str | Path | None = None) -> None:
    """In a training process: raise NotInForceError unless every setting of these mitigations is in force.

    For use from any program, after it has set its switches; imports torch where a mitigation has any. `config_dir`:
    a folder with mitigation/*.yaml of your own.
    Raises ValueError for a name that does not exist, and where two mitigations contradict each other.
    """
    settings = settings_named(names, config_dir)
    switches = None
    if settings.torch:
        from detsweep.mitigations.torch_switches import read_back

        switches = read_back()
    if lines := missing(settings, os.environ, switches):
        raise NotInForceError("\n".join(f"{'+'.join(names)}: {line}" for line in lines))


def settings_named(names: Sequence[str], config_dir: str | Path | None = None) -> Settings:
    """What these presets ask for together. Raises ValueError as `require` does."""
    folders = [conf_dir(), *([Path(config_dir)] if config_dir is not None else [])]
    return settings_of_all(chosen(load_presets(folders), names, "mitigation"))
