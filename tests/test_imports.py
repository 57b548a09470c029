"""What each part may import: heavy libraries only where they are needed, and no room through another's wall."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import detsweep

PACKAGE = Path(detsweep.__file__).parent
ROOMS = ("analysis", "dispatch", "worker")


@pytest.mark.parametrize(
    ("module", "without"),
    [
        ("detsweep", ("torch", "pandas", "hydra", "numpy")),
        ("detsweep.app", ("torch", "pandas", "numpy")),
        ("detsweep.dispatch.torchrun", ("torch", "pandas", "hydra")),
        ("detsweep.replay", ("torch", "pandas", "hydra", "numpy")),
        ("detsweep.diff.__main__", ("torch", "pandas", "hydra", "numpy")),
        ("detsweep.golden.__main__", ("torch", "pandas", "hydra", "numpy")),
        ("detsweep.bundle", ("torch", "pandas", "hydra", "numpy")),
        ("detsweep.environment.__main__", ("torch", "pandas", "hydra", "numpy")),
        ("detsweep.analysis", ("torch", "hydra")),
        ("detsweep.worker.__main__", ("torch", "pandas", "hydra")),
        ("detsweep.worker.rank", ("pandas", "hydra")),
    ],
)
def test_a_part_imports_only_what_it_needs(module: str, without: tuple[str, ...]) -> None:
    code = f"import sys, {module}; print(*(name for name in {without!r} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def _imported(path: Path) -> set[str]:
    """Every module of this package that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return {name for name in found if name.startswith("detsweep.")}


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_never_import_each_other(room: str) -> None:
    others = tuple(f"detsweep.{other}" for other in ROOMS if other != room)
    files = sorted((PACKAGE / room).rglob("*.py"))
    assert len(files) > 3
    assert {path.name: bad for path in files if (bad := {n for n in _imported(path) if n.startswith(others)})} == {}


def test_the_core_imports_no_room() -> None:
    front = {"__init__.py", "__main__.py", "app.py", "replay.py", "status.py"}
    core = [path for path in PACKAGE.glob("*.py") if path.name not in front]
    rooms = tuple(f"detsweep.{room}" for room in ROOMS)
    assert len(core) > 10
    assert {path.name: bad for path in core if (bad := {n for n in _imported(path) if n.startswith(rooms)})} == {}


def test_results_are_read_through_the_package_itself() -> None:
    from detsweep import analysis

    assert detsweep.load is analysis.load
    assert detsweep.Sweep is analysis.Sweep
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = detsweep.nothing
