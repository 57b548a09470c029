"""The reproducibility checklist of AMD's Primus guide, answered from what a sweep recorded, not from what was asked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from detsweep.analysis import inforce
from detsweep.analysis.environments import differing, pinned
from detsweep.analysis.reading import read
from detsweep.analysis.recorded import Rank, Recorded, among
from detsweep.analysis.starts import Starts, starts
from detsweep.analysis.words import counted

MARKS = {"yes": "✓", "no": "✗", "partly": "~", "not known": "?"}
"""Every answer, and the sign before its line. `partly`: of some cells, trials or ranks; `not known`: of none yet."""
SHOWN = 3


@dataclass(frozen=True)
class Item:
    """One question of the checklist: `answer` is one of MARKS, `evidence` what it rests on, in one line."""

    question: str
    answer: str
    evidence: str


def checklist(folder: Path) -> list[Item]:
    """Answer the checklist for a sweep, finished or not; reads only the disk, and all records of it once.

    Raises FileNotFoundError where the folder holds no sweep. A file that is missing or torn is part of an answer.
    """
    recorded = read(folder)
    began = starts(recorded, str(folder.absolute()))
    return [
        _environment(recorded),
        _seeds(recorded, began),
        _layout(recorded),
        _determinism(recorded),
        _autotuning(recorded),
        _data(recorded, began),
        _everything(recorded, began),
    ]


def lines(items: Sequence[Item]) -> list[str]:
    """A line for each item, for the terminal and for Markdown."""
    return [
        f"{MARKS[item.answer]} {item.question}: {'' if item.answer == 'yes' else f'{item.answer}; '}{item.evidence}"
        for item in items
    ]


def _environment(recorded: Recorded) -> Item:
    question, ranks, sessions = "environment pinned", recorded.ranks, recorded.sessions
    if not ranks:
        return _not_known(question, recorded)
    hosts = {str(rank.environment.get("host")) for rank in ranks}
    scope = [_scope(ranks), counted(len(sessions), "session"), counted(len(hosts), "host")]
    evidence = f"{', '.join(pinned(ranks, sessions))}: the same in {', '.join(scope)}"
    wrong = list(differing(ranks, sessions))
    return _item(question, wrong=wrong, partly=[*recorded.unheard(), *recorded.unsaid], evidence=[evidence])


def _seeds(recorded: Recorded, began: Starts) -> Item:
    question, ranks, states = "seeds fixed", recorded.ranks, began.random
    if not recorded.by_cell():
        return _not_known(question, recorded)
    seeds = list(dict.fromkeys(str(trial.config["seed"]) for trial in recorded.trials if trial.heard))
    evidence = [f"seed {_some(seeds)}{', an axis' if len(seeds) > 1 else ''}"]
    hashes: dict[str, list[Rank]] = {}
    for rank in ranks:
        hashes.setdefault(inforce.hash_seed(rank), []).append(rank)
    partly = [
        f"PYTHONHASHSEED {value} in {_scope(hashes.pop(value))}: the order of sets, and of all else that goes by "
        "hash(), is another in each process"
        for value in ("unset", "random")
        if value in hashes
    ]
    evidence += [f"PYTHONHASHSEED={value} in {_scope(found)}" for value, found in hashes.items()]
    if not states.over:
        evidence.append("no second trial of a cell to compare random states with")
    elif not states.differing:
        compared = counted(states.over["trials"], "random state")
        evidence.append(f"{compared} before the first step compared with those of the cell's first trial, all equal")
    return _item(question, wrong=_first(states.differing), partly=[*partly, *recorded.unheard()], evidence=evidence)


def _layout(recorded: Recorded) -> Item:
    question, cells = "layout constant", recorded.by_cell()
    if not cells:
        return _not_known(question, recorded)
    wrong = []
    over: dict[str, dict[str, None]] = {}
    for trials in cells.values():
        for key, values in _together([inforce.layout(trial) for trial in trials]).items():
            over.setdefault(key, {}).update(dict.fromkeys(values[:1]))
            if len(values) > 1:
                place = next((one.label for one in trials if len(inforce.layout(one)[key]) > 1), trials[0].slug)
                wrong.append(f"{key}={_some(values)} within {place}")
    partly = [
        f"{key}={_some(list(values))} over the cells, which cannot be compared bit for bit with each other"
        for key, values in over.items()
        if len(values) > 1
    ]
    constant = " ".join(f"{key}={next(iter(values))}" for key, values in over.items() if len(values) == 1)
    evidence = f"{constant} in {_scope(recorded.ranks)}"
    return _item(question, wrong=wrong, partly=[*partly, *recorded.unheard()], evidence=[evidence])


def _determinism(recorded: Recorded) -> Item:
    """A cell has it where all its ranks read back deterministic algorithms, and no setting of a mitigation is lost."""
    cells = recorded.by_cell()
    levels: dict[str, list[Rank]] = {}
    lost: list[tuple[str, Rank]] = []
    good = 0
    for trials in cells.values():
        ranks = [rank for trial in trials for rank in trial.ranks]
        weakest = min(ranks, key=lambda rank: inforce.LEVELS.index(inforce.level(rank)))
        levels.setdefault(inforce.level(weakest), []).append(weakest)
        own = [(f"not in force: {line}", rank) for rank in ranks for line in inforce.lost(rank)]
        lost += own
        good += inforce.level(weakest) != "off" and not own
    said = {"strict": "strict", "warn": "with a mere warning where there is none", "off": "off"}
    counts = [f"{text} in {counted(len(levels[level]), 'cell')}" for level, text in said.items() if level in levels]
    first = f" (first {levels['off'][0].place})" if "off" in levels else ""
    evidence = [*_grouped(lost), f"deterministic algorithms {', '.join(counts)}{first}"]
    return _share("determinism enabled", recorded, good, evidence)


def _autotuning(recorded: Recorded) -> Item:
    """A cell has none where nothing in any of its ranks chooses kernels by timing."""
    tuned: list[tuple[str, Rank]] = []
    reasons: dict[str, int] = {}
    shared = []
    for trials in recorded.by_cell().values():
        found = [(one, rank) for trial in trials for rank in trial.ranks for one in inforce.tuned(rank, trial.config)]
        tuned += found
        if not found:
            why = inforce.untuned(trials[0].ranks[0], trials[0].config)
            reasons[why] = reasons.get(why, 0) + 1
        if inforce.remembers(trials[0]):
            shared.append(f"{trials[0].slug} has kernel_cache=shared: its kernels may be the choice of an earlier run")
    evidence = [f"{counted(number, 'cell')} {why}" for why, number in reasons.items()]
    return _share("autotuning off", recorded, sum(reasons.values()), [*_grouped(tuned), *evidence], _first(shared))


def _data(recorded: Recorded, began: Starts) -> Item:
    question, batches = "data fixed", began.batches
    partly = recorded.unread_cells()
    if began.unread:
        first, why = began.unread[0]
        partly.append(f"incomplete in {among(began.unread, recorded.trials)}, first {first.label}: {why}")
    compared = sum(batches.over.values())
    if not compared:
        return Item(question, "not known", "; ".join(partly) or f"{batches.seen} batches, none of them twice")
    over = ", ".join(f"{number} of other {what}" for what, number in batches.over.items())
    equal = "" if batches.differing else ", all equal"
    evidence = [f"{compared} batches compared with the first of their rank and step ({over}){equal}"]
    if len(began.kinds) > 1:
        evidence.append(f"{len(began.kinds)} kinds of data, by seed, sizes or ranks, not compared with each other")
    if began.struck:
        evidence.append(f"without {counted(began.struck, 'run')} whose input a fault changed on purpose")
    return _item(question, wrong=_first(batches.differing), partly=partly, evidence=evidence)


def _everything(recorded: Recorded, began: Starts) -> Item:
    question, trials = "everything recorded", recorded.trials
    done = [trial for trial in trials if trial.state != "waiting"]
    own = [line for trial in done for line in trial.missing]
    missing = list(dict.fromkeys([*recorded.unsaid, *recorded.broken, *own, *began.unreadable]))
    if not done and not missing:
        return _not_known(question, recorded)
    partly = _first([f"{line}, and its trial failed" for trial in done for line in trial.gaps])
    if waiting := [trial for trial in trials if trial.state == "waiting"]:
        partly.append(f"no result yet of {among(waiting, trials)}, first {waiting[0].label}")
    ranks = counted(sum(trial.world_size for trial in done), "rank")
    commands = counted(len(recorded.sessions), "command line")
    what = f"configuration, command, environments and records of {ranks} of {counted(len(done), 'trial')}, {commands}"
    evidence = f"looked for {what}" if missing or partly else what
    return _item(question, wrong=_first(missing), partly=partly, evidence=[evidence])


def _item(question: str, *, wrong: Sequence[str], partly: Sequence[str], evidence: Sequence[str]) -> Item:
    """`wrong` makes it a no, `partly` less than a yes; both are said before what speaks for it."""
    answer = "no" if wrong else "partly" if partly else "yes"
    return Item(question, answer, "; ".join([*wrong, *partly, *evidence]))


def _share(question: str, recorded: Recorded, good: int, evidence: Sequence[str], partly: Sequence[str] = ()) -> Item:
    """What `good` of all cells have: a no where none has it."""
    cells = len(recorded.by_cell())
    if not cells:
        return _not_known(question, recorded)
    less = [*partly, *recorded.unheard()]
    answer = "no" if not good else "partly" if good < cells or less else "yes"
    return Item(question, answer, "; ".join([*evidence, *less]))


def _not_known(question: str, recorded: Recorded) -> Item:
    return Item(question, "not known", "; ".join(recorded.unheard()) or "no trial was started")


def _scope(ranks: Sequence[Rank]) -> str:
    return f"{counted(len(ranks), 'rank')} of {counted(len({(rank.cell, rank.trial) for rank in ranks}), 'trial')}"


def _grouped(found: Iterable[tuple[str, Rank]]) -> list[str]:
    """Each line once, with the ranks that it is true of."""
    ranks: dict[str, list[Rank]] = {}
    for line, rank in found:
        ranks.setdefault(line, []).append(rank)
    return [f"{line} in {_scope(had)}, first {had[0].place}" for line, had in ranks.items()]


def _together(rows: Sequence[dict[str, list[str]]]) -> dict[str, list[str]]:
    """Of each key the values that any row has."""
    return {key: list(dict.fromkeys(value for row in rows for value in row[key])) for key in rows[0]}


def _some(values: Sequence[str]) -> str:
    rest = f" and {len(values) - SHOWN} more" if len(values) > SHOWN else ""
    return ", ".join(values[:SHOWN]) + rest


def _first(found: Sequence[str]) -> list[str]:
    """The first lines, and how many more there are."""
    return [*found[:SHOWN], *([f"{len(found) - SHOWN} more of this kind"] if len(found) > SHOWN else [])]
