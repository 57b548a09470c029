"""`python -m detsweep.environment` on this machine, in processes of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from detsweep.environment import capture, devices
from detsweep.environment.listing import WIDTH, lines
from detsweep.environment.tools import Answer, ask
from detsweep.mitigations import catalogue


def _run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "detsweep.environment", *arguments],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The file that it wrote, and what it printed."""
    file = tmp_path_factory.mktemp("here") / "a" / "here.json"
    done = _run("-o", str(file), NCCL_ALGO="Ring", NCCL_NOBODY_KNOWS="1", UNRELATED="x")
    assert (done.returncode, done.stderr) == (0, "")
    return file, done.stdout


def test_what_it_wrote_is_of_this_machine_and_this_torch(here: tuple[Path, str]) -> None:
    told = json.loads(here[0].read_text())
    assert (told["kind"], told["schema"]) == ("environment", capture.ENVIRONMENT_SCHEMA)
    assert told["torch"]["torch"] == str(torch.__version__)
    assert told["torch"]["torch_git"] == torch.version.git_version
    assert told["torch"]["build_settings"]["TORCH_VERSION"] in str(torch.__version__)
    assert told["machine"]["kernel"] == os.uname().release
    assert told["packages"]["torch"] == str(torch.__version__)
    assert told["settings"]["deterministic_algorithms"] == "off"
    loaded = {Path(one["path"]).name: one for one in told["libraries"]}
    assert len(loaded["libtorch_cpu.so"]["build_id"]) == 40
    assert len(loaded["libc10.so"]["sha256"]) == 64


def test_variables_of_the_catalogue_are_set_or_unset_and_others_of_the_families_are_there(
    here: tuple[Path, str],
) -> None:
    told = json.loads(here[0].read_text())
    assert told["variables"]["NCCL_ALGO"] == "Ring"
    assert told["variables"]["NCCL_NOBODY_KNOWS"] == "1"
    assert "UNRELATED" not in told["variables"]
    assert set(told["variables_unset"]) == catalogue().keys() - told["variables"].keys()


def test_what_it_printed_has_every_section_and_what_is_not_known(here: tuple[Path, str]) -> None:
    told, printed = json.loads(here[0].read_text()), here[1]
    for title in ("machine", "torch and Python", "installed packages", "network cards", "not known"):
        assert f"\n{title}" in printed
    for name, why in told["not_known"].items():
        assert f"  {name}: {why}" in printed
    assert "  NCCL_ALGO " in printed
    assert max(len(line) for line in printed.splitlines() if "sha256" not in line and "/" not in line) <= WIDTH


def test_json_on_standard_output_is_what_a_file_would_have(here: tuple[Path, str]) -> None:
    told = json.loads(_run("--json", NCCL_ALGO="Ring", NCCL_NOBODY_KNOWS="1").stdout)
    assert told.keys() == json.loads(here[0].read_text()).keys()
    assert "\n".join(lines(told)).startswith("environment of ")


def test_two_environments_of_one_machine_differ_in_what_was_changed(here: tuple[Path, str], tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    assert _run("-o", str(other), NCCL_ALGO="Tree").returncode == 0
    done = _run("diff", str(here[0]), str(other))
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.splitlines() == [
        "variables: NCCL_ALGO: Ring -> Tree",
        "variables: NCCL_NOBODY_KNOWS: 1 -> not there",
    ]
    same = _run("diff", str(other), str(other))
    assert (same.returncode, same.stdout) == (0, "no difference\n")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("diff", "nowhere"), "detsweep: nowhere: no such file or folder"),
        (("--nonsense",), "detsweep: unrecognized arguments: --nonsense"),
        (("diff",), "detsweep: the following arguments are required: a"),
        (("-o", "/proc/nothing/here.json"), "detsweep: -o /proc/nothing/here.json: cannot be written"),
    ],
)
def test_wrong_input_is_one_line_and_code_2(arguments: tuple[str, ...], words: str) -> None:
    done = _run(*arguments)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith(words)


def test_one_environment_alone_is_not_compared_with_itself(here: tuple[Path, str]) -> None:
    done = _run("diff", str(here[0]))
    assert (done.returncode, done.stderr) == (
        2,
        f"detsweep: {here[0]}: is one environment; name a second one, or a trial's folder to compare its ranks\n",
    )


def test_a_question_that_fails_in_whatever_way_costs_its_section_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("out of order")

    for name in ("host", "network", "packages", "devices", "relevant", "switches"):
        monkeypatch.setattr(capture, name, fail)
    told = capture.environment()
    wrong = [name for name, why in told["not_known"].items() if why == "RuntimeError: out of order"]
    assert wrong == ["gpus", "machine", "network", "packages", "settings", "variables"]
    assert told["torch"]["torch"] == str(torch.__version__)
    assert told["variables_unset"] == sorted(catalogue())
    assert "\n".join(lines(told)).endswith("variables: RuntimeError: out of order")


def test_without_a_driver_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "gpu_platform", lambda: "cpu")
    monkeypatch.setenv("PATH", "")
    unknown: dict[str, str] = {}
    assert devices.devices(unknown) == ({}, {})
    assert unknown == {
        "gpus": "no GPU driver here (no /dev/nvidia*, no /dev/kfd); not on PATH: nvidia-smi, amd-smi, rocm-smi"
    }


def test_facts_of_the_moment_stand_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "gpu_platform", lambda: "nvidia")
    monkeypatch.setattr(devices.nvidia, "gpus", lambda *_: {"0": {"name": "A GPU", "temperature": "31"}})
    assert devices.devices({}) == ({"0": {"name": "A GPU"}}, {"0": {"temperature": "31"}})


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_where_neither_tool_nor_torch_sees_a_gpu_both_reasons_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "gpu_platform", lambda: "nvidia")
    unknown: dict[str, str] = {}
    assert devices.devices(unknown, lambda _: Answer("", None, "nvidia-smi is not on PATH")) == ({}, {})
    assert unknown == {"gpus": "nvidia-smi is not on PATH", "gpus.torch": "torch sees no GPU either"}


def test_a_tool_is_asked_and_what_goes_wrong_is_said() -> None:
    assert ask(["no-such-tool-here"]).why == "no-such-tool-here is not on PATH"
    failed = ask([sys.executable, "-c", "import sys; print('first\\nsecond', file=sys.stderr); sys.exit(3)"])
    assert (failed.code, failed.good, failed.why) == (3, False, f"{sys.executable}: first")
    assert ask([sys.executable, "-c", "print(1)"]) == Answer("1\n", 0)
