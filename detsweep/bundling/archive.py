"""A bundle as a file: the same bytes for the same content, written and read as a stream."""

from __future__ import annotations

import gzip
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, BinaryIO, cast

import zstandard

from detsweep.bundling.taking import files_below
from detsweep.paths import FileError

_MODE = 0o644
_LEVEL = 10
_ZSTD, _GZIP = b"\x28\xb5\x2f\xfd", b"\x1f\x8b"


def write(content: Path, top: str, path: Path) -> None:
    """Write all files below `content` into an archive, below the folder `top`; the name of `path` says which kind.

    Sorted, with fixed owners, modes and times: equal content makes equal bytes (with one version of the compressor).
    """
    with (
        path.open("wb") as raw,
        _compressed(raw, zstd=path.name.endswith(".tar.zst")) as stream,
        tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name, file in files_below(content):
            entry = tarfile.TarInfo(f"{top}/{name}")
            entry.size, entry.mode, entry.mtime = file.stat().st_size, _MODE, 0
            with file.open("rb") as source:
                archive.addfile(entry, source)


@contextmanager
def _compressed(raw: BinaryIO, *, zstd: bool) -> Iterator[IO[bytes]]:
    if zstd:
        with zstandard.ZstdCompressor(level=_LEVEL).stream_writer(raw, closefd=False) as stream:
            yield cast(IO[bytes], stream)
    else:
        with gzip.GzipFile(filename="", mode="wb", compresslevel=_LEVEL - 1, fileobj=raw, mtime=0) as zipped:
            yield cast(IO[bytes], zipped)


@contextmanager
def reading(path: Path) -> Iterator[tarfile.TarFile]:
    """The archive in a file, to be gone through once from its beginning.

    Raises FileError, naming the file, where it is no such archive, or is cut off or damaged where it is read.
    """
    try:
        with path.open("rb") as raw:
            head = raw.read(4)
            raw.seek(0)
            with _decompressed(raw, head, path) as stream, tarfile.open(fileobj=stream, mode="r|") as archive:
                yield archive
    except FileNotFoundError:
        raise FileError(f"{path} is missing") from None
    except (tarfile.TarError, EOFError, zstandard.ZstdError, gzip.BadGzipFile, OSError) as error:
        raise FileError(f"{path} is cut off or damaged, or no bundle: {error}") from None


@contextmanager
def _decompressed(raw: BinaryIO, head: bytes, path: Path) -> Iterator[IO[bytes]]:
    if head == _ZSTD:
        with zstandard.ZstdDecompressor().stream_reader(raw, closefd=False) as stream:
            yield cast(IO[bytes], stream)
    elif head[:2] == _GZIP:
        with gzip.GzipFile(fileobj=raw) as zipped:
            yield cast(IO[bytes], zipped)
    else:
        raise FileError(f"{path} is no bundle: neither compressed by zstd nor by gzip")
