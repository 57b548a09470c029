"""Of a trial that failed: which rank, how, and the log that shows it."""

from __future__ import annotations

import faulthandler
import os
from pathlib import Path
from typing import Any

import pytest

from detsweep.failures import Failure, Position, explain_failure, explain_timeout, position, tail
from detsweep.paths import TrialPaths, write_json
from detsweep.worker.progress import Progress
from tests.support import one_cell, write_rank


@pytest.fixture
def trial(tmp_path: Path) -> TrialPaths:
    paths = TrialPaths(tmp_path / "trial0")
    paths.logs.mkdir(parents=True)
    return paths


def _exits(trial: TrialPaths, **codes: int) -> None:
    write_json(trial.exits, {"ranks": {name.removeprefix("rank"): code for name, code in codes.items()}})


def _raised(trial: TrialPaths, rank: int, error: str, at: float) -> None:
    write_json(trial.rank_result(rank), {"schema": 1, "rank": rank, "verdict": "error", "error": error, "at": at})


def _passed(trial: TrialPaths, rank: int) -> None:
    write_rank(trial, one_cell().spec(0), rank)


def _explained(trial: TrialPaths, world_size: int = 3) -> tuple[str, tuple[int, ...]]:
    failure = explain_failure(trial, world_size, 1)
    return failure.text, failure.ranks


def test_the_earliest_exception_is_the_cause(trial: TrialPaths) -> None:
    _exits(trial, rank0=1, rank1=1, rank2=1)
    _raised(trial, 0, "DistBackendError: connection closed by peer", 12.5)
    _raised(trial, 1, "ValueError: the cause", 11.5)
    _raised(trial, 2, "DistBackendError: connection closed by peer", 12.0)
    assert _explained(trial) == ("rank 1: ValueError: the cause", (1,))


def test_a_rank_that_left_without_a_word_comes_before_exceptions(trial: TrialPaths) -> None:
    _exits(trial, rank0=1, rank2=7)
    _raised(trial, 0, "DistBackendError: connection closed by peer", 12.5)
    _passed(trial, 1)
    assert _explained(trial) == ("rank 2 left with exit code 7 and no result", (2,))


def test_a_killed_rank_comes_before_all_others(trial: TrialPaths) -> None:
    _exits(trial, rank0=1, rank1=-9, rank2=7)
    _raised(trial, 0, "DistBackendError: connection closed by peer", 12.5)
    text, ranks = _explained(trial)
    assert text == "rank 1 was killed by SIGKILL, as the kernel does when memory runs out"
    assert ranks == (1,)


def test_a_killed_ranks_last_place_is_said(trial: TrialPaths) -> None:
    _exits(trial, rank1=-11)
    progress = Progress(trial.progress(1))
    progress.run(0, 2, "r2 of step 0")
    progress.at_block(3)
    assert _explained(trial)[0] == "rank 1 was killed by SIGSEGV (in r2 of step 0, last block entered: 3)"


def test_ranks_that_torchrun_ended_itself_are_no_cause(trial: TrialPaths) -> None:
    _exits(trial, rank0=-15, rank1=1, rank2=-15)
    _raised(trial, 1, "ValueError: the cause", 11.5)
    assert _explained(trial) == ("rank 1: ValueError: the cause", (1,))


def test_several_killed_ranks_are_all_named(trial: TrialPaths) -> None:
    _exits(trial, rank0=-6, rank2=-11)
    assert _explained(trial) == ("rank 0 was killed by SIGABRT; rank 2 was killed by SIGSEGV", (0, 2))


def test_ranks_without_a_result_are_named_where_no_exit_code_is_known(trial: TrialPaths) -> None:
    _passed(trial, 1)
    assert _explained(trial) == ("ranks 0, 2 left no result (torchrun's exit code 1)", (0, 2))


@pytest.mark.parametrize("content", ["{", '{"ranks": {"zero": 1}}', "{}"], ids=["torn", "no number", "no ranks"])
def test_exit_codes_that_cannot_be_read_are_as_good_as_none(trial: TrialPaths, content: str) -> None:
    trial.exits.write_text(content)
    assert "left no result" in _explained(trial)[0]


def test_where_every_rank_ended_well_torchrun_itself_failed(trial: TrialPaths) -> None:
    for rank in range(3):
        _passed(trial, rank)
    assert _explained(trial) == ("torchrun ended with exit code 1", ())


@pytest.mark.parametrize(("code", "name"), [(-9, "SIGKILL"), (-15, "SIGTERM"), (-11, "SIGSEGV")])
def test_torchrun_itself_can_be_killed(trial: TrialPaths, code: int, name: str) -> None:
    _passed(trial, 0)
    failure = explain_failure(trial, 3, code)
    assert (failure.text, failure.ranks) == (f"torchrun was killed by {name} from outside", ())


