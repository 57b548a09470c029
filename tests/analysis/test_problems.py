"""A file that is missing, torn, changed or foreign, wherever it lies: named, and all the rest is there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from detsweep import load
from detsweep.analysis import exit_code
from detsweep.analysis.frames import Sweep
from detsweep.analysis.report import print_report, write_report
from detsweep.analysis.unread import unread
from detsweep.paths import SweepPaths, TrialPaths, read_json, write_json
from detsweep.plan import Plan
from tests.support import plan_of, trial_of, write_cells, write_trial


def _sweep(folder: Path) -> tuple[SweepPaths, Plan, TrialPaths]:
    plan = plan_of(["seed=1"], ["seed=2"])
    sweep = write_cells(folder, plan)
    for cell in plan.cells:
        write_trial(trial_of(sweep, cell), cell)
        write_json(trial_of(sweep, cell).job, {"state": "done"})
    return sweep, plan, trial_of(sweep, plan.cells[0])


def _found(sweep: Sweep) -> list[tuple[str, str]]:
    return [(one.file, one.problem) for one in sweep.problems.itertuples()]


def test_a_sweep_whose_files_are_whole_has_no_problems(tmp_path: Path) -> None:
    _, _, trial = _sweep(tmp_path)
    for name in ("rank000.progress", "environment-rank000.json", "exits.json", "node001.json", ".failed"):
        if not (trial.folder / name).exists():
            (trial.folder / name).touch()
    for folder in ("log", "cache", "checkpoint", "recording"):
        (trial.folder / folder).mkdir()
    assert _found(load(tmp_path)) == []


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    place = content.rindex(b'"after"]') - 3
    content[place] = ord("1") if content[place] != ord("1") else ord("2")
    path.write_bytes(bytes(content))


def _other_schema(path: Path) -> None:
    write_json(path, {**read_json(path), "schema": 99})


def _gone(path: Path) -> None:
    path.unlink()


def _appears(path: Path) -> None:
    path.write_text("hello")


@pytest.mark.parametrize(
    ("name", "damage", "problem"),
    [
        ("rank001.jsonl", _cut, "bytes, "),
        ("rank001.jsonl", _flip, "is not what was written: its xxh3_128 is "),
        ("rank001.jsonl", _gone, "is missing"),
        ("rank001.result.json", _gone, "is missing"),
        ("rank001.result.json", _cut, "bytes, "),
        ("result.json", _cut, "cannot be read: "),
        ("result.json", _other_schema, "has schema 99, this version reads 2"),
        ("environment-rank001.json", _cut, "cannot be read: "),
        ("environment-rank001.json", _gone, "is missing"),
        ("environment-rank000.json", _other_schema, "has schema 99, this version reads 2"),
        ("spec.json", _cut, "cannot be read: "),
        ("job.json", _cut, "cannot be read: "),
        ("spec.json", _other_schema, "has schema 99, this version reads 2"),
        ("rank002.jsonl", _appears, "is of a rank that the trial does not have: it has 2"),
        ("environment-rank007.json", _appears, "is of a rank that the trial does not have: it has 2"),
        ("core.1234", _appears, "is no file of a trial"),
    ],
)
def test_what_is_wrong_with_a_trials_file_is_named_everywhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, damage: Callable[[Path], None], problem: str
) -> None:
    _, plan, trial = _sweep(tmp_path)
    damage(trial.folder / name)
    loaded = load(tmp_path)
    ((file, said),) = _found(loaded)
    assert file == str((trial.folder / name).relative_to(tmp_path))
    assert problem in said
    assert list(loaded.problems[["cell", "trial"]].iloc[0]) == [plan.cells[0].id, 0]
    # Nothing of the other trial is lost, and the report has the file in all its forms.
    assert loaded.trials["verdict"].iloc[1] == "pass"
    assert len(loaded.records(cell=plan.cells[1].id)) == 40
    print_report(loaded)
    assert f"{file} {said}" in capsys.readouterr().out
    write_report(loaded)
    assert f"- {file} {said}" in (tmp_path / "matrix.md").read_text().splitlines()


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("cell.json", _cut),
        ("cell.json", _gone),
        ("cell.json", _other_schema),
        ("sweep.json", _cut),
        ("sweep.json", _gone),
    ],
)
def test_a_cell_or_sweep_that_cannot_be_read_is_named(
    tmp_path: Path, name: str, damage: Callable[[Path], None]
) -> None:
    sweep, _, trial = _sweep(tmp_path)
    path = trial.folder.parent / name if name == "cell.json" else sweep.sweep
    damage(path)
    ((file, said),) = _found(load(tmp_path))
    assert file == str(path.relative_to(tmp_path))
    assert any(words in said for words in ("is missing", "cannot be read", "has schema 99"))


def test_folders_and_files_with_spaces_in_their_names_hide_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "my sweep of today"
    _, _, trial = _sweep(folder)
    for name in ("rank000.jsonl", "job.json", "environment-rank001.json"):
        _cut(trial.folder / name)
    for name in ("my a.txt", "my b.txt"):
        (trial.folder / name).touch()
    (folder / "sweep.json").unlink()
    place = trial.folder.relative_to(folder)
    assert sorted(file for file, _ in _found(load(folder))) == sorted(
        [
            "sweep.json",
            *(str(place / name) for name in ("rank000.jsonl", "job.json", "environment-rank001.json")),
            *(str(place / name) for name in ("my a.txt", "my b.txt")),
        ]
    )


def test_records_that_were_changed_cost_their_trial_its_verdict_and_no_other(tmp_path: Path) -> None:
    plan = plan_of(["seed=1"], ["seed=2"], common=["mode=relaunch", "trials=3"])
    sweep = write_cells(tmp_path, plan)
    for cell in plan.cells:
        for number in range(3):
            write_trial(trial_of(sweep, cell, number), cell, number)
    _flip(trial_of(sweep, plan.cells[0], 1).records(1))
    for recount in (False, True):
        loaded = load(tmp_path, recount=recount)
        # A file that was damaged is no launch that differed from the others.
        assert list(loaded.trials["verdict"]) == ["pass", "error", "pass", "pass", "pass", "pass"]
        assert "is not what was written" in loaded.trials["error"].iloc[1]
        assert len(loaded.divergences) == 0
        assert exit_code(loaded) == 3


def test_a_large_sweep_whose_records_were_changed_finds_no_divergence_in_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(["seed=1"], ["seed=2"], common=["mode=relaunch", "trials=2", "against=seed:1"])
    sweep = write_cells(tmp_path, plan)
    for cell in plan.cells:
        for number in range(2):
            write_trial(trial_of(sweep, cell, number), cell, number)
    _flip(trial_of(sweep, plan.cells[0], 1).records(1))
    _flip(trial_of(sweep, plan.cells[1], 0).records(0))
    monkeypatch.setattr("detsweep.analysis.loading.CHECKED_AT_ONCE", 10)
    loaded = load(tmp_path)
    assert list(loaded.trials["verdict"]) == ["pass", "error", "error", "pass"]
    # Whole launches are what a baseline is compared with.
    assert list(loaded.baselines["equal"]) == [True]


def test_a_large_sweep_is_not_read_through_unasked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, trial = _sweep(tmp_path)
    _flip(trial.records(1))
    loaded = load(tmp_path)
    assert len(unread(loaded)) == 1
    monkeypatch.setattr("detsweep.analysis.loading.CHECKED_AT_ONCE", 10)
    large = load(tmp_path)
    (line,) = unread(large, most_bytes=10)
    assert line.endswith("MB of records were not read to see whether they are whole: .problems does")
    assert len(large.checked(records=False)) == 0
    assert len(large.problems) == 1
