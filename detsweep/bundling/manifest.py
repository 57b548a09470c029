"""What a bundle says of itself: every file with size and digest, and what is not in it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from detsweep import __version__
from detsweep.bundling.taking import files_below

BUNDLE_SCHEMA = 1
KIND = "detsweep bundle"


def manifest(
    content: Path,
    *,
    left_out: Mapping[str, str],
    changed: Sequence[str],
    redaction: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """The content of manifest.json for the files below `content`.

    `redaction`: how many names and secrets of each kind were replaced, None where none were to be.
    """
    files = []
    for name, path in files_below(content):
        with path.open("rb") as stream:
            digest = hashlib.sha256()
            while block := stream.read(1 << 20):
                digest.update(block)
        files.append({"name": name, "size": path.stat().st_size, "sha256": digest.hexdigest()})
    return {
        "schema": BUNDLE_SCHEMA,
        "kind": KIND,
        "detsweep": __version__,
        "redacted": redaction is not None,
        "redaction": redaction,
        "files": files,
        "left_out": [{"name": name, "why": why} for name, why in sorted(left_out.items())],
        "changed_while_read": sorted(changed),
    }