def test_a_rank_that_failed_comes_before_a_torchrun_that_was_killed(trial: TrialPaths) -> None:
    _raised(trial, 1, "ValueError: the cause", 11.5)
    assert explain_failure(trial, 3, -9).text == "rank 1: ValueError: the cause"


def test_an_exception_of_several_lines_is_told_in_one(trial: TrialPaths) -> None:
    _raised(trial, 0, "RuntimeError: first line\n  second line", 1.0)
    _raised(trial, 1, "RuntimeError: later", 2.0)
    assert "\n" not in _explained(trial, 2)[0]
    assert _explained(trial, 2)[0].startswith("rank 0: RuntimeError: first line")


# --- logs ------------------------------------------------------------------------------------------------------------


def test_the_log_is_that_of_the_rank_that_failed(trial: TrialPaths) -> None:
    _exits(trial, rank0=1, rank1=1)
    _raised(trial, 0, "ValueError: later", 2.0)
    _raised(trial, 1, "ValueError: first", 1.0)
    for rank in range(2):
        trial.rank_log(rank).write_text(f"Traceback of rank {rank}\n\nValueError\n")
    failure = explain_failure(trial, 2, 1)
    assert (failure.log, failure.tail) == (trial.rank_log(1), ("Traceback of rank 1", "ValueError"))
    assert failure.to_json(trial.folder)["log"] == "log/rank001.log"


def test_without_a_ranks_log_it_is_torchruns(trial: TrialPaths) -> None:
    trial.rank_log(0).touch()
    trial.launcher_log.write_text("torchrun: no such module\n")
    failure = explain_failure(trial, 1, 1)
    assert (failure.log, failure.tail) == (trial.launcher_log, ("torchrun: no such module",))


def test_of_the_launchers_log_the_lines_about_ranks_are_enough(trial: TrialPaths) -> None:
    own = ("rank 0: exit code 1, pid 7", "rank 2: exit code -9 (SIGKILL), pid 9")
    trial.launcher_log.write_text("\n".join(["Failures:", own[0], "[0]: rank : 0", own[1], "=====", ""]))
    failure = explain_failure(trial, 3, 1)
    assert (failure.log, failure.tail) == (trial.launcher_log, own)


def test_of_a_ranks_own_log_nothing_is_left_out(trial: TrialPaths) -> None:
    _raised(trial, 0, "ValueError: x", 1.0)
    trial.rank_log(0).write_text("rank 0 says so\nValueError: x\n")
    assert explain_failure(trial, 1, 1).tail == ("rank 0 says so", "ValueError: x")


def test_without_any_log_the_tail_is_empty(trial: TrialPaths) -> None:
    failure = explain_failure(trial, 1, 1)
    assert (failure.log, failure.tail) == (trial.launcher_log, ())


def test_a_failure_as_json_names_its_log_relative_to_the_trial(trial: TrialPaths) -> None:
    elsewhere = Failure("text", (1,), Path("/var/log/x"), ("a", "b"))
    assert elsewhere.to_json(trial.folder) == {
        "error": "text",
        "error_ranks": [1],
        "log": "/var/log/x",
        "log_tail": ["a", "b"],
    }


