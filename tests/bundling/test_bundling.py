"""Bundles: what is taken of a sweep's folder, what is not and why, and what is refused."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import socket
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import zstandard

import detsweep
from detsweep.bundling import make, opened, sweep_folder, taking
from detsweep.bundling.reproduce import command_of, text
from detsweep.paths import FileError, SweepPaths, read_json
from tests.support import plan_of, trial_of, write_cells, write_failure, write_trial

ENVIRONMENT = {"kind": "environment", "host": "here"}


@pytest.fixture
def sweep(tmp_path: Path) -> SweepPaths:
    """A sweep of two cells with records, one of which diverged, and what lies around in such folders."""
    plan = plan_of(["fault=bit_flip", "+env.OWN=1"], ["seed=2"], common=["model.num_layers=2"])
    paths = write_cells(tmp_path / "runs" / "x", plan)
    write_trial(trial_of(paths, plan.cells[0]), plan.cells[0], differs={0: {(0, 2): 5}})
    write_trial(trial_of(paths, plan.cells[1]), plan.cells[1])
    trial = trial_of(paths, plan.cells[0])
    for name, content in {
        ".jobs/driver.lock": "",
        f"{trial.cell_cache.relative_to(paths.folder)}/triton/kernel.so": "kernel",
        f"{trial.cache.relative_to(paths.folder)}/inductor/kernel.so": "kernel",
        f"{trial.recording.rank(0).payload(0).relative_to(paths.folder)}": "payload",
        f"{trial.recording.rank(0).log(0).relative_to(paths.folder)}": "{}\n",
        f"{trial.checkpoint.relative_to(paths.folder)}/shard": "state",
        "earlier.tar.zst": "an earlier bundle",
        "mlruns/0/meta.yaml": "artifact_uri: /somewhere",
        "wandb/run/log": "somewhere",
    }.items():
        (paths.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (paths.folder / name).write_text(content)
    return paths


def _trial(sweep: SweepPaths) -> Path:
    return sweep.all_cells()[0].trial(0).folder


def _made(sweep: SweepPaths, **options: bool) -> Path:
    return make(sweep.folder, sweep.folder.parent / "out.tar.zst", environment=ENVIRONMENT, **options).path


def test_every_file_is_in_it_as_it_was_and_the_rest_is_named_with_the_reason(sweep: SweepPaths) -> None:
    made = make(sweep.folder, sweep.folder.parent / "out.tar.zst", environment=ENVIRONMENT)
    back = opened(made.path)
    before = {p.relative_to(sweep.folder): p.read_bytes() for p in sweep.folder.rglob("*") if p.is_file()}
    after = {p.relative_to(back): p.read_bytes() for p in back.rglob("*") if p.is_file()}
    assert after.items() <= before.items()
    cell = f"cells/{sweep.all_cells()[0].folder.name}/"
    left_out = {one["name"].removeprefix(cell): one["why"] for one in made.manifest["left_out"]}
    assert set(left_out) == {
        ".jobs/", "cache/", "trial0/cache/", "trial0/checkpoint/shard", "trial0/recording/rank000/step000000.bin",
        "earlier.tar.zst", "mlruns/", "wandb/",
    }  # fmt: skip
    assert left_out["cache/"] == "compiled kernels and tuning results"
    assert "trial0/recording/rank000/step000000.jsonl" in "\n".join(map(str, after))
    assert read_json(back.parent / "environment.json") == ENVIRONMENT


def test_recordings_are_taken_where_they_are_asked_for(sweep: SweepPaths) -> None:
    names = {path.name for path in opened(_made(sweep, recordings=True)).rglob("*")}
    assert {"step000000.bin", "shard"} <= names


def test_the_manifest_has_every_file_with_its_size_and_digest(sweep: SweepPaths) -> None:
    made = make(sweep.folder, sweep.folder.parent / "out.tar.gz", environment=ENVIRONMENT)
    top = opened(made.path).parent
    files = {path.relative_to(top).as_posix(): path.read_bytes() for path in top.rglob("*") if path.is_file()}
    listed = {one["name"]: (one["size"], one["sha256"]) for one in made.manifest["files"]}
    del files["manifest.json"]
    assert listed == {name: (len(data), hashlib.sha256(data).hexdigest()) for name, data in files.items()}
    assert (made.manifest["kind"], made.manifest["redacted"]) == ("detsweep bundle", False)
    assert made.size == made.path.stat().st_size


@pytest.mark.parametrize("ending", [".tar.zst", ".tar.gz"])
@pytest.mark.parametrize("redacted", [False, True])
def test_the_same_sweep_is_the_same_bytes_whenever_and_by_whomever(
    sweep: SweepPaths, ending: str, redacted: bool
) -> None:
    paths = [sweep.folder.parent / f"{name}" / f"out{ending}" for name in "ab"]
    for path in paths:
        path.parent.mkdir()
        make(sweep.folder, path, environment=ENVIRONMENT, redacted=redacted)
        for file in sweep.folder.rglob("*.json"):
            os.utime(file, (1, 1))
            file.chmod(0o600)
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_members_have_one_owner_one_mode_and_one_time_and_are_sorted(sweep: SweepPaths) -> None:
    data = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(_made(sweep).read_bytes())).read()
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        members = archive.getmembers()
    assert {(m.uid, m.gid, m.uname, m.gname, m.mode, m.mtime, m.type) for m in members} == {
        (0, 0, "", "", 0o644, 0, tarfile.REGTYPE)
    }
    assert [m.name.split("/") for m in members] == sorted(m.name.split("/") for m in members)


def test_links_pipes_and_sockets_are_left_out_by_name_and_nothing_outside_is_read(
    sweep: SweepPaths, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.json").write_text("{}")
    trial = _trial(sweep)
    (trial / "file.json").symlink_to(outside / "secret.json")
    (trial / "folder").symlink_to(outside)
    (trial / "nowhere").symlink_to(tmp_path / "nothing")
    os.mkfifo(trial / "pipe")
    with socket.socket(socket.AF_UNIX) as bound:
        here = Path.cwd()
        os.chdir(trial)
        try:
            bound.bind("socket")
        finally:
            os.chdir(here)
        made = make(sweep.folder, tmp_path / "out.tar.zst", environment=ENVIRONMENT)
    left_out = {one["name"].rpartition("/")[2]: one["why"] for one in made.manifest["left_out"]}
    assert left_out["file.json"] == left_out["folder"] == left_out["nowhere"] == "a link: links are not followed"
    assert (left_out["pipe"], left_out["socket"]) == ("a named pipe", "a socket")
    assert "secret.json" not in {path.name for path in opened(made.path).rglob("*")}


def test_a_name_that_is_no_text_and_a_file_that_cannot_be_read_are_named(
    sweep: SweepPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = _trial(sweep)
    (trial / "line\nbreak").write_text("x")
    os.close(os.open(os.fsencode(trial) + b"/bytes\xff", os.O_CREAT | os.O_WRONLY))
    (trial / "locked.json").write_text("x")
    real = os.open

    def open_all_but_one(name: str, *rest: int, dir_fd: int | None = None) -> int:
        if name == "locked.json":
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(name, *rest, dir_fd=dir_fd)

    monkeypatch.setattr(taking.os, "open", open_all_but_one)
    made = make(sweep.folder, sweep.folder.parent / "out.tar.zst", environment=ENVIRONMENT)
    why = {one["name"]: one["why"] for one in made.manifest["left_out"]}
    assert sum("no printable text" in one for one in why.values()) == 2
    assert [reason for name, reason in why.items() if name.endswith("locked.json")] == [
        "cannot be read: Permission denied"
    ]


def test_files_that_change_or_vanish_while_they_are_read_are_named(
    sweep: SweepPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = sweep.all_cells()[0].trial(0)
    real = taking._copied

    def meanwhile(stream: io.BufferedReader, copy: io.BufferedWriter) -> tuple[int, str]:
        done = real(stream, copy)
        if Path(f"/proc/self/fd/{stream.fileno()}").readlink() == trial.records(0):
            with trial.records(0).open("a") as more:
                more.write("{")
            trial.records(1).unlink(missing_ok=True)
        return done

    monkeypatch.setattr(taking, "_copied", meanwhile)
    made = make(sweep.folder, sweep.folder.parent / "out.tar.zst", environment=ENVIRONMENT)
    name = trial.records(0).relative_to(sweep.folder).as_posix()
    assert made.manifest["changed_while_read"] == [name]
    left_out = {one["name"]: one["why"] for one in made.manifest["left_out"]}
    assert left_out[name.replace("rank000", "rank001")] == "vanished while it was to be read"


@pytest.mark.parametrize("below", ["cells", "cell", "trial", "log"])
def test_a_part_of_a_sweep_is_refused_and_the_sweep_named(sweep: SweepPaths, below: str) -> None:
    cell = sweep.all_cells()[0].folder
    (cell / "trial0" / "log").mkdir()
    places = {"cells": sweep.folder / "cells", "cell": cell, "trial": cell / "trial0", "log": cell / "trial0" / "log"}
    with pytest.raises(FileError) as raised:
        sweep_folder(places[below])
    assert str(raised.value) == (
        f"{places[below]} lies in the sweep {sweep.folder}: name that one, a bundle is of a whole sweep"
    )


def test_what_is_no_sweep_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name, words in (("empty", "no sweep here"), ("nothing", "no such folder")):
        with pytest.raises(FileError, match=words):
            sweep_folder(tmp_path / name)


def test_a_folder_that_is_a_link_is_the_sweep_that_it_leads_to(sweep: SweepPaths, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(sweep.folder)
    made = make(tmp_path / "link", tmp_path / "out.tar.zst", environment=ENVIRONMENT)
    assert len(detsweep.load(opened(made.path)).trials) == 2


def test_nothing_is_overwritten_unless_forced_and_nothing_half_written_stays(
    sweep: SweepPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _made(sweep)
    with pytest.raises(FileError, match=r"is there already \(--force overwrites it\)"):
        _made(sweep)
    before = path.read_bytes()
    (sweep.folder / "more.txt").write_text("more")
    _made(sweep, force=True)
    assert path.read_bytes() != before

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("detsweep.bundling.making.write", full)
    with pytest.raises(OSError, match="No space left"):
        make(sweep.folder, path.with_name("other.tar.gz"), environment=ENVIRONMENT)
    assert {one.name for one in path.parent.iterdir()} == {"out.tar.zst", "x"}


@pytest.mark.parametrize("name", ["out.zip", "out.tar", "out", "nowhere/out.tar.zst"])
def test_a_name_that_says_no_kind_or_leads_nowhere_is_refused(sweep: SweepPaths, tmp_path: Path, name: str) -> None:
    with pytest.raises(FileError, match=r"must end with \.tar\.zst or \.tar\.gz|no such folder to write to"):
        make(sweep.folder, tmp_path / name, environment=ENVIRONMENT)


def test_how_to_repeat_it_is_told_with_commands_versions_and_verdicts(sweep: SweepPaths) -> None:
    told = (opened(_made(sweep)).parent / "REPRODUCE.md").read_text()
    session = read_json(sweep.sweep)["sessions"][0]
    assert f"    {session['command']}\n" in told
    first, second = (paths.folder.name for paths in sweep.all_cells())
    assert f"| {first} | 1 diverged (fault bit_flip was put in on purpose) | 1/1 | block_post blocks.1, rank 0," in told
    assert f"| {second} | 1 pass | 0/1, below 95.0% (95%) |  |" in told
    assert "    python -m detsweep fault=bit_flip ++env.OWN=1\n" in told
    assert "- `earlier.tar.zst`: an archive of its own" in told


def test_what_of_it_cannot_be_read_is_named_and_all_the_rest_is_told(sweep: SweepPaths) -> None:
    first, second = sweep.all_cells()
    first.cell.write_text("{torn")
    second.trial(0).records(0).unlink()
    sweep.sweep.unlink()
    told = text(sweep.folder, "x.tar.zst", {}, redacted=False)
    assert f"| {first.folder.name} | cannot be read |" in told
    assert "rank000.jsonl is missing" in told
    assert "sweep.json is missing" in told
    assert str(sweep.folder) not in (opened(_made(sweep)).parent / "REPRODUCE.md").read_text()


def test_a_trial_that_failed_is_told_with_its_error(sweep: SweepPaths) -> None:
    plan = plan_of(["seed=3"])
    other = write_cells(sweep.folder.parent / "y", plan)
    write_failure(trial_of(other, plan.cells[0]), plan.cells[0], verdict="timeout", error="no end after 30 min")
    assert "| 1 timeout |  | no end after 30 min |" in text(other.folder, "y.tar.zst", {}, redacted=False)


def test_the_command_of_a_cell_says_what_would_otherwise_be_refused() -> None:
    cell = {"overrides": {"mitigation": "nccl_ring"}, "config": {"mitigation_force": True}}
    assert command_of(cell) == "python -m detsweep mitigation=nccl_ring mitigation_force=true"


def _run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "detsweep.bundle", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_command_writes_beside_whoever_asks_and_says_what_is_missing(sweep: SweepPaths, tmp_path: Path) -> None:
    done = _run(str(sweep.folder), cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("x.tar.zst: ")
    assert "left out: .jobs/: of the running sweep alone" in done.stdout
    again = _run(str(sweep.folder), cwd=tmp_path)
    assert (again.returncode, again.stdout) == (2, "")
    assert again.stderr == "detsweep: x.tar.zst is there already (--force overwrites it)\n"
    assert len(detsweep.load(opened(tmp_path / "x.tar.zst")).trials) == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("nowhere",), "detsweep: nowhere: no such folder"),
        ((), "detsweep: the following arguments are required: folder"),
        (("--what", "x"), "detsweep: unrecognized arguments: --what"),
    ],
)
def test_wrong_input_is_one_line_and_code_2(tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    done = _run(*arguments, cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith(words)
