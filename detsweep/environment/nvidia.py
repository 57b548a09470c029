"""NVIDIA's GPUs, as nvidia-smi tells them."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from pathlib import Path

from detsweep.environment.container import ROOT
from detsweep.environment.files import text
from detsweep.environment.host import Unknown
from detsweep.environment.tools import Ask, ask

TOOL = "nvidia-smi"
FIELDS: dict[str, tuple[str, ...]] = {
    "index": ("index",),
    "name": ("name",),
    "uuid": ("uuid",),
    "pci": ("pci.bus_id",),
    "serial": ("serial",),
    "driver": ("driver_version",),
    "vbios": ("vbios_version",),
    "inforom": ("inforom.img",),
    "compute_capability": ("compute_cap",),
    "memory": ("memory.total",),
    "ecc": ("ecc.mode.current",),
    "ecc_pending": ("ecc.mode.pending",),
    "ecc_corrected": ("ecc.errors.corrected.aggregate.total",),
    "ecc_uncorrected": ("ecc.errors.uncorrected.aggregate.total",),
    "ecc_corrected_since_boot": ("ecc.errors.corrected.volatile.total",),
    "ecc_uncorrected_since_boot": ("ecc.errors.uncorrected.volatile.total",),
    "clock_sm_max": ("clocks.max.sm",),
    "clock_memory_max": ("clocks.max.memory",),
    "power_limit": ("power.limit",),
    "power_limit_default": ("power.default_limit",),
    "persistence": ("persistence_mode",),
    "compute_mode": ("compute_mode",),
    "mig": ("mig.mode.current",),
    "clock_sm": ("clocks.current.sm", "clocks.sm"),
    "clock_memory": ("clocks.current.memory", "clocks.mem"),
    "temperature": ("temperature.gpu",),
    "power": ("power.draw",),
    "throttled": ("clocks_event_reasons.active", "clocks_throttle_reasons.active"),
}
"""Our name of each fact, and what nvidia-smi calls it: the names of newer drivers first."""
REASONS = {
    0x1: "idle",
    0x2: "application clocks",
    0x4: "software power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
    0x100: "display clocks",
}
"""Bits of NVML's clocks event reasons."""
_NOT_THERE = re.compile(r"\[?(N/A|Not Supported|Unknown Error|Insufficient Permissions|GPU requires reset)\]?")


def gpus(unknown: Unknown, asking: Ask = ask) -> dict[str, dict[str, str]] | None:
    """The facts of each GPU by its index; None, and the reason in `unknown`, where the tool cannot tell.

    A field that this driver's tool does not know spoils the whole question: it is left out, or asked for by its older
    name, and the rest is asked again.
    """
    names = dict.fromkeys(FIELDS, 0)
    while names:
        fields = {name: FIELDS[name][choice] for name, choice in names.items()}
        answer = asking([TOOL, f"--query-gpu={','.join(fields.values())}", "--format=csv,noheader"])
        if answer.good:
            return read(answer.text, list(fields), unknown)
        wrong = re.search(r'Field "([^"]+)" is not a valid field', answer.text + answer.why)
        name = next((name for name, field in fields.items() if wrong and field == wrong[1]), None)
        if name is None:
            unknown["gpus"] = answer.why or f"{TOOL}: failed"
            return None
        names[name] += 1
        if names[name] == len(FIELDS[name]):
            unknown[f"gpus.{name}"] = f"this {TOOL} has no field {fields[name]}"
            del names[name]
    return None


def read(table: str, names: Sequence[str], unknown: Unknown) -> dict[str, dict[str, str]]:
    """What nvidia-smi printed as CSV without a header, a line for each GPU with the facts `names` in their order."""
    found: dict[str, dict[str, str]] = {}
    for row in csv.reader(table.splitlines(), skipinitialspace=True):
        if not row:
            continue
        if len(row) != len(names):
            unknown["gpus"] = f"{TOOL} printed {len(row)} fields where {len(names)} were asked for"
            continue
        told = dict(zip(names, (value.strip() for value in row), strict=True))
        index = told.pop("index", str(len(found)))
        for name in [name for name, value in told.items() if _NOT_THERE.fullmatch(value)]:
            unknown[f"gpus.{index}.{name}"] = f"{TOOL}: {told.pop(name).strip('[]')}"
        if "throttled" in told:
            told["throttled"] = reasons(told["throttled"])
        found[index] = told
    return found


def reasons(bits: str) -> str:
    """What holds the clocks back, in words, from the hexadecimal number that nvidia-smi prints."""
    try:
        number = int(bits, 16)
    except ValueError:
        return bits
    known = [word for bit, word in REASONS.items() if number & bit]
    rest = number & ~sum(REASONS)
    return ", ".join([*known, *([f"{rest:#x}"] if rest else [])]) or "nothing"


def kernel_module(root: Path = ROOT) -> str | None:
    """The version of the driver, as its kernel module tells it, with or without nvidia-smi."""
    said = (text(root / "proc/driver/nvidia/version") or "").partition("\n")[0]
    found = re.search(r"\b(\d+\.\d+(?:\.\d+)?)\b", said)
    return found[1] if found else None
