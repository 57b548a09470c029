"""Nodes of a trial: where they meet, when they stop waiting, and how they learn of each other's end."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path

import pytest

from detsweep.dispatch.slurm import meeting
from detsweep.dispatch.slurm.meeting import Others, _free_ports, host, join, own_address
from detsweep.dispatch.torchrun import ALONE, Place, torchrun_arguments
from detsweep.paths import TrialPaths, read_json, write_json
from tests.dispatch.slurm.commands import begin_attempt
from tests.support import one_cell

HOSTS = ("node1", "node2", "node3")
CELL = ("launch=slurm", "world.nodes=3")


@pytest.fixture
def trial(tmp_path: Path) -> TrialPaths:
    return TrialPaths(tmp_path / "cell" / "trial0")


@pytest.fixture
def attempt(trial: TrialPaths, monkeypatch: pytest.MonkeyPatch) -> TrialPaths:
    """An attempt, in which every look comes soon after the one before."""
    monkeypatch.setattr(meeting, "_LOOK_S", 0.01)
    return begin_attempt(trial, "7.0")


def _join(attempt: TrialPaths, trial: TrialPaths, limit_s: float = 5.0, stopped: bool = False) -> Place | None:
    event = threading.Event()
    if stopped:
        event.set()
    return join(attempt, trial, node=2, nodes=3, stopped=event, limit_s=limit_s)


def test_one_node_needs_no_meeting(attempt: TrialPaths) -> None:
    assert host(attempt, ["node1"], "7", one_cell("launch=slurm").spec(0)) == ALONE
    assert not attempt.meeting.exists()


def test_what_the_first_writes_down_is_where_the_others_go(attempt: TrialPaths, trial: TrialPaths) -> None:
    first = host(attempt, HOSTS, "36011599", one_cell(*CELL).spec(0))
    other = _join(attempt, trial)
    assert other is not None
    assert (first.node, first.nodes, first.address) == (0, 3, "node1")
    assert (other.node, other.nodes, other.address, other.ports) == (2, 3, "node1", first.ports)
    assert read_json(attempt.meeting)["hosts"] == list(HOSTS)


def test_both_are_given_to_torchrun_with_a_port_for_each_launch(attempt: TrialPaths, trial: TrialPaths) -> None:
    spec = one_cell(*CELL, "mode=resume", "steps=2").spec(0)
    first = host(attempt, HOSTS, "12", spec)
    assert len(set(first.ports)) == 2
    for launch in range(2):
        other = _join(attempt, trial)
        assert other is not None
        for place in (first, other):
            words = torchrun_arguments(spec, attempt, launch, place)
            assert {f"--node-rank={place.node}", "--nnodes=3", "--master-addr=node1"} <= set(words)
            assert f"--master-port={first.ports[launch]}" in words
            assert "--standalone" not in words


def test_others_wait_until_the_first_is_there(attempt: TrialPaths, trial: TrialPaths) -> None:
    spec = one_cell(*CELL).spec(0)
    timer = threading.Timer(0.15, lambda: host(attempt, HOSTS, "7", spec))
    begun = time.monotonic()
    timer.start()
    assert _join(attempt, trial) is not None
    assert 0.1 < time.monotonic() - begun < 4
    timer.join()


def test_others_wait_for_an_attempt_that_has_no_folder_yet(trial: TrialPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "_LOOK_S", 0.01)
    coming = TrialPaths(trial.folder.with_name("trial0-attempt-7.1"))
    place = {"schema": 1, "address": "node1", "ports": [5]}
    timer = threading.Timer(0.1, lambda: write_json(coming.meeting, place))
    timer.start()
    assert _join(coming, trial) == Place(2, 3, "node1", (5,))
    timer.join()


@pytest.mark.parametrize("why", ["a result", "the first failed", "stopped", "too late"])
def test_others_leave_where_nobody_will_come(attempt: TrialPaths, trial: TrialPaths, why: str) -> None:
    if why == "a result":
        write_json(trial.result, {})
    elif why == "the first failed":
        write_json(attempt.node(0), {"returncode": 1})
    begun = time.monotonic()
    assert _join(attempt, trial, limit_s=0.1 if why == "too late" else 30, stopped=why == "stopped") is None
    assert time.monotonic() - begun < 5


# --- ports -----------------------------------------------------------------------------------------------------------


def test_ports_follow_from_the_job_and_are_none_that_linux_gives_away() -> None:
    for job in (1, 36011599, 10**9):
        (port,) = _free_ports(job, 1)
        assert 15_000 <= port < 32_000


def test_a_port_that_is_taken_is_passed_over() -> None:
    first = _free_ports(4242, 2)
    with socket.socket() as taken:
        taken.bind(("", first[0]))
        taken.listen()
        assert first[0] not in _free_ports(4242, 2)
        assert _free_ports(4242, 1) == [first[1]]


def test_jobs_that_follow_each_other_do_not_meet() -> None:
    found = [tuple(_free_ports(job, 2)) for job in range(700, 720)]
    assert len({port for ports in found for port in ports}) == 40


def test_the_way_to_another_node_says_the_own_address() -> None:
    assert own_address(ALONE, HOSTS) is None
    assert own_address(Place(1, 2, "127.0.0.1", (15_000,)), HOSTS) == "127.0.0.1"
    assert own_address(Place(0, 2, "127.0.0.1", (15_000,)), ["a", "127.0.0.1"]) == "127.0.0.1"
    assert own_address(Place(1, 2, "no-such-host.invalid", (15_000,)), HOSTS) is None


# --- others ----------------------------------------------------------------------------------------------------------


def _said(attempt: TrialPaths, node: int, returncode: int) -> None:
    write_json(attempt.node(node), {"node": node, "returncode": returncode})


def test_a_node_alone_waits_for_nobody(attempt: TrialPaths) -> None:
    others = Others(attempt, ALONE)
    assert others.wait(threading.Event()) == {}
    assert not others.failed()


def test_what_all_others_say_is_waited_for(attempt: TrialPaths) -> None:
    others = Others(attempt, Place(0, 3, "node1", (1,)))
    _said(attempt, 1, 0)
    timer = threading.Timer(0.1, lambda: _said(attempt, 2, 1))
    timer.start()
    found = others.wait(threading.Event())
    assert {number: said["returncode"] for number, said in found.items()} == {1: 0, 2: 1}
    timer.join()


def test_after_a_while_what_there_is_is_enough(attempt: TrialPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "OTHERS_S", 0.1)
    others = Others(attempt, Place(0, 3, "node1", (1,)))
    _said(attempt, 2, 0)
    assert others.wait(threading.Event()).keys() == {2}


def test_a_stop_ends_the_wait(attempt: TrialPaths) -> None:
    stopped = threading.Event()
    stopped.set()
    assert Others(attempt, Place(0, 2, "node1", (1,))).wait(stopped) == {}


def test_a_failure_elsewhere_is_known_once_ranks_here_had_their_time(
    attempt: TrialPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(meeting.time, "monotonic", lambda: now[0])
    others = Others(attempt, Place(1, 3, "node1", (1,)))

    def after(seconds: float) -> bool:
        now[0] += seconds
        return others.failed()

    _said(attempt, 0, 0)
    assert not after(50)
    attempt.failed.touch()
    assert not after(2)
    assert not after(meeting.FAILED_ELSEWHERE_S - 1)
    assert after(2)


def test_an_own_failure_is_not_one_elsewhere(attempt: TrialPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "FAILED_ELSEWHERE_S", -1.0)
    others = Others(attempt, Place(1, 2, "node1", (1,)))
    _said(attempt, 1, 1)
    others._looked -= 10
    assert not others.failed()
