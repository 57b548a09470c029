"""The sweeper that plans the cells: Hydra's basic one, which composes each point once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# Only by deriving from it does a sweeper read its arguments as Hydra's basic one does.
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig

from detsweep.composing import BeyondComposingError, Point, compose_all


class PointsSweeper(BasicSweeper):
    """Hydra's basic sweeper, except that a task function gets each point as a Point, when all have been composed.

    Hydra composes each twice, and copies each several times.
    """

    def setup(self, *, hydra_context: Any, task_function: Callable[[Any], Any], config: DictConfig) -> None:
        """Keep what Hydra has to say of the sweep."""
        super().setup(hydra_context=hydra_context, task_function=task_function, config=config)
        self._master, self._loader, self._take = config, hydra_context.config_loader, task_function

    def sweep(self, arguments: list[str]) -> Any:
        """Give the task function every point."""
        try:
            points = self._points(arguments)
        except BeyondComposingError:
            return super().sweep(arguments)
        for point in points:
            self._take(point)
        return []

    def _points(self, arguments: list[str]) -> list[Point]:
        if self.max_batch_size is not None or self._master.hydra.callbacks:
            raise BeyondComposingError
        parser = OverridesParser.create(config_loader=self._loader)
        (batch,) = self.split_arguments(parser.parse_overrides([*self._parse_config(), *arguments]), None)
        return compose_all(batch, self._master, self._loader)
