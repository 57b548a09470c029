"""nvidia-smi's answers. Samples written from its documentation (`nvidia-smi --help-query-gpu`), not recorded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from detsweep.environment import nvidia
from detsweep.environment.tools import Answer

ROW = {
    "index": "0",
    "name": "NVIDIA H100 80GB HBM3",
    "uuid": "GPU-11111111-2222-3333-4444-555555555555",
    "pci.bus_id": "00000000:1B:00.0",
    "serial": "1320000000000",
    "driver_version": "550.54.15",
    "vbios_version": "96.00.74.00.01",
    "inforom.img": "G520.0200.00.05",
    "compute_cap": "9.0",
    "memory.total": "81559 MiB",
    "ecc.mode.current": "Enabled",
    "ecc.mode.pending": "Enabled",
    "ecc.errors.corrected.aggregate.total": "3",
    "ecc.errors.uncorrected.aggregate.total": "0",
    "ecc.errors.corrected.volatile.total": "0",
    "ecc.errors.uncorrected.volatile.total": "0",
    "clocks.max.sm": "1980 MHz",
    "clocks.max.memory": "2619 MHz",
    "power.limit": "700.00 W",
    "power.default_limit": "700.00 W",
    "persistence_mode": "Enabled",
    "compute_mode": "Default",
    "mig.mode.current": "Disabled",
    "clocks.current.sm": "345 MHz",
    "clocks.current.memory": "2619 MHz",
    "temperature.gpu": "31",
    "power.draw": "71.42 W",
    "clocks_event_reasons.active": "0x0000000000000001",
}


class Tool:
    """An nvidia-smi that knows some fields, and answers for some GPUs."""

    def __init__(self, rows: Sequence[dict[str, str]]) -> None:
        self.rows = rows
        self.asked = 0

    def __call__(self, command: Sequence[str]) -> Answer:
        self.asked += 1
        assert command[0] == "nvidia-smi"
        fields = command[1].partition("=")[2].split(",")
        for field in fields:
            if field not in self.rows[0]:
                said = f'Field "{field}" is not a valid field to query.'
                return Answer(said + "\n", 2, f"nvidia-smi: {said}")
        return Answer("\n".join(", ".join(row[field] for field in fields) for row in self.rows) + "\n", 0)


def test_the_facts_of_each_gpu() -> None:
    unknown: dict[str, str] = {}
    found = nvidia.gpus(
        unknown, Tool([ROW, {**ROW, "index": "1", "clocks_event_reasons.active": "0x0000000000000060"}])
    )
    assert found is not None
    assert list(found) == ["0", "1"]
    assert found["0"]["name"] == "NVIDIA H100 80GB HBM3"
    assert found["0"]["uuid"] == ROW["uuid"]
    assert found["0"]["driver"] == "550.54.15"
    assert found["0"]["ecc_corrected"] == "3"
    assert found["0"]["clock_sm_max"] == "1980 MHz"
    assert (found["0"]["throttled"], found["1"]["throttled"]) == (
        "idle",
        "software thermal slowdown, hardware thermal slowdown",
    )
    assert unknown == {}


def test_a_field_of_newer_drivers_is_asked_for_by_its_older_name() -> None:
    older = {key: value for key, value in ROW.items() if not key.startswith("clocks_event")}
    tool = Tool([{**older, "clocks_throttle_reasons.active": "0x0000000000000000"}])
    unknown: dict[str, str] = {}
    found = nvidia.gpus(unknown, tool)
    assert found is not None
    assert found["0"]["throttled"] == "nothing"
    assert (unknown, tool.asked) == ({}, 2)


def test_a_field_that_no_name_finds_costs_that_field_alone() -> None:
    unknown: dict[str, str] = {}
    found = nvidia.gpus(unknown, Tool([{key: value for key, value in ROW.items() if key != "inforom.img"}]))
    assert found is not None
    assert len(found["0"]) == len(nvidia.FIELDS) - 2
    assert unknown == {"gpus.inforom": "this nvidia-smi has no field inforom.img"}


@pytest.mark.parametrize("said", ["[N/A]", "N/A", "[Not Supported]", "[Insufficient Permissions]", "[Unknown Error]"])
def test_what_the_tool_does_not_know_is_not_known(said: str) -> None:
    unknown: dict[str, str] = {}
    found = nvidia.gpus(unknown, Tool([{**ROW, "ecc.mode.current": said}]))
    assert found is not None
    assert "ecc" not in found["0"]
    assert unknown == {"gpus.0.ecc": f"nvidia-smi: {said.strip('[]')}"}


@pytest.mark.parametrize(
    "why", ["nvidia-smi is not on PATH", "nvidia-smi: Failed to initialize NVML: Driver/library version mismatch"]
)
def test_why_there_is_nothing_is_said(why: str) -> None:
    unknown: dict[str, str] = {}
    assert nvidia.gpus(unknown, lambda _: Answer("", None, why)) is None
    assert unknown == {"gpus": why}


def test_a_line_with_another_number_of_fields_is_not_taken_apart() -> None:
    unknown: dict[str, str] = {}
    assert nvidia.read("0, A GPU\n1\n", ["index", "name"], unknown) == {"0": {"name": "A GPU"}}
    assert unknown == {"gpus": "nvidia-smi printed 1 fields where 2 were asked for"}


@pytest.mark.parametrize(
    ("bits", "words"),
    [("0x0", "nothing"), ("0x8000000000000004", "software power cap, 0x8000000000000000"), ("?", "?")],
)
def test_bits_that_have_no_name_stay_bits(bits: str, words: str) -> None:
    assert nvidia.reasons(bits) == words


def test_the_kernel_module_tells_the_driver_without_the_tool(tmp_path: Path) -> None:
    file = tmp_path / "proc/driver/nvidia/version"
    file.parent.mkdir(parents=True)
    file.write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.15  Release Build  (x@y)\nGCC version: 12\n"
    )
    assert nvidia.kernel_module(tmp_path) == "550.54.15"
    assert nvidia.kernel_module(tmp_path / "elsewhere") is None
