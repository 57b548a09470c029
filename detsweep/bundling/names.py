"""The names and secrets that are to be removed, and what stands in their place."""

from __future__ import annotations

import re
from collections import Counter

from detsweep.bundling.forms import (
    ANYWHERE,
    INSENSITIVE,
    LONG,
    PATH,
    PLACE,
    SHORT,
    WORD,
    Form,
    Name,
    bounded,
    forms_of,
    pattern_of,
)
from detsweep.bundling.texts import encoded as encoded_text

_STEMS = {"secret": "REDACTED"}
_NOBODY = (
    "root", "nobody", "user", "admin", "ubuntu", "debian", "centos", "rocky", "ec2-user", "runner", "jovyan", "default",
)  # fmt: skip
"""Users that every machine of a kind has."""
_EVERYWHERE = frozenset(
    ("localhost", "localhost.localdomain", "localdomain", "local", "ip6-localhost", "::1", "::", "none", "")
)
_TRIVIAL = frozenset(("", "true", "false", "yes", "no", "on", "off", "none", "null", "auto", "default", "unset"))


class Names:
    """All that is to be removed: first taken up, then settled, then replaced.

    `vocabulary`: words of detsweep's own, in small letters, which are never replaced but in their place.
    """

    def __init__(self, vocabulary: frozenset[str] = frozenset()) -> None:
        self._vocabulary = vocabulary
        self._kinds: dict[str, str] = {}
        self._own_labels: dict[str, str] = {}
        self._weak: set[str] = set()
        self._kept: set[str] = set()
        self._follows: dict[str, set[str]] = {}
        self._names: dict[str, Name] = {}
        self._used: set[str] = set()
        self._forms: list[Form] = []
        self._lists: re.Pattern[str] | None = None

    def add(self, kind: str, value: str, label: str | None = None, *, weak: bool = False, after: str = "") -> None:
        """Take a text up, unless it is nobody's name.

        `label`: what is to stand there, where that is not the kind and a number. `weak`: nothing but the name beside it
        says that it is one, so it is replaced nowhere else. `after`: what follows a secret in a text, at which it may
        have been cut off; without it, it is whole.
        """
        value = value if kind == "secret" else value.strip()
        if not value or _nobodys(kind, value):
            return
        # What is a secret somewhere is one everywhere.
        if self._kinds.get(value) != "secret":
            if kind == "secret" or value not in self._kinds:
                self._kinds[value] = kind
            if label is not None:
                self._own_labels.setdefault(value, label)
        if kind == "secret":
            self._follows.setdefault(value, set()).add(after)
        if not weak:
            self._weak.discard(value)
        elif value not in self._names:
            self._weak.add(value)
        for line in value.split("\n") if kind == "secret" and "\n" in value else ():
            # A key of several lines is also found line by line, as a log breaks it up.
            if len(line.strip()) > 2 * LONG and not line.startswith("-----"):
                self._kinds.setdefault(line.strip(), kind)

    def keep(self, value: str) -> None:
        """Take note of a text that looks like a name and is none, as versions look like addresses."""
        self._kept.add(value)

    def settle(self) -> None:
        """Give each its label; to be called when all are known, as no label may hold what is to be removed."""
        self._drop_pieces()
        reaches = {value: self._reached(kind, value) for value, kind in self._kinds.items()}
        removed = {
            value.lower(): reaches[value]
            for value, kind in self._kinds.items()
            if kind not in _OWN and reaches[value] != PLACE
        }
        labels: dict[str, str] = dict(self._own_labels)
        numbers: Counter[str] = Counter()
        for value in sorted(self._kinds, key=lambda one: (self._kinds[one] != "node", _natural(one))):
            kind = self._kinds[value]
            same = _same_as(kind, value)
            if value in labels or same in labels:
                labels.setdefault(value, labels.get(same, ""))
                continue
            stem = _STEMS.get(kind, kind)
            while True:
                numbers[stem] += 1
                label = f"{stem}-{numbers[stem]}"
                if not any(_clash(one, reach, label.lower()) for one, reach in removed.items()):
                    break
                if numbers[stem] % _TRIES == 0:
                    stem += "x"
            labels[value] = labels[same] = label
        self._names = {value: Name(kind, value, labels[value], reaches[value]) for value, kind in self._kinds.items()}
        forms = (form for name in self._names.values() if name.reach != PLACE for form in forms_of(name))
        self._forms = sorted(dict.fromkeys(forms), key=lambda form: -len(form.text))
        self._lists = _lists_of([name.value for name in self._names.values() if name.kind == "node"])

    def _drop_pieces(self) -> None:
        """Forget what is another secret in some form, or only the beginning of it, cut off at a mark in it.

        As a secret of its own it would be replaced in ordinary words, and break the whole one where it stands.
        """
        cut = {value: follows for value, follows in self._follows.items() if "" not in follows}
        wholes = [value for value in self._follows if value not in cut]
        forms = {form.text for value in wholes for form in forms_of(Name("secret", value, "", ANYWHERE))}
        # Of a line that goes on after a secret the rest was taken up as well.
        longest = tuple(f"{form} " for form in forms if len(form) >= LONG)
        for value, follows in cut.items():
            pieces = all(any(form.startswith(value + after) for form in forms) for after in follows)
            if value in forms or pieces or value.startswith(longest):
                self._kinds.pop(value, None)

    def label_of(self, value: str) -> str | None:
        """What stands in the place of a text; None where it was not taken up."""
        name = self._names.get(value) or self._names.get(value.strip())
        if name is None:
            return None
        self._used.add(name.label)
        return name.label

    def may_stay(self, kind: str, value: str) -> bool:
        """Whether what looks like a name or a secret is none: nobody's, a version, or what stands in its place."""
        labels = (name.label for name in self._names.values() if name.kind not in ("cell", "slug"))
        return value in self._kept or _nobodys(kind, value) or any(label in value for label in labels)

    def counts(self) -> dict[str, int]:
        """How many of each kind were replaced somewhere; cells and their folders are not counted."""
        kinds = {name.label: name.kind for name in self._names.values()}
        counted = Counter(kinds[label] for label in self._used if kinds[label] not in ("cell", "slug"))
        return dict(sorted(counted.items()))

    def ordinary(self) -> int:
        """How many of these are ordinary words, or too short, and were only replaced where their names stand."""
        return len({name.label for name in self._names.values() if name.reach == PLACE and name.label in self._used})

    def replaced(self, text: str) -> str:
        """The text with every name and secret replaced, in whatever form it appears."""
        if self._lists is not None and "[" in text:
            text = self._lists.sub("nodes", text)
        lower = text.lower()
        hits = tuple(form for form in self._forms if form.text in (lower if form.insensitive else text))
        if not hits:
            return text
        labels = {form.text: form.label for form in reversed(hits)}

        def label(found: re.Match[str]) -> str:
            chosen = labels.get(found[0]) or labels[found[0].lower()]
            self._used.add(chosen)
            return chosen

        return pattern_of(hits).sub(label, text)

    def found(self, data: bytes, *, text: bool) -> list[str]:
        """The labels of what appears in some bytes, in any form, in UTF-8 or UTF-16.

        In what is no `text` very short ones are not looked for: every few letters are somewhere in numbers.
        """
        lower = data.lower()
        labels = []
        for form in self._forms:
            if not text and len(form.text) < _SHORTEST_IN_NUMBERS:
                continue
            where = lower if form.insensitive else data
            for encoded in (encoded_text(form.text), form.text.encode("utf-16-le", "surrogatepass")):
                if encoded in where and bounded(form, encoded, where):
                    labels.append(form.label)
                    break
        return list(dict.fromkeys(labels))

    def _reached(self, kind: str, value: str) -> str:
        if kind in _OWN:
            return _OWN[kind]
        return PLACE if value in self._weak else self._reach(kind, value)

    def _reach(self, kind: str, value: str) -> str:
        lower = value.lower()
        if lower in _TRIVIAL or lower in self._vocabulary or len(value) < 2:
            return PLACE
        if value.isdigit() and len(value) < LONG:
            # It would be found in sizes, counts and times.
            return PLACE
        if kind != "secret":
            return WORD
        if len(value) < SHORT:
            return PLACE
        digits = re.fullmatch(r"[0-9a-fA-F]+", value) is not None
        inside = any(lower in word for word in self._vocabulary)
        return ANYWHERE if len(value) >= LONG and not digits and not inside else WORD


