"""Opening what somebody sent: damaged, changed and hostile archives are told, and nothing is written elsewhere."""

from __future__ import annotations

import gzip
import io
import json
import multiprocessing
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

import detsweep
from detsweep.bundling import make, opened
from detsweep.bundling.opening import unpack
from detsweep.paths import FileError
from tests.support import plan_of, trial_of, write_cells, write_trial

Member = tuple[tarfile.TarInfo, bytes]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of a small sweep."""
    folder = tmp_path_factory.mktemp("bundle")
    plan = plan_of(["seed=1"], common=["world.nproc_per_node=1"])
    sweep = write_cells(folder / "x", plan)
    write_trial(trial_of(sweep, plan.cells[0]), plan.cells[0])
    return make(sweep.folder, folder / "x.tar.zst", environment={}).path


def _members(path: Path) -> list[Member]:
    data = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(path.read_bytes())).read()
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        return [(member, archive.extractfile(member).read()) for member in archive]  # type: ignore[union-attr]


def _written(path: Path, members: list[Member]) -> Path:
    with gzip.open(path, "wb") as stream, tarfile.open(fileobj=stream, mode="w") as archive:
        for member, data in members:
            member.size = len(data) if member.isreg() else 0
            archive.addfile(member, io.BytesIO(data) if member.isreg() else None)
    return path


def _entry(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = kind, link
    return entry


def test_it_loads_and_is_unpacked_once(bundle: Path) -> None:
    folder = opened(bundle)
    assert list(detsweep.load(folder).trials["verdict"]) == ["pass"]
    assert opened(bundle) == folder
    assert opened(Path(os.path.relpath(bundle))) == folder


def test_a_file_that_was_replaced_is_unpacked_again(bundle: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.tar.zst"
    copy.write_bytes(bundle.read_bytes())
    first = opened(copy)
    copy.unlink()
    copy.write_bytes(bundle.read_bytes())
    os.utime(copy, (5, 5))
    assert opened(copy) != first


def test_what_was_unpacked_goes_with_the_process_that_asked(bundle: Path) -> None:
    code = """
import os, sys
from pathlib import Path
from detsweep.bundling import opened
folder = opened(Path(sys.argv[1]))
child = os.fork()
if child == 0:
    sys.exit(0)
