"""The answers of amd-smi and rocm-smi. Samples written from their documentation, not recorded."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from detsweep.environment import amd
from detsweep.environment.tools import Answer

LIST = [{"gpu": 0, "bdf": "0000:0c:00.0", "uuid": "8dff74a1-0000-1000-80ec-0123456789ab", "kfd_id": 1, "node_id": 2}]
STATIC = [
    {
        "gpu": 0,
        "asic": {
            "market_name": "AMD Instinct MI300X",
            "asic_serial": "0x0123456789ABCDEF",
            "oam_id": 1,
            "num_compute_units": 304,
            "target_graphics_version": "gfx942",
        },
        "bus": {"bdf": "0000:0c:00.0", "max_pcie_width": 16},
        "vbios": {"name": "AMD MI300X", "part_number": "113-M3000100-102", "version": "022.040.003.042.000001"},
        "limit": {"max_power": {"value": 750, "unit": "W"}, "socket_power": {"value": 700, "unit": "W"}},
        "driver": {"name": "amdgpu", "version": "6.8.5"},
        "board": {"model_number": "102-G30211-0C", "product_serial": "692000000000"},
        "ras": {"eeprom_version": "N/A", "ecc_block_state": {"UMC": "ENABLED", "SDMA": "ENABLED"}},
        "partition": {"compute_partition": "SPX", "memory_partition": "NPS1", "partition_id": 0},
        "vram": {"type": "HBM", "vendor": "N/A", "size": {"value": 196592, "unit": "MB"}},
    }
]
METRIC = [
    {
        "gpu": 0,
        "power": {"socket_power": {"value": 138, "unit": "W"}, "throttle_status": "UNTHROTTLED"},
        "clock": {
            "gfx_0": {"clk": {"value": 132, "unit": "MHz"}, "max_clk": {"value": 2100, "unit": "MHz"}},
            "mem_0": {"clk": {"value": 900, "unit": "MHz"}, "max_clk": {"value": 1300, "unit": "MHz"}},
        },
        "temperature": {"edge": "N/A", "hotspot": {"value": 40, "unit": "C"}},
        "ecc": {"total_correctable_count": 2, "total_uncorrectable_count": 0, "total_deferred_count": 0},
    }
]
ROCM_SMI = {
    "card0": {
        "Unique ID": "0x43cc000000000001",
        "Serial Number": "PCB000000-0001",
        "Card Series": "AMD Instinct MI210",
        "Card Model": "0x740f",
        "VBIOS version": "113-D67301-063",
        "PCI Bus": "0000:0C:00.0",
        "GFX Version": "gfx90a",
        "Max Graphics Package Power (W)": "300.0",
        "sclk clock speed:": "(800Mhz)",
    },
    "system": {"Driver version": "5.18.13"},
}


class Tools:
    """An amd-smi with these parts, and a rocm-smi; what is None is not there."""

    def __init__(self, parts: Mapping[str, Any], older: Any = None, before: str = "") -> None:
        self.parts, self.older, self.before = parts, older, before

    def __call__(self, command: Sequence[str]) -> Answer:
        said = self.parts.get(command[1]) if command[0] == "amd-smi" else self.older
        assert command[-1] == "--json"
        if said is None:
            return Answer("", None, f"{command[0]} is not on PATH")
        return Answer(self.before + (said if isinstance(said, str) else json.dumps(said, indent=4)), 0)


WHOLE = {"list": LIST, "static": STATIC, "metric": METRIC}


@pytest.mark.parametrize("wrapped", [False, True], ids=["a list", "gpu_data"])
def test_the_facts_of_each_gpu_come_from_three_questions(wrapped: bool) -> None:
    parts = {name: {"gpu_data": table} if wrapped else table for name, table in WHOLE.items()}
    unknown: dict[str, str] = {}
    found = amd.gpus(unknown, Tools(parts))
    assert found == {
        "0": {
            "name": "AMD Instinct MI300X",
            "uuid": "8dff74a1-0000-1000-80ec-0123456789ab",
            "pci": "0000:0c:00.0",
            "serial": "0x0123456789ABCDEF",
            "board_serial": "692000000000",
            "driver": "6.8.5",
            "vbios": "022.040.003.042.000001",
            "vbios_part": "113-M3000100-102",
            "architecture": "gfx942",
            "compute_units": "304",
            "memory": "196592 MB",
            "ecc": "ENABLED",
            "ecc_corrected": "2",
            "ecc_uncorrected": "0",
            "ecc_deferred": "0",
            "power_limit": "700 W",
            "power_limit_max": "750 W",
            "compute_partition": "SPX",
            "memory_partition": "NPS1",
            "clock_gfx": "132 MHz",
            "clock_gfx_max": "2100 MHz",
            "clock_memory": "900 MHz",
            "clock_memory_max": "1300 MHz",
            "temperature": "40 C",
            "power": "138 W",
            "throttled": "UNTHROTTLED",
        }
    }
    assert unknown == {}


def test_a_part_that_fails_costs_its_facts_and_is_named() -> None:
    unknown: dict[str, str] = {}
    found = amd.gpus(unknown, Tools({"static": STATIC, "metric": "no JSON at all"}))
    assert found is not None
    assert found["0"]["name"] == "AMD Instinct MI300X"
    assert unknown["gpus.list"] == "amd-smi is not on PATH"
    assert unknown["gpus.metric"] == "amd-smi metric: no JSON"
    assert unknown["gpus.0.uuid"] == "amd-smi does not say"


def test_warnings_before_the_json_are_passed_over() -> None:
    found = amd.gpus({}, Tools(WHOLE, before="WARNING: User is missing the following required groups: render\n"))
    assert found is not None
    assert found["0"]["driver"] == "6.8.5"


def test_where_only_the_older_tool_is_there_it_is_asked() -> None:
    unknown: dict[str, str] = {}
    assert amd.gpus(unknown, Tools({}, ROCM_SMI)) == {
        "0": {
            "name": "AMD Instinct MI210",
            "model": "0x740f",
            "uuid": "0x43cc000000000001",
            "pci": "0000:0C:00.0",
            "serial": "PCB000000-0001",
            "vbios": "113-D67301-063",
            "architecture": "gfx90a",
            "power_limit": "300.0",
            "clock_gfx": "(800Mhz)",
            "driver": "5.18.13",
        }
    }
    assert unknown == {}


def test_without_tools_both_are_named() -> None:
    unknown: dict[str, str] = {}
    assert amd.gpus(unknown, Tools({})) is None
    assert unknown == {"gpus": "amd-smi is not on PATH; rocm-smi is not on PATH"}
