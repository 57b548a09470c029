"""sweep.json: a session for each command, and what changed between two of them."""

from __future__ import annotations

import copy
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch

from detsweep import __version__
from detsweep.capture import SCHEMA
from detsweep.dispatch.provenance import changed, open_session
from detsweep.paths import SweepPaths, read_json
from tests.support import plan_of


def test_a_session_says_what_was_asked_for_when_and_with_which_versions(tmp_path: Path) -> None:
    sweep, plan = SweepPaths(tmp_path), plan_of(["seed=1"], ["seed=2"])
    open_session(sweep, plan, ["-m", "seed=1,2", "+env.A=b c"])
    content = read_json(sweep.sweep)
    (session,) = content["sessions"]
    assert (content["schema"], content["cells"]) == (SCHEMA, [cell.id for cell in plan.cells])
    assert session["arguments"] == ["-m", "seed=1,2", "+env.A=b c"]
    assert session["command"].endswith("-m detsweep -m seed=1,2 '+env.A=b c'")
    assert abs(session["started"] - time.time()) < 60
    assert session["versions"]["torch"] == str(torch.__version__) == metadata.version("torch")
    assert session["versions"]["detsweep"] == __version__


def test_a_later_command_adds_its_session_and_its_cells(tmp_path: Path) -> None:
    sweep = SweepPaths(tmp_path)
    first, second = plan_of(["seed=1"], ["seed=2"]), plan_of(["seed=3"], ["seed=1"])
    open_session(sweep, first, [])
    open_session(sweep, second, [])
    content = read_json(sweep.sweep)
    assert len(content["sessions"]) == 2
    assert content["cells"] == [first.cells[0].id, first.cells[1].id, second.cells[0].id]


BEFORE: dict[str, Any] = {"versions": {"torch": "2.12", "numpy": "2.0"}, "git": "abc", "host": "one"}


@pytest.mark.parametrize(
    ("change", "lines"),
    [
        ({}, []),
        ({"git": "abc+changes"}, ["git was abc, is abc+changes"]),
        ({"host": "two"}, ["host was one, is two"]),
        ({"versions": {"torch": "2.13", "numpy": "2.0"}}, ["torch was 2.12, is 2.13"]),
        ({"versions": {"torch": "2.12", "numpy": "2.0", "new": "1"}}, ["new was None, is 1"]),
    ],
)
def test_what_is_not_as_before_is_said(change: dict[str, Any], lines: list[str]) -> None:
    assert changed(BEFORE, {**copy.deepcopy(BEFORE), **change}) == lines


def test_other_versions_are_warned_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep, plan = SweepPaths(tmp_path), plan_of(["seed=1"])
    open_session(sweep, plan, [])
    assert capsys.readouterr().err == ""
    text = sweep.sweep.read_text()
    sweep.sweep.write_text(text.replace(f'"torch": "{torch.__version__}"', '"torch": "1.0"'))
    open_session(sweep, plan, [])
    expected = f"detsweep: warning: torch was 1.0, is {torch.__version__}; results kept from before are not repeated\n"
    assert capsys.readouterr().err == expected