os.waitpid(child, 0)
assert folder.is_dir(), "a child must not remove what its parent reads"
print(folder)
"""
    done = subprocess.run([sys.executable, "-c", code, bundle], capture_output=True, text=True, check=True, timeout=60)
    folder = Path(done.stdout.strip())
    assert folder.name == "sweep"
    assert not folder.parents[1].exists()


def _open_in_child(path: str, answers: multiprocessing.Queue[str]) -> None:
    answers.put(str(opened(Path(path))))


def test_a_process_that_was_forked_unpacks_for_itself(bundle: Path) -> None:
    own = opened(bundle)
    context = multiprocessing.get_context("fork")
    answers: multiprocessing.Queue[str] = context.Queue()  # type: ignore[assignment]
    child = context.Process(target=_open_in_child, args=(str(bundle), answers))
    child.start()
    other = answers.get(timeout=60)
    child.join(60)
    assert other != str(own)
    assert own.is_dir()


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_one_that_is_cut_off_is_told(bundle: Path, tmp_path: Path, share: float) -> None:
    data = bundle.read_bytes()
    cut = tmp_path / "cut.tar.zst"
    cut.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(FileError) as raised:
        opened(cut)
    assert str(cut) in str(raised.value)


def test_a_flipped_byte_is_told(bundle: Path, tmp_path: Path) -> None:
    data = bytearray(bundle.read_bytes())
    failures = 0
    for place in range(0, len(data), len(data) // 12):
        changed = bytearray(data)
        changed[place] ^= 1
        path = tmp_path / f"{place}.tar.zst"
        path.write_bytes(changed)
        try:
            folder = opened(path)
        except FileError:
            failures += 1
        else:
            # A bit that nothing depends on, as one of zstd's own header: then the content is as it was.
            assert sorted(p.name for p in folder.rglob("*")) == sorted(p.name for p in opened(bundle).rglob("*"))
    assert failures > 6


def _changed(change: Callable[[list[Member]], list[Member]], bundle: Path, tmp_path: Path) -> str:
    path = _written(tmp_path / "changed.tar.gz", change(_members(bundle)))
    with pytest.raises(FileError) as raised:
        opened(path)
    assert str(path) in str(raised.value)
    return str(raised.value).removeprefix(f"{path}")


def _index(members: list[Member], ending: str) -> int:
    return next(i for i, (member, _) in enumerate(members) if member.name.endswith(ending))


def test_a_file_that_was_changed_is_named(bundle: Path, tmp_path: Path) -> None:
    def change(members: list[Member]) -> list[Member]:
        place = _index(members, "/cell.json")
        members[place] = (members[place][0], members[place][1].replace(b"seed", b"sead"))
        return members

    said = _changed(change, bundle, tmp_path)
    assert "cell.json is not what was bundled: its SHA-256 is another than the manifest's" in said


def test_a_file_of_another_size_is_named(bundle: Path, tmp_path: Path) -> None:
    def change(members: list[Member]) -> list[Member]:
        place = _index(members, "rank000.jsonl")
        members[place] = (members[place][0], members[place][1][:-5])
        return members

    assert "rank000.jsonl has " in _changed(change, bundle, tmp_path)


def test_a_file_that_is_missing_is_named(bundle: Path, tmp_path: Path) -> None:
    def change(members: list[Member]) -> list[Member]:
        del members[_index(members, "/spec.json")]
        return members

    assert "spec.json is missing, and its manifest lists it" in _changed(change, bundle, tmp_path)


def test_a_file_too_many_is_named(bundle: Path, tmp_path: Path) -> None:
    said = _changed(lambda members: [*members, (_entry("x/sweep/more.json"), b"{}")], bundle, tmp_path)
    assert said == ": sweep/more.json is in it, and its manifest does not list it"


def test_without_a_manifest_it_is_no_bundle(bundle: Path, tmp_path: Path) -> None:
    def change(members: list[Member]) -> list[Member]:
        return [one for one in members if not one[0].name.endswith("manifest.json")]

    assert _changed(change, bundle, tmp_path) == " is no bundle: it has no manifest.json"


@pytest.mark.parametrize("manifest", [b"{", b"[]", b'{"kind": "detsweep bundle", "schema": 99}', b'{"schema": 1}'])
def test_a_manifest_of_another_kind_is_refused(bundle: Path, tmp_path: Path, manifest: bytes) -> None:
    def change(members: list[Member]) -> list[Member]:
        place = _index(members, "/manifest.json")
        members[place] = (members[place][0], manifest)
        return members

    assert "manifest.json" in _changed(change, bundle, tmp_path)


@pytest.mark.parametrize("files", [None, [{}], [{"name": "x"}], "x"])
def test_a_manifest_that_lists_no_files_is_refused(bundle: Path, tmp_path: Path, files: object) -> None:
    def change(members: list[Member]) -> list[Member]:
        place = _index(members, "/manifest.json")
        told = {**json.loads(members[place][1]), "files": files}
        members[place] = (members[place][0], json.dumps(told).encode())
        return members

    assert "does not list files with name, size and sha256" in _changed(change, bundle, tmp_path)


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (_entry("/evil-detsweep"), "would lie outside of the bundle"),
        (_entry("x/../../evil-detsweep"), "would lie outside of the bundle"),
        (_entry("../evil-detsweep"), "would lie outside of the bundle"),
        (_entry("x/sweep/a\\..\\b"), "would lie outside of the bundle"),
        (_entry("x/sweep/link", tarfile.SYMTYPE, "/etc"), "a link, a device or the like"),
        (_entry("x/sweep/hard", tarfile.LNKTYPE, "x/sweep/sweep.json"), "a link, a device or the like"),
        (_entry("x/sweep/pipe", tarfile.FIFOTYPE), "a link, a device or the like"),
        (_entry("x/sweep/device", tarfile.CHRTYPE), "a link, a device or the like"),
        (_entry("y/other"), "it must hold one folder, and has 2"),
        (_entry("x/sweep/sweep.json"), "is in it twice"),
    ],
)
def test_what_would_lead_elsewhere_is_refused_and_not_written(
    bundle: Path, tmp_path: Path, entry: tarfile.TarInfo, words: str
) -> None:
    assert words in _changed(lambda members: [*members, (entry, b"evil")], bundle, tmp_path)
    assert not Path("/evil-detsweep").exists()
    assert not list(tmp_path.rglob("evil-detsweep"))


def test_a_link_that_a_later_file_would_go_through_is_refused_before_it(bundle: Path, tmp_path: Path) -> None:
    more = [
        (_entry("x/sweep/out", tarfile.SYMTYPE, str(tmp_path)), b""),
        (_entry("x/sweep/out/evil-detsweep"), b"evil"),
    ]
    _changed(lambda members: [*more, *members], bundle, tmp_path)
    assert not (tmp_path / "evil-detsweep").exists()


def test_one_that_unpacks_to_more_than_the_limit_is_stopped(bundle: Path, tmp_path: Path) -> None:
    bomb = _written(tmp_path / "bomb.tar.gz", [*_members(bundle), (_entry("x/sweep/zeros"), bytes(1 << 22))])
    assert bomb.stat().st_size < 1 << 18
    with pytest.raises(FileError, match="unpacks to more than 1048576 bytes"):
        unpack(bomb, tmp_path / "unpacked", limit=1 << 20)
    assert sum(path.stat().st_size for path in (tmp_path / "unpacked").rglob("*") if path.is_file()) <= 1 << 20


def test_what_failed_leaves_nothing_behind(bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    path = _written(tmp_path / "bad.tar.gz", [*_members(bundle), (_entry("../evil-detsweep"), b"evil")])
    with pytest.raises(FileError):
        opened(path)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "neither compressed by zstd nor by gzip"),
        (b"PK\x03\x04", "neither"),
        (gzip.compress(b"x", mtime=0), "or no bundle: truncated header"),
    ],
)
def test_what_is_no_bundle_is_told(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "x.tar.zst"
    path.write_bytes(content)
    with pytest.raises(FileError, match=words):
        opened(path)


def test_one_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="No such file"):
        opened(tmp_path / "nothing.tar.zst")