def test_a_tail_is_the_last_lines_with_text(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("".join(f"line {number}  \n\n" for number in range(100_000)))
    assert tail(log, 2) == ("line 99998", "line 99999")
    assert len(tail(log)) == 8


def test_a_tail_survives_bytes_that_are_no_text(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"\xff\xfe broken\nlast")
    assert tail(log)[-1] == "last"
    assert tail(tmp_path / "missing") == ()


# --- time limits -----------------------------------------------------------------------------------------------------


def _at(trial: TrialPaths, rank: int, step: int, run: int, block: int | None = None) -> None:
    progress = Progress(trial.progress(rank))
    progress.run(step, run, f"r{run} of step {step}")
    if block is not None:
        progress.at_block(block)


def _timeout(trial: TrialPaths, world_size: int) -> tuple[str, tuple[int, ...]]:
    failure = explain_timeout(trial, world_size, 1.5)
    return failure.text, failure.ranks


def test_ranks_that_never_started_are_named(trial: TrialPaths) -> None:
    _at(trial, 1, 0, 1)
    assert _timeout(trial, 3) == ("no end after 1.5 min: ranks 0, 2 never started", (0, 2))


@pytest.mark.parametrize(
    ("least", "words"),
    [
        ((0, 2, 1), "r2 of step 0, last block entered: 1"),
        ((0, 1, 3), "r1 of step 0, last block entered: 3"),
        ((0, 2, None), "r2 of step 0"),
    ],
    ids=["block", "run", "before the first block"],
)
def test_the_rank_that_came_least_far_is_named(
    trial: TrialPaths, least: tuple[int, int, int | None], words: str
) -> None:
    _at(trial, 0, 0, 2, 2)
    _at(trial, 1, *least)
    _at(trial, 2, 1, 0)
    assert _timeout(trial, 3) == (f"no end after 1.5 min: rank 1 stopped in {words}", (1,))


def test_a_rank_outside_the_runs_came_less_far_than_any_run(trial: TrialPaths) -> None:
    Progress(trial.progress(0)).phase("importing torch")
    _at(trial, 1, 0, 0)
    assert _timeout(trial, 2) == ("no end after 1.5 min: rank 0 stopped in importing torch", (0,))


def test_ranks_that_came_equally_far_are_all_named(trial: TrialPaths) -> None:
    for rank in range(2):
        _at(trial, rank, 0, 1, 0)
    text, ranks = _timeout(trial, 2)
    assert text.endswith("ranks 0, 1 stopped in r1 of step 0, last block entered: 0 (all ranks came equally far)")
    assert ranks == (0, 1)


def _dump_own_stack(log: Path) -> None:
    with log.open("a") as file:
        faulthandler.dump_traceback(file, all_threads=False)


def test_the_innermost_frame_of_the_last_stack_is_said(trial: TrialPaths) -> None:
    _at(trial, 0, 0, 1)
    trial.rank_log(0).write_text('Current thread 0x1 (most recent call first):\n  File "old.py", line 1 in old\n')
    _dump_own_stack(trial.rank_log(0))
    text, _ = _timeout(trial, 1)
    assert ", at _dump_own_stack (test_failures.py:" in text
    assert "old" not in text


def test_the_lines_that_are_shown_of_a_long_stack_are_its_innermost(trial: TrialPaths) -> None:
    _at(trial, 0, 0, 1)
    frames = [f'  File "/lib/a.py", line {number} in f{number}' for number in range(30)]
    heading = "Current thread 0x1 (most recent call first):"
    trial.rank_log(0).write_text("\n".join(["a line before", heading, *frames]) + "\n")
    failure = explain_timeout(trial, 1, 0.5)
    assert failure.tail == (heading, *frames[:7])
    assert ", at f0 (a.py:0)" in failure.text


WAITING = """\
Current thread 0x00007f (most recent call first):
  File "/lib/torch/distributed/distributed_c10d.py", line 2900 in all_reduce
  File "/lib/detsweep/worker/replay.py", line 80 in observed_run
"""
BUSY = """\
Current thread 0x00007f (most recent call first):
  File "/lib/detsweep/worker/faults.py", line 77 in fail
  File "/lib/torch/distributed/fsdp/_fully_shard.py", line 10 in forward
"""


def test_of_ranks_equally_far_those_in_a_collective_wait_for_the_others(trial: TrialPaths) -> None:
    for rank, stack in enumerate((WAITING, BUSY, WAITING)):
        _at(trial, rank, 0, 1, 0)
        trial.rank_log(rank).write_text(stack)
    text, ranks = _timeout(trial, 3)
    assert text.endswith("rank 1 stopped in r1 of step 0, last block entered: 0, at fail (faults.py:77)")
    assert ranks == (1,)


def test_where_all_wait_in_a_collective_all_are_named(trial: TrialPaths) -> None:
    for rank in range(2):
        _at(trial, rank, 0, 1, 0)
        trial.rank_log(rank).write_text(WAITING)
    text, ranks = _timeout(trial, 2)
    assert ranks == (0, 1)
    assert "at all_reduce (distributed_c10d.py:2900)" in text


def test_a_rank_that_came_less_far_is_named_even_where_it_waits(trial: TrialPaths) -> None:
    _at(trial, 0, 0, 1, 0)
    trial.rank_log(0).write_text(WAITING)
    _at(trial, 1, 0, 1, 2)
    assert _timeout(trial, 2)[1] == (0,)


def test_a_position_is_what_the_rank_wrote_last(trial: TrialPaths) -> None:
    _at(trial, 0, 3, 2, 1)
    expected = Position(os.getpid(), 3, 2, 1, "r2 of step 3, last block entered: 1")
    assert position(trial.progress(0)) == expected


@pytest.mark.parametrize("content", [b"", b" " * 256, b"1\t2\t3", b"a\tb\tc\td\te\n", b"\xff\t0\t0\t0\tx"])
def test_a_position_that_cannot_be_read_is_none(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "rank000.progress"
    path.write_bytes(content)
    assert position(path) is None
    assert position(tmp_path / "missing") is None


@pytest.mark.parametrize(("field", "value"), [("error_ranks", [1]), ("log", "log/torchrun.log"), ("log_tail", [])])
def test_a_timeout_as_json_has_what_a_table_needs(trial: TrialPaths, field: str, value: Any) -> None:
    _at(trial, 0, 0, 1)
    assert explain_timeout(trial, 2, 1.0).to_json(trial.folder)[field] == value
