"""The real command line in a subprocess, and whole sweeps that several tests of a module look at."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.running import Driver


@dataclass(frozen=True)
class Ran:
    """A command that has ended, and the folder of the sweep that it was given."""

    folder: Path
    code: int
    out: str
    err: str

    def cells(self) -> dict[str, Path]:
        """Folder of each cell by its slug."""
        return {json.loads(p.read_text())["slug"]: p.parent for p in self.folder.glob("cells/*/cell.json")}

    def results(self) -> dict[str, dict[str, Any]]:
        """Result of each cell's first trial by the cell's slug; cells without one are left out."""
        return {
            slug: json.loads((cell / "trial0" / "result.json").read_text())
            for slug, cell in self.cells().items()
            if (cell / "trial0" / "result.json").exists()
        }


Run = Callable[..., Ran]


def clean_environment() -> dict[str, str]:
    """The environment for a command: no Hydra or launcher variable of the shell changes what is tested."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("HYDRA_", "DETSWEEP_"))}


def run_detsweep(folder: Path, *arguments: str, cwd: Path | None = None, **variables: str) -> Ran:
    """Run `python -m detsweep` with a sweep folder and wait for its end."""
    done = subprocess.run(
        [sys.executable, "-m", "detsweep", *arguments, f"folder={folder}"],
        cwd=cwd or folder.parent,
        env={**clean_environment(), **variables},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return Ran(folder, done.returncode, done.stdout, done.stderr)


CLUSTER = "tests/test_cli_slurm"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes long is begun first: the tests of the cluster, then those of the command line."""
    items.sort(key=lambda item: (not item.nodeid.startswith(CLUSTER), not item.nodeid.startswith("tests/test_cli")))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Tests of a file stay together, as they share launches; and those of all files that need the cluster."""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return CLUSTER if nodeid.startswith(CLUSTER) else nodeid.partition("::")[0]

    return Scheduling(config, log)


@pytest.fixture
def detsweep_folder(tmp_path: Path) -> Iterator[Driver]:
    """A command that a test starts, watches and ends itself; nothing of it outlives the test."""
    from tests.running import Driver

    driver = Driver(tmp_path / "runs")
    yield driver
    driver.kill()


@pytest.fixture(scope="module")
def detsweep(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Run the command line into a sweep folder of its own."""

    def run(*arguments: str, **variables: str) -> Ran:
        return run_detsweep(tmp_path_factory.mktemp("sweep") / "runs", *arguments, **variables)

    return run
