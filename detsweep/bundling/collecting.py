"""Finding the names and secrets in a sweep's files: from the places where they stand, and by their shapes."""

from __future__ import annotations

import getpass
import json
import os
import re
import socket
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from detsweep.bundling.assignments import WHOLE, as_hydra_reads, assignments, looks_secret, override_values
from detsweep.bundling.names import Names
from detsweep.bundling.patterns import NODE_KEYS, kind_of, nodes, shaped
from detsweep.bundling.texts import plain
from detsweep.environment.files import text as read_text

SYSTEM = re.compile(
    r"/(?:usr|lib|lib32|lib64|bin|sbin|proc|sys|dev|etc|run|boot|opt/rocm[\w.-]*|opt/nvidia|opt/rh)(?:/.*)?"
)
"""Paths that every machine has, and that say something about libraries."""
_ABSOLUTE = re.compile(r"(?<![\w.~>/-])(?!//)(/(?:[\w.+@%=~#-]+/)+[\w.+@%=~#-]+)")
_SWEEP = re.compile(r"(?<![\w.~>-])((?:/[^/\s\"':]+)+)/cells/[^/\s\"']+-[0-9a-f]{10}(?![\w-])")
_INTERPRETER = re.compile(r"(?<![\w.~>-])((?:/[^/\s\"':]+)*)/bin/python[\d.]*(?![\w.-])")
_LOGIN = re.compile(r"\w[\w+.-]*://[^\s:/@]*:(?P<password>.+)@(?P<host>[\w.-]+)(?:[:/?].*)?")
_VERSIONS = ("versions", "packages", "vbios", "driver", "inforom")


