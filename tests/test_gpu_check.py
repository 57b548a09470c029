"""What the checks on a GPU conclude from what they count; the checks themselves need one."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"
KINDS = {
    "bit_flip": {"put_in": 150, "detected": 150, "placed": 149},
    "swap": {"put_in": 60, "detected": 60, "placed": 60},
}
CAMPAIGN: dict[str, Any] = {
    "expected": ["bit_flip", "swap"],
    "kinds": KINDS,
    "not_put_in": 0,
    "clean": 100,
    "false_alarms": 0,
}


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(SCRIPTS)
    return importlib.import_module("gpu_check")


@pytest.fixture
def judges(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(SCRIPTS)
    return importlib.import_module("gpu_judges")


@pytest.fixture
def profile(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(SCRIPTS)
    return importlib.import_module("gpu_profile")


# --- the command -----------------------------------------------------------------------------------------------------


def test_a_failed_check_stops_no_other_and_decides_the_exit_code(
    check: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(_: Any) -> Any:
        raise RuntimeError("detsweep left with 3\nits log")

    outcome = check.Outcome("PASS", "all is well", {"figure": 1}, ["a line of its own"])
    monkeypatch.setattr(check, "CHECKS", {"first": broken, "second": lambda _: outcome})
    assert check.main(["--device", "cpu", "--out", str(tmp_path / "out")]) == 1
    out = capsys.readouterr().out
    assert "FAIL first (0 s): could not be made: RuntimeError: detsweep left with 3\n     its log\n" in out
    assert "PASS second (0 s): all is well\n     a line of its own\n" in out
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert [(one["name"], one["status"], one["figures"]) for one in report["checks"]] == [
        ("first", "FAIL", {}),
        ("second", "PASS", {"figure": 1}),
    ]
    assert check.main(["--device", "cpu", "--only", "second", "--out", str(tmp_path / "other")]) == 0


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--device", "tpu"], "invalid choice: 'tpu'"),
        (["--only", "nothing"], "invalid choice: 'nothing'"),
        (["--out", "."], "holds files already"),
    ],
)
def test_wrong_arguments_leave_with_2(
    check: Any, capsys: pytest.CaptureFixture[str], arguments: list[str], complaint: str
) -> None:
    with pytest.raises(SystemExit) as left:
        check.main(arguments)
    assert left.value.code == 2
    assert complaint in capsys.readouterr().err


def test_a_check_for_which_no_time_is_left_says_so(check: Any, tmp_path: Path) -> None:
    outcome = check.attempt("tests", check.Bench("cpu", tmp_path, ends=0.0))
    assert (outcome.status, outcome.text) == (
        "FAIL",
        "could not be made: TimeoutError: no time is left for it; give it more with --minutes",
    )


# --- the judges ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({}, "PASS"),
        ({"false_alarms": 1}, "FAIL"),
        ({"expected": ["bit_flip", "swap", "ulp_pair"]}, "FAIL"),
        ({"kinds": {**KINDS, "swap": {"put_in": 60, "detected": 59, "placed": 59}}}, "FAIL"),
        ({"kinds": {**KINDS, "swap": {"put_in": 60, "detected": 60, "placed": 57}}}, "FAIL"),
        ({"kinds": {"bit_flip": KINDS["bit_flip"], "swap": {"put_in": 9, "detected": 9, "placed": 9}}}, "FAIL"),
    ],
)
def test_faults_must_be_many_found_and_placed(judges: Any, change: dict[str, Any], status: str) -> None:
    assert judges.judge_faults([{**CAMPAIGN, **change}]).status == status


def _race(part: str, verdict: str, operator: str | None = None) -> dict[str, Any]:
    diverged = 3 if verdict == "diverged" else 0
    return {
        "part": part,
        "cell": "index_add",
        "verdict": verdict,
        "replays": 10,
        "diverged": diverged,
        "first": "blocks.0",
        "error": "a rank failed" if verdict == "error" else None,
        "drill": "diverged" if operator else None,
        "operator": operator,
        "cause": "compute" if operator else None,
    }


RACED, QUIET, CURED = _race("races", "diverged", "aten.index_add"), _race("races", "pass"), _race("cured", "pass")


@pytest.mark.parametrize(
    ("rows", "errors", "status"),
    [
        ([RACED, QUIET, CURED, _race("backward", "diverged")], [], "PASS"),
        ([QUIET, CURED], [], "FAIL"),
        ([_race("races", "diverged"), CURED], [], "FAIL"),
        ([RACED, _race("cured", "diverged")], [], "FAIL"),
        ([RACED], [], "FAIL"),
        ([RACED, CURED, _race("backward", "error")], [], "FAIL"),
        ([RACED, CURED], ["backward: detsweep was ended after 200 s"], "FAIL"),
    ],
)
def test_a_race_must_show_be_named_and_be_cured(judges: Any, rows: list[Any], errors: list[str], status: str) -> None:
    assert judges.judge_atomics(rows, errors).status == status


def test_each_cell_of_the_races_has_a_line(judges: Any) -> None:
    assert judges.judge_atomics([RACED, CURED, _race("backward", "error")], []).details == [
        "races: index_add: 3/10 replays diverged, first in blocks.0; closer look: aten.index_add (compute)",
        "cured: index_add: 0/10 replays diverged",
        "backward: index_add: error: a rank failed",
    ]


def test_ratios_must_be_there_and_keep_their_limits(judges: Any) -> None:
    kept = judges.Figure("observe", "wide, op, whole run", [1.5], 2.0, detail="15 ms / 10 ms")
    missed = judges.Figure("observe", "wide, block, whole run", [1.25], 1.05, detail="12.5 ms / 10 ms")
    assert judges.judge_levels([kept], []).status == "PASS"
    assert judges.judge_levels([], []).status == "FAIL"
    assert judges.judge_levels([kept], ["block24: out of memory"]).status == "FAIL"
    outcome = judges.judge_levels([kept, missed], [])
    assert (outcome.status, outcome.text) == ("FAIL", "1 of 2 ratios to observe=off within their limits")
    assert outcome.details[1] == "wide, block, whole run: 1.250 (limit 1.05, missed; 12.5 ms / 10 ms)"


@pytest.mark.parametrize(
    ("code", "out", "device", "status"),
    [
        (0, "5 passed, 2754 deselected in 9.1s", "cuda", "PASS"),
        (1, "FAILED tests/test_one.py::test_it\n1 failed, 4 passed in 9.1s", "cuda", "FAIL"),
        (0, "5 skipped, 2754 deselected in 4.4s", "cuda", "FAIL"),
        (0, "5 skipped, 2754 deselected in 4.4s", "cpu", "SKIP"),
        (None, "", "cuda", "FAIL"),
    ],
)
def test_tests_must_have_passed(judges: Any, code: int | None, out: str, device: str, status: str) -> None:
    assert judges.judge_tests(code, out, device).status == status


# --- the profile -----------------------------------------------------------------------------------------------------


def _event(category: str, name: str, start: float, *, dur: float = 1, tid: int = 1, correlation: int = 0) -> Any:
    return {"ph": "X", "cat": category, "name": name, "ts": start, "dur": dur, "pid": 7, "tid": tid,
            "args": {"correlation": correlation}}  # fmt: skip


def _launched(start: float, correlation: int) -> list[Any]:
    """A kernel's launch, and the kernel a good while after it on the device."""
    return [
        _event("cuda_runtime", "cudaLaunchKernel", start, correlation=correlation),
        _event("kernel", "mix", start + 1000, tid=20, correlation=correlation),
    ]


