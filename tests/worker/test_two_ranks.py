"""What goes from rank to rank by itself: two real ranks that each post a receive before they send."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from detsweep.paths import RecordingPaths
from detsweep.recording import Call, open_rank

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> RecordingPaths:
    """What the ranks recorded; that they also played it back is asserted in their own processes."""
    folder = tmp_path_factory.mktemp("ranks")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(ROOT / "tests" / "worker" / "two_ranks.py"), str(folder), str(rank)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        said = [process.communicate(timeout=120)[0] for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    assert [process.returncode for process in ranks] == [0, 0], "\n".join(said)
    return RecordingPaths(folder / "recording")


def _calls(recording: RecordingPaths, rank: int, step: int = 0) -> tuple[Call, ...]:
    return open_rank(recording, rank).step(step).calls


@pytest.mark.parametrize("rank", [0, 1])
def test_what_went_from_rank_to_rank_is_described_with_its_peer_and_tag(recording: RecordingPaths, rank: int) -> None:
    calls = _calls(recording, rank)
    between = ["c10d.recv_", "c10d.recv_", "c10d.send", "c10d.send", "c10d.recv_", "c10d.send"]
    last = ["c10d.send", "c10d.recv_"] if rank == 0 else ["c10d.recv_", "c10d.send"]
    assert [call.operator for call in calls] == [
        *between,
        *last,
        "c10d.allreduce_",
        "c10d.broadcast_",
        "_c10d_functional.broadcast",
    ]
    peers = [(call.arguments.get("src", call.arguments.get("dst")), call.arguments["tag"]) for call in calls[:4]]
    assert peers == [(1 - rank, 0), (1 - rank, 1), (1 - rank, 0), (1 - rank, 1)]
    assert {call.ranks for call in calls} == {(0, 1)}


def test_what_the_one_sent_is_what_the_other_was_delivered(recording: RecordingPaths) -> None:
    for rank in range(2):
        sent = [call.inputs[0].digest for call in _calls(recording, rank) if call.operator == "c10d.send"]
        got = [call.outputs[0].digest for call in _calls(recording, 1 - rank) if call.operator == "c10d.recv_"]
        assert sent == got
        assert len(set(sent)) == 4


def test_only_the_root_of_a_broadcast_sends(recording: RecordingPaths) -> None:
    inputs = [[len(call.inputs) for call in _calls(recording, rank)[-2:]] for rank in range(2)]
    assert inputs == [[0, 1], [1, 0]]


def test_a_step_with_a_receive_that_nobody_waited_for_is_not_whole(recording: RecordingPaths) -> None:
    assert [[open_rank(recording, rank).step(step).complete for step in range(3)] for rank in range(2)] == [
        [True, True, False]
    ] * 2
