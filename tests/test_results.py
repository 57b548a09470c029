"""A trial's verdict from what its ranks left on disk, and that none of it can go missing unseen."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from detsweep import results
from detsweep.capture import SCHEMA, read_streams, write_streams
from detsweep.paths import SweepPaths, TrialPaths, read_json, write_json
from detsweep.results import merge, read_result, unsupported
from tests.support import BLOCK_0_POST, BLOCK_1_POST, INPUT, LOSS, SEQUENCE, one_cell, trial_of, write_rank, write_trial


@pytest.fixture
def trial(tmp_path: Path) -> TrialPaths:
    return trial_of(SweepPaths(tmp_path), one_cell())


def _ranks(trial: TrialPaths, **options: Any) -> dict[str, Any]:
    """Two ranks that ended well, and the spec that asked for them."""
    spec = one_cell("steps=2", "runs=3").spec(0)
    for rank in range(2):
        write_rank(trial, spec, rank, **options)
    return spec


def _merged(trial: TrialPaths, spec: Mapping[str, Any]) -> dict[str, Any]:
    return merge(trial, spec, returncode=0, timeout_min=None, seconds=1.23456)


def test_ranks_without_a_divergence_pass(trial: TrialPaths) -> None:
    spec = _ranks(trial)
    result = _merged(trial, spec)
    assert (result["verdict"], result["error"], result["first"]) == ("pass", None, None)
    assert (result["diverged_ranks"], result["differs"]) == ([], {})
    # Two steps of three runs: the second and third run of each are compared with the first.
    assert (result["replays"], result["diverged_replays"]) == (4, 0)
    assert (result["schema"], result["cell"], result["trial"]) == (SCHEMA, spec["cell"], 0)
    assert (result["seconds"], result["step_ms"], result["plain_step_ms"]) == (1.235, 3.0, 2.0)
    assert [rank["rank"] for rank in result["ranks"]] == [0, 1]
    files = [path(rank) for path in (trial.records, trial.rank_result) for rank in range(2)]
    assert result["files"] == {path.name: path.stat().st_size for path in files}


def test_a_result_is_plain_json(trial: TrialPaths) -> None:
    result = write_trial(trial, one_cell(), differs={0: {(0, 2): INPUT}})
    assert json.loads(json.dumps(result)) == result
    assert read_json(trial.result) == result


def test_one_diverged_rank_makes_the_trial_diverge(trial: TrialPaths) -> None:
    result = write_trial(trial, one_cell("runs=3"), differs={1: {(0, 3): BLOCK_1_POST}})
    first = result["first"]
    assert result["verdict"] == "diverged"
    assert result["diverged_ranks"] == [1]
    assert (first["rank"], first["step"], first["run"]) == (1, 0, "r3")
    assert (first["site"], first["block"], first["seq"]) == ("block_post", 1, BLOCK_1_POST)
    assert (result["replays"], result["diverged_replays"]) == (2, 1)
    assert result["differs"] == {"block_post": 1, "logits": 1, "loss": 1, "grad": 1, "param": 1}


@pytest.mark.parametrize(
    ("differs", "expected"),
    [
        ({0: {(1, 2): INPUT}, 1: {(0, 3): LOSS}}, (1, 0, "r3", "loss")),
        ({0: {(0, 3): INPUT}, 1: {(0, 2): LOSS}}, (1, 0, "r2", "loss")),
        ({0: {(0, 2): BLOCK_1_POST}, 1: {(0, 2): BLOCK_0_POST}}, (1, 0, "r2", "block_post")),
        ({0: {(0, 2): LOSS}, 1: {(0, 2): LOSS}}, (0, 0, "r2", "loss")),
    ],
    ids=["step before run", "run before record", "record before rank", "lowest rank"],
)
def test_the_trials_first_divergence_is_the_earliest_of_all_ranks(
    trial: TrialPaths, differs: dict[int, dict[tuple[int, int], int]], expected: tuple[int, int, str, str]
) -> None:
    first = write_trial(trial, one_cell("steps=2", "runs=3"), differs=differs)["first"]
    assert (first["rank"], first["step"], first["run"], first["site"]) == expected


def test_the_first_divergence_need_not_be_the_first_of_its_rank(trial: TrialPaths) -> None:
    # Of trajectories ranks have their runs one after the other, of every run all steps.
    cell = one_cell("mode=train", "steps=4", "runs=3")
    differs = {0: {(3, 2): INPUT, (1, 3): LOSS}, 1: {(2, 2): INPUT, (1, 3): BLOCK_1_POST}}
    result = write_trial(trial, cell, differs=differs)
    assert [(d["step"], d["run"]) for d in result["ranks"][0]["divergences"]] == [(3, "r2"), (1, "r3")]
    first = result["first"]
    assert (first["rank"], first["step"], first["run"], first["site"]) == (1, 1, "r3", "block_post")


def test_in_lockstep_the_first_divergence_is_that_of_the_first_run(trial: TrialPaths) -> None:
    result = write_trial(trial, one_cell("mode=lockstep", "world.nproc_per_node=3", "runs=11"))
    assert (result["first"]["step"], result["first"]["run"], result["first"]["rank"]) == (0, "r1", 0)


def test_runs_are_ordered_by_number_and_not_by_letters(trial: TrialPaths) -> None:
    result = write_trial(trial, one_cell("runs=10"), differs={0: {(0, 10): INPUT}, 1: {(0, 9): LOSS}})
    assert result["first"]["run"] == "r9"


def test_a_replay_that_several_ranks_saw_diverge_counts_once(trial: TrialPaths) -> None:
    differs = {0: {(0, 2): INPUT, (1, 3): INPUT}, 1: {(0, 2): LOSS}}
    result = write_trial(trial, one_cell("steps=2", "runs=3"), differs=differs)
    assert (result["replays"], result["diverged_replays"]) == (4, 2)
    assert result["differs"]["loss"] == 3


def test_times_are_those_of_the_slowest_rank(trial: TrialPaths) -> None:
    spec = one_cell().spec(0)
    write_rank(trial, spec, 0, milliseconds=5.0, plain_milliseconds=[1.0, 90.0, 1.0])
    write_rank(trial, spec, 1, milliseconds=4.0, plain_milliseconds=[6.0, 7.0, 8.0])
    result = _merged(trial, spec)
    assert (result["step_ms"], result["plain_step_ms"], result["plain_ms"]) == (5.0, 7.0, [6.0, 7.0, 8.0])


@pytest.mark.parametrize("differs", [{}, {0: {(0, 2): INPUT}}], ids=["passed", "diverged"])
def test_a_setting_that_was_lost_makes_the_trial_invalid(
    trial: TrialPaths, differs: dict[int, dict[tuple[int, int], int]]
) -> None:
    lost = {1: ["NCCL_ALGO should be Ring, is unset"]}
    result = write_trial(trial, one_cell(), differs=differs, lost=lost)
    assert result["verdict"] == "invalid"
    assert result["error"] == "not in force: rank 1: NCCL_ALGO should be Ring, is unset"


# --- mitigations -----------------------------------------------------------------------------------------------------


def test_what_became_of_a_mitigation_is_the_worst_of_the_ranks_for_each_setting(trial: TrialPaths) -> None:
    spec = one_cell().spec(0)
    write_rank(trial, spec, 0, effects={"m": {"A": "effective", "B": "inert"}, "n": {"C": "inert"}})
    write_rank(trial, spec, 1, effects={"m": {"A": "set", "B": "inert"}, "n": {"C": "inert"}})
    assert _merged(trial, spec)["effects"] == {
        "m": {
            "status": "set",
            "settings": {
                "A": {"status": "set", "evidence": "A is set"},
                "B": {"status": "inert", "evidence": "B is inert"},
            },
        },
        "n": {"status": "inert", "settings": {"C": {"status": "inert", "evidence": "C is inert"}}},
    }


def test_a_trial_without_mitigations_has_no_effects(trial: TrialPaths) -> None:
    assert write_trial(trial, one_cell())["effects"] == {}


def test_what_was_set_inside_of_ranks_is_a_note_for_each_value(trial: TrialPaths) -> None:
    appeared = {0: {"NCCL_ALGO": "Tree", "NCCL_PROTO": "LL"}, 1: {"NCCL_ALGO": "Tree", "NCCL_PROTO": "Simple"}}
    result = write_trial(trial, one_cell(), appeared=appeared)
    inside = "was set inside the process, by a library or a configuration file"
    assert result["notes"] == [
        f"ranks 0, 1: NCCL_ALGO=Tree {inside}",
        f"rank 0: NCCL_PROTO=LL {inside}",
        f"rank 1: NCCL_PROTO=Simple {inside}",
    ]
    assert result["verdict"] == "pass"


def test_a_trial_that_was_not_started_for_what_it_requires_is_invalid_and_settles_nothing(trial: TrialPaths) -> None:
    write_json(trial.result, results.refused(one_cell().spec(0), ["A must be 1, is unset", "B must be 2, is 3"]))
    result = read_result(trial)
    assert result is not None
    error = "refused, required and not in force: A must be 1, is unset; B must be 2, is 3"
    assert (result["verdict"], result["error"]) == ("invalid", error)
    assert result["verdict"] not in results.SETTLED


def test_ranks_that_refused_are_an_invalid_trial_with_their_reasons(trial: TrialPaths) -> None:
    reasons = {0: [], 1: ["A must be 1, is unset", "num_threads must be 1, is 2"]}
    for rank, lines in reasons.items():
        refusal = {"schema": SCHEMA, "rank": rank, "verdict": "invalid", "refused": lines}
        write_json(trial.rank_result(rank), refusal)
    result = _merged(trial, one_cell().spec(0))
    reason = "rank 1: A must be 1, is unset; rank 1: num_threads must be 1, is 2"
    assert (result["verdict"], result["error"]) == ("invalid", f"refused, required and not in force: {reason}")
    assert (result["seconds"], result["cell"], result["trial"]) == (1.235, one_cell().id, 0)


# --- modes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["train", "resume"])
def test_a_trajectory_is_judged_step_by_step(trial: TrialPaths, mode: str) -> None:
    cell = one_cell(f"mode={mode}", "steps=4")
    result = write_trial(trial, cell, differs={1: {(2, 2): BLOCK_1_POST, (3, 2): INPUT}})
    assert (result["verdict"], result["replays"], result["diverged_replays"]) == ("diverged", 4, 2)
    assert (result["first"]["step"], result["first"]["run"], result["first"]["site"]) == (2, "r2", "block_post")
    assert result["loss"] == {"differs": 2, "of": 2, "steps_later": 0}


def test_records_of_the_first_launch_alone_are_an_error(trial: TrialPaths) -> None:
    spec = one_cell("mode=resume", "steps=4").spec(0)
    for rank in range(2):
        write_rank(trial, spec, rank)
    lines = trial.records(1).read_text().splitlines(keepends=True)
    trial.records(1).write_text("".join(lines[:6]))
    assert _error(trial, spec) == f"{trial.records(1)} holds 6 runs that are not the 8 of rank 1"
    # As the last launch would have left it, had it begun at another step.
    trial.records(1).write_text("".join([*lines[:6], lines[7], lines[7]]))
    assert "runs that are not the 8 of rank 1" in _error(trial, spec)


def test_what_the_first_of_two_launches_leaves_is_no_result(trial: TrialPaths) -> None:
    spec = one_cell("mode=resume", "steps=4").spec(0)
    for rank in range(2):
        write_rank(trial, spec, rank)
    write_json(trial.rank_result(1), {"schema": SCHEMA, "rank": 1, "verdict": "none"})
    expected = "differs, divergences, effects, lost, plain_step_ms, replays, step_ms"
    assert _error(trial, spec) == f"{trial.rank_result(1)} has no {expected}"


def test_in_lockstep_each_rank_is_held_against_the_others(trial: TrialPaths) -> None:
    # Digests of full streams are each rank's own: no two ranks agree in anything.
    result = write_trial(trial, one_cell("mode=lockstep", "world.nproc_per_node=3", "runs=1"))
    assert (result["verdict"], result["diverged_ranks"], result["replays"]) == ("diverged", [0, 1, 2], 1)
    assert result["first"]["reference"] == "vote"


def test_causes_and_notes_are_part_of_a_result(trial: TrialPaths) -> None:
    result = write_trial(trial, one_cell(), differs={0: {(0, 2): INPUT}, 1: {(0, 2): BLOCK_0_POST}})
    assert [rank["divergences"][0]["cause"] for rank in result["ranks"]] == ["input", "compute"]
    assert (result["first"]["cause"], result["loss"], result["notes"]) == ("input", {"differs": 1, "of": 1}, [])
    spec = one_cell().spec(0)
    streams = [replace(one, nonfinite={"loss": 1}) for one in read_streams(trial.records(1))]
    trial.records(1).unlink()
    write_streams(trial.records(1), streams, world_size=2)
    assert _merged(trial, spec)["notes"] == ["rank 1: 1 values of loss are not finite, step 0 r1"]


# --- what is missing is never a pass ---------------------------------------------------------------------------------


def _error(trial: TrialPaths, spec: Mapping[str, Any]) -> str:
    result = _merged(trial, spec)
    assert result["verdict"] == "error"
    assert "files" not in result
    return str(result["error"])


@pytest.mark.parametrize("rank", [0, 1])
def test_a_missing_rank_is_an_error_that_names_its_file(trial: TrialPaths, rank: int) -> None:
    spec = _ranks(trial)
    trial.rank_result(rank).unlink()
    assert _error(trial, spec) == f"{trial.rank_result(rank)} is missing"


@pytest.mark.parametrize("rank", [0, 1])
def test_missing_records_are_an_error_that_names_the_file(trial: TrialPaths, rank: int) -> None:
    spec = _ranks(trial)
    trial.records(rank).unlink()
    assert _error(trial, spec) == f"{trial.records(rank)} is missing"


def test_torn_records_are_an_error_that_names_file_and_line(trial: TrialPaths) -> None:
    spec = _ranks(trial)
    with trial.records(1).open("r+b") as file:
        file.truncate(trial.records(1).stat().st_size - 5)
    assert _error(trial, spec) == f"{trial.records(1)} is cut off in line 6"


def test_records_that_end_early_are_an_error(trial: TrialPaths) -> None:
    spec = _ranks(trial)
    lines = trial.records(0).read_text().splitlines(keepends=True)
    trial.records(0).write_text("".join(lines[:-1]))
    assert _error(trial, spec) == f"{trial.records(0)} holds 5 runs that are not the 6 of rank 0"


def test_runs_in_another_order_are_an_error(trial: TrialPaths) -> None:
    spec = _ranks(trial)
    lines = trial.records(0).read_text().splitlines(keepends=True)
    trial.records(0).write_text("".join(reversed(lines)))
    assert "runs that are not the 6 of rank 0" in _error(trial, spec)


def test_records_of_another_rank_are_an_error(trial: TrialPaths) -> None:
    spec = _ranks(trial)
    trial.records(1).write_text(trial.records(0).read_text())
    assert _error(trial, spec) == f"{trial.records(1)} holds 6 runs that are not the 6 of rank 1"


@pytest.mark.parametrize(("key", "value"), [("rank", 0), ("schema", SCHEMA + 1)])
def test_a_result_that_is_not_the_ranks_own_is_an_error(trial: TrialPaths, key: str, value: int) -> None:
    spec = _ranks(trial)
    write_json(trial.rank_result(1), {**read_json(trial.rank_result(1)), key: value})
    assert _error(trial, spec) == f"{trial.rank_result(1)} is not rank 1's result in schema {SCHEMA}"


@pytest.mark.parametrize("key", ["lost", "divergences", "differs", "replays", "step_ms", "plain_step_ms"])
def test_a_rank_result_without_one_of_its_fields_is_an_error(trial: TrialPaths, key: str) -> None:
    spec = _ranks(trial)
    content = read_json(trial.rank_result(1))
    del content[key]
    write_json(trial.rank_result(1), content)
    assert _error(trial, spec) == f"{trial.rank_result(1)} has no {key}"


def test_a_rank_that_failed_left_no_result_to_merge(trial: TrialPaths) -> None:
    spec = _ranks(trial)
    write_json(trial.rank_result(0), {"schema": SCHEMA, "rank": 0, "verdict": "error", "error": "x", "at": 1.0})
    expected = "differs, divergences, effects, lost, plain_step_ms, replays, step_ms"
    assert _error(trial, spec) == f"{trial.rank_result(0)} has no {expected}"


@pytest.mark.parametrize("replays", [0, 3, 5])
def test_a_rank_result_about_other_replays_is_an_error(trial: TrialPaths, replays: int) -> None:
    spec = _ranks(trial)
    write_json(trial.rank_result(1), {**read_json(trial.rank_result(1)), "replays": replays})
    assert _error(trial, spec) == f"{trial.rank_result(1)} is about {replays} replays, the trial has 4"


def test_a_torn_rank_result_is_an_error(trial: TrialPaths) -> None:
    spec = _ranks(trial)
    trial.rank_result(0).write_text('{"schema": 1,')
    assert _error(trial, spec).startswith(f"{trial.rank_result(0)} cannot be read: ")


def test_a_rank_that_failed_is_an_error_even_when_all_files_are_there(trial: TrialPaths) -> None:
    spec = _ranks(trial)
    result = merge(trial, spec, returncode=1, timeout_min=None, seconds=1.0)
    assert (result["verdict"], result["error"]) == ("error", "torchrun ended with exit code 1")


def test_a_launcher_that_was_killed_is_an_error_even_when_all_files_are_there(trial: TrialPaths) -> None:
    result = merge(trial, _ranks(trial), returncode=-9, timeout_min=None, seconds=1.0)
    assert (result["verdict"], result["error"]) == ("error", "torchrun was killed by SIGKILL from outside")


def test_a_time_limit_is_a_timeout_whatever_the_files_say(trial: TrialPaths) -> None:
    result = merge(trial, _ranks(trial), returncode=0, timeout_min=0.5, seconds=30.0)
    assert (result["verdict"], result["seconds"]) == ("timeout", 30.0)
    assert result["error"] == "no end after 0.5 min: ranks 0, 1 never started"


# --- reading a result again ------------------------------------------------------------------------------------------


def test_a_trial_without_a_result_has_none(trial: TrialPaths) -> None:
    assert read_result(trial) is None


def test_a_result_is_read_as_it_was_written(trial: TrialPaths) -> None:
    assert write_trial(trial, one_cell()) == read_result(trial)


def _read_error(trial: TrialPaths) -> str:
    result = read_result(trial)
    assert result is not None
    assert result["verdict"] == "error"
    return str(result["error"])


def test_a_deleted_rank_file_turns_a_pass_into_an_error(trial: TrialPaths) -> None:
    write_trial(trial, one_cell())
    trial.records(1).unlink()
    assert _read_error(trial) == f"{trial.records(1)} is missing"


@pytest.mark.parametrize("change", [-1, +1])
def test_a_rank_file_of_another_size_turns_a_pass_into_an_error(trial: TrialPaths, change: int) -> None:
    size = write_trial(trial, one_cell())["files"]["rank000.jsonl"]
    with trial.records(0).open("r+b") as file:
        file.truncate(size + change)
    assert _read_error(trial) == f"{trial.records(0)} has {size + change} bytes, {size} were written"


def test_a_deleted_rank_result_turns_a_pass_into_an_error(trial: TrialPaths) -> None:
    write_trial(trial, one_cell())
    trial.rank_result(0).unlink()
    assert _read_error(trial) == f"{trial.rank_result(0)} is missing"


def test_a_rank_result_that_was_cut_off_turns_a_pass_into_an_error(trial: TrialPaths) -> None:
    size = write_trial(trial, one_cell())["files"]["rank001.result.json"]
    trial.rank_result(1).write_text("{")
    assert _read_error(trial) == f"{trial.rank_result(1)} has 1 bytes, {size} were written"


@pytest.mark.parametrize("text", ["", "{", '{"schema": 1, "verdict": "pass"', "[]"])
def test_a_torn_result_is_an_error_that_names_it(trial: TrialPaths, text: str) -> None:
    write_trial(trial, one_cell())
    trial.result.write_text(text)
    assert str(trial.result) in _read_error(trial)


@pytest.mark.parametrize("content", [{"schema": 99, "verdict": "pass"}, {"verdict": "pass"}, {"schema": 1}])
def test_a_result_of_another_schema_is_an_error_that_names_it(trial: TrialPaths, content: dict[str, Any]) -> None:
    write_json(trial.result, content)
    assert str(trial.result) in _read_error(trial)


def _changed(trial: TrialPaths, /, **changes: Any) -> str:
    """The error of a trial that passed and whose result.json was changed, less the words that name the file."""
    write_trial(trial, one_cell())
    write_json(trial.result, {**read_json(trial.result), **changes})
    named, _, reason = _read_error(trial).partition(" is not this trial's result: ")
    assert named == str(trial.result)
    return reason


def test_a_verdict_that_does_not_exist_is_an_error(trial: TrialPaths) -> None:
    expected = "verdict 'fine' is none of pass, recorded, diverged, invalid, error, timeout, unsupported"
    assert _changed(trial, verdict="fine") == expected


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"cell": "0123456789"}, "it is of cell '0123456789'"),
        ({"cell": None}, "it is of cell None"),
        ({"trial": 1}, "it is of trial 1"),
        ({"trial": "0.0"}, "it is of trial '0.0'"),
    ],
    ids=str,
)
def test_a_result_of_another_trial_is_an_error(trial: TrialPaths, changes: dict[str, Any], reason: str) -> None:
    assert _changed(trial, **changes) == reason


def test_a_result_that_was_copied_from_another_cell_is_an_error(tmp_path: Path) -> None:
    one, other = one_cell("seed=1"), one_cell("seed=2")
    trial = trial_of(SweepPaths(tmp_path), one)
    write_trial(trial, one)
    write_json(trial.result, {**read_json(trial.result), "cell": other.id})
    assert _read_error(trial) == f"{trial.result} is not this trial's result: it is of cell {other.id!r}"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("trial", "0"),
        ("replays", 1.5),
        ("diverged_replays", "none"),
        ("seconds", "1.5"),
        ("step_ms", [3.0]),
        ("plain_step_ms", {}),
        ("plain_ms", 2.0),
        ("effects", []),
        ("ranks", {}),
        ("diverged_ranks", 1),
        ("error_ranks", "1"),
        ("log_tail", "a line"),
        ("notes", "a note"),
        ("loss", 6.25),
        ("first", []),
        ("files", ["rank000.jsonl"]),
        ("differs", 3),
        ("error", ["x"]),
        ("log", 1),
    ],
)
def test_a_field_of_the_wrong_type_is_an_error_that_names_it(trial: TrialPaths, field: str, value: Any) -> None:
    assert _changed(trial, **{field: value}) == f"{field} is {value!r}"


@pytest.mark.parametrize("kind", results.FIELDS, ids=str)
def test_a_field_that_is_null_is_as_good_as_none(trial: TrialPaths, kind: Any) -> None:
    write_trial(trial, one_cell())
    nulls = dict.fromkeys(set(results.FIELDS[kind]) - {"trial", "files"})
    write_json(trial.result, {**read_json(trial.result), **nulls})
    result = read_result(trial)
    assert result is not None
    assert result["verdict"] == "pass"


def test_an_unsupported_trial_has_a_result_with_its_reason(trial: TrialPaths) -> None:
    write_json(trial.result, unsupported(one_cell().spec(0), "only for amd"))
    result = read_result(trial)
    assert result is not None
    assert (result["verdict"], result["error"]) == ("unsupported", "only for amd")


def test_only_verdicts_about_repeating_are_settled() -> None:
    assert set(results.VERDICTS) - set(results.SETTLED) == {"invalid", "error", "timeout"}


def test_the_written_streams_are_those_the_tests_name() -> None:
    places = {INPUT: "input", BLOCK_0_POST: "block_post", BLOCK_1_POST: "block_post", LOSS: "loss"}
    assert {place: SEQUENCE[place][0] for place in places} == places
