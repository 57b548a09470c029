"""The benchmark of the analysis: its captures are real ones, and both of its ways come to the same."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import detsweep
from detsweep.capture import read_streams, to_line

ROOT = Path(__file__).resolve().parents[1]


def test_captures_without_results_come_to_the_same_verdicts_by_both_ways() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "analysis_scale.py"), "20"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT, timeout=120)
    rows = [line.split(None, 7) for line in done.stdout.splitlines()[1:]]
    came_to = {row[3]: row[7] for row in rows}
    assert list(came_to) == ["matrix", "json", "trial", "records"]
    assert came_to["matrix"] == came_to["json"] == "1 of 20 trials diverged"
    assert int(came_to["records"]) == int(rows[0][1]) == 20 * int(came_to["trial"])


def test_its_lines_are_as_ranks_write_them(tmp_path: Path) -> None:
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        import analysis_scale
    finally:
        sys.path.pop(0)
    writer = analysis_scale.Writer()
    assert analysis_scale.write_captures(tmp_path, 4, writer)[0] == 4 * 8 * 2 * writer.records
    sweep = detsweep.load(tmp_path)
    cell = sweep.trials["cell"].iloc[0]
    path = sweep.files[cell, 0].paths.records(3)
    lines = path.read_text().splitlines()
    assert [to_line(stream, world_size=8) for stream in read_streams(path)] == lines
    # The first trial is one that diverged, on this rank alone.
    trials = detsweep.load(tmp_path, recount=True).trials
    assert list(trials["diverged_ranks"]) == [(3,), (), (), ()]
