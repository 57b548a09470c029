"""Taking the files of a sweep's folder: plain files that lie in it and nothing else, each copied once."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from detsweep.paths import ENDINGS, SweepPaths

_BLOCK = 1 << 20
_KINDS = (
    (stat.S_ISLNK, "a link: links are not followed"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISCHR, "a device"),
)
_FOLDERS = (
    (re.compile(r"\.jobs"), "of the running sweep alone: submitit's own files and locks"),
    (re.compile(r"cells/[^/]+/(trial\d+[^/]*/|superseded/[^/]+/)?cache"), "compiled kernels and tuning results"),
    (re.compile(r"mlruns|wandb|tensorboard"), "what a tracker keeps of the sweep, in its own form and with paths"),
)
_PAYLOADS = (
    (re.compile(r"(^|/)recording/.*\.(bin|safetensors)"), "what a recording keeps of tensors; --recordings takes it"),
    (re.compile(r"(^|/)checkpoint/.*"), "a checkpoint; --recordings takes it"),
)
_DERIVED = "made anew from the rest: python -m detsweep.analysis <bundle>"
"""What is said of files that the analysis made: every value is in them once more, in the writing of another format."""


@dataclass
class Taken:
    """What was taken: `files` by their names in the sweep's folder, with size and SHA-256 of what was copied.

    `left_out`: what was not, by its name, and why; `changed`: files that were written to while they were read.
    """

    folder: Path
    files: dict[str, tuple[int, str]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    changed: list[str] = field(default_factory=list)


def take(sweep: Path, into: Path, *, recordings: bool, derived: bool = True) -> Taken:
    """Copy what belongs into a bundle from a sweep's folder to another one; `derived`: also what the analysis made.

    No link is followed and nothing outside of the folder is read, whatever happens to it meanwhile: every folder is
    held open, and what lies in it is opened by its name there.
    """
    taken = Taken(into)
    made = () if derived else _derived(sweep)
    into.mkdir(parents=True, exist_ok=True)
    for folder, folders, names, handle in os.fwalk(sweep, follow_symlinks=False, onerror=_noted(taken, sweep)):
        place = "" if Path(folder) == sweep else f"{Path(folder).relative_to(sweep).as_posix()}/"
        for name in sorted(folders):
            why = _refused_folder(f"{place}{name}", name, handle)
            if why is None and f"{place}{name}" in made:
                why = _DERIVED
            if why is not None:
                taken.left_out[f"{place}{name}/" if "link" not in why else f"{place}{name}"] = why
                folders.remove(name)
        folders.sort()
        for name in sorted(names):
            if f"{place}{name}" in made:
                taken.left_out[f"{place}{name}"] = _DERIVED
            else:
                _take_one(taken, f"{place}{name}", name, handle, recordings=recordings)
    return taken


def _derived(sweep: Path) -> tuple[str, ...]:
    paths = SweepPaths(sweep)
    made = (paths.matrix_html, paths.matrix_md, paths.matrix_csv, paths.matrix_json, paths.frames)
    return tuple(path.relative_to(sweep).as_posix() for path in made)


def _noted(taken: Taken, sweep: Path) -> Callable[[OSError], None]:
    def note(error: OSError) -> None:
        name = Path(str(error.filename))
        shown = name.relative_to(sweep).as_posix() if name.is_relative_to(sweep) else str(name)
        taken.left_out[shown] = f"cannot be read: {error.strerror}"

    return note


def _refused_folder(place: str, name: str, handle: int) -> str | None:
    try:
        kind = os.stat(name, dir_fd=handle, follow_symlinks=False).st_mode
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    if stat.S_ISLNK(kind):
        return _KINDS[0][1]
    return next((why for pattern, why in _FOLDERS if pattern.fullmatch(place)), None)


def _take_one(taken: Taken, place: str, name: str, handle: int, *, recordings: bool) -> None:
    """Take one file, or note why not."""
    if not place.isprintable():
        # Control characters, or bytes that are no text: such a name could not be written down as it is.
        taken.left_out[ascii(place)] = "its name is no printable text"
        return
    if name.endswith(ENDINGS):
        taken.left_out[place] = "an archive of its own, most likely an earlier bundle"
        return
    for pattern, why in () if recordings else _PAYLOADS:
        if pattern.search(place):
            taken.left_out[place] = why
            return
    try:
        # Without waiting: to open a pipe that nobody writes to would wait for ever.
        source = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=handle)
    except OSError as error:
        taken.left_out[place] = _why(name, handle) or f"cannot be read: {error.strerror}"
        return
    with os.fdopen(source, "rb") as stream:
        before = os.fstat(source)
        if kind := _kind(before.st_mode):
            taken.left_out[place] = kind
            return
        target = taken.folder / place
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with target.open("xb") as copy:
                taken.files[place] = _copied(stream, copy)
        except OSError as error:
            target.unlink(missing_ok=True)
            if error.errno in _FULL:
                raise
            taken.left_out[place] = f"cannot be read: {error.strerror}"
            return
        after = os.fstat(source)
    if _changed(before, after, taken.files[place][0]) or not _still_there(name, handle, after):
        taken.changed.append(place)


# It is the copy that cannot be made, not the file that cannot be read.
_FULL = (errno.EFBIG, errno.ENOSPC, errno.EDQUOT)


def _copied(stream: BinaryIO, copy: BinaryIO) -> tuple[int, str]:
    digest, size = hashlib.sha256(), 0
    while block := stream.read(_BLOCK):
        digest.update(block)
        copy.write(block)
        size += len(block)
    return size, digest.hexdigest()


def _why(name: str, handle: int) -> str | None:
    """What kind of thing something is that could not be opened; None where it is gone, or a plain file."""
    try:
        return _kind(os.stat(name, dir_fd=handle, follow_symlinks=False).st_mode)
    except OSError:
        return "vanished while it was to be read"


def _kind(mode: int) -> str | None:
    if stat.S_ISREG(mode):
        return None
    return next((why for is_kind, why in _KINDS if is_kind(mode)), "not a plain file")


def _changed(before: os.stat_result, after: os.stat_result, size: int) -> bool:
    return (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns) or size != after.st_size


def _still_there(name: str, handle: int, read: os.stat_result) -> bool:
    """Whether the name still stands for the file that was read: one that is written whole replaces it."""
    try:
        now = os.stat(name, dir_fd=handle, follow_symlinks=False)
    except OSError:
        return False
    return (now.st_ino, now.st_dev) == (read.st_ino, read.st_dev)


def files_below(folder: Path) -> Iterator[tuple[str, Path]]:
    """The plain files below a folder of our own, with their names in it, in order."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            yield path.relative_to(folder).as_posix(), path
