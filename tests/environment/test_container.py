"""Signs of a container, and the limits of cgroups of both versions, on trees of files as the kernel lays them out."""

from __future__ import annotations

from pathlib import Path

import pytest

from detsweep.environment.container import limits, signs


def _tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "variables", "kind", "evidence"),
    [
        ({".dockerenv": ""}, {}, "docker", "/.dockerenv is there"),
        ({"run/.containerenv": "engine=podman"}, {}, "podman", "/run/.containerenv is there"),
        ({}, {"SINGULARITY_CONTAINER": "/x.sif"}, "singularity", "SINGULARITY_CONTAINER is set"),
        ({}, {"APPTAINER_CONTAINER": "/x.sif"}, "apptainer", "APPTAINER_CONTAINER is set"),
        ({".dockerenv": ""}, {"KUBERNETES_SERVICE_HOST": "x"}, "kubernetes", "KUBERNETES_SERVICE_HOST is set"),
        ({"proc/self/cgroup": "0::/kubepods/pod1/abc"}, {}, "kubernetes", "/proc/self/cgroup"),
        ({"proc/self/cgroup": "4:memory:/docker/0123"}, {}, "docker", "/proc/self/cgroup"),
        ({}, {"container": "lxc"}, "lxc", "the variable `container`"),
    ],
)
def test_a_container_is_told_by_its_signs(
    tmp_path: Path, files: dict[str, str], variables: dict[str, str], kind: str, evidence: str
) -> None:
    first = signs(_tree(tmp_path, files), variables)[0]
    assert (first.kind, first.evidence) == (kind, evidence)


def test_without_a_sign_there_is_none(tmp_path: Path) -> None:
    assert signs(_tree(tmp_path, {"proc/self/cgroup": "0::/user.slice"}), {"PATH": "/bin"}) == []


def test_of_version_2_the_tightest_limit_on_the_way_up_counts(tmp_path: Path) -> None:
    group = "sys/fs/cgroup"
    files = {
        "proc/self/cgroup": "0::/job/step",
        f"{group}/job/cpu.max": "150000 100000",
        f"{group}/job/memory.max": "1073741824",
        f"{group}/job/step/cpu.max": "max 100000",
        f"{group}/job/step/memory.max": "max",
        f"{group}/job/step/cpuset.cpus.effective": "4-7",
    }
    found = limits(_tree(tmp_path, files))
    assert (found.cpus, found.memory, found.cpuset) == (1.5, 1 << 30, "4-7")
    assert [name.rpartition("cgroup/")[2] for name in found.evidence] == [
        "job/cpu.max",
        "job/memory.max",
        "job/step/cpuset.cpus.effective",
    ]


def test_of_version_1_no_limit_is_a_huge_number_and_none_at_all(tmp_path: Path) -> None:
    group = "sys/fs/cgroup"
    files = {
        "proc/self/cgroup": "4:memory:/x\n2:cpu,cpuacct:/x\n9:name=systemd:/x",
        f"{group}/memory/x/memory.limit_in_bytes": "9223372036854771712",
        f"{group}/memory/memory.limit_in_bytes": "2147483648",
        f"{group}/cpu,cpuacct/x/cpu.cfs_quota_us": "-1",
        f"{group}/cpu,cpuacct/x/cpu.cfs_period_us": "100000",
    }
    found = limits(_tree(tmp_path, files))
    assert (found.cpus, found.memory, found.cpuset) == (None, 2147483648, None)


def test_in_a_container_the_path_of_the_host_leads_nowhere_and_the_mount_is_its_own(tmp_path: Path) -> None:
    files = {"proc/self/cgroup": "0::/../../outside/of/here", "sys/fs/cgroup/memory.max": "4096"}
    assert limits(_tree(tmp_path, files)).memory == 4096


def test_a_machine_without_cgroups_has_no_limits(tmp_path: Path) -> None:
    found = limits(tmp_path)
    assert (found.cpus, found.memory, found.cpuset, found.evidence) == (None, None, None, ())
