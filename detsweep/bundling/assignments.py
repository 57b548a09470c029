"""What a text assigns to names that say of their values that they are secrets, or somebody's names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from detsweep.bundling.patterns import kind_of
from detsweep.bundling.texts import plain

_ASSIGNED = re.compile(
    r"""
    (?P<name> --[a-z][a-z0-9_.-]* | [A-Za-z_][\w.]* )
    (?P<mark> \\*["']? [ \t]* (?: => | = | : ) [ \t]* )
    (?P<value>
        (?P<quote> \\+["'] ) [^\n]*? (?<!\\) (?P=quote)     # in quotes that are escaped themselves
      | "(?: [^"\\] | \\. )*" | '(?: [^'\\] | \\. )*'
      | \\* ["'] [^\s"']+                                   # in quotes that are not closed
      | (?! [{\[(<] ) [^\s"',;&)}\]\\]+
    )
    """,
    re.VERBOSE,
)
_OPTION = re.compile(r"(?P<name>--[a-z][a-z0-9_-]*)(?P<mark>\s+)(?P<value>[^-\s\"',;][^\s\"',;]*)")
_LISTED = re.compile(r"[ \t]*(?:(?:\[[^\]\n]*\]:?|export|declare[ ]-x|\d+:)[ \t]*)*")
"""What may stand before a variable in a list of them, as `env` and `export` print it, and a launcher marks it."""
_COMMAND = re.compile(
    r"(?:[ \t]+[A-Za-z_]\w*=\S*)*[ \t]*(?:$|.*[ \t]--?[A-Za-z]"
    r"|[ \t](?:\S*/)?(?:python[\d.]*|torchrun|srun|sbatch|salloc|mpirun|mpiexec|bash|sh|env|exec|nohup|docker|pytest"
    r"|git|curl|wget|pip|uv|wandb|\S+\.(?:sh|py))(?![\w.]))"
)
"""What follows a variable that is set for one command."""
_HINTS = (
    "token", "secret", "pass", "key", "auth", "private", "session", "signature", "cert", "credential", "cookie",
    "webhook", "netrc", "pwd", "_pw", "dsn", "salt", "otp", "pin", "user", "logname", "host", "node", "master_addr",
    "jwt", "bearer", "_pat", "sas", "_url", "_uri", "id_rsa", "id_dsa", "id_ecdsa", "id_ed25519", "amz-", "goog-",
    "account", "partition", "qos", "reservation", "exclude", "slurm", "serial", "uuid", "guid", "unique",
)  # fmt: skip
"""One of these is in every name that says something, in small letters."""
_LONGEST_NAME = 200
_NO_VALUE = ("", "none", "null", "unset")
WHOLE = re.compile(r"(?P<mark>[+~]*)(?P<name>[A-Za-z_][\w.@/-]*)=(?P<value>.*)", re.DOTALL)
"""An override of the command line: all of its rest is the value."""


@dataclass(frozen=True)
class Assignment:
    """A name, its value, and where the value lies in the text.

    `sure`: whether the name alone says that it is one; `token: embedding` in running text may be anything.
    `after`: the letter that follows in the text; a secret with marks in it may have been cut off there.
    """

    name: str
    value: str
    start: int
    end: int
    sure: bool
    after: str


def assignments(text: str) -> Iterator[Assignment]:
    """All that a text assigns and that is a secret or a name, in order: `NAME=value`, `"name": "value"`, `--name v`."""
    text = plain(text)
    for start in _names(text):
        match = _ASSIGNED.match(text, start) or _OPTION.match(text, start)
        if match is not None and (found := _assignment(match)) is not None:
            if (line := _whole_line(text, start, found)) is not None:
                yield line
            yield found


def _whole_line(text: str, start: int, found: Assignment) -> Assignment | None:
    """A secret with spaces in a list of variables, of which the rest of the line is the value."""
    begin, end = text.rfind("\n", 0, start) + 1, text.find("\n", found.end)
    rest = text[found.end : len(text) if end < 0 else end].rstrip()
    if (
        not rest
        or not found.name.isupper()
        or text[start + len(found.name) : found.start] != "="
        or kind_of(found.name) != "secret"
        or _LISTED.fullmatch(text, begin, start) is None
        or _COMMAND.match(rest) is not None
    ):
        return None
    end = found.end + len(rest)
    return Assignment(found.name, text[found.start : end], found.start, end, True, text[end : end + 1])


def _names(text: str) -> list[int]:
    """Where names begin that have one of the hints in them: looking there alone is what makes long texts fast."""
    lower = text.lower()
    starts = set()
    for hint in _HINTS:
        place = lower.find(hint)
        while place >= 0:
            earliest = max(place - _LONGEST_NAME, 0)
            before = text[earliest:place]
            starts.add(place - len(_tail(before, "_.")))
            if (option := _tail(before, "_.-")).startswith("--"):
                starts.add(place - len(option))
            place = lower.find(hint, place + 1)
    return sorted(starts)


def _tail(text: str, marks: str) -> str:
    """The end of a text that consists of letters, digits and some marks."""
    length = len(text)
    while length and (text[length - 1].isalnum() or text[length - 1] in marks):
        length -= 1
    return text[length:]


def _assignment(match: re.Match[str]) -> Assignment | None:
    name, mark, (before, value) = match["name"], match["mark"], _unquoted(match["value"])
    kind = kind_of(name)
    if kind is None or value.lower() in _NO_VALUE:
        return None
    quoted = '"' in mark or "'" in mark
    sure = kind != "secret" or quoted or name.rpartition(".")[2].isupper() or name.startswith(("env.", "--"))
    if not sure and "=" not in mark and not looks_secret(value):
        return None
    start = match.start("value") + len(before)
    end = start + len(value)
    return Assignment(name, value, start, end, sure, match.string[end : end + 1])


def _unquoted(text: str) -> tuple[str, str]:
    """What stands before a value in its quotes, and the value."""
    opening = re.match(r"\\*[\"']", text)
    if opening is None:
        return "", text
    rest = text[opening.end() :]
    closing = re.search(r"\\*[\"']$", rest)
    return opening[0], rest[: closing.start()] if closing else rest


def override_values(value: str) -> list[str]:
    """The values of an override, one for each point of a sweep, without the quotes that Hydra takes away."""
    values = _POINT.findall(value)
    return [as_hydra_reads(one) for one in values] if ",".join(values) == value else value.split(",")


_POINT = re.compile(r"""'(?:\\.|[^'\\])*'(?=,|$)|"(?:\\.|[^"\\])*"(?=,|$)|[^,]+""", re.DOTALL)


def as_hydra_reads(value: str) -> str:
    """A value of an override without its quotes, where it has any."""
    quote = value[:1]
    if quote not in ("'", '"') or len(value) < 2 or value[-1] != quote:
        return value
    return value[1:-1].replace(f"\\{quote}", quote)


def looks_secret(value: str) -> bool:
    """Whether a text is one that nobody would use as an ordinary word."""
    return len(value) >= 16 or (len(value) >= 8 and any(c.isdigit() for c in value) and any(c.isalpha() for c in value))
