"""Whether all ranks of a sweep, and all commands on it, had one environment: versions, devices, detsweep's own code."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from detsweep.analysis.recorded import Rank
from detsweep.analysis.words import counted

Session = Mapping[str, Any]
_SHOWN = 7
"""Characters of a commit that are shown."""
_TORCH, _OWN = "torch's commit", "detsweep's commit"


def differing(ranks: Sequence[Rank], sessions: Sequence[Session]) -> Iterator[str]:
    """What is not the same everywhere, or is in no commit, a line each."""
    for name, values in _values(ranks).items():
        if len(values) > 1:
            yield f"{name} " + ", ".join(
                f"{_short(name, value)} in {counted(len(had), 'rank')} (first {had[0].place})"
                for value, had in values.items()
            )
    for number, (before, now) in enumerate(pairwise(map(_session, sessions)), start=1):
        for name in {**before, **now}:
            if before.get(name) != now.get(name):
                old, new = (_short(name, facts[name]) if name in facts else "not known" for facts in (before, now))
                yield f"{name} was {old} in session {number}, is {new} in session {number + 1}"
    changed = [number for number, one in enumerate(sessions, start=1) if str(one.get("git")).endswith("+changes")]
    if changed:
        yield f"detsweep's own code had changes that are in no commit ({_which(changed, len(sessions))})"


def pinned(ranks: Sequence[Rank], sessions: Sequence[Session]) -> list[str]:
    """What is the same everywhere, in words: versions, devices, detsweep's commit."""
    same = {name: next(iter(values)) for name, values in _values(ranks).items() if len(values) == 1}
    commits = {"torch": same.pop(_TORCH, None), "detsweep": None}
    git = {_session(one).get(_OWN) for one in sessions}
    if len(git) == 1:
        commits["detsweep"] = git.pop()
    words = []
    for name, value in same.items():
        commit = commits.get(name)
        words.append(f"{name} {value}" + (f" (git {_short(_OWN, commit)})" if commit else ""))
    return words


def _values(ranks: Sequence[Rank]) -> dict[str, dict[str, list[Rank]]]:
    """Each fact with the values that it has, and the ranks that have it so."""
    found: dict[str, dict[str, list[Rank]]] = {}
    for rank in ranks:
        for name, value in _facts(rank).items():
            found.setdefault(name, {}).setdefault(value, []).append(rank)
    return found


def _facts(rank: Rank) -> dict[str, str]:
    told, device = rank.environment, rank.table("device")
    facts = {
        "torch": told["torch"],
        _TORCH: told.get("torch_git"),
        "Python": told["python"],
        "CUDA": told.get("torch_cuda"),
        "HIP": told.get("torch_hip"),
        **rank.table("versions"),
        # The device can be an axis: a machine's CPU is compared with its like, and so are its GPUs.
        str(device.get("type")): _device(device),
        "platform": told.get("platform"),
        "detsweep": told.get("detsweep"),
    }
    if "ATEN_CPU_CAPABILITY" not in rank.table("variables"):
        # All that tells one CPU from another; a mitigation can set it, and then it tells nothing.
        facts["CPU kernels"] = rank.table("settings").get("cpu_capability")
    if files := rank.table("configuration_files"):
        facts["configuration files"] = json.dumps(files, sort_keys=True)
    elif "configuration_files" in told:
        facts["configuration files"] = "none"
    return {name: str(value) for name, value in facts.items() if value is not None}


def _device(device: Mapping[str, Any]) -> str:
    cores, memory = device.get("cores"), device.get("memory")
    size = f"{memory / 2**30:.1f} GiB" if isinstance(memory, int) else f"{cores} cores"
    return f"{device.get('name')} with {size}"


def _session(session: Session) -> dict[str, str]:
    """What a command was run with; another host of the same kind is not another environment."""
    versions = session.get("versions")
    facts = {
        **(versions if isinstance(versions, Mapping) else {}),
        "Python": session.get("python"),
        "platform": session.get("platform"),
        "cores": session.get("cores"),
        _OWN: session.get("git"),
    }
    return {name: str(value) for name, value in facts.items() if value is not None}


def _short(name: str, value: str) -> str:
    """A value as it is shown: of a commit its beginning, and what follows it."""
    if name not in (_TORCH, _OWN):
        return value
    commit, plus, changes = value.partition("+")
    return commit[:_SHOWN] + plus + changes


def _which(sessions: Sequence[int], of: int) -> str:
    return "in every session" if len(sessions) == of else f"session {', '.join(map(str, sessions))} of {of}"
