"""The redaction of a sweep that lies in a folder of our own: files, their names, and what says how long they are."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from detsweep.bundling import vocabulary
from detsweep.bundling.collecting import Collector
from detsweep.bundling.names import Names
from detsweep.bundling.redacting import Redactor
from detsweep.bundling.searching import held_in, unseen
from detsweep.bundling.taking import files_below
from detsweep.bundling.texts import compressed, encoded, text_of, wide, write
from detsweep.paths import FileError, SweepPaths, TrialPaths, file_hash, read_json, write_text


@dataclass(frozen=True)
class Redaction:
    """What was done: `names` holds what was removed, `redactor` does the same to other texts.

    `left_out`: files that could not be kept, by their new names, and why. `renamed`: new names of files by the old.
    """

    names: Names
    redactor: Redactor
    left_out: Mapping[str, str]
    renamed: Mapping[str, str]


def redact(staged: Path, original: Path, others: Mapping[str, str]) -> Redaction:
    """Remove names and secrets from the sweep in the folder `staged`, which was copied from `original`.

    `others`: further texts that go with it, by their file names; they are only looked at.
    """
    words = frozenset(_vocabulary(staged))
    names = Names(words)
    collector = Collector(names)
    collector.machine(original)
    for name, path in files_below(staged):
        collector.text(name)
        if (text := text_of(path)) is not None:
            _collect(collector, path.name, text)
    for name, text in others.items():
        _collect(collector, name, text)
    collector.settle()
    redactor = Redactor(names, words)
    for kind, old, new in list(_cells(staged, redactor)):
        names.add(kind, old, new)
    names.settle()
    left_out: dict[str, str] = {}
    renamed: dict[str, str] = {}
    written: dict[Path, tuple[_Written, _Written]] = {}
    for name, path in list(files_below(staged)):
        new = _free(staged, redactor.path(name), name)
        before = _Written.of(path)
        if why := _rewrite(path, redactor, names):
            path.unlink()
            left_out[new] = why
            continue
        target = staged / new
        if target != path:
            target.parent.mkdir(parents=True, exist_ok=True)
            path.rename(target)
            renamed[name] = new
        written[target] = before, _Written.of(target)
    _remove_empty(staged)
    _set_right(staged, written)
    return Redaction(names, redactor, left_out, renamed)


def _vocabulary(staged: Path) -> Iterator[str]:
    yield from vocabulary.own()
    for _, path in files_below(staged):
        if path.suffix == ".json":
            try:
                told = read_json(path)
            except FileError:
                continue
            if "schema" in told or _is_of_a_trial(path):
                yield from vocabulary.of_keys(told)
        elif path.suffix == ".jsonl":
            yield from vocabulary.of_records(path)


def _is_of_a_trial(path: Path) -> bool:
    """Whether a file without a schema is detsweep's own; in anybody else's keys may be names of nodes and users."""
    trial = TrialPaths(path.parent)
    return path in (trial.job, trial.meeting) or re.fullmatch(r"node\d+\.json", path.name) is not None


def _collect(collector: Collector, name: str, text: str) -> None:
    """Take up what one file holds; JSON by its keys, and all else as running text."""
    if name.endswith(".json"):
        try:
            collector.json(json.loads(text), file=name)
            return
        except ValueError:
            pass
    if name.endswith(".jsonl") and "\\" in text:
        for line in text.splitlines():
            try:
                collector.json(json.loads(line), file=name)
            except ValueError:
                collector.text(line)
        return
    collector.text(text)


def _rewrite(path: Path, redactor: Redactor, names: Names) -> str | None:
    """Redact one file in its place; where that cannot be done, why it must be left out."""
    text = text_of(path)
    if text is None:
        return _refused(path, names)
    by_kind = {".json": redactor.document, ".jsonl": redactor.jsonl}.get(path.suffix)
    told = redactor.text(text) if by_kind is None else by_kind(text, file=path.name)
    spread = wide(encoded(told))
    if names.found(spread.encode(), text=False) or unseen(spread, names):
        return "text of two bytes a letter, and holds a name or a secret"
    if told != text:
        write(path, told)
    return None


def _refused(path: Path, names: Names) -> str | None:
    """Why a file that is no text cannot be in the bundle; None where nothing is to be seen in it."""
    with path.open("rb") as stream:
        if (kind := compressed(stream.read(16))) is not None:
            return f"{kind}: what is in it cannot be looked at"
        stream.seek(0)
        return "binary, and holds a name or a secret" if held_in(stream, names) else None


def _cells(staged: Path, redactor: Redactor) -> Iterator[tuple[str, str, str]]:
    """What cells are called whose overrides were redacted: their slugs, as they would have been, and their ids.

    An id is a digest of the whole configuration, from which a short secret could be guessed: such a cell gets another.
    """
    from detsweep.plan import slug_of

    for paths in SweepPaths(staged).all_cells():
        try:
            cell = read_json(paths.cell)
            told = redactor.json(cell)
            overrides = {str(key): str(value) for key, value in told["overrides"].items()}
            slug, cell_id = str(cell["slug"]), str(cell["id"])
        except (FileError, KeyError, TypeError, AttributeError):
            continue
        if overrides == cell["overrides"] and told["config"] == cell["config"]:
            continue
        new_slug = slug if overrides == cell["overrides"] else slug_of(overrides) or slug
        new_id = cell_id
        if "REDACTED-" in json.dumps(told):
            new_id = hashlib.sha256(json.dumps([cell_id, told], sort_keys=True).encode()).hexdigest()[: len(cell_id)]
            yield "cell", cell_id, new_id
        if new_slug != slug:
            yield "slug", f"{slug}-{cell_id}", f"{new_slug}-{new_id}"
            yield "slug", slug, new_slug


def _free(staged: Path, wanted: str, own: str) -> str:
    """A name that no other file has."""
    name, number = wanted, 2
    while name != own and (staged / name).exists():
        name, number = f"{wanted}-{number}", number + 1
    return name


def _remove_empty(folder: Path) -> None:
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()


@dataclass(frozen=True)
class _Written:
    """What a result says of a file that it was made from: how long it is, and of records the hash of its bytes."""

    size: int
    hash: str | None

    @classmethod
    def of(cls, path: Path) -> _Written:
        return cls(path.stat().st_size, file_hash(path) if path.suffix == ".jsonl" else None)


def _set_right(staged: Path, written: Mapping[Path, tuple[_Written, _Written]]) -> None:
    """Set right what results say of the files that they were made from; what did not fit before still does not."""
    nothing = _Written(0, None), _Written(0, None)
    for path in staged.rglob("result.json"):
        try:
            result = read_json(path)
        except FileError:
            continue
        told: dict[str, Any] = {}
        for key in ("files", "hashes"):
            said: Any = result.get(key)
            for name, value in said.items() if isinstance(said, dict) else ():
                before, after = written.get(path.parent / str(name), nothing)
                if key == "files" and isinstance(value, int):
                    told.setdefault(key, {})[name] = value + after.size - before.size
                else:
                    told.setdefault(key, {})[name] = after.hash if before.hash and value == before.hash else value
        if any(told[key] != result[key] for key in told):
            write_text(path, json.dumps({**result, **told}, indent=1, ensure_ascii=False) + "\n")
