"""Recordings as a user names them: found, held against the trial's configuration, and compared with each other."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from detsweep.paths import RecordingPaths, SweepPaths, TrialPaths, read_json, write_json
from detsweep.plan import Cell
from detsweep.recording import Call, RecordingError, Side, StepHeader, Writer
from detsweep.recording.calls import COLLECTIVE, DATA, FORMAT, VERSION
from detsweep.recordings import diff, notes, spec_of, subject_of, trial_of
from tests.support import one_cell, plan_of, write_cells

RECORD = ("mode=record", "world.nproc_per_node=2")


def _about(recording: RecordingPaths, **more: Any) -> None:
    about = {"format": FORMAT, "version": VERSION, "world_size": 2, "checksum": "xxh3", "device": "cpu", "torch": "1"}
    write_json(recording.about, {**about, **more})


def _trial(folder: Path, cell: Cell | None = None) -> TrialPaths:
    trial, spec = TrialPaths(folder), (cell or one_cell(*RECORD)).spec(0)
    write_json(trial.spec, spec)
    _about(trial.recording, config=spec["config"])
    return trial


def _refused(call: Callable[[], object]) -> str:
    with pytest.raises(RecordingError) as raised:
        call()
    assert "\n" not in str(raised.value)
    return str(raised.value)


# --- found -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def sweep(tmp_path: Path) -> SweepPaths:
    """A sweep of two cells, of which the first has a trial with a recording and one without."""
    plan = plan_of(RECORD, ("mode=replay", "world.nproc_per_node=2"))
    sweep = write_cells(tmp_path / "runs", plan)
    recorded, other = plan.cells
    _trial(sweep.cell(recorded.slug, recorded.id).trial(0).folder, recorded)
    for cell, number in ((recorded, 1), (other, 0)):
        write_json(sweep.cell(cell.slug, cell.id).trial(number).spec, cell.spec(number))
    return sweep


def _recorded(sweep: SweepPaths) -> Path:
    (about,) = sweep.folder.rglob("recording.json")
    return about.parents[1]


def test_a_recording_is_found_by_its_trial_its_cell_or_its_sweep(sweep: SweepPaths) -> None:
    trial = _recorded(sweep)
    assert trial.name == "trial0"
    for folder in (trial, trial.parent, sweep.folder):
        assert trial_of(folder) == TrialPaths(trial)


def test_a_folder_is_found_from_where_one_is(sweep: SweepPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(sweep.folder)
    assert trial_of(Path()) == TrialPaths(_recorded(sweep))


def test_a_subject_of_a_trial_has_its_spec_and_one_of_a_program_has_none(sweep: SweepPaths, tmp_path: Path) -> None:
    subject = subject_of(sweep.folder)
    trial = TrialPaths(_recorded(sweep))
    assert (subject.folder, subject.recording) == (trial.folder, trial.recording)
    assert subject.spec == read_json(trial.spec)
    own = RecordingPaths(tmp_path / "own")
    _about(own, program={"argv": ["x.py"]})
    subject = subject_of(own.folder)
    assert (subject.folder, subject.recording, subject.spec) == (own.folder, own, None)
    assert subject.about["program"] == {"argv": ["x.py"]}


def test_a_folder_without_a_recording(sweep: SweepPaths) -> None:
    trial = _recorded(sweep)
    other = trial.parent / "trial1"
    line = f"{other}: no recording here (mode=record makes one)"
    assert _refused(lambda: trial_of(other)) == line
    assert _refused(lambda: subject_of(other)) == line
    assert _refused(lambda: trial_of(sweep.folder / "gone")) == f"{sweep.folder / 'gone'}: no such folder"


def test_of_several_recordings_one_has_to_be_named(sweep: SweepPaths) -> None:
    trial = _recorded(sweep)
    _trial(trial.parent / "trial7")
    cell = trial.parent
    assert _refused(lambda: trial_of(cell)) == f"{cell} has 2 recordings, name one: trial0, trial7"
    under = cell.relative_to(sweep.folder)
    assert _refused(lambda: trial_of(sweep.folder)) == (
        f"{sweep.folder} has 2 recordings, name one: {under}/trial0, {under}/trial7"
    )


def test_what_was_superseded_is_not_found(sweep: SweepPaths) -> None:
    trial = _recorded(sweep)
    _trial(trial.parent / "superseded" / "trial0-1")
    assert trial_of(trial.parent) == TrialPaths(trial)


# --- of this configuration -------------------------------------------------------------------------------------------


def test_a_spec_is_that_of_the_recording(tmp_path: Path) -> None:
    trial = _trial(tmp_path)
    assert spec_of(trial) == read_json(trial.spec)


@pytest.mark.parametrize(
    ("override", "key"),
    [("seed=3", "seed"), ("model.num_layers=1", "model.num_layers"), ("record.payload=all", "record.payload")],
)
def test_a_recording_of_another_configuration_is_refused_with_the_key(tmp_path: Path, override: str, key: str) -> None:
    trial = _trial(tmp_path)
    write_json(trial.spec, one_cell(*RECORD, override).spec(0))
    line = f"{trial.recording.about} is of another configuration than {trial.spec}: {key} differs"
    assert _refused(lambda: spec_of(trial)) == line


def test_a_recording_without_a_configuration_is_none_of_a_trial(tmp_path: Path) -> None:
    trial = _trial(tmp_path)
    _about(trial.recording)
    assert " is of another configuration than " in _refused(lambda: spec_of(trial))


def test_on_the_same_machine_there_is_nothing_to_note() -> None:
    assert list(notes({"torch": metadata.version("torch"), "device": "cpu"}, "cpu")) == []


def test_another_torch_and_another_device_are_noted() -> None:
    here = metadata.version("torch")
    assert list(notes({"torch": "1.0", "device": "cuda"}, "cpu")) == [
        f"recorded with torch 1.0, replayed with {here}: kernels may give other bits",
        "recorded on cuda, replayed on cpu: kernels are others, and give other bits",
    ]


# --- compared --------------------------------------------------------------------------------------------------------

DATA_CALL = Call(0, DATA, "", "batch 0", "before", "", (), None, None, {}, (), (Side("int64", (4,), 7),))


def _collective(seq: int, *, given: int = 1, delivers: int = 2, **changes: Any) -> Call:
    name = f"c10d._allgather_base_ #{seq - 1} group default_pg in blocks.0"
    inputs, outputs = (Side("float32", (2,), given),), (Side("float32", (4,), delivers),)
    call = Call(
        seq,
        COLLECTIVE,
        "c10d._allgather_base_",
        name,
        "forward",
        "default_pg",
        (0, 1),
        None,
        False,
        {},
        inputs,
        outputs,
    )
    return replace(call, **changes)


CALLS = (DATA_CALL, _collective(1), _collective(2))
Ranks = Mapping[int, Mapping[int, Sequence[Call]]]


def _recording(
    folder: Path, changes: Ranks | None = None, steps: Sequence[int] = (0, 1), **about: Any
) -> RecordingPaths:
    """Two ranks with the same calls in each step, but for `changes` by rank and step."""
    recording = RecordingPaths(folder)
    _about(recording, **about)
    for rank in range(2):
        writer = Writer(recording.rank(rank))
        for step in steps:
            writer.begin(step)
            calls = (changes or {}).get(rank, {}).get(step, CALLS)
            writer.end(StepHeader(rank, step, "xxh3", "digest", "none"), calls)
    return recording


EQUAL = "6 calls of 2 steps are equal"


def test_recordings_that_are_equal(tmp_path: Path) -> None:
    one, other = (_recording(tmp_path / name) for name in "ab")
    assert diff(one, other) == ([f"rank 0: {EQUAL}", f"rank 1: {EQUAL}"], True)


WHERE = "differs first in step 1, call 2: c10d._allgather_base_ #1 group default_pg in blocks.0"


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (_collective(2, delivers=3), f"{WHERE} (forward) delivers other bits, though it is given the same"),
        (_collective(2, given=3), f"{WHERE} (forward) is given other bits"),
        (_collective(2, given=3, delivers=3), f"{WHERE} (forward) is given other bits"),
        (_collective(2, inputs=(Side("float16", (2,), 1),)), f"{WHERE} (forward) is given other shapes or dtypes"),
        (_collective(2, outputs=(Side("float32", (2, 2), 2),)), f"{WHERE} (forward) delivers other shapes or dtypes"),
        (_collective(2, name="x"), f"{WHERE} in the one, x in the other"),
        (_collective(2, arguments={"root_rank": 1}), f"{WHERE} in the one, {WHERE.partition(': ')[2]} in the other"),
        (_collective(2, reduce="max"), f"{WHERE} in the one, {WHERE.partition(': ')[2]} in the other"),
    ],
)
def test_the_first_call_that_differs_is_named_with_what_it_means(tmp_path: Path, call: Call, line: str) -> None:
    one = _recording(tmp_path / "a")
    other = _recording(tmp_path / "b", {1: {1: [*CALLS[:2], call]}})
    assert diff(one, other) == ([f"rank 0: {EQUAL}", f"rank 1: {line}"], False)


def test_other_data_are_no_matter_of_what_was_given(tmp_path: Path) -> None:
    one = _recording(tmp_path / "a")
    data = replace(DATA_CALL, outputs=(Side("int64", (4,), 8),))
    other = _recording(tmp_path / "b", {0: {0: [data, *CALLS[1:]]}})
    lines, same = diff(one, other)
    assert (lines[0], same) == ("rank 0: differs first in step 0, call 0: batch 0 (before) delivers other bits", False)


def test_a_call_more_is_told_where_all_before_are_equal(tmp_path: Path) -> None:
    one = _recording(tmp_path / "a")
    other = _recording(tmp_path / "b", {0: {1: CALLS[:2]}})
    lines, same = diff(one, other)
    assert (lines[0], same) == ("rank 0: step 1 has 3 calls in the one, 2 in the other", False)
    assert diff(other, one)[0][0] == "rank 0: step 1 has 2 calls in the one, 3 in the other"


def test_only_steps_that_both_have_are_compared_and_the_others_named(tmp_path: Path) -> None:
    one = _recording(tmp_path / "a", steps=range(5))
    other = _recording(tmp_path / "b", steps=range(3, 9))
    said = f"{EQUAL}, only one has 0 to 2, 5 to 8"
    assert diff(one, other) == ([f"rank 0: {said}", f"rank 1: {said}"], False)
    apart = _recording(tmp_path / "c", steps=[20])
    line = _refused(lambda: diff(one, apart))
    assert line == f"{one.rank(0).folder} and {apart.rank(0).folder} have no step in common"


def test_what_cannot_be_compared_says_why(tmp_path: Path) -> None:
    one = _recording(tmp_path / "a")
    more = _recording(tmp_path / "b", world_size=3)
    assert _refused(lambda: diff(one, more)) == f"{one.folder} is of 2 ranks, {more.folder} of 3"
    mixed = _recording(tmp_path / "c", checksum="mixed")
    assert _refused(lambda: diff(one, mixed)) == "checksum xxh3 cannot be compared with mixed"


def test_a_damaged_recording_is_not_compared(tmp_path: Path) -> None:
    one, other = (_recording(tmp_path / name) for name in "ab")
    path = other.rank(1).log(1)
    path.write_bytes(path.read_bytes()[:-3])
    assert re.match(f"{re.escape(str(path))} is cut off in line 5$", _refused(lambda: diff(one, other)))
