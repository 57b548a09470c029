"""The report in every form: each writes one file, Parquet a folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from detsweep.analysis.celltable import cell_table
from detsweep.analysis.matrixjson import matrix_json
from detsweep.analysis.report import csv, markdown
from detsweep.paths import SweepPaths, write_text

if TYPE_CHECKING:
    from detsweep.analysis.frames import Sweep


class UnavailableError(Exception):
    """A form of the report that this installation cannot write; the message says which."""


def _html_of(sweep: Sweep) -> str:
    # jinja2 only where a page is made.
    from detsweep.analysis.page import build, render

    return render(build(sweep))


PARQUET = "parquet"
_TEXTS: Mapping[str, Callable[[Sweep], str]] = {
    "md": lambda sweep: "\n".join(markdown(sweep, cell_table(sweep))) + "\n",
    "csv": lambda sweep: csv(cell_table(sweep)),
    "json": matrix_json,
    "html": _html_of,
}
FORMATS = (*_TEXTS, PARQUET)


def export(sweep: Sweep, form: str, to: Path | None = None) -> Path:
    """Write the report of a sweep as one of FORMATS; returns the file or, of Parquet, the folder.

    `to`: a file, or a folder for a file of the usual name in it; None is the usual place in the sweep's folder. Raises
    OSError where it cannot be written, UnavailableError where this installation has no such form.
    """
    usual = usual_place(sweep.folder, form)
    if form == PARQUET:
        try:
            return sweep.save(to or usual)
        except ImportError:
            raise UnavailableError("--format parquet needs pyarrow (pip install pyarrow)") from None
    path = usual if to is None else to / usual.name if to.is_dir() else to
    write_text(path, _TEXTS[form](sweep))
    return path


def usual_place(folder: Path, form: str) -> Path:
    """Where a form of the report lies unless somebody says otherwise."""
    paths = SweepPaths(folder)
    places = {
        "md": paths.matrix_md,
        "csv": paths.matrix_csv,
        "json": paths.matrix_json,
        "html": paths.matrix_html,
        PARQUET: paths.frames,
    }
    return places[form]
