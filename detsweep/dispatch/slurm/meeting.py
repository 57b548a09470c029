"""How the nodes of one trial find each other, and learn of each other's end: through the folder that they share."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from detsweep import modes
from detsweep.capture import SCHEMA
from detsweep.dispatch.torchrun import ALONE, Place
from detsweep.paths import FileError, TrialPaths, read_json, write_json

# Below the ports that Linux gives to connections that ask for none (32768 and above).
_FIRST_PORT, _PORTS = 15_000, 17_000
_LOOK_S = 0.2
# How long ranks elsewhere may take to fail by themselves when one node's have, and their files to be seen here.
FAILED_ELSEWHERE_S = 10.0
OTHERS_S = 120.0


def host(attempt: TrialPaths, hosts: Sequence[str], job: str, spec: Mapping[str, Any]) -> Place:
    """The first node's place; where there are more, address and ports are written down, and they may begin.

    The ports follow from the job's id, so that jobs on one node do not meet; one that is taken is passed over.
    """
    if len(hosts) == 1:
        return ALONE
    ports = _free_ports(int(job), modes.launches(spec["config"]))
    write_json(attempt.meeting, {"schema": SCHEMA, "address": hosts[0], "ports": ports, "hosts": list(hosts)})
    return Place(0, len(hosts), hosts[0], tuple(ports))


def join(
    attempt: TrialPaths, trial: TrialPaths, *, node: int, nodes: int, stopped: threading.Event, limit_s: float
) -> Place | None:
    """Another node's place, once the first has said where to meet; None where it did not, and this one has to leave."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline and not stopped.is_set():
        if attempt.node(0).exists() or trial.result.exists():
            return None
        try:
            meeting = read_json(attempt.meeting)
            return Place(node, nodes, meeting["address"], tuple(meeting["ports"]))
        except FileError:
            _look_again(attempt)
    return None


class Others:
    """The other nodes of a trial, by the files that they leave when they end."""

    def __init__(self, attempt: TrialPaths, place: Place) -> None:
        self._attempt = attempt
        self._numbers = [number for number in range(place.nodes) if number != place.node]
        self._looked = time.monotonic()
        self._failed_at: float | None = None

    def failed(self) -> bool:
        """Whether the ranks of another node failed a while ago, and ours have had the time to notice it themselves."""
        now = time.monotonic()
        if self._numbers and now - self._looked > 1.0:
            self._looked = now
            # One file for all: each node's own would be a thousand looks a second on a thousand nodes.
            if self._failed_at is None and self._attempt.failed.exists():
                self._failed_at = now
        return self._failed_at is not None and now - self._failed_at > FAILED_ELSEWHERE_S

    def wait(self, stopped: threading.Event) -> dict[int, dict[str, Any]]:
        """What each of the others says of its end; after two minutes of those that say anything."""
        deadline = time.monotonic() + OTHERS_S
        while len(said := self._said()) < len(self._numbers) and not stopped.is_set():
            if time.monotonic() > deadline:
                break
            _look_again(self._attempt)
        return said

    def _said(self) -> dict[int, dict[str, Any]]:
        found = {}
        for number in self._numbers:
            try:
                found[number] = read_json(self._attempt.node(number))
            except FileError:
                continue
        return found


def own_address(place: Place, hosts: Sequence[str]) -> str | None:
    """The address from which this node reaches another one of its trial; None where it has no other, or no route."""
    if place.nodes == 1:
        return None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # Of a datagram socket this sends nothing: it only chooses the way.
            probe.connect((place.address if place.node else hosts[1], int(place.ports[0])))
        except OSError:
            return None
        return str(probe.getsockname()[0])


def _look_again(attempt: TrialPaths) -> None:
    time.sleep(_LOOK_S)
    if attempt.folder.exists():
        # A network file system remembers that a file was not there until its folder is read.
        list(attempt.folder.iterdir())


def _free_ports(job: int, number: int) -> list[int]:
    """So many ports that nothing listens on, from one on that follows from the job's id."""
    found: list[int] = []
    for place in range(_PORTS):
        port = _FIRST_PORT + (job * 7 + place) % _PORTS
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
        found.append(port)
        if len(found) == number:
            return found
    raise OSError(f"no {number} free ports from {_FIRST_PORT} to {_FIRST_PORT + _PORTS}")
