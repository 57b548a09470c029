"""The points of a sweep, as Hydra composes them: each is Hydra's own composition, or proven to be equal to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.core.object_type import ObjectType
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from detsweep.template import Resolved, Template, Words, resolve

SILENT = {"version": 1, "root": {"level": "ERROR"}, "disable_existing_loggers": True}


class BeyondComposingError(Exception):
    """In this sweep Hydra does more for a point than compose it."""


@dataclass(frozen=True)
class Own:
    """What is used of Hydra's own part of a configuration."""

    choices: Mapping[str, Any]
    multirun: bool
    sweep_dir: str
    run_dir: str
    folders: tuple[Path, ...]


@dataclass(frozen=True)
class Point:
    """One point: its overrides, its resolved configuration or the error in its place, and Hydra's part of it."""

    overrides: Sequence[str]
    config: Resolved
    own: Own


def point_of(config: DictConfig, own: Any) -> Point:
    """The point of a configuration without Hydra's part, and that part, as a task function gets them from Hydra."""
    return Point(list(own.overrides.task), resolve(config), _own(own))


def compose_all(batch: Sequence[Sequence[str]], master: DictConfig, loader: ConfigLoader) -> list[Point]:
    """The points of a sweep, each given as its overrides; `master` is what Hydra composed for the sweep as a whole.

    Raises what Hydra would have raised for the first point that cannot be composed, and BeyondComposingError.
    """
    words = Words(_groups(master, loader))
    # All that share a composition one after the other: it is large, and need not be kept for later.
    together: dict[tuple[str, ...] | None, list[int]] = {}
    for place, overrides in enumerate(batch):
        together.setdefault(words.shared(overrides), []).append(place)
    found: dict[int, Point] = {}
    failed: dict[int, Exception] = {}
    for shared, places in together.items():
        composing = _Composing(shared, words, master, loader)
        for place in places:
            if failed and place > min(failed):
                break
            try:
                found[place] = composing.point(batch[place])
            except BeyondComposingError:
                raise
            except Exception as error:
                failed[place] = error
    if failed:
        raise failed[min(failed)]
    return [found[place] for place in range(len(batch))]


class _Composing:
    """The points that have `shared` of their words alike; None where nothing is known of them."""

    def __init__(
        self,
        shared: Sequence[str] | None,
        words: Words,
        master: DictConfig,
        loader: ConfigLoader,
    ) -> None:
        self._shared = shared
        self._words = words
        self._master = master
        self._loader = loader
        self._template: tuple[Template, Own] | None = None

    def point(self, overrides: Sequence[str]) -> Point:
        """The point of these overrides. Raises what Hydra raises where there is none."""
        if self._shared is not None:
            try:
                return self._from_template(self._shared, overrides)
            except BeyondComposingError:
                raise
            except Exception:
                # Whatever it was: Hydra says it, or gives the point.
                if self._template is None:
                    self._shared = None
        config, own = self._load(overrides)
        return Point(overrides, resolve(config), own)

    def _from_template(self, shared: Sequence[str], overrides: Sequence[str]) -> Point:
        words = self._words
        if self._template is None:
            config, own = self._load(words.of_kind(shared, "group"))
            self._template = Template(config, [words.parsed(word) for word in words.of_kind(shared, "else")]), own
        template, own = self._template
        values = [words.parsed(word) for word in words.of_kind(overrides, "value")]
        return Point(overrides, template.resolved(values, self._master), own)

    def _load(self, overrides: Sequence[str]) -> tuple[DictConfig, Own]:
        config = self._loader.load_sweep_config(self._master, list(overrides))
        if not _only_composed(config.hydra):
            raise BeyondComposingError
        own = _own(config.hydra)
        # As in what a task function gets.
        with read_write(config), open_dict(config):
            del config["hydra"]
        return config, own


def _groups(master: DictConfig, loader: ConfigLoader) -> frozenset[str]:
    """The groups that the command line can choose from by a key without a slash."""
    hydras = OmegaConf.to_container(master.hydra.overrides.hydra)
    assert isinstance(hydras, list)
    name = master.hydra.job.config_name
    return frozenset(loader.get_group_options("", ObjectType.GROUP, config_name=name, overrides=hydras))


def _own(own: Any) -> Own:
    folders = tuple(Path(source.path) for source in own.runtime.config_sources if source.schema == "file")
    return Own(dict(own.runtime.choices), own.mode == RunMode.MULTIRUN, own.sweep.dir, own.run.dir, folders)


def _only_composed(own: Any) -> bool:
    """Whether Hydra does nothing for a point beside composing it that could fail, or be seen later."""
    raw = OmegaConf.to_container(own, resolve=False)
    assert isinstance(raw, dict)
    try:
        dirs = [raw["sweep"]["dir"], raw["run"]["dir"]]
        quiet = (raw["sweep"]["subdir"], raw["output_subdir"], raw["job_logging"]) == (".", None, SILENT)
    except (KeyError, TypeError):
        # The command line can delete them.
        return False
    return quiet and all(folder == "${detsweep.scratch:}" or "$" not in str(folder) for folder in dirs)
