"""Records as columns: read trial by trial, filtered while they are read, nothing built of what is not asked for."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from detsweep.analysis.columns import RECORDS, TEXT
from detsweep.capture import PHASES, RAW_SITES, SITES
from detsweep.captured import Line
from detsweep.compare import run_number

RECORD_COLUMNS = tuple(column.name for column in RECORDS)
_MASK = (1 << 64) - 1
_TEXTS = ("site", "name", "phase", "dtype", "shape")
_ORDERS: Mapping[str, Sequence[str]] = {"site": SITES, "phase": PHASES}
Selection = Sequence[str] | Sequence[int] | str | int | None
"""One value, several, or None for all."""


@dataclass(frozen=True)
class Asked:
    """Which records are wanted; None: all of them."""

    rank: Selection = None
    step: Selection = None
    run: Selection = None
    site: Selection = None
    block: Selection = None
    name: Selection = None
    phase: Selection = None

    def of(self, key: str, value: Any) -> bool:
        """Whether a value of one of these is asked for."""
        wanted = getattr(self, key)
        if wanted is None:
            return True
        return bool(value == wanted) if isinstance(wanted, (str, int)) else value in wanted


@dataclass(frozen=True)
class Layout:
    """What the records of a line are, but for their digests; lines of one kind of step have it in common.

    The arrays hold, for each record that is asked for, its place in the line and codes of what it is.
    """

    places: np.ndarray[Any, Any]
    codes: Mapping[str, np.ndarray[Any, Any]]
    blocks: np.ndarray[Any, Any]
    raw: bool


@dataclass
class Records:
    """Records of many lines, as they come; `frame` makes one table of them."""

    asked: Asked = field(default_factory=Asked)
    _values: dict[str, dict[Any, int]] = field(default_factory=lambda: {key: {} for key in _TEXTS})
    _layouts: dict[tuple[Any, ...], Layout] = field(default_factory=dict)
    _lines: list[tuple[str, int, int, int, str, Layout]] = field(default_factory=list)
    _digests: list[str] = field(default_factory=list)
    _before: tuple[Line, Layout, list[str]] | None = None

    def add(self, cell: str, trial: int, line: Line) -> None:
        """The records of a line that are asked for. Raises FileError, naming file and line, where they are torn."""
        head = line.head
        if not all(self.asked.of(key, head[key]) for key in ("rank", "step", "run")):
            return
        # A run that repeats has the bytes of the one before it.
        if self._before is not None and line.equals(self._before[0]):
            _, layout, digests = self._before
        else:
            layout, digests = self._read(line)
            self._before = line, layout, digests
        self._digests += digests
        self._lines.append((cell, trial, int(head["rank"]), int(head["step"]), str(head["run"]), layout))

    def _read(self, line: Line) -> tuple[Layout, list[str]]:
        rows = line.rows()
        try:
            sites, names, blocks, dtypes, shapes, digests, phases = list(zip(*rows, strict=False))[:7] or [()] * 7
            layout = self._layout(sites, names, blocks, dtypes, tuple(map(tuple, shapes)), phases)
            return layout, _hexadecimal(digests, sites, layout, line.checksum)
        except (ValueError, TypeError, AttributeError, OverflowError) as error:
            raise line.unreadable(error) from None

    def _layout(self, *columns: tuple[Any, ...]) -> Layout:
        found = self._layouts.get(columns)
        if found is None:
            found = self._layouts[columns] = self._new_layout(columns)
        return found

    def _new_layout(self, columns: tuple[Any, ...]) -> Layout:
        sites, names, blocks, dtypes, shapes, phases = columns
        asked = self.asked
        kept = [
            place
            for place, (site, name, block, phase) in enumerate(zip(sites, names, blocks, phases, strict=True))
            if asked.of("site", site) and asked.of("name", name)
            if asked.of("block", block) and asked.of("phase", phase)
        ]  # fmt: skip
        texts = {"site": sites, "name": names, "dtype": dtypes, "phase": phases, "shape": [_shape(s) for s in shapes]}
        codes = {key: self._coded(key, [texts[key][place] for place in kept]) for key in _TEXTS}
        own = np.array([-1 if blocks[place] is None else blocks[place] for place in kept], dtype=np.int32)
        raw = any(sites[place] in RAW_SITES for place in kept)
        return Layout(np.array(kept, dtype=np.int32), codes, own, raw)

    def _coded(self, key: str, words: Sequence[str]) -> np.ndarray[Any, Any]:
        known = self._values[key]
        return np.array([known.setdefault(word, len(known)) for word in words], dtype=np.int32)

    def frame(self) -> pd.DataFrame:
        """A row for each record, with the columns and dtypes of RECORD_COLUMNS."""
        counts = [len(line[5].places) for line in self._lines]
        cells = list(dict.fromkeys(line[0] for line in self._lines))
        runs = sorted({line[4] for line in self._lines}, key=run_number)
        place_of = {"cell": {name: code for code, name in enumerate(cells)}, "run": {r: n for n, r in enumerate(runs)}}
        blocks = _joined([line[5].blocks for line in self._lines])
        columns: dict[str, Any] = {
            "cell": _category([place_of["cell"][line[0]] for line in self._lines], cells, counts),
            **{key: np.repeat(np.array([line[n] for line in self._lines], dtype=np.int64), counts)
               for key, n in (("trial", 1), ("rank", 2), ("step", 3))},
            "run": _category([place_of["run"][line[4]] for line in self._lines], runs, counts, ordered=True),
            "seq": _joined([line[5].places for line in self._lines]).astype(np.int64),
            "block": pd.arrays.IntegerArray(blocks.astype(np.int64), blocks < 0),
            **{key: self._column(key) for key in _TEXTS},
            "digest": pd.array(self._digests, dtype=TEXT),
        }  # fmt: skip
        made: pd.DataFrame = pd.DataFrame({name: columns[name] for name in RECORD_COLUMNS})
        return made

    def _column(self, key: str) -> pd.Categorical:
        codes, known = _joined([line[5].codes[key] for line in self._lines]), list(self._values[key])
        order = _ORDERS.get(key)
        if order is None:
            return pd.Categorical.from_codes(codes, categories=pd.Index(known, dtype=TEXT))
        # What another version of detsweep may have had stands last.
        every = [*order, *(word for word in known if word not in order)]
        again = np.array([every.index(word) for word in known], dtype=np.int32)
        return pd.Categorical.from_codes(
            again[codes] if known else codes, categories=pd.Index(every, dtype=TEXT), ordered=True
        )


def _hexadecimal(digests: Sequence[Any], sites: Sequence[str], layout: Layout, checksum: str) -> list[str]:
    """The digests that are asked for: in 16 hex digits, of sha256 in the 64 that sha256sum prints."""
    kept = [digests[place] for place in layout.places]
    if checksum == "sha256":
        raw = [sites[place] in RAW_SITES for place in layout.places]
        return [f"{one & _MASK:016x}" if plain else str(one) for one, plain in zip(kept, raw, strict=True)]
    try:
        text = np.array(kept, dtype=np.uint64).astype(">u8").tobytes().hex()
    except OverflowError:
        return [f"{one & _MASK:016x}" for one in kept]
    return [text[begin : begin + 16] for begin in range(0, len(text), 16)]


@functools.cache
def _shape(shape: tuple[int, ...]) -> str:
    """A shape as text, as in 2x32x64; `scalar` for none."""
    return "x".join(map(str, shape)) or "scalar"


def _joined(arrays: Sequence[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    return np.concatenate(arrays) if arrays else np.array([], dtype=np.int32)


def _category(codes: Sequence[int], values: Sequence[str], counts: Sequence[int], *, ordered: bool = False) -> Any:
    every = np.repeat(np.array(codes, dtype=np.int32), counts)
    return pd.Categorical.from_codes(every, categories=pd.Index(values, dtype=TEXT), ordered=ordered)
