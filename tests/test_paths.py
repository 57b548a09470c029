"""Files: written whole or not at all, found again, and named when they cannot be read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from detsweep.paths import CellPaths, FileError, SweepPaths, conf_dir, read_json, write_json, write_text


def test_a_written_file_is_read_again_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "cell.json"
    write_json(path, {"name": "Größe", "values": [1, None, 2**64 - 1]})
    assert read_json(path) == {"name": "Größe", "values": [1, None, 2**64 - 1]}
    assert [one.name for one in path.parent.iterdir()] == ["cell.json"]


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"long": "x" * 1000})
    write_json(path, {"a": 1})
    assert read_json(path) == {"a": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_write_keeps_the_old_file_and_leaves_no_other(tmp_path: Path) -> None:
    path = tmp_path / "matrix.md"
    write_text(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "new \ud800")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_write_that_cannot_be_renamed_leaves_no_other_file(tmp_path: Path) -> None:
    (tmp_path / "taken" / "inside").mkdir(parents=True)
    with pytest.raises(OSError, match="taken"):
        write_text(tmp_path / "taken", "text")
    assert [one.name for one in tmp_path.iterdir()] == ["taken"]


def test_other_users_may_read_what_is_written(tmp_path: Path) -> None:
    write_text(tmp_path / "matrix.md", "text")
    assert (tmp_path / "matrix.md").stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "is missing"),
        (b'{"a": ', "cannot be read"),
        (b"", "cannot be read"),
        (b'{"a": "\xff"}', "cannot be read"),
        (b"[1, 2]", "holds list, not a JSON object"),
        (b"3", "holds int, not a JSON object"),
    ],
    ids=["missing", "torn", "empty", "no text", "list", "number"],
)
def test_a_file_that_is_no_json_object_is_named(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "spec.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(FileError) as caught:
        read_json(path)
    assert str(caught.value).startswith(f"{path} {message}")


def test_set_aside_keeps_every_earlier_attempt(tmp_path: Path) -> None:
    cell = CellPaths(tmp_path / "dtype-bf16-0123456789")
    for attempt in ("first", "second", "third"):
        write_json(cell.trial(0).result, {"attempt": attempt})
        cell.set_aside(0)
    assert not cell.trial(0).folder.exists()
    kept = {path.name: read_json(path / "result.json")["attempt"] for path in (cell.folder / "superseded").iterdir()}
    assert kept == {"trial0-1": "first", "trial0-2": "second", "trial0-3": "third"}


def test_set_aside_of_a_trial_that_is_not_there_does_nothing(tmp_path: Path) -> None:
    cell = CellPaths(tmp_path / "cell")
    cell.folder.mkdir()
    cell.set_aside(0)
    assert list(cell.folder.iterdir()) == []


def test_a_trial_that_was_never_launched_stays_where_it_is(tmp_path: Path) -> None:
    cell = CellPaths(tmp_path / "cell")
    write_json(cell.trial(0).spec, {"trial": 0})
    cell.set_aside(0)
    assert read_json(cell.trial(0).spec) == {"trial": 0}
    assert not (cell.folder / "superseded").exists()


def test_trials_come_by_number_without_superseded_ones(tmp_path: Path) -> None:
    cell = CellPaths(tmp_path / "cell")
    for number in (10, 2, 0):
        write_json(cell.trial(number).spec, {})
    write_json(cell.trial(1).result, {})
    cell.set_aside(1)
    (cell.folder / "trialx").mkdir()
    assert [number for number, _ in cell.trials()] == [0, 2, 10]
    assert [paths.folder.name for _, paths in cell.trials()] == ["trial0", "trial2", "trial10"]


def test_a_cell_is_found_by_its_id_under_another_slug(tmp_path: Path) -> None:
    sweep = SweepPaths(tmp_path)
    first = sweep.cell("dtype-bf16", "0123456789")
    assert first.folder == tmp_path / "cells" / "dtype-bf16-0123456789"
    write_json(first.cell, {})
    assert sweep.cell("experts-4_dtype-bf16", "0123456789") == first
    assert sweep.cell("dtype-bf16", "9876543210").folder.name == "dtype-bf16-9876543210"


def test_all_cells_are_the_folders_of_cells(tmp_path: Path) -> None:
    sweep = SweepPaths(tmp_path)
    assert sweep.all_cells() == []
    for name in ("b-2", "a-1"):
        write_json(CellPaths(tmp_path / "cells" / name).cell, {})
    (tmp_path / "cells" / "notes.txt").touch()
    assert [cell.folder.name for cell in sweep.all_cells()] == ["a-1", "b-2"]


def test_the_names_of_a_trials_files_are_those_of_the_contract(tmp_path: Path) -> None:
    trial = SweepPaths(tmp_path).cell("slug", "id").trial(3)
    files = (
        trial.spec,
        trial.job,
        trial.result,
        trial.records(7),
        trial.rank_result(7),
        trial.environment(7),
        trial.checkpoint,
    )
    assert [str(path.relative_to(trial.folder)) for path in files] == [
        "spec.json",
        "job.json",
        "result.json",
        "rank007.jsonl",
        "rank007.result.json",
        "environment-rank007.json",
        "checkpoint",
    ]


def test_the_configuration_groups_are_where_hydra_looks_for_them() -> None:
    assert (conf_dir() / "config.yaml").is_file()
    groups = {path.name for path in conf_dir().iterdir() if path.is_dir()}
    assert groups >= {"model", "dtype", "moe", "mode", "mitigation", "fault", "observe", "launch"}


def test_the_folders_of_cells_are_read_once_for_many(tmp_path: Path) -> None:
    sweep = SweepPaths(tmp_path)
    assert sweep.cell_folders() == {}
    for name in ("seed-1-0123456789", "a-b-0123456789", "tiny-abcdefabcd"):
        (tmp_path / "cells" / name).mkdir(parents=True)
    known = sweep.cell_folders()
    assert known.keys() == {"0123456789", "abcdefabcd"}
    for cell_id in (*known, "ffffffffff"):
        assert sweep.cell("slug", cell_id, known) == sweep.cell("slug", cell_id)
    assert sweep.cell("slug", "0123456789", known).folder == tmp_path / "cells" / "a-b-0123456789"
    assert sweep.cell("slug", "ffffffffff", known).folder == tmp_path / "cells" / "slug-ffffffffff"


# --- on a cluster ----------------------------------------------------------------------------------------------------


def _attempt(cell: CellPaths, name: str, age: int, number: int = 0) -> Path:
    made = cell.attempt(number, name)
    write_json(made.spec, {"of": name})
    os.utime(made.folder, (age, age))
    return made.folder


def test_attempts_come_by_age_and_are_no_trials(tmp_path: Path) -> None:
    cell = CellPaths(tmp_path / "cell")
    folders = [_attempt(cell, name, age) for name, age in (("9_1.0", 3000), ("10_1.1", 1000), ("10_1.0", 2000))]
    _attempt(cell, "9_1.0", 4000, number=10)
    assert [one.folder for one in cell.attempts(0)] == [folders[1], folders[2], folders[0]]
    assert (cell.attempts(1), list(cell.trials())) == ([], [])


def test_set_aside_takes_attempts_along_and_leaves_other_trials_alone(tmp_path: Path) -> None:
    cell = CellPaths(tmp_path / "cell")
    write_json(cell.trial(0).spec, {})
    _attempt(cell, "7.0", 1000)
    kept = _attempt(cell, "7.0", 1000, number=1)
    cell.set_aside(0)
    assert read_json(cell.folder / "superseded" / "trial0-1" / "spec.json") == {"of": "7.0"}
    assert cell.trial(0).spec.exists()
    assert kept.exists()


def test_the_attempt_that_begins_keeps_its_folder(tmp_path: Path) -> None:
    cell = CellPaths(tmp_path / "cell")
    for name in ("7.0", "7.1", "7.2"):
        _attempt(cell, name, 1000)
    cell.set_attempts_aside(0, keep=cell.attempt(0, "7.2"))
    assert [one.folder.name for one in cell.attempts(0)] == ["trial0-attempt-7.2"]
    assert len(list((cell.folder / "superseded").iterdir())) == 2


def test_arrays_are_files_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    sweep = SweepPaths(tmp_path)
    assert sweep.arrays() == []
    for number in (11, 2, 100):
        write_json(sweep.array(number), {})
    write_json(sweep.cluster, {})
    assert sweep.arrays() == [sweep.array(number) for number in (2, 11, 100)]


def test_each_node_has_files_of_its_own_and_the_first_those_of_a_trial_on_one(tmp_path: Path) -> None:
    trial = CellPaths(tmp_path).trial(0)
    assert (trial.exits_of(0), trial.launcher_log_of(0)) == (trial.exits, trial.launcher_log)
    assert len({trial.exits_of(node) for node in range(3)} | {trial.launcher_log_of(node) for node in range(3)}) == 6
    for node in range(2):
        write_json(trial.exits_of(node), {})
    assert trial.all_exits() == [trial.exits_of(1), trial.exits_of(0)]


def test_what_a_tracker_keeps_lies_in_the_sweeps_folder_by_the_trackers_own_name(tmp_path: Path) -> None:
    found = [SweepPaths(tmp_path).tracker(name).name for name in ("mlflow", "wandb", "tensorboard")]
    assert found == ["mlruns", "wandb", "tensorboard"]
