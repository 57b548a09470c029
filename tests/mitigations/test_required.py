"""Whether settings are in force: among given variables and switches, and in a process that really has torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from detsweep.mitigations import NotInForceError, Settings, catalogue, missing, require
from detsweep.mitigations.required import settings_named

MEGATRON = {"NCCL_ALGO": "Ring", "NVTE_ALLOW_NONDETERMINISTIC_ALGO": "0", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}


def _python(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run code in a process in which no variable of the catalogue is set but these."""
    clean = {name: value for name, value in os.environ.items() if name not in catalogue()}
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**clean, **variables},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_all_that_holds_is_no_line() -> None:
    settings = Settings({"A": "1", "B": None}, {"num_threads": 2})
    assert missing(settings, {"A": "1", "C": "x"}, {"num_threads": 2}) == []


def test_each_setting_that_does_not_hold_is_a_line() -> None:
    settings = Settings({"A": "1", "B": None, "C": "2", "D": "4"}, {"num_threads": 2, "cudnn_benchmark": False})
    assert missing(settings, {"B": "", "C": "3", "D": "4"}, {"num_threads": 4, "cudnn_benchmark": True}) == [
        "A must be 1, is unset",
        "B must be unset, is ",
        "C must be 2, is 3",
        "num_threads must be 2, is 4",
        "cudnn_benchmark must be False, is True",
    ]


def test_switches_that_nobody_read_are_not_looked_at() -> None:
    settings = Settings({"A": "1"}, {"num_threads": 2})
    assert missing(settings, {}) == ["A must be 1, is unset"]


def test_require_takes_any_variable_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NCCL_ALGO", raising=False)
    with pytest.raises(NotInForceError, match=r"^nccl_ring: NCCL_ALGO must be Ring, is unset$"):
        require("nccl_ring")
    monkeypatch.setenv("NCCL_ALGO", "Tree")
    with pytest.raises(NotInForceError, match=r"^nccl_ring: NCCL_ALGO must be Ring, is Tree$"):
        require("nccl_ring")
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    require("nccl_ring")
    require("nccl_ring", "none")


def test_require_takes_a_variable_that_must_be_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HIPBLASLT_TUNING_OVERRIDE_FILE", "some.txt")
    with pytest.raises(NotInForceError, match=r"HIPBLASLT_TUNING_OVERRIDE_FILE must be unset, is some.txt"):
        require("hipblaslt_no_override")
    monkeypatch.delenv("HIPBLASLT_TUNING_OVERRIDE_FILE")
    require("hipblaslt_no_override")


def test_every_setting_that_is_missing_has_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in MEGATRON:
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(NotInForceError) as caught:
        require("nccl_ring", "te_det", "cublas_ws")
    assert str(caught.value).splitlines() == [
        "nccl_ring+te_det+cublas_ws: NCCL_ALGO must be Ring, is unset",
        "nccl_ring+te_det+cublas_ws: NVTE_ALLOW_NONDETERMINISTIC_ALGO must be 0, is unset",
        "nccl_ring+te_det+cublas_ws: CUBLAS_WORKSPACE_CONFIG must be :4096:8, is unset",
    ]


def test_nothing_is_required_of_names_that_contradict_each_other() -> None:
    with pytest.raises(ValueError, match=r"strict \(mitigation 'torch_det'\) and warn \(mitigation 'torch_warn'\)"):
        require("torch_det", "torch_warn")


def test_an_unknown_name_is_no_failed_check() -> None:
    with pytest.raises(ValueError, match=r"^mitigation=megatorn: no such mitigation; did you mean megatron\?; valid: "):
        require("megatorn")
    assert not issubclass(NotInForceError, ValueError)


def test_presets_of_ones_own_can_be_required(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mitigation").mkdir()
    (tmp_path / "mitigation" / "mine.yaml").write_text("mine: {env: {OUR_FLAG: 7}, torch: {}}\n")
    monkeypatch.delenv("OUR_FLAG", raising=False)
    for folder in (tmp_path, str(tmp_path)):
        with pytest.raises(NotInForceError, match=r"^mine: OUR_FLAG must be 7, is unset$"):
            require("mine", config_dir=folder)
    monkeypatch.setenv("OUR_FLAG", "7")
    require("mine", config_dir=tmp_path)
    assert settings_named(["mine", "nccl_ring"], tmp_path) == Settings({"OUR_FLAG": "7", "NCCL_ALGO": "Ring"}, {})


TRAINING = """
import torch
from detsweep.mitigations import NotInForceError, require
torch.use_deterministic_algorithms({first}, warn_only={warn})
try:
    require("megatron")
except NotInForceError as error:
    print(error)
torch.use_deterministic_algorithms(True)
require("megatron")
print("in force")
"""


@pytest.mark.parametrize(("first", "warn", "state"), [(False, False, "off"), (True, True, "warn")])
def test_a_switch_is_read_back_from_torch_itself(first: bool, warn: bool, state: str) -> None:
    done = _python(TRAINING.format(first=first, warn=warn), **MEGATRON)
    assert done.stdout == f"megatron: deterministic_algorithms must be strict, is {state}\nin force\n"
    assert done.returncode == 0


def test_a_training_process_ends_with_a_line_for_each_setting() -> None:
    code = "import torch; from detsweep.mitigations import require; require('torchtitan'); print('trains')"
    done = _python(code, CUBLAS_WORKSPACE_CONFIG=":16:8")
    assert (done.returncode, done.stdout) == (1, "")
    assert [line for line in done.stderr.splitlines() if "torchtitan: " in line] == [
        "detsweep.mitigations.required.NotInForceError: torchtitan: CUBLAS_WORKSPACE_CONFIG must be :4096:8, is :16:8",
        "torchtitan: deterministic_algorithms must be strict, is off",
        "torchtitan: fill_uninitialized_memory must be False, is True",
        "torchtitan: cudnn_deterministic must be True, is False",
    ]


def test_variables_alone_need_no_torch() -> None:
    code = "import sys; from detsweep.mitigations import require; require('nccl_ring'); print('torch' in sys.modules)"
    done = _python(code, NCCL_ALGO="Ring")
    assert (done.returncode, done.stdout, done.stderr) == (0, "False\n", "")
