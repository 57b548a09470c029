"""Fleets: cells that differ in nothing but their place, and the frame that says which places are not like the others.

The frame `Sweep.fleet` has a row for each place of each fleet, with these columns:

- `fleet`: what tells it from other fleets of the sweep; `hardware`, empty where no trial came so far as to record it;
  `node`, `gpu`, `cell`; `fault`, that was put in on purpose, or "none"
- `verdict`: `equal` or `odd` (other bits than the reference, though it repeats itself); `undecided` (places differ, and
  it cannot be told which is wrong); `alone` (no other place of its hardware to compare with); `diverged` (it does not
  repeat itself, within a trial or between trials); or that of its trials: `error`, `timeout`, `invalid`, `unsupported`
  (a node that takes no jobs), `none` (not reached yet)
- `reference`: the place it is held against, itself where that is missing; `by`: "majority" or "golden" (`against` names
  it), missing where neither is known; `differing_from` of the `compared` other places of its hardware; `records`, how
  many fingerprints it has
- `rank step run seq site block name phase kind`: where it first differs from the reference, or from itself
- `error`: why there is no verdict about its bits
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from detsweep.analysis.hardware import Hardware, names
from detsweep.analysis.places import Place, place_of
from detsweep.analysis.rows import Cell, Trials
from detsweep.analysis.screening import Screened, screen
from detsweep.baselines import has, value_of, wanted
from detsweep.plan import NOT_IDENTITY

FIRST_COLUMNS = ("rank", "step", "run", "seq", "site", "block", "name", "phase", "kind")
FLEET_COLUMNS = (
    "fleet", "hardware", "node", "gpu", "cell", "fault", "verdict", "reference", "by", "differing_from", "compared",
    "records", *FIRST_COLUMNS, "error",
)  # fmt: skip
FLEET_INTEGERS = ("gpu", "differing_from", "compared", "records", "rank", "step", "seq", "block")
PLACE_KEYS = ("world.node", "world.gpu")


@dataclass(frozen=True)
class Fleet:
    """Cells that differ in their place alone, or in a fault that was put in at one place."""

    cells: tuple[Cell, ...]
    typical: Cell
    """The cell that says what tells the fleet from others."""


def golden_place(against: str | None) -> bool:
    """Whether a baseline is a place that is known to be good, and nothing else."""
    return against is not None and set(wanted(against)) <= set(PLACE_KEYS)


def fleet_rows(cells: Sequence[Cell], found: Mapping[str, Trials], axes: Sequence[str]) -> Iterator[dict[str, Any]]:
    """A row for each place of each fleet among these cells."""
    fleets = fleets_of(cells)
    places = {cell["id"]: place_of(cell, found[cell["id"]]) for fleet in fleets for cell in fleet.cells}
    for fleet, label in zip(fleets, _labels(fleets, axes), strict=True):
        own = [places[cell["id"]] for cell in fleet.cells]
        screened = _screened(own)
        kinds = list(dict.fromkeys(place.hardware for place in own if _recorded(place)))
        named = names(kinds)
        for place in own:
            yield {"fleet": label, **_place(place, named), **_verdict(place, screened.get(place.cell["id"]))}


def fleets_of(cells: Sequence[Cell]) -> list[Fleet]:
    """The fleets among cells. Where faults were put in at places, each of them makes a fleet with the other places."""
    alike: dict[str, list[Cell]] = {}
    for cell in cells:
        if _position(cell) != (None, None):
            alike.setdefault(_but_for_place(cell["config"]), []).append(cell)
    return [fleet for group in alike.values() for fleet in _with_faults(group) if _is_fleet(fleet)]


def _with_faults(group: Sequence[Cell]) -> Iterator[Fleet]:
    sound = {_position(cell): cell for cell in group if not _own_fault(cell["config"])}
    faulty: dict[str, dict[tuple[Any, Any], Cell]] = {}
    for cell in group:
        if _own_fault(cell["config"]):
            fault = json.dumps(cell["config"]["fault"], sort_keys=True)
            faulty.setdefault(fault, {})[_position(cell)] = cell
    fleets = [sound] if all(place in sound for struck in faulty.values() for place in struck) else []
    order = list(dict.fromkeys(map(_position, group)))
    for own in [*fleets, *({**sound, **struck} for struck in faulty.values())]:
        cells = tuple(own[place] for place in order if place in own)
        yield Fleet(cells, next((cell for cell in cells if _own_fault(cell["config"])), cells[0]))


def _is_fleet(fleet: Fleet) -> bool:
    return len(fleet.cells) > 1 or fleet.typical["config"].get("fleet", "none") != "none"


def _position(cell: Cell) -> tuple[Any, Any]:
    world = cell["config"]["world"]
    return world.get("node"), world.get("gpu")


def _own_fault(config: Mapping[str, Any]) -> bool:
    """Whether a cell has a fault because of its place."""
    return config["fault"]["kind"] != "none" and config["fault"].get("node") is not None


def _but_for_place(config: Mapping[str, Any]) -> str:
    kept = {key: value for key, value in config.items() if key not in NOT_IDENTITY}
    kept["world"] = {key: value for key, value in config["world"].items() if f"world.{key}" not in PLACE_KEYS}
    if config["fault"]["kind"] == "none" or _own_fault(config):
        del kept["fault"]
    return json.dumps(kept, sort_keys=True, default=str)


def _labels(fleets: Sequence[Fleet], axes: Sequence[str]) -> list[str]:
    """What tells each fleet from the others, in the words of the command line."""
    telling = [axis for axis in axes if axis not in PLACE_KEYS]
    labels = []
    for fleet in fleets:
        config, overrides = fleet.typical["config"], fleet.typical["overrides"]
        words = [f"{axis}={value}" for axis in telling if (value := value_of(config, axis, overrides)) != ""]
        labels.append(" ".join(words) or str(config["model"]["name"]))
    times, seen = Counter(labels), Counter[str]()
    for number, label in enumerate(labels):
        # What no key of the command line says, such as a preset that was edited.
        seen[label] += 1
        labels[number] = f"{label} ({seen[label]})" if times[label] > 1 else label
    return labels


def _screened(places: Sequence[Place]) -> dict[str, Screened]:
    """How the places that have records stand among those of their hardware, by their cell."""
    kinds: dict[Hardware | None, list[Place]] = {}
    for place in places:
        if place.trial is not None:
            kinds.setdefault(place.hardware, []).append(place)
    golden = {place.cell["id"] for place in places if _golden(place)}
    return {one.place.cell["id"]: one for kind in kinds.values() for one in screen(kind, golden)}


def _golden(place: Place) -> bool:
    against = place.config.get("against")
    return golden_place(against) and has((place.config, place.cell["overrides"]), wanted(str(against)))


def _recorded(place: Place) -> bool:
    return place.trial is not None or place.hardware is not None


def _place(place: Place, named: Mapping[Hardware | None, str]) -> dict[str, Any]:
    world = place.config["world"]
    return {
        "hardware": named[place.hardware] if _recorded(place) else None,
        "node": world.get("node"),
        "gpu": world.get("gpu"),
        "cell": place.cell["id"],
        "fault": place.config["fault"]["kind"],
    }


def _verdict(place: Place, screened: Screened | None) -> dict[str, Any]:
    """What a place came to: other bits than the others' hide behind nothing, a match behind a trial that failed."""
    if screened is None:
        return {"verdict": place.verdict, "error": place.error, **_first(place.first)}
    settled = screened.verdict in ("odd", "undecided", "error") or place.verdict == "pass"
    return {
        "verdict": screened.verdict if settled else place.verdict,
        "error": screened.error or place.error,
        **{key: getattr(screened, key) for key in ("reference", "by", "differing_from", "compared", "records")},
        **_first(None if screened.first is None else screened.first.to_json()),
    }


def _first(first: Mapping[str, Any] | None) -> dict[str, Any]:
    return {} if first is None else {key: first[key] for key in FIRST_COLUMNS}