_TRIES = 1000
_SHORTEST_IN_NUMBERS = 5
_OWN = {"path": PATH, "slug": ANYWHERE, "cell": WORD}
"""Kinds that are detsweep's own, and not somebody's."""


def _clash(value: str, reach: str, label: str) -> bool:
    """Whether a label holds what is to be removed: a node may be called node-1 already."""
    return value in label and bounded(Form(value, "", reach, False), value.encode(), label.encode())


def _nobodys(kind: str, value: str) -> bool:
    """Whether a text names nobody and nothing in particular."""
    if kind == "user":
        return value.lower() in _NOBODY or value.lower() in _TRIVIAL
    if kind in ("node", "domain", "ip"):
        return value.lower() in _EVERYWHERE or value.startswith("127.")
    return kind != "secret" and value.lower() in _TRIVIAL


def _same_as(kind: str, value: str) -> str:
    """What has the same label: a node with its domain is that node; case and marks of a UUID say nothing."""
    return value.lower().partition(".")[0] if kind == "node" else value.lower() if kind in INSENSITIVE else value


def _lists_of(nodes: list[str]) -> re.Pattern[str] | None:
    """The lists of nodes that Slurm writes (node[1-3,7]), of nodes with these names."""
    stems = {found[1] for node in nodes if (found := re.fullmatch(r"(.*?[A-Za-z-])\d+(?:\..*)?", node))}
    if not stems:
        return None
    ordered = "|".join(re.escape(stem) for stem in sorted(stems, key=lambda stem: (-len(stem), stem)))
    return re.compile(rf"(?<![A-Za-z0-9])(?i:{ordered})\[[\d,-]+\](?:[A-Za-z0-9.-]*[A-Za-z0-9])?")


def _natural(value: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", value)]
