"""A cell beside its baseline: which that is, and how configuration and environment differ."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from detsweep.analysis.costs import without_mitigations
from detsweep.analysis.page.known import Known, mitigated
from detsweep.analysis.page.model import Field, Grid
from detsweep.baselines import value_of
from detsweep.environment import environment_differences
from detsweep.paths import FileError, TrialPaths, read_json
from detsweep.plan import NOT_IDENTITY

SHOWN = 60
LONGEST = 160


@dataclass(frozen=True)
class Baseline:
    """The cell that another one is held against, and why that one."""

    cell: str
    why: str


def baseline_of(known: Known, cell: str) -> Baseline | None:
    """The cell that `against` names, else the same without mitigations, else the sweep's first; None for itself."""
    configs = known.sweep.configs
    if cell in known.baselines:
        return Baseline(known.baselines[cell], f"against={configs[cell]['against']}")
    bare = known.bare.get(without_mitigations(configs[cell]))
    if bare is not None and mitigated(configs[cell]):
        return Baseline(bare, "the same cell without mitigations")
    first = next(one for one in known.cells if one in configs)
    return Baseline(first, "the sweep's first cell") if first != cell else None


def configuration_grid(before: Mapping[str, Any], after: Mapping[str, Any]) -> Grid | None:
    """The keys that tell two configurations apart, None where there is none; how a cell is launched tells nothing."""
    ours, theirs = dict(_told(before)), dict(_told(after))
    keys = [key for key in {**ours, **theirs} if ours.get(key) != theirs.get(key)]
    rows = [(key, ours.get(key), theirs.get(key)) for key in keys]
    if not rows:
        return None
    return _grid("Configuration: what differs from the baseline", ("key",), [((key,), a, b) for key, a, b in rows])


def environment_grid(before: TrialPaths, after: TrialPaths) -> tuple[Grid | None, str]:
    """How the environments of rank 0 of two trials differ, or a line that says that they do not, or cannot be read."""
    try:
        found = environment_differences(read_json(before.environment(0)), read_json(after.environment(0)))
    except FileError as error:
        return None, f"Environments cannot be compared: {error}"
    if not found:
        return None, "The environments of rank 0 are the same."
    rows = [((one.section, one.name), one.before, one.after) for one in found]
    return _grid("Environment of rank 0: what differs from the baseline", ("about", "name"), rows, heads=2), ""


def _grid(
    caption: str,
    keys: tuple[str, ...],
    rows: Sequence[tuple[tuple[str, ...], str | None, str | None]],
    *,
    heads: int = 1,
) -> Grid:
    shown = tuple(
        (*(Field(name) for name in names), Field(_said(before)), Field(_said(after)))
        for names, before, after in rows[:SHOWN]
    )
    note = f"{len(rows) - SHOWN} more are not shown." if len(rows) > SHOWN else ""
    return Grid(caption, (*keys, "baseline", "this cell"), shown, heads=heads, note=note)


def _said(value: str | None) -> str:
    if value is None:
        return "not there"
    return value if len(value) <= LONGEST else f"{value[:LONGEST]}... ({len(value)} characters)"


def _told(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Every key with its value; of mitigations their names and what they set, not what is said about them."""
    presets = config["mitigation"]
    yield "mitigation", str(value_of(config, "mitigation"))
    for name, preset in presets.items():
        settings = {kind: preset.get(kind) or None for kind in ("env", "torch")}
        yield from _flat({kind: one for kind, one in settings.items() if one}, f"mitigation.{name}.")
    yield from _flat({key: value for key, value in config.items() if key not in (*NOT_IDENTITY, "mitigation")})


def _flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value if isinstance(value, str) else json.dumps(value, sort_keys=True)
