"""The machine: what every rank says of it, and all that can be read."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

import pytest

from detsweep.environment import machine
from detsweep.environment.files import folders, number, ranges, text
from detsweep.environment.host import host
from detsweep.environment.machine import flags

CPUINFO = """processor\t: 0
model name\t: A CPU @ 2.0GHz
microcode\t: 0xd0003a5
flags\t\t: sse2 avx2 fpu

processor\t: 1
model name\t: Another CPU
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The files of a machine with two NUMA nodes and CPUs of two governors."""
    files = {
        "proc/cpuinfo": CPUINFO,
        "proc/meminfo": "MemTotal:       1024 kB\nSwapTotal:  2 kB\nHugePages_Total:  7\n",
        "proc/cmdline": "root=UUID=0123 iommu=pt isolcpus=1-3 amd_iommu=on secret=x processor.max_cstate=1",
        "proc/sys/kernel/numa_balancing": "1",
        "etc/os-release": 'NAME="X"\nPRETTY_NAME="A Linux 9"\n',
        "sys/devices/system/cpu/online": "0-3",
        "sys/devices/system/cpu/smt/control": "on",
        "sys/devices/system/cpu/cpufreq/policy0/scaling_governor": "performance",
        "sys/devices/system/cpu/cpufreq/policy0/scaling_driver": "acpi-cpufreq",
        "sys/devices/system/cpu/cpufreq/policy1/scaling_governor": "performance",
        "sys/devices/system/cpu/cpufreq/policy2/scaling_governor": "powersave",
        "sys/devices/system/node/node0/cpulist": "0-1",
        "sys/devices/system/node/node0/meminfo": "Node 0 MemTotal:       512 kB\nNode 0 MemFree: 1 kB",
        "sys/devices/system/node/node10/cpulist": "2-3",
        "sys/devices/system/node/node2/cpulist": "",
    }
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    return tmp_path


def test_the_machine_in_few_words(root: Path) -> None:
    said = machine(root, {})
    digest = hashlib.sha256(b"avx2 fpu sse2").hexdigest()[:16]
    assert said == {
        "kernel": os.uname().release,
        "os": "A Linux 9",
        "libc": said["libc"],
        "container": "no sign of one",
        "cpu": "A CPU @ 2.0GHz",
        "microcode": "0xd0003a5",
        "cpu_flags": digest,
        "memory": 1024 * 1024,
    }


def test_it_costs_a_rank_less_than_five_milliseconds() -> None:
    machine()
    times = []
    for _ in range(9):
        begun = time.perf_counter()
        machine()
        times.append(time.perf_counter() - begun)
    assert min(times) < 0.005


def test_arms_features_are_flags_too() -> None:
    assert flags({"Features": "fp asimd sve"}) == ["asimd", "fp", "sve"]


def test_all_that_can_be_read(root: Path) -> None:
    unknown: dict[str, str] = {}
    said = host(unknown, root, {"container": "podman"})
    assert said["container"] == "podman"
    assert said["container_signs"] == ["podman: the variable `container`"]
    assert said["cpus"]["governor"] == "performance (2), powersave (1)"
    assert said["cpus"]["frequency_driver"] == "acpi-cpufreq"
    assert said["cpus"]["smt"] == "on"
    assert list(said["numa"]) == ["balancing", "node0", "node2", "node10"]
    assert said["numa"]["node0"] == {"cpus": "0-1", "memory": 512 * 1024}
    assert said["swap"] == 2048
    assert unknown == {}


def test_of_the_kernels_command_line_only_what_schedules_and_reaches_devices_is_kept(root: Path) -> None:
    assert host({}, root, {})["kernel_parameters"] == [
        "iommu=pt", "isolcpus=1-3", "amd_iommu=on", "processor.max_cstate=1",
    ]  # fmt: skip


def test_what_is_not_there_is_said_with_the_reason(tmp_path: Path) -> None:
    unknown: dict[str, str] = {}
    said = host(unknown, tmp_path, {})
    assert "os" not in said
    assert set(unknown) == {
        "machine.os",
        "machine.cpus.flags",
        "machine.cpus.governor",
        "machine.cpus.smt",
        "machine.numa",
    }
    assert unknown["machine.os"] == "no /etc/os-release"


def test_this_machine() -> None:
    unknown: dict[str, str] = {}
    said = host(unknown)
    assert said["memory"] > 1 << 28
    assert len(said["cpus"]["flags"]) > 5 or "machine.cpus.flags" in unknown
    usable = said["cpus"]["usable"]
    assert usable == ranges(list(os.sched_getaffinity(0)))


@pytest.mark.parametrize(
    ("numbers", "words"), [([], ""), ([3], "3"), ([0, 1, 2, 5, 7, 8], "0-2, 5, 7-8"), ([2, 1, 1], "1-2")]
)
def test_numbers_in_a_row_are_a_range(numbers: list[int], words: str) -> None:
    assert ranges(numbers) == words


def test_what_cannot_be_read_is_none(tmp_path: Path) -> None:
    (tmp_path / "words").write_text("x")
    assert text(tmp_path) is None
    assert text(tmp_path / "nothing") is None
    assert number(tmp_path / "words") is None
    assert folders(tmp_path / "words") == []
