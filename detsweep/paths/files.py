"""How a file is written whole or not at all, and read as one JSON object."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import xxhash

_CHUNK = 1 << 22


class FileError(Exception):
    """A file that is missing, half-written or not ours; the message names it."""


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all: to a temporary name in the same folder, then renamed."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_json(path: Path, payload: Mapping[str, Any]) -> None:
    """Write one JSON object, whole or not at all."""
    write_text(path, json.dumps(payload, indent=1, ensure_ascii=False) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """Read one JSON object.

    Raises FileError, naming the file, when it is missing, torn or not an object.
    """
    try:
        payload = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FileError(f"{path} is missing") from None
    except (OSError, ValueError) as error:
        raise FileError(f"{path} cannot be read: {error}") from None
    if not isinstance(payload, dict):
        raise FileError(f"{path} holds {type(payload).__name__}, not a JSON object")
    return payload


def file_hash(path: Path) -> str:
    """xxh3_128 of a file's bytes, in 32 hex digits. Raises FileError where it cannot be read."""
    state = xxhash.xxh3_128()
    try:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                state.update(chunk)
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror}") from None
    return state.hexdigest()
