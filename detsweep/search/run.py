"""The two searches: `minimal`, the smallest set of mitigations that cures; `culprit`, the settings that it takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from detsweep.plan import Cell
from detsweep.search.session import Launch, NoAnswerError, Session
from detsweep.search.smallest import Found, smallest

ROUNDS = 5
"""How often an answer may fall with fresh launches before the search gives up."""


@dataclass(frozen=True)
class Task:
    """What is searched.

    `items`: mitigations, or axes of the configuration; `cell_of` makes the cell that has the items of a set (the other
    axes at their harmless values); `together` says whether mitigations can be combined; `parts` are the members of an
    item that is a union. `believable_only_if_read`: a cure that nothing reads is none, as it is of a fault put in.
    """

    name: str
    items: tuple[str, ...]
    cell_of: Callable[[Sequence[str]], Cell]
    together: Callable[[Sequence[str]], bool]
    parts: Callable[[str], Sequence[str]]
    settings: Mapping[str, Any]
    believable_only_if_read: bool = True


@dataclass(frozen=True)
class Answer:
    """What a search found: `members` None: nothing. `lines` say it in words; `found`: it was verified."""

    members: tuple[str, ...] | None
    verified: bool
    lines: tuple[str, ...]
    baseline_cell: str = ""
    answer_cell: str = ""


def search(task: Task, launch: Launch, say: Callable[[str], None], keep: Callable[[dict[str, Any]], None]) -> Answer:
    """Run a search; `keep` gets its state, as search.json has it: at the start, after every set and at the end."""

    def state(answer: Answer | None) -> dict[str, Any]:
        return {
            "name": task.name,
            "items": list(task.items),
            "path": [tried.to_json() for tried in session.tried],
            "launches": session.launches,
            "answer": None if answer is None else list(answer.members or ()),
            "found": answer is not None and answer.members is not None,
            "verified": answer is not None and answer.verified,
            "baseline_cell": "" if answer is None else answer.baseline_cell,
            "answer_cell": "" if answer is None else answer.answer_cell,
            "lines": [] if answer is None else list(answer.lines),
            "state": "running" if answer is None else "done",
        }

    def told(line: str) -> None:
        say(line)
        keep(state(None))

    session = Session(task.cell_of, launch, task.settings, told)
    what = "mitigations" if task.name == "minimal" else "settings"
    told(f"search={task.name} over {len(task.items)} {what}; first the cell itself, until it has diverged")
    try:
        answer = (_minimal if task.name == "minimal" else _culprit)(task, session)
    except NoAnswerError as error:
        answer = Answer(None, False, (str(error),))
    keep(state(answer))
    return answer


def _minimal(task: Task, session: Session) -> Answer:
    session.calibrate((), "without a mitigation the cell")
    for _ in range(ROUNDS):
        found = smallest(task.items, session.clean, task.together, session.failed)
        if found.members is None:
            return _none(task, session)
        members = _apart(task, session, found.members)
        if _stands(session, members):
            return _cure(task, session, members, found)
    raise NoAnswerError(f"{ROUNDS} answers fell with fresh launches: it diverges too seldom for search.confidence")


def _none(task: Task, session: Session) -> Answer:
    if failed := [tried for tried in session.tried if tried.came_to == "no answer" and tried.cell]:
        raise NoAnswerError(
            f"no set of these {len(task.items)} mitigations is known to cure it, but {len(failed)} of the "
            f"{len(session.tried)} sets that were tried came to no answer: {failed[0].evidence.error}"
        )
    lines = (
        f"neither all that go together of these {len(task.items)} mitigations nor any of them alone cures it",
        _effort(task, session),
    )
    return Answer(None, True, lines)


def _apart(task: Task, session: Session, members: tuple[str, ...]) -> tuple[str, ...]:
    """The answer with every union in it taken apart, as far as its parts cure as well."""
    parts = tuple(dict.fromkeys(part for member in members for part in (_atoms(task, member) or (member,))))
    if parts == members or not session.clean(parts, "the parts of the answer"):
        return members
    inside = smallest(parts, session.clean, task.together)
    return inside.members or members


def _atoms(task: Task, item: str) -> tuple[str, ...]:
    return tuple(atom for part in task.parts(item) for atom in (_atoms(task, part) or (part,)))


def _stands(session: Session, members: tuple[str, ...]) -> bool:
    """Whether the answer is clean in fresh launches too; the cell without it is launched in turns, for its cost.

    There are at least `verify` of them, and as many as it takes to know that launches do not differ by luck alone.
    Raises NoAnswerError where that is more than a set may take.
    """
    for fresh in range(1, max(session.most, session.verify) + 1):
        bare = session.again((), fresh).evidence
        seen = session.again(members, fresh)
        if seen.came_to != "clean":
            return False
        if fresh >= session.verify and seen.evidence.compared_launches >= session.launches_needed(bare):
            return True
    raise NoAnswerError(
        f"{', '.join(members)} stood {seen.evidence.launches} launches, but the cell diverges in "
        f"{bare.diverged_launches} of {bare.compared_launches}: search.max_trials={session.most} is too few to be sure"
    )


def _cure(task: Task, session: Session, members: tuple[str, ...], found: Found) -> Answer:
    fresh = session.known(members)
    lines = [f"smallest set that cures: {', '.join(members)}"]
    bare = session.known(()).evidence
    lines.append(
        f"verified: {fresh.evidence.rate} diverged in {fresh.evidence.launches} launches, without it {bare.rate} in "
        f"{bare.diverged_launches} of {bare.compared_launches}"
    )
    verified = True
    for member in members:
        rest = [other for other in members if other != member]
        without = session.came_to(rest, f"without {member}")
        names = ", ".join(rest) or "nothing"
        known = "needed" if without == "diverged" else "not known to be needed"
        verified &= without == "diverged"
        lines.append(f"{known}: {member}; with {names} alone: {without}, {session.known(rest).evidence.rate}")
    if fresh.evidence.inert and task.believable_only_if_read:
        verified = False
        lines.append(
            "but nothing here reads what it sets, so it cannot be what cured it: that was luck, or the machine"
        )
    if found.only_alone:
        lines.append("together with the other candidates it does not cure: one of them brings a divergence of its own")
    if len(members) > 2:
        lines.append("none of its members can be left out; other sets that are smaller were tried up to one member")
    lines.append(_effort(task, session))
    return Answer(
        members, verified, tuple(lines), baseline_cell=session.known(()).cell, answer_cell=session.known(members).cell
    )


def _culprit(task: Task, session: Session) -> Answer:
    session.calibrate(task.items, "as it is the cell")
    harmless = session.came_to((), "every axis at its harmless value")
    if harmless != "clean":
        evidence = session.known(()).evidence
        why = ": the cause is none of these axes" if harmless == "diverged" else f": {evidence.error}"
        raise NoAnswerError(f"with every axis at its harmless value it is not clean ({evidence.rate}){why}")
    for _ in range(ROUNDS):
        found = smallest(task.items, session.diverges, lambda _: True)
        assert found.members is not None
        if all(_harmless(session, found.members, member) for member in found.members):
            return _guilty(task, session, found.members)
    raise NoAnswerError(f"{ROUNDS} answers fell with fresh launches: it diverges too seldom for search.confidence")


def _harmless(session: Session, members: tuple[str, ...], member: str) -> bool:
    rest = [other for other in members if other != member]
    if session.came_to(rest, f"without {member}") == "clean":
        return session.again(rest, session.verify).came_to == "clean"
    return session.known(rest).came_to == "no answer"


def _guilty(task: Task, session: Session, members: tuple[str, ...]) -> Answer:
    lines = [f"it takes: {' x '.join(members)}", f"with these alone: {session.known(members).evidence.rate} diverged"]
    for member in members:
        rest = session.known([other for other in members if other != member])
        known = "needed" if rest.came_to == "clean" else "not known to be needed"
        lines.append(f"{known}: {member}; without it: {rest.came_to}, {rest.evidence.rate}")
    innocent = [item for item in task.items if item not in members]
    if innocent:
        lines.append(f"not needed: {', '.join(innocent)}")
    lines.append(_effort(task, session))
    verified = all(session.known([o for o in members if o != member]).came_to == "clean" for member in members)
    return Answer(members, verified, tuple(lines), answer_cell=session.known(members).cell)


def _effort(task: Task, session: Session) -> str:
    what = "mitigations" if task.name == "minimal" else "axes"
    lost = sum(tried.came_to == "no answer" for tried in session.tried)
    failed = f"; {lost} of them came to no answer, and counted as no cure" if lost else ""
    return f"{len(session.tried)} sets of {len(task.items)} {what} tried in {session.launches} launches{failed}"