RUN = [
    *_launched(10, 1),
    *_launched(50, 2),
    {"ph": "i", "name": "Record Window End", "ts": 90},
    # The profiler's own, before and after; and the copy of the digests, which ends the run.
    _event("cuda_runtime", "cudaDeviceSynchronize", 5, correlation=3),
    _event("cuda_runtime", "cudaMemcpyAsync", 60, correlation=4),
    _event("gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", 1100, tid=20, correlation=4),
    _event("cuda_runtime", "cudaStreamSynchronize", 62, correlation=5),
]


def test_waits_before_the_first_launch_and_after_the_last_are_none_of_the_runs(profile: Any) -> None:
    assert profile.judge(RUN) == profile.Found(kernels=2, waits=())


@pytest.mark.parametrize(
    "name",
    ["cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cudaMemcpy", "hipStreamSynchronize"],
)
def test_a_wait_within_the_run_is_found_with_what_led_to_it(profile: Any, name: str) -> None:
    found = profile.judge([
        *RUN,
        _event("python_function", "detsweep/worker/step.py(97): observed", 0, dur=80),
        _event("python_function", "detsweep/worker/moe.py(70): forward", 18, dur=9),
        _event("python_function", "<built-in method item>", 19, dur=5),
        _event("python_function", "threading.py(1): run", 0, dur=80, tid=2),
        _event("cpu_op", "aten::item", 19, dur=4),
        _event("cpu_op", "aten::mm", 30, dur=4),
        _event("cuda_runtime", name, 20, correlation=9),
    ])  # fmt: skip
    stack = ("detsweep/worker/step.py(97): observed", "detsweep/worker/moe.py(70): forward")
    assert found.waits == (profile.Wait(name, ("aten::item",), stack),)
    assert str(found.waits[0]) == f"{name} in aten::item, at {' > '.join(stack)}"


@pytest.mark.parametrize(
    ("copy", "waits"),
    [
        ("Memcpy DtoH (Device -> Pageable)", 1),
        ("Memcpy DtoH (Device -> Pinned)", 0),
        ("Memcpy DtoD (Device -> Device)", 0),
        ("Memcpy HtoD (Pageable -> Device)", 0),
    ],
)
def test_a_copy_to_pageable_memory_is_a_wait(profile: Any, copy: str, waits: int) -> None:
    events = [
        _event("cuda_runtime", "cudaMemcpyAsync", 30, correlation=9),
        _event("gpu_memcpy", copy, 1030, correlation=9),
    ]
    assert len(profile.judge([*RUN, *events]).waits) == waits


@pytest.mark.parametrize("name", ["cudaStreamWaitEvent", "cudaEventQuery", "cudaEventRecord", "cudaLaunchKernel"])
def test_what_the_host_does_not_wait_for_is_no_wait(profile: Any, name: str) -> None:
    assert profile.judge([*RUN, _event("cuda_runtime", name, 30, correlation=9)]).waits == ()


def test_a_trace_without_kernels_shows_nothing(judges: Any, profile: Any) -> None:
    nothing = profile.judge([_event("cpu_op", "aten::mm", 1)])
    assert nothing == profile.Found(kernels=0, waits=())
    good = profile.Found(kernels=9, waits=())
    waiting = profile.Found(kernels=9, waits=(profile.Wait("cudaStreamSynchronize", (), ()),))
    assert judges.judge_waits({"block": good, "op": nothing}, "cuda").status == "FAIL"
    assert judges.judge_waits({"block": good, "op": good}, "cuda").status == "PASS"
    outcome = judges.judge_waits({"block": good, "op": waiting}, "cuda")
    assert outcome.status == "FAIL"
    assert outcome.details == ["observe=op: cudaStreamSynchronize in no operator, at no Python"]
    assert judges.judge_waits({"block": nothing}, "cpu").status == "SKIP"
