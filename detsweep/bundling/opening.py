"""A bundle that was sent: checked against its manifest, and unpacked to where this process can read it."""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
import tarfile
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

from detsweep.bundling.archive import reading
from detsweep.bundling.manifest import BUNDLE_SCHEMA, KIND
from detsweep.paths import BundlePaths, FileError, read_json

LIMIT_BYTES = 1 << 36
LIMIT_FILES = 2_000_000
_BLOCK = 1 << 20


def opened(path: Path) -> Path:
    """The folder of the sweep in a bundle, unpacked for as long as this process lives; the same file only once.

    Raises FileError where it is no bundle, is damaged, or holds anything but what its manifest says, by name.
    """
    try:
        state = path.stat()
    except OSError as error:
        raise FileError(f"{path}: {error.strerror}") from None
    return _unpacked(path.resolve(), (state.st_size, state.st_mtime_ns, state.st_ino), os.getpid())


@cache
def _unpacked(path: Path, _state: tuple[int, ...], process: int) -> Path:
    """Of one file in one state and one process: a child must not use what its parent removes."""
    folder = Path(tempfile.mkdtemp(prefix="detsweep-bundle-"))
    atexit.register(_remove, folder, process)
    try:
        return unpack(path, folder)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _remove(folder: Path, process: int) -> None:
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)


def unpack(path: Path, folder: Path, *, limit: int = LIMIT_BYTES) -> Path:
    """Unpack a bundle into a folder and check it; returns the sweep's folder there. `limit`: bytes in all.

    Raises FileError as `opened` does.
    """
    found: dict[str, tuple[int, str]] = {}
    left = limit
    with reading(path) as archive:
        for member in archive:
            name = _safe_name(path, member)
            if name is None:
                continue
            if name in found:
                raise FileError(f"{path}: {name} is in it twice")
            left -= member.size
            if left < 0 or len(found) >= LIMIT_FILES:
                raise FileError(f"{path}: unpacks to more than {limit} bytes or {LIMIT_FILES} files")
            found[name] = _extract(archive, member, folder / name)
    tops = {PurePosixPath(name).parts[0] for name in found}
    if len(tops) != 1:
        raise FileError(f"{path} is no bundle: it must hold one folder, and has {len(tops)}")
    bundle = BundlePaths(folder / tops.pop())
    _check(path, bundle, found)
    return bundle.sweep


def _safe_name(path: Path, member: tarfile.TarInfo) -> str | None:
    """The name of a plain file; None of a folder. Raises FileError for anything that could lead elsewhere."""
    parts = PurePosixPath(member.name).parts
    if not parts or member.name.startswith("/") or ".." in parts or "\\" in member.name or "\0" in member.name:
        raise FileError(f"{path}: {member.name!r} would lie outside of the bundle")
    if member.isdir():
        return None
    if not member.isreg():
        raise FileError(f"{path}: {member.name!r} is a link, a device or the like; a bundle has plain files alone")
    return "/".join(parts)


def _extract(archive: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> tuple[int, str]:
    """Write one file, whatever mode and owner the archive says; its size and SHA-256."""
    target.parent.mkdir(parents=True, exist_ok=True)
    source = archive.extractfile(member)
    assert source is not None
    digest, size = hashlib.sha256(), 0
    with target.open("xb") as copy:
        while block := source.read(_BLOCK):
            digest.update(block)
            copy.write(block)
            size += len(block)
    return size, digest.hexdigest()


def _check(path: Path, bundle: BundlePaths, found: Mapping[str, tuple[int, str]]) -> None:
    """Hold what was unpacked against the manifest. Raises FileError, naming the file in which they differ."""
    top = f"{bundle.folder.name}/"
    own = bundle.manifest.name
    if f"{top}{own}" not in found:
        raise FileError(f"{path} is no bundle: it has no {own}")
    try:
        manifest = read_json(bundle.manifest)
    except FileError as error:
        raise FileError(f"{path}: {error}") from None
    if manifest.get("kind") != KIND or manifest.get("schema") != BUNDLE_SCHEMA:
        schema = manifest.get("schema")
        raise FileError(f"{path}: {own} has schema {schema!r}, this version reads {BUNDLE_SCHEMA} of a {KIND}")
    listed = _listed(path, manifest)
    for name, expected in listed.items():
        got = found.get(f"{top}{name}")
        if got is None:
            raise FileError(f"{path}: {name} is missing, and its manifest lists it")
        if got[0] != expected[0]:
            raise FileError(f"{path}: {name} has {got[0]} bytes, its manifest says {expected[0]}")
        if got[1] != expected[1]:
            raise FileError(f"{path}: {name} is not what was bundled: its SHA-256 is another than the manifest's")
    for name in found:
        if name.removeprefix(top) not in listed and name != f"{top}{own}":
            raise FileError(f"{path}: {name.removeprefix(top)} is in it, and its manifest does not list it")
    if not bundle.sweep.is_dir():
        raise FileError(f"{path} is no bundle: it has no {bundle.sweep.name}/")


def _listed(path: Path, manifest: Mapping[str, Any]) -> dict[str, tuple[int, str]]:
    try:
        return {str(one["name"]): (int(one["size"]), str(one["sha256"])) for one in manifest["files"]}
    except (KeyError, TypeError, ValueError):
        raise FileError(f"{path}: its manifest does not list files with name, size and sha256") from None
