"""A smallest set of items that makes something hold: QuickXplain, a divide-and-conquer form of delta debugging.

U. Junker, QuickXplain: Preferred Explanations and Relaxations for Over-Constrained Problems, AAAI 2004.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

WHOLE = "all that go together"
Holds = Callable[[Sequence[str], str], bool]
"""Whether a set of items, in their order, makes it hold; the second argument says in words why it is asked."""


@dataclass(frozen=True)
class Found:
    """`members`: the set, None where there is none. `only_alone`: it holds, and together with the others it does not.

    `smaller_tried`: whether no smaller set can hold, all single items having been tried.
    """

    members: tuple[str, ...] | None
    only_alone: bool = False
    smaller_tried: bool = True


def smallest(
    items: Sequence[str],
    holds: Holds,
    together: Callable[[Sequence[str]], bool],
    failed: Callable[[Sequence[str]], bool] = lambda _: False,
) -> Found:
    """A set of items that holds and of which no item can be left out; of one or two items none smaller holds.

    Taken for granted, as by delta debugging, is that more items do not undo it; where they do, single items are still
    tried. `together` says which items can be combined at all: any two that can be are tried in one set at least.
    Earlier items are preferred. `failed` says of a set that was asked for that it could not be tried at all: those of
    its items are left out that cannot alone either.
    For n items and an answer of one it asks at most 2 log2(n) + 2 times, if all items go together.
    """

    def ordered(some: Sequence[str], why: str) -> bool:
        return holds(sorted(some, key=items.index), why)

    for whole in _wholes(items, together):
        usable = _usable(whole, ordered, failed)
        if usable:
            members = _explain([], usable, ordered, known=False)
            break
    else:
        return _alone(items, holds)
    members = _needed(sorted(members, key=items.index), ordered)
    if len(members) == 1:
        return Found(tuple(members))
    if single := next((item for item in items if holds([item], "a smaller one")), None):
        return Found((single,))
    return Found(tuple(members), smaller_tried=len(members) == 2)


def _usable(whole: list[str], holds: Holds, failed: Callable[[Sequence[str]], bool]) -> list[str]:
    """A whole set if it holds, or what is left of it without items that cannot even be tried; else nothing."""
    if holds(whole, WHOLE):
        return whole
    if not failed(whole):
        return []
    single = next((item for item in whole if holds([item], "alone, as together they fail")), None)
    if single is not None:
        return [single]
    rest = [item for item in whole if not failed([item])]
    return rest if rest and rest != whole and holds(rest, "without those that fail alone") else []


def _wholes(items: Sequence[str], together: Callable[[Sequence[str]], bool]) -> Iterator[list[str]]:
    """Sets that cannot be enlarged, until every item has been in one, and every two that go together."""
    left = list(items)
    done: list[list[str]] = []
    while left:
        whole = _enlarged([left[0]], [*left[1:], *items], together)
        left = [item for item in left if item not in whole]
        done.append(sorted(whole, key=items.index))
        yield done[-1]
    for one, other in combinations(items, 2):
        if together([one, other]) and not any(one in whole and other in whole for whole in done):
            done.append(sorted(_enlarged([one, other], items, together), key=items.index))
            yield done[-1]


def _enlarged(whole: list[str], items: Sequence[str], together: Callable[[Sequence[str]], bool]) -> list[str]:
    for item in items:
        if item not in whole and together([*whole, item]):
            whole.append(item)
    return whole


def _explain(given: list[str], items: list[str], holds: Holds, *, known: bool) -> list[str]:
    """Of `items` those that are needed beside what is `given`; `known` that given alone may hold already."""
    if known and holds(given, "a part"):
        return []
    if len(items) == 1:
        return items
    half = (len(items) + 1) // 2
    first, second = items[:half], items[half:]
    of_second = _explain([*given, *first], second, holds, known=True)
    of_first = _explain([*given, *of_second], first, holds, known=bool(of_second))
    return [*of_first, *of_second]


def _needed(members: list[str], holds: Holds) -> list[str]:
    """The set with every item taken out that it holds without."""
    for item in members:
        rest = [other for other in members if other != item]
        if rest and holds(rest, f"without {item}"):
            # Where more items undo it, one that was needed before may not be any more.
            return _needed(rest, holds)
    return members


def _alone(items: Sequence[str], holds: Holds) -> Found:
    for item in items:
        if holds([item], "alone, as all together do not"):
            return Found((item,), only_alone=True)
    return Found(None)
