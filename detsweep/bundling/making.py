"""Making a bundle of a sweep's folder: taken, redacted where that is asked for, written, and looked at once more."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from detsweep.bundling import reproduce
from detsweep.bundling.archive import write
from detsweep.bundling.manifest import manifest
from detsweep.bundling.redaction import Redaction, redact
from detsweep.bundling.taking import Taken, take
from detsweep.bundling.verifying import leaks
from detsweep.paths import ENDINGS, BundlePaths, FileError, SweepPaths, write_json, write_text


class LeakError(Exception):
    """A bundle that was to be redacted still held something; it is gone. The message has a line for each."""


@dataclass(frozen=True)
class Made:
    """A bundle that was written: its file and length in bytes, and the content of its manifest."""

    path: Path
    size: int
    manifest: Mapping[str, Any]


def sweep_folder(folder: Path) -> Path:
    """The folder itself, where it is a sweep's. Raises FileError, naming the sweep that it lies in where it does."""
    if not folder.is_dir():
        raise FileError(f"{folder}: no such folder")
    resolved = folder.resolve()
    if SweepPaths(resolved).sweep.is_file() or any((resolved / "cells").glob("*/cell.json")):
        return resolved
    for parent in resolved.parents:
        if SweepPaths(parent).sweep.is_file() and (parent / "cells").is_dir():
            raise FileError(f"{folder} lies in the sweep {parent}: name that one, a bundle is of a whole sweep")
    raise FileError(f"{folder}: no sweep here (no sweep.json, no cells/*/cell.json)")


def make(
    folder: Path,
    output: Path,
    *,
    environment: Mapping[str, Any],
    redacted: bool = False,
    recordings: bool = False,
    force: bool = False,
) -> Made:
    """Bundle the sweep in `folder` into the file `output`, whole or not at all.

    `environment`: the content of environment.json. Raises FileError for wrong input, and LeakError where the archive
    still held something that was to be removed.
    """
    sweep = sweep_folder(folder)
    if not output.name.endswith(ENDINGS):
        raise FileError(f"{output}: the name must end with {' or '.join(ENDINGS)}")
    if output.exists() and not force:
        raise FileError(f"{output} is there already (--force overwrites it)")
    if not output.parent.is_dir():
        raise FileError(f"{output.parent}: no such folder to write to")
    with tempfile.TemporaryDirectory(prefix="detsweep-bundling-") as scratch:
        bundle = BundlePaths(Path(scratch) / "content")
        taken = take(sweep, bundle.sweep, recordings=recordings, derived=not redacted)
        top, redaction, left_out, changed = _prepare(bundle, sweep, taken, environment, redacted=redacted)
        write_text(
            bundle.reproduce,
            _told(redaction, reproduce.text(bundle.sweep, output.name, left_out, redacted=redacted), bundle),
        )
        told = manifest(
            bundle.folder,
            left_out=left_out,
            changed=changed,
            redaction=None if redaction is None else _summary(redaction),
        )
        write_json(bundle.manifest, told)
        size = _write(bundle, top, output, redaction, force=force)
    return Made(output, size, told)


def _prepare(
    bundle: BundlePaths, sweep: Path, taken: Taken, environment: Mapping[str, Any], *, redacted: bool
) -> tuple[str, Redaction | None, dict[str, str], list[str]]:
    """Redact what was taken, where asked for, and lay the environment beside it.

    Returns the name of the folder that it unpacks to, the redaction, what was left out, and what changed.
    """
    if not redacted:
        write_json(bundle.environment, environment)
        return sweep.name or "sweep", None, taken.left_out, taken.changed
    # Names of files that were left out are in the manifest, and must be looked at as well.
    said = {
        bundle.environment.name: json.dumps(environment),
        "left out": "\n".join([*taken.left_out, *taken.left_out.values(), *taken.changed, sweep.name]),
    }
    done = redact(bundle.sweep, sweep, said)
    write_json(bundle.environment, done.redactor.json(environment, file=bundle.environment.name))
    left_out = {done.redactor.path(name): done.redactor.text(why) for name, why in taken.left_out.items()}
    changed = [done.renamed.get(name, name) for name in taken.changed]
    return done.redactor.name(sweep.name) or "sweep", done, {**left_out, **done.left_out}, changed


def _told(redaction: Redaction | None, text: str, bundle: BundlePaths) -> str:
    """A text that was made from the files in the bundle, without the folder in which they were for a moment."""
    text = text.replace(f"{bundle.sweep}/", "")
    return text if redaction is None else redaction.redactor.text(text)


def _summary(redaction: Redaction) -> dict[str, Any]:
    counts = redaction.names.counts()
    return {
        "replaced": [{"kind": kind, "count": count} for kind, count in counts.items()],
        "only_where_their_names_stand": redaction.names.ordinary(),
    }


def _write(bundle: BundlePaths, top: str, output: Path, redaction: Redaction | None, *, force: bool) -> int:
    """Write the archive under another name, look at it, and give it its own; returns its length."""
    handle, name = tempfile.mkstemp(dir=output.parent, prefix=f".{output.name}.", suffix=_ending(output))
    os.close(handle)
    temporary = Path(name)
    try:
        write(bundle.folder, top, temporary)
        if redaction is not None and (found := leaks(temporary, redaction.names)):
            raise LeakError("\n".join(found))
        temporary.chmod(0o644)
        size = temporary.stat().st_size
        if force:
            temporary.replace(output)
        else:
            # A link fails where somebody else has made a file of that name meanwhile.
            os.link(temporary, output)
        return size
    except FileExistsError:
        raise FileError(f"{output} is there already (--force overwrites it)") from None
    finally:
        temporary.unlink(missing_ok=True)


def _ending(output: Path) -> str:
    return next(ending for ending in ENDINGS if output.name.endswith(ending))
