"""The files of a bundle, as they lie below the one folder that it unpacks to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ENDINGS = (".tar.zst", ".tar.gz")
"""What the name of a bundle ends with, which says how it is compressed."""


@dataclass(frozen=True)
class BundlePaths:
    """The files of a bundle that is unpacked."""

    folder: Path

    @property
    def manifest(self) -> Path:
        """Every other file with its size and digest, what was left out, and whether names and secrets were removed."""
        return self.folder / "manifest.json"

    @property
    def environment(self) -> Path:
        """The environment of the machine on which it was bundled."""
        return self.folder / "environment.json"

    @property
    def reproduce(self) -> Path:
        """How to see and repeat it, for people."""
        return self.folder / "REPRODUCE.md"

    @property
    def sweep(self) -> Path:
        """The sweep's folder."""
        return self.folder / "sweep"