class Collector:
    """Takes up in `names` all that is a name or a secret; `settle` when every file has been seen."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self._paths: dict[str, None] = {}
        self._roots: dict[str, str] = {}

    def machine(self, sweep: Path) -> None:
        """This machine's own: user, host, home, folders, and the secrets in the variables of this process."""
        for name in (socket.gethostname(), os.uname().nodename, read_text(Path("/etc/hostname")) or ""):
            self.node(name)
        for line in (read_text(Path("/etc/resolv.conf")) or "").splitlines():
            if line.startswith(("search ", "domain ")):
                for domain in line.split()[1:]:
                    self.domain(domain)
        for user in _users():
            self.names.add("user", user)
        for name, value in os.environ.items():
            if kind_of(name) == "secret" and looks_secret(value):
                self.names.add("secret", value)
        for root, label in (
            (sweep, "<sweep>"),
            (Path.cwd(), "<cwd>"),
            (Path.home(), "<home>"),
            (Path(sys.prefix), "<python>"),
            (Path(sys.base_prefix), "<python>"),
            (Path(__file__).parents[2], "<detsweep>"),
        ):
            self.root(str(root), label)
            self.root(str(root.resolve()), label)

    def root(self, path: str, label: str) -> None:
        """A folder below which paths are told by a word."""
        path = path.rstrip("/")
        if path.startswith("/") and not SYSTEM.fullmatch(path):
            self._roots.setdefault(path, label)

    def node(self, name: str) -> None:
        """The name of a machine, with or without its domain, or its address."""
        short, dot, domain = name.strip().partition(".")
        if re.fullmatch(r"[\d.]+|.*:.*", name.strip()):
            self.names.add("ip", name)
            return
        self.names.add("node", name)
        if dot:
            self.names.add("node", short)
            self.domain(domain)

    def domain(self, domain: str) -> None:
        """A domain, and the one of the whole house: others of its machines may be named elsewhere."""
        labels = domain.strip(".").split(".")
        if len(labels) < 2:
            return
        self.names.add("domain", ".".join(labels))
        own = 3 if len(labels[-1]) == 2 and len(labels[-2]) <= 3 and len(labels) > 2 else 2
        self.names.add("domain", ".".join(labels[-own:]))

    def text(self, text: str, *, versions: bool = False) -> None:
        """A text of any kind; `versions`: what looks like an address in it is a version."""
        text = plain(text)
        for kind, value in shaped(text):
            if versions and kind == "ip":
                self.names.keep(value)
            else:
                self.names.add(kind, value)
            if kind == "mail":
                self.domain(value.rpartition("@")[2])
        for one in assignments(text):
            self._assigned(one.name, one.value, one.sure, after=one.after)
        if "/" in text:
            self._paths |= dict.fromkeys(match[1] for match in _ABSOLUTE.finditer(text))
            for match in _SWEEP.finditer(text):
                self.root(match[1], "<sweep>")
            for match in _INTERPRETER.finditer(text):
                self.root(match[1], "<python>")
            for match in re.finditer(r"/(?:home|Users)/[\w.-]+", text):
                self.root(match[0], "<home>")

    def _assigned(self, name: str, value: str, sure: bool, *, after: str = "") -> None:
        kind = kind_of(name)
        if kind == "secret":
            self.names.add("secret", value, weak=not sure and not looks_secret(value), after=after)
            self._within(value)
        elif kind == "node":
            self.node(value)
        elif kind == "nodes":
            if "[" in value:
                self.names.add("node-list", value)
            for node in nodes(value):
                self.node(node)
        elif kind is not None:
            for one in value.split(",") if kind == "partition" else [value]:
                self.names.add(kind, one)

    def _within(self, secret: str) -> None:
        """What a secret holds that may stand alone elsewhere: of a list each, of a URL its password and host."""
        for one in secret.split(",") if "," in secret else ():
            if looks_secret(one):
                self.names.add("secret", one)
        if (url := _LOGIN.fullmatch(secret)) is not None:
            self.names.add("secret", url["password"])
            self.node(url["host"])

    def json(self, value: Any, keys: tuple[str, ...] = (), *, file: str = "") -> None:
        """What JSON holds, by the keys under which it stands."""
        if isinstance(value, Mapping):
            for key, one in value.items():
                self.text(key)
                self.json(one, (*keys, key), file=file)
        elif isinstance(value, list):
            for one in value:
                self.json(one, keys, file=file)
        elif isinstance(value, str):
            self._string(value, keys, file)
        elif isinstance(value, int | float) and not isinstance(value, bool) and keys and kind_of(keys[-1]) == "secret":
            self.names.add("secret", json.dumps(value), weak=True)

    def _string(self, value: str, keys: tuple[str, ...], file: str) -> None:
        key = keys[-1] if keys else ""
        kind = kind_of(_dotted(keys))
        if key in NODE_KEYS or (key == "name" and (_parent(keys) == "nodes" or re.fullmatch(r"node\d+\.json", file))):
            self.node(value)
        elif kind is not None:
            self._assigned(_dotted(keys), as_hydra_reads(value), sure=True)
        if key == "cwd":
            self.root(value, "<cwd>")
        if (whole := WHOLE.fullmatch(value)) is not None:
            for one in override_values(whole["value"]):
                self._assigned(whole["name"], one, sure=True)
        self.text(value, versions=any(one in _VERSIONS for one in keys))

    def settle(self) -> None:
        """Give every path its root, and every name its label."""
        for root, label in self._roots.items():
            self.names.add("path", root, label)
        count = 0
        for path in sorted(self._paths):
            if SYSTEM.fullmatch(path) or any(path == root or path.startswith(f"{root}/") for root in self._roots):
                continue
            parent = path.rpartition("/")[0]
            if parent not in self._roots:
                count += 1
                self._roots[parent] = f"<path-{count}>"
                self.names.add("path", parent, self._roots[parent])
        self.names.settle()


def _users() -> Iterator[str]:
    yield from (os.environ[name] for name in ("USER", "LOGNAME", "SUDO_USER") if name in os.environ)
    try:
        import pwd

        yield getpass.getuser()
        # The full name, as the account has it.
        full = pwd.getpwuid(os.getuid()).pw_gecos.partition(",")[0]
    except (KeyError, OSError):
        return
    if " " in full:
        yield full


def _dotted(keys: tuple[str, ...]) -> str:
    return ".".join(keys[-2:])


def _parent(keys: tuple[str, ...]) -> str:
    return keys[-2] if len(keys) > 1 else ""
