"""What the ranks of a trial ran on, as far as it decides bits: only places that have it in common are compared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from detsweep.analysis.cells import world_size
from detsweep.analysis.rows import Cell
from detsweep.paths import FileError, TrialPaths, read_json

UNKNOWN = "hardware not known"


@dataclass(frozen=True)
class Hardware:
    """Device, torch, kernels and libraries of all ranks of a trial, each by its name."""

    facts: tuple[tuple[str, str], ...]

    @property
    def device(self) -> str:
        return dict(self.facts)["device"]


def hardware(trial: TrialPaths, cell: Cell) -> Hardware | None:
    """What a trial's ranks recorded; None where any of them has left nothing that can be read."""
    found: dict[str, dict[str, None]] = {}
    for rank in range(world_size(cell["config"])):
        try:
            environment = read_json(trial.environment(rank))
        except FileError:
            return None
        for name, value in _facts(environment):
            found.setdefault(name, {})[value] = None
    # Ranks of one node may have several: then the places that are compared have them all.
    return Hardware(tuple((name, " and ".join(sorted(values))) for name, values in sorted(found.items())))


def names(kinds: Sequence[Hardware | None]) -> dict[Hardware | None, str]:
    """Each kind in words: its device, and whatever else tells it from the others."""
    known = [dict(kind.facts) for kind in kinds if kind is not None]
    telling = [fact for fact in _all_facts(known) if len({one.get(fact) for one in known}) > 1 and fact != "device"]
    said: dict[Hardware | None, str] = {}
    for kind in kinds:
        facts = {} if kind is None else dict(kind.facts)
        also = [f"{fact} {facts[fact]}" for fact in telling if fact in facts]
        said[kind] = UNKNOWN if kind is None else ", ".join([kind.device, *also])
    return said


def _all_facts(known: Iterable[Mapping[str, str]]) -> list[str]:
    return list(dict.fromkeys(fact for one in known for fact in one))


def _facts(environment: Mapping[str, object]) -> Iterable[tuple[str, str]]:
    device, settings, versions = (environment.get(key) for key in ("device", "settings", "versions"))
    told = device if isinstance(device, Mapping) else {}
    yield "device", str(told.get("name") or told.get("type"))
    for name, key in (("torch", "torch"), ("CUDA", "torch_cuda"), ("HIP", "torch_hip")):
        if environment.get(key):
            yield name, str(environment[key])
    if isinstance(settings, Mapping) and settings.get("cpu_capability"):
        yield "CPU kernels", str(settings["cpu_capability"])
    if isinstance(versions, Mapping):
        yield from ((str(name), str(value)) for name, value in versions.items())
