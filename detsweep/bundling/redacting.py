"""Replacing names and secrets in texts, in JSON and in file names, so that what is left can still be read."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from typing import Any

from detsweep.bundling.assignments import WHOLE, as_hydra_reads, assignments, override_values
from detsweep.bundling.names import Names
from detsweep.bundling.patterns import NODE_KEYS, kind_of


class Redactor:
    """Replaces what `names` holds, which must have been settled. `vocabulary`: keys that stay as they are."""

    def __init__(self, names: Names, vocabulary: frozenset[str]) -> None:
        self._names = names
        self._vocabulary = vocabulary

    def text(self, text: str) -> str:
        """A text without names and secrets."""
        # Whole secrets first: where one has marks in it, what is read as an assignment is only its beginning.
        text = self._names.replaced(text)
        pieces, place = [], 0
        for one in sorted(assignments(text), key=lambda one: one.start):
            if one.start >= place:
                pieces += [text[place : one.start], self._value(one.name, one.value)]
                place = one.end
        return "".join([*pieces, text[place:]])

    def name(self, name: str) -> str:
        """The name of a file or folder: no separator comes into it, or out of it."""
        return re.sub(r"[<>/]", "", self.text(name)) if name else name

    def path(self, path: str) -> str:
        """A path below the sweep's folder, part by part."""
        return "/".join(self.name(part) for part in path.split("/"))

    def json(self, value: Any, keys: tuple[str, ...] = (), *, file: str = "") -> Any:
        """A JSON value without names and secrets: numbers, digests and detsweep's own keys stay."""
        if isinstance(value, Mapping):
            told: dict[str, Any] = {}
            for key, one in value.items():
                shown, number = self._key(key), 2
                while shown in told:
                    shown, number = f"{self._key(key)} ({number})", number + 1
                told[shown] = self.json(one, (*keys, key), file=file)
            return told
        if isinstance(value, list):
            # The words of a command, and not a command each.
            return [self.override(one) if keys[-1:] == ("command",) and isinstance(one, str)
                    else self.json(one, keys, file=file) for one in value]  # fmt: skip
        if isinstance(value, str):
            return self._string(value, keys, file)
        secret = keys and not isinstance(value, bool) and value is not None and kind_of(".".join(keys[-2:])) == "secret"
        return self._names.label_of(json.dumps(value)) or value if secret else value

    def jsonl(self, text: str, *, file: str = "") -> str:
        """Lines of JSON: those in which nothing is to be replaced stay as they are, byte by byte."""
        return "".join(self._line(line, file) for line in text.splitlines(keepends=True))

    def document(self, text: str, *, file: str = "") -> str:
        """The text of a JSON file, in the way in which it is written; as running text where it is torn."""
        try:
            value = json.loads(text)
        except ValueError:
            return self.text(text)
        told = self.json(value, file=file)
        if told == value:
            return text
        indent = 1 if text.startswith(("{\n", "[\n")) else None
        separators = None if indent or ": " in text[:200] else (",", ":")
        # An escape of half a letter must not become a byte of the file.
        escaped = "\\ud" in text.lower()
        return json.dumps(told, indent=indent, ensure_ascii=escaped, separators=separators) + "\n" * text.endswith("\n")

    def _line(self, line: str, file: str) -> str:
        if "\\" not in line and self.text(line) == line:
            return line
        end = line[len(line.rstrip("\r\n")) :]
        return self.document(line.rstrip("\r\n"), file=file) + end

    def _key(self, key: str) -> str:
        return key if key.lower() in self._vocabulary else self.text(key)

    def _string(self, value: str, keys: tuple[str, ...], file: str) -> str:
        key, dotted = keys[-1] if keys else "", ".".join(keys[-2:])
        parent = keys[-2] if len(keys) > 1 else ""
        if key in NODE_KEYS or (key == "name" and (parent == "nodes" or re.fullmatch(r"node\d+\.json", file))):
            return self._names.label_of(value) or self.text(value)
        if kind_of(dotted) is not None:
            return self._value(dotted, value)
        if key == "command":
            return self._command(value)
        return self.override(value)

    def override(self, word: str) -> str:
        """A word of a command line, which may be an override: then all of its rest is the value."""
        whole = WHOLE.fullmatch(word)
        if whole is None or kind_of(whole["name"]) is None:
            return self.text(word)
        values = ",".join(self._value(whole["name"], one) for one in override_values(whole["value"]))
        return f"{whole['mark']}{self.text(whole['name'])}={values}"

    def _command(self, command: str) -> str:
        """A command as a shell has it, word by word."""
        try:
            words = shlex.split(command)
        except ValueError:
            return self.text(command)
        told = [self.override(word) for word in words]
        return command if told == words else shlex.join(told)

    def _value(self, name: str, value: str) -> str:
        """The value of a name that says what it is: replaced in its place, whatever it is."""
        kind = kind_of(name)
        label = self._names.label_of(value) or self._names.label_of(as_hydra_reads(value))
        if label is not None and kind in ("secret", "user", "node", "account", "partition", "qos", "reservation"):
            return label
        if kind in ("nodes", "partition") and "[" not in value:
            return ",".join(self._names.label_of(one) or self.text_of_value(one) for one in value.split(","))
        return label or self.text_of_value(value)

    def text_of_value(self, value: str) -> str:
        """A value of a name of which nothing is known."""
        return self._names.replaced(value)
