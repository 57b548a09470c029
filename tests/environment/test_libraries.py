"""The numerical libraries of a process: those that are really loaded, and the versions that they tell themselves."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from detsweep.environment.libraries import DIGEST_LIMIT, described, loaded, versions

pytestmark = pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="the kernel does not tell what is loaded")
CC = shutil.which("cc")
PROPERTY = """
int cublasGetProperty(int type, int *value) { *value = type == 0 ? 12 : type == 1 ? 4 : 5; return 0; }
int cublasLtGetProperty(int type, int *value) { *value = 12; return type == 2 ? 7 : 0; }
"""
LOAD = """
import ctypes, json, sys
from detsweep.environment.libraries import loaded, versions
before = loaded()
handles = [ctypes.CDLL(path) for path in sys.argv[1:]]
now = loaded()
print(json.dumps({"new": sorted(set(now) - set(before)), "versions": versions(now), "before": versions(before)}))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder, with a space in its name, of libraries that go by the names of NVIDIA's."""
    if CC is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("a folder")
    (folder / "a.c").write_text(PROPERTY)
    for name in ("libcublas.so.12", "libcublasLt.so.12", "libnccl.so.2", "libother.so.1"):
        subprocess.run([CC, "-shared", "-fPIC", "-o", folder / name, folder / "a.c"], check=True)
    return folder


@pytest.fixture(scope="module")
def process(folder: Path) -> Any:
    """What a process says that has loaded them all."""
    paths = [str(path) for path in sorted(folder.glob("*.so*"))]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-c", LOAD, *paths], env=variables, capture_output=True, text=True, check=True, timeout=60
    )
    return json.loads(done.stdout)


def test_torchs_own_libraries_are_among_the_loaded_ones_once_each() -> None:
    paths = loaded()
    assert paths == sorted(set(paths))
    assert {"libtorch_cpu.so", "libc10.so"} <= {Path(path).name for path in paths}
    assert all(Path(path).is_absolute() for path in paths)


def test_what_a_process_loads_later_is_there_too_and_what_is_not_numerical_is_not(process: Any, folder: Path) -> None:
    assert process["new"] == [str(folder / name) for name in ("libcublas.so.12", "libcublasLt.so.12", "libnccl.so.2")]


def test_a_library_of_nvidia_is_asked_itself(process: Any) -> None:
    assert process["versions"]["cublas"] == "12.4.5"


def test_one_that_does_not_answer_has_no_version(process: Any) -> None:
    assert "cublaslt" not in process["versions"]


def test_one_that_is_not_loaded_has_no_version_either(process: Any) -> None:
    assert not {"cublas", "cublaslt"} & process["before"].keys()


def test_what_torch_was_built_with_is_told_by_torch() -> None:
    described = torch.__config__.show()
    own = versions([])
    for name, words in (("mkl", "Math Kernel Library Version {}"), ("onednn", "MKL-DNN v{}"), ("openmp", "OpenMP {}")):
        assert name not in own or words.format(own[name]) in described
    assert ("onednn" in own) == ("MKL-DNN v" in described)
    assert ("mkl" in own) == ("Math Kernel Library Version" in described)
    assert all(re.fullmatch(r"[\w.]+", version) for version in own.values())


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (
            ("librocblas.so.4.4.60401", "libhipblas.so.2", "libhipblaslt.so.0.12"),
            {"rocblas": "4.4.60401", "hipblas": "2", "hipblaslt": "0.12"},
        ),
        (("librocblas.so",), {}),
    ],
    ids=["named", "unnamed"],
)
def test_what_tells_its_version_to_nobody_may_have_it_in_the_name_of_its_file(
    tmp_path: Path, files: tuple[str, ...], expected: dict[str, str]
) -> None:
    for file in files:
        (tmp_path / file).touch()
    found = versions([str(tmp_path / file) for file in files])
    assert {name: version for name, version in found.items() if name in ("rocblas", "hipblas", "hipblaslt")} == expected


def test_a_link_without_a_version_leads_to_the_file_that_has_one(tmp_path: Path) -> None:
    (tmp_path / "librocblas.so.4.4").touch()
    (tmp_path / "librocblas.so").symlink_to("librocblas.so.4.4")
    assert versions([str(tmp_path / "librocblas.so")])["rocblas"] == "4.4"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_there_is_nothing_of_its_libraries() -> None:
    assert versions(loaded()).keys() <= {"mkl", "onednn", "openmp"}


def test_a_library_is_described_by_its_build_and_its_bytes(folder: Path) -> None:
    path = folder / "libcublas.so.12"
    built = folder / "with-an-id.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-Wl,--build-id=0x0123abcd", "-o", built, folder / "a.c"], check=True)
    assert described(str(built))["build_id"] == "0123abcd"
    told = described(str(path))
    assert told["size"] == path.stat().st_size
    assert told["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_digest_of_a_large_one_is_taken_only_when_asked_for(tmp_path: Path) -> None:
    large = tmp_path / "liblarge.so"
    with large.open("wb") as stream:
        stream.truncate(DIGEST_LIMIT + 1)
    assert "sha256" not in described(str(large))
    assert len(described(str(large), whole=True)["sha256"]) == 64


@pytest.mark.parametrize("content", [b"", b"\x7fELF\x02", b"no library", b"\x7fELF\x02\x01" + b"\xff" * 200])
def test_what_is_no_library_has_no_build_id(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.so").write_bytes(content)
    assert described(str(tmp_path / "x.so"))["build_id"] is None


def test_one_that_is_gone_by_now_is_said_to_be(tmp_path: Path) -> None:
    path = str(tmp_path / "libgone.so")
    assert described(path) == {"path": path, "unreadable": "No such file or directory"}
