"""`fleet=nodes` and `fleet=gpus`: one cell becomes one for each node, or each GPU, that is to be screened."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from detsweep.nodes import Node

Point = tuple[Sequence[str], dict[str, Any], str | None]
"""A cell's overrides, its configuration, and why its place cannot run it."""


def spread(
    overrides: Sequence[str], config: dict[str, Any], nodes: Callable[[str | None], Sequence[Node]], *, gpus: int
) -> list[Point]:
    """A cell as it is asked for, or one for each place of the fleet.

    `nodes` lists those of a partition; `gpus` is how many GPUs this machine has, or each node gives.
    """
    if config["fleet"] == "none":
        return [(overrides, config, None)]
    launch = config["launch"]
    places: Sequence[Node | None] = nodes(launch["partition"]) if launch["name"] == "slurm" else [None]
    numbers = range(gpus) if config["fleet"] == "gpus" else [None]
    return [_placed(overrides, config, node, number) for node in places for number in numbers]


def struck(config: Mapping[str, Any]) -> bool:
    """Whether the node that a cell is pinned to can be one where its fault strikes."""
    node, pinned = config["fault"]["node"], config["world"]["node"]
    return node is None or pinned is None or node == pinned


def _placed(overrides: Sequence[str], config: Mapping[str, Any], node: Node | None, gpu: int | None) -> Point:
    named = [
        *([f"world.node={node.name}"] if node is not None else []),
        *([f"world.gpu={gpu}"] if gpu is not None else []),
    ]
    world = {**config["world"], "node": node.name if node else config["world"]["node"], "gpu": gpu}
    away = f"node {node.name} is {node.away}" if node is not None and node.away is not None else None
    return [*overrides, *named], {**config, "world": world}, away
