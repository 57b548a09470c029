"""AMD's GPUs, as amd-smi tells them, or the older rocm-smi."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from detsweep.environment.container import ROOT
from detsweep.environment.files import text
from detsweep.environment.host import Unknown
from detsweep.environment.tools import Ask, ask

TOOL, OLDER = "amd-smi", "rocm-smi"
# Where each fact is in what `amd-smi list`, `static` and `metric` print; releases have moved some.
PLACES: dict[str, tuple[str, ...]] = {
    "name": ("asic.market_name", "board.product_name"),
    "uuid": ("uuid",),
    "pci": ("bdf", "bus.bdf"),
    "serial": ("asic.asic_serial",),
    "board_serial": ("board.product_serial",),
    "driver": ("driver.version", "driver.driver_version"),
    "vbios": ("vbios.version", "ifwi.version"),
    "vbios_part": ("vbios.part_number", "ifwi.part_number"),
    "architecture": ("asic.target_graphics_version",),
    "compute_units": ("asic.num_compute_units",),
    "memory": ("vram.size",),
    "ecc": ("ras.ecc_block_state.UMC", "ras.ecc_block_state.umc"),
    "ecc_corrected": ("ecc.total_correctable_count",),
    "ecc_uncorrected": ("ecc.total_uncorrectable_count",),
    "ecc_deferred": ("ecc.total_deferred_count",),
    "power_limit": ("limit.socket_power", "limit.current_power", "limit.ppt0.socket_power_limit"),
    "power_limit_max": ("limit.max_power", "limit.ppt0.max_power_limit"),
    "compute_partition": ("partition.compute_partition", "partition.accelerator_partition"),
    "memory_partition": ("partition.memory_partition",),
    "clock_gfx": ("clock.gfx_0.clk", "clock.gfx.clk"),
    "clock_gfx_max": ("clock.gfx_0.max_clk", "clock.gfx.max_clk"),
    "clock_memory": ("clock.mem_0.clk", "clock.mem.clk"),
    "clock_memory_max": ("clock.mem_0.max_clk", "clock.mem.max_clk"),
    "temperature": ("temperature.hotspot", "temperature.edge"),
    "power": ("power.socket_power", "power.average_socket_power"),
    "throttled": ("throttle.throttle_status", "power.throttle_status"),
}
OLDER_NAMES: dict[str, tuple[str, ...]] = {
    "name": ("Card Series", "Card series", "Device Name"),
    "model": ("Card Model", "Card model"),
    "uuid": ("Unique ID",),
    "pci": ("PCI Bus",),
    "serial": ("Serial Number",),
    "vbios": ("VBIOS version",),
    "architecture": ("GFX Version",),
    "power_limit": ("Max Graphics Package Power (W)",),
    "clock_gfx": ("sclk clock speed:",),
    "clock_memory": ("mclk clock speed:",),
    "compute_partition": ("Compute Partition",),
    "memory_partition": ("Memory Partition",),
}
_NOT_THERE = ("", "N/A", "NA", "Not supported", "None", "unknown")


def gpus(unknown: Unknown, asking: Ask = ask) -> dict[str, dict[str, str]] | None:
    """The facts of each GPU by its number; None, and the reason in `unknown`, where no tool can tell."""
    newer = [asking([TOOL, part, "--json"]) for part in ("list", "static", "metric")]
    if any(answer.good for answer in newer):
        tables = []
        for part, answer in zip(("list", "static", "metric"), newer, strict=True):
            table = _parsed(answer.text) if answer.good else None
            if table is None:
                unknown[f"gpus.{part}"] = answer.why or f"{TOOL} {part}: no JSON"
            else:
                tables.append(table)
        if tables:
            return read(tables, unknown)
    flags = (
        "--showproductname", "--showuniqueid", "--showserial", "--showbus", "--showvbios", "--showdriverversion",
        "--showclocks", "--showmaxpower", "--showcomputepartition", "--showmemorypartition", "--json",
    )  # fmt: skip
    older = asking([OLDER, *flags])
    if older.good and (table := _parsed(older.text)) is not None:
        return read_older(table)
    unknown["gpus"] = f"{newer[1].why or f'{TOOL}: no JSON'}; {older.why or f'{OLDER}: no JSON'}"
    return None


def read(tables: list[Any], unknown: Unknown) -> dict[str, dict[str, str]]:
    """What the parts of amd-smi printed: each a list of GPUs, which newer releases keep under `gpu_data`."""
    told: dict[str, dict[str, Any]] = {}
    for table in tables:
        listed = table.get("gpu_data", []) if isinstance(table, Mapping) else table
        for one in listed if isinstance(listed, list) else []:
            if isinstance(one, Mapping) and "gpu" in one:
                told.setdefault(str(one["gpu"]), {}).update(one)
    found = {}
    for index, one in told.items():
        found[index] = dict(_facts(one))
        for name in PLACES.keys() - found[index].keys():
            unknown[f"gpus.{index}.{name}"] = f"{TOOL} does not say"
    return found


def _facts(one: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, places in PLACES.items():
        for place in places:
            if (value := _shown(_at(one, place))) is not None:
                yield name, value
                break


def read_older(table: Any) -> dict[str, dict[str, str]]:
    """What rocm-smi printed: a mapping for each card, and one for the system with the driver's version."""
    if not isinstance(table, Mapping):
        return {}
    system = table.get("system")
    driver = _shown(system.get("Driver version")) if isinstance(system, Mapping) else None
    found = {}
    for card, said in table.items():
        if not card.startswith("card") or not isinstance(said, Mapping):
            continue
        pairs = {
            name: next((v for key in keys if (v := _shown(said.get(key)))), None) for name, keys in OLDER_NAMES.items()
        }
        facts = {name: value for name, value in {**pairs, "driver": driver}.items() if value is not None}
        found[card.removeprefix("card")] = facts
    return found


def _parsed(printed: str) -> Any:
    """The JSON that a tool printed; tools of some releases print warnings before it."""
    starts = [place for sign in "[{" if (place := printed.find(sign)) >= 0]
    try:
        return json.loads(printed[min(starts) :]) if starts else None
    except ValueError:
        return None


def _at(one: Any, place: str) -> Any:
    for key in place.split("."):
        one = one.get(key) if isinstance(one, Mapping) else None
    return one


def _shown(value: Any) -> str | None:
    """A value with its unit, as `{"value": 750, "unit": "W"}` has it; None where the tool says that it has none."""
    if isinstance(value, Mapping):
        amount = _shown(value.get("value"))
        return None if amount is None else f"{amount} {value.get('unit', '')}".strip()
    if value is None or isinstance(value, list) or str(value).strip() in _NOT_THERE:
        return None
    return str(value).strip()


def kernel_module(root: Path = ROOT) -> str | None:
    """The version of the driver as its kernel module tells it; the kernel's own has none."""
    return text(root / "sys/module/amdgpu/version")
