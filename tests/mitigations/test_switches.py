"""Switches of torch: every value that one takes, every other one refused, and each set and read back by torch."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from detsweep.mitigations.switches import BOOLEAN, SWITCHES, check_switch

TAKEN = [(name, value) for name, values in SWITCHES.items() for value in values or (1, 2, 1000)]
FOREIGN: tuple[Any, ...] = (None, "", "on", "Strict", 0, 1, 1.0, -1, [], {})


@pytest.mark.parametrize(("name", "value"), TAKEN)
def test_every_value_is_taken(name: str, value: Any) -> None:
    check_switch(name, value, "here")


@pytest.mark.parametrize("value", FOREIGN, ids=repr)
@pytest.mark.parametrize("name", [name for name, values in SWITCHES.items() if values is BOOLEAN])
def test_a_switch_that_is_on_or_off_takes_nothing_else(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=r"^here: \w+=.* is neither true nor false$") as caught:
        check_switch(name, value, "here")
    assert f"{name}={value!r}" in str(caught.value)


@pytest.mark.parametrize("value", [*FOREIGN, True, False], ids=repr)
@pytest.mark.parametrize("name", [name for name, values in SWITCHES.items() if values and values is not BOOLEAN])
def test_a_switch_with_words_takes_no_other_word(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=r"^here: ") as caught:
        check_switch(name, value, "here")
    assert str(caught.value) == f"here: {name}={value!r} is none of {', '.join(SWITCHES[name])}"


@pytest.mark.parametrize("value", [None, "", "1", 0, -1, 1.0, True, False], ids=repr)
def test_a_number_of_threads_is_a_whole_number_of_at_least_one(value: Any) -> None:
    with pytest.raises(ValueError, match=r"must be a whole number of at least 1$"):
        check_switch("num_threads", value, "here")


def test_an_unknown_switch_is_told_what_there_is() -> None:
    with pytest.raises(ValueError, match=r"^here: unknown torch switch 'benchmark'; switches: ") as caught:
        check_switch("benchmark", True, "here")
    assert str(caught.value).endswith(", ".join(SWITCHES))


# In a process of its own: what torch was told there is not told to other tests.
SET_ALL = """
import json, sys, torch
from detsweep.mitigations.switches import SWITCHES
from detsweep.mitigations.torch_switches import apply, read_back
found = {"untouched": list(read_back())}
for name, values in SWITCHES.items():
    # This build of torch may lack the library; one that has it is checked by the tests for GPUs.
    for value in ("cublas",) if name == "blas_library" else values or (1, 3):
        apply({name: value})
        found[f"{name}={value}"] = read_back()[name]
apply({"float32_matmul_precision": "medium", "cuda_matmul_allow_tf32": True})
found["one order"] = read_back()["float32_matmul_precision"]
found["level"] = torch.get_deterministic_debug_mode()
print(json.dumps(found))
"""


def test_torch_takes_and_tells_every_value() -> None:
    done = subprocess.run([sys.executable, "-c", SET_ALL], capture_output=True, text=True, check=True, timeout=120)
    found = json.loads(done.stdout)
    assert found.pop("untouched") == list(SWITCHES)
    assert found.pop("one order") == "medium"
    assert found.pop("level") == 2
    told = {f"{name}={value}": value for name, value in TAKEN if name not in ("blas_library", "num_threads")}
    assert found == {**told, "blas_library=cublas": "cublas", "num_threads=1": 1, "num_threads=3": 3}
