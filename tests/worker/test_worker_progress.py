"""Where a rank is, as another process reads it."""

from __future__ import annotations

import os
from pathlib import Path

from detsweep.failures import Position, position
from detsweep.worker.progress import SIZE, Progress


def test_a_new_rank_is_before_everything(tmp_path: Path) -> None:
    path = tmp_path / "rank000.progress"
    Progress(path)
    assert position(path) == Position(os.getpid(), -1, -1, -1, "start")


def test_each_place_takes_the_place_of_the_last(tmp_path: Path) -> None:
    path = tmp_path / "rank000.progress"
    progress = Progress(path)
    pid = os.getpid()
    progress.phase("a phase with many more words than the one that follows it")
    progress.phase("short")
    assert position(path) == Position(pid, -1, -1, -1, "short")
    progress.run(2, 3, "r3 of step 2")
    assert position(path) == Position(pid, 2, 3, -1, "r3 of step 2")
    progress.at_block(7)
    assert position(path) == Position(pid, 2, 3, 7, "r3 of step 2, last block entered: 7")
    progress.run(2, 4, "plain run after step 2")
    assert position(path) == Position(pid, 2, 4, -1, "plain run after step 2")


def test_places_are_ordered_as_a_rank_comes_by_them(tmp_path: Path) -> None:
    path = tmp_path / "rank000.progress"
    progress = Progress(path)
    seen = [position(path)]
    for step in range(2):
        for run in range(3):
            progress.run(step, run, f"r{run} of step {step}")
            seen.append(position(path))
            for block in range(2):
                progress.at_block(block)
                seen.append(position(path))
    orders = [place.order for place in seen if place is not None]
    assert len(orders) == 19
    assert orders == sorted(set(orders))


def test_words_too_long_for_the_file_are_cut(tmp_path: Path) -> None:
    path = tmp_path / "rank000.progress"
    Progress(path).phase("x" * 1000)
    place = position(path)
    assert place is not None
    assert set(place.words) == {"x"}
    assert path.stat().st_size == SIZE
