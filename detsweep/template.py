"""One composition for all points of a sweep that differ in plain values alone.

Hydra applies values (`seed=1`) to what the groups (`dtype=fp16`) made, one after the other. So points of the same
groups share that much, and a value put in the place of another one leaves what it would have left at first. What is
not known to be so is refused here, and is for Hydra to compose.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

# What applies an override, errors included. Hydra has no public way to do this to a configuration that is there.
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, ValueNode
from omegaconf.errors import OmegaConfBaseException

PLAIN_KEY = re.compile(r"[A-Za-z_]\w*(\.\w+)*")
# All that such an interpolation depends on is below its first name; another one may look anywhere.
REFERENCE = re.compile(r"\$\{([A-Za-z_]\w*)(?:\.\w+)*\}|\$\{detsweep\.started:\}")


Resolved = Mapping[str, Any] | OmegaConfBaseException
"""A resolved configuration, or the error in its place."""


class UnprovenError(Exception):
    """Nobody knows that Hydra would make the same of this."""


class Words:
    """The overrides that points are made of, each parsed once, and what of a point others can share with it."""

    def __init__(self, groups: Collection[str]) -> None:
        self._groups = groups
        self._parser = OverridesParser.create()
        self._parsed: dict[str, Override] = {}
        self._kinds: dict[str, str] = {}
        self._apart: dict[tuple[tuple[str, str], ...], bool] = {}

    def shared(self, point: Sequence[str]) -> tuple[str, ...] | None:
        """What is left of a point without its plain values; None where they cannot be told from the rest."""
        try:
            kinds = [self._kind(word) for word in point]
        except (HydraException, UnprovenError):
            return None
        keys = tuple((word.partition("=")[0].lstrip("+~"), kind) for word, kind in zip(point, kinds, strict=True))
        if keys not in self._apart:
            self._apart[keys] = _apart(keys)
        if not self._apart[keys]:
            return None
        return tuple(word for word, kind in zip(point, kinds, strict=True) if kind != "value")

    def of_kind(self, point: Sequence[str], kind: str) -> list[str]:
        """Those of a point that choose from a `group`, put in a plain `value`, or do something `else` to the result."""
        return [word for word in point if self._kind(word) == kind]

    def parsed(self, word: str) -> Override:
        """An override as Hydra reads it."""
        if word not in self._parsed:
            self._parsed[word] = self._parser.parse_override(word)
        return self._parsed[word]

    def _kind(self, word: str) -> str:
        if word not in self._kinds:
            self._kinds[word] = self._kind_of(self.parsed(word))
        return self._kinds[word]

    def _kind_of(self, override: Override) -> str:
        key, value = override.key_or_group, override.value()
        if override.is_sweep_override() or key.split(".")[0].split("/")[0] == "hydra":
            raise UnprovenError
        # Hydra's own rule of what is a choice.
        if key in self._groups and not isinstance(value, dict):
            return "group"
        plain = override.get_key_element() == key and PLAIN_KEY.fullmatch(key)
        if "/" in key or override.package is not None:
            raise UnprovenError
        if plain and (value is None or isinstance(value, (bool, int, float)) or _is_plain(value)):
            return "value"
        return "else"


def _is_plain(value: object) -> bool:
    return isinstance(value, str) and "$" not in value and value != "???"


def _apart(keys: Sequence[tuple[str, str]]) -> bool:
    """Whether no plain value lies within what another override changes, so that their order is of no account."""
    changed = [f"{key}." for key, kind in keys if kind != "group"]
    values = [f"{key}." for key, kind in keys if kind == "value"]
    return all(sum(one.startswith(value) or value.startswith(one) for one in changed) == 1 for value in values)


class Template:
    """A composed configuration, without Hydra's own part, into which the plain values of one point after the other are
    put. Every point has values for the same keys.

    `others`: overrides that are no choices of groups and no plain values, the same for all points.
    """

    def __init__(self, config: DictConfig, others: Sequence[Override]) -> None:
        self._config = config
        self._values: dict[str, Any] = {}
        self._now: dict[str, str] = {}
        self._base: Mapping[str, Any] | None = None
        self._bound: dict[tuple[str, ...], Mapping[str, Any]] = {}
        for override in others:
            if override.is_add() or override.is_delete():
                # What Hydra does then depends on the value that is there.
                _path(config, override.key_or_group, interpolated=False)
            ConfigLoaderImpl._apply_overrides_to_config([override], config)

    def resolved(self, overrides: Sequence[Override], cache: DictConfig) -> Resolved:
        """The resolved configuration with these values; what several of them have alike is the same object.

        `cache`: the configuration from which Hydra gives every point what resolvers have found so far.
        Raises where a value cannot be put in: Hydra says then what is wrong with it.
        """
        for override in overrides:
            self._put(override)
        try:
            return self._from_parts(overrides)
        except (UnprovenError, OmegaConfBaseException):
            OmegaConf.copy_cache(from_config=cache, to_config=self._config)
            return resolve(self._config)

    def _from_parts(self, overrides: Sequence[Override]) -> Mapping[str, Any]:
        """What depends on nothing but itself is resolved once, the rest for all values that it depends on."""
        if self._base is None:
            self._begin()
        assert self._base is not None
        words = tuple(str(one.input_line) for one in overrides if one.key_or_group.split(".")[0] in self._sources)
        if words not in self._bound:
            self._bound[words] = {head: _resolved(self._config, head) for head in self._dependent}
        resolved = {**self._base, **self._bound[words]}
        for override in overrides:
            _replace(resolved, override.key_or_group, self._values[str(override.input_line)])
        return resolved

    def _put(self, override: Override) -> None:
        key, word = override.key_or_group, str(override.input_line)
        if self._now.get(key) == word:
            return
        if key not in self._now:
            *spine, leaf = _path(self._config, key, interpolated=True)
            if not isinstance(leaf, ValueNode) or any(OmegaConf.is_interpolation(node) for node in spine):
                raise UnprovenError
        self._now[key] = ""
        ConfigLoaderImpl._apply_overrides_to_config([override], self._config)
        self._now[key] = word
        if word not in self._values:
            self._values[word] = OmegaConf.select(self._config, key)

    def _begin(self) -> None:
        texts = {str(key): list(_texts(value)) for key, value in _container(self._config, resolve=False).items()}
        references = [text for found in texts.values() for text in found]
        if any("${" in REFERENCE.sub("", text) for text in references):
            raise UnprovenError
        self._sources = {match[1] for text in references for match in REFERENCE.finditer(text)}
        self._dependent = [key for key, found in texts.items() if found]
        self._base = {str(key): value for key, value in _container(self._config, resolve=True).items()}


def resolve(config: DictConfig) -> Resolved:
    """A configuration with its interpolations resolved, or the error that this raised."""
    try:
        return {str(key): value for key, value in _container(config, resolve=True).items()}
    except OmegaConfBaseException as error:
        # The frames that raised it would keep the configuration.
        return error.with_traceback(None)


def _container(config: DictConfig, *, resolve: bool) -> dict[Any, Any]:
    container = OmegaConf.to_container(config, resolve=resolve)
    assert isinstance(container, dict)
    return container


def _resolved(config: DictConfig, key: str) -> Any:
    value = config[key]
    return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value


def _path(config: DictConfig, key: str, *, interpolated: bool) -> list[Any]:
    """The nodes on the way to a key, as far as there are any, the last as it is written.

    Raises UnprovenError where the way leads over an interpolation, and unless `interpolated` where it ends at one.
    """
    nodes: list[Any] = [config]
    parts = key.split(".")
    for place, part in enumerate(parts):
        if not isinstance(nodes[-1], DictConfig) or nodes[-1]._is_none() or nodes[-1]._is_missing():
            return [*nodes, None]
        # The node itself: all public ways lead to what an interpolation stands for.
        nodes.append(nodes[-1]._get_node(part, validate_access=False))
        if nodes[-1] is not None and nodes[-1]._is_interpolation() and not (interpolated and place == len(parts) - 1):
            raise UnprovenError
    return nodes


def _texts(value: Any) -> Iterator[str]:
    """All texts with an interpolation in a container."""
    if isinstance(value, str) and "${" in value:
        yield value
    elif isinstance(value, (dict, list)):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _texts(one)


def _replace(config: dict[str, Any], key: str, value: Any) -> None:
    """Put a value under a dotted key, into copies of the dictionaries on the way to it."""
    *spine, last = key.split(".")
    node = config
    for part in spine:
        node[part] = dict(node[part])
        node = node[part]
    node[last] = value
