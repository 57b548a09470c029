"""Presets and the catalogue of variables for people: as tables, and each preset with all that is known of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from detsweep.mitigations.presets import Preset
from detsweep.mitigations.switches import SWITCHES
from detsweep.mitigations.variables import Variable, catalogue

WHEN: Mapping[str, str] = {
    "process": "at process start",
    "import": "at import",
    "handle": "when a handle is created, or at first use",
    "communicator": "when a communicator is created",
    "construction": "when a module is constructed",
    "compile": "at compilation",
    "call": "at each call",
}
"""What the catalogue's `read` means, in words."""
SHOWN = 3
"""How many settings or members a row of the table names; the others are counted."""
FOLDED = 20
"""The least width at which a column of text is still read."""


def print_presets(presets: Iterable[Preset]) -> None:
    """A row for each preset: where it has a place, what it sets, what it should do, and its price."""
    rows = [(one.name, ",".join(one.platforms) or "all", _short(one), one.expect, one.cost) for one in presets]
    _print_table(("name", "platforms", "sets", "expected effect", "cost"), rows, expendable=("cost", "platforms"))


def print_variables(variables: Iterable[Variable]) -> None:
    """A row for each variable of the catalogue."""
    rows = [(one.name, ",".join(one.readers), one.read, one.default, one.effect, one.use) for one in variables]
    _print_table(
        ("name", "readers", "read", "default", "effect", "use"), rows, expendable=("default", "readers", "use")
    )


def print_preset(preset: Preset) -> None:
    """All that is known of a preset, and of each variable that it sets."""
    console = Console(highlight=False)
    console.print(f"[bold]{escape(preset.name)}[/bold]")
    for line in _about(preset):
        console.print(escape(line), soft_wrap=True)


def setting(name: str, value: Any) -> str:
    """A variable or switch with its value; None: it must be unset."""
    return f"{name} unset" if value is None else f"{name}={value}"


def _short(preset: Preset) -> str:
    if preset.members:
        return "= " + _first(preset.members, " + ")
    settings = {**preset.env, **preset.torch}
    return _first([setting(name, value) for name, value in settings.items()], ", ") or "nothing"


def _first(items: Sequence[str], separator: str) -> str:
    """The first items; one that is left over is named rather than counted."""
    if len(items) <= SHOWN + 1:
        return separator.join(items)
    return separator.join([*items[:SHOWN], f"{len(items) - SHOWN} more"])


def _about(preset: Preset) -> Iterator[str]:
    facts = {
        "platforms": ", ".join(preset.platforms) or "all",
        "expect": preset.expect,
        "cost": preset.cost,
        "reads": preset.reads,
        "source": preset.source,
        "members": ", ".join(preset.members),
        "file": _near(preset.file),
    }
    yield from _aligned(facts, "  ")
    if preset.advice:
        yield "  advice"
        yield from (f"    - {line}" for line in preset.advice)
    for name, value in preset.env.items():
        yield f"  {setting(name, value)}"
        yield from _aligned(_variable_facts(name), "    ")
    for name, value in preset.torch.items():
        yield f"  {setting(name, value)}"
        values = ", ".join(map(str, SWITCHES[name])) or "1 or more"
        yield from _aligned({"read by": "torch, where it is set in the training process", "values": values}, "    ")


def _variable_facts(name: str) -> Mapping[str, str]:
    variable = catalogue().get(name)
    if variable is None:
        return {"read by": "not known: the catalogue does not have it"}
    return {
        "read by": f"{', '.join(variable.readers)}, {WHEN[variable.read]}",
        "values": variable.values,
        "default": variable.default,
        "effect": variable.effect,
        "cost": variable.cost,
        "source": variable.source,
    }


def _aligned(facts: Mapping[str, str], indent: str) -> Iterator[str]:
    yield from (f"{indent}{name:<10}{text}" for name, text in facts.items() if text)


def _near(file: Path) -> str:
    here = Path.cwd()
    return str(file.relative_to(here) if file.is_relative_to(here) else file)


def _print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, expendable: Sequence[str]) -> None:
    console = Console(highlight=False)
    if not console.is_terminal:
        # A pipe or a file has no width to fit into; folding there would break the rows.
        console = Console(highlight=False, width=600)
    table = {column: [row[index] for row in rows] for index, column in enumerate(columns)}
    left_out = _fit(table, console.width, expendable)
    view = Table(box=None, pad_edge=False, header_style="bold")
    for index, (column, cells) in enumerate(table.items()):
        view.add_column(column, overflow="fold", no_wrap=index == 0 or max(map(len, cells), default=0) <= FOLDED)
    for row in zip(*table.values(), strict=True):
        view.add_row(*map(escape, row))
    with console.capture() as captured:
        console.print(view)
    console.out("\n".join(line.rstrip() for line in captured.get().splitlines()), highlight=False)
    if left_out:
        console.print(f"(too wide for here: {', '.join(left_out)}; a pipe or a file gets all)", soft_wrap=True)


def _fit(table: dict[str, list[str]], width: int, expendable: Sequence[str]) -> list[str]:
    """Take columns out of a table until the rest can be read at this width, and return what was taken out."""
    left_out: list[str] = []
    for column in expendable:
        longest = [max(len(name), *map(len, cells)) if cells else len(name) for name, cells in table.items()]
        if longest[0] + sum(min(length, FOLDED) + 2 for length in longest[1:]) <= width:
            break
        del table[column]
        left_out.append(column)
    return left_out
