"""Hydra's and OmegaConf's errors as one line that names the value and says what is valid."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hydra.errors import MissingConfigException

from detsweep.paths import conf_dir
from detsweep.validate import like, valid_keys

FOREIGN_PLUGIN = re.compile(r"^[+~]{0,2}(hydra/(?:launcher|sweeper))(?:@[^=]*)?=(.*)$")


def refuse(arguments: list[str]) -> str | None:
    """The line that refuses a Hydra launcher or sweeper other than the basic ones, or two folders; else None."""
    for argument in arguments:
        match = FOREIGN_PLUGIN.match(argument)
        if match and match[2] != "basic":
            return plugin_line(match[1], match[2])
    folders = [word for word in arguments if word.startswith(("folder=", "hydra.run.dir=", "hydra.sweep.dir="))]
    return f"{' '.join(folders)}: one folder only; use folder=PATH" if len(folders) > 1 else None


def plugin_line(group: str, option: str) -> str:
    """The line that refuses one Hydra plugin by its group and name."""
    if group == "hydra/sweeper":
        return f"{group}={option}: only basic; a sweep is planned whole before any cell runs"
    return f"{group}={option}: detsweep starts its cells itself; use launch=local launch.max_parallel=N"


def one_line(error: Exception) -> str:
    """One line for an error raised while Hydra composed a configuration."""
    text = f"{error}\n{error.__cause__ or ''}"
    if override := getattr(error, "override", None):
        return f"{override}: cannot be read; a value with special characters needs quotes of its own: key='\"value\"'"
    if match := re.search(r"mismatched input|no viable alternative|token recognition|extraneous input", text):
        return f"{match[0]} ({str(error).splitlines()[0]}); one override is key=value, without spaces around the comma"
    if "Config group override must be" in text:
        return f"a group needs the name of one of its options; groups: {', '.join(_groups())}"
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        return _missing_option(str(error.missing_cfg_file), error.options)
    if match := re.search(r"Could not load '([^']+)'", text):
        return _missing_option(match[1], None)
    if match := re.search(r"Ambiguous value for argument '([^']+)'", text):
        return f"{match[1]}: a sweep over several values needs -m (python -m detsweep -m ...)"
    if match := re.search(r"Could not override '([^']+)'|Key '([^']+)' not in", text):
        key = match[1] or _full_key(text) or match[2]
        if key.startswith("env."):
            return f"{key}: a variable is added to the cell's environment with +{key}=value"
        valid = valid_keys(key)
        hint = like(key.rpartition(".")[2], valid)
        return f"{key}: no such key{hint}" + (f"; valid: {', '.join(valid)}" if valid else "")
    if key := _full_key(text):
        return _wrong_value(key, text)
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return "; ".join(lines) or type(error).__name__


def _wrong_value(key: str, text: str) -> str:
    if match := re.search(r"Value '(.*)' of type '\w+' could not be converted to (\w+)", text):
        return f"{key}={match[1]}: must be {_article(match[2])}"
    if match := re.search(r"Value '(.*)' is not a valid bool", text):
        return f"{key}={match[1]}: must be true or false"
    if "is not a ListConfig" in text:
        return f"{key}: must be a list, as in {key}=[a,b]"
    if "is not Optional" in text:
        return f"{key}=null: must have a value"
    lines = [line.strip() for line in text.splitlines()]
    # OmegaConf says what is wrong on the line before the key's.
    return f"{key}: {lines[next(number for number, line in enumerate(lines) if line.startswith('full_key:')) - 1]}"


def _full_key(text: str) -> str | None:
    match = re.search(r"full_key: (\S+)", text)
    return match[1] if match else None


def _article(kind: str) -> str:
    return {"Integer": "a whole number", "Float": "a number"}.get(kind, kind)


def _missing_option(name: str, options: Sequence[str] | None) -> str:
    group, _, option = name.rpartition("/")
    known = options or sorted(path.stem for path in (conf_dir() / group).glob("*.yaml"))
    if not group or not known:
        return f"{name}: no such group; groups: {', '.join(_groups())}"
    return f"{group}={option}: no such option{like(option, known)}; valid: {', '.join(known)}"


def _groups() -> list[str]:
    return sorted(path.name for path in conf_dir().iterdir() if path.is_dir())
