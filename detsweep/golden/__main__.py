"""`python -m detsweep.golden save FOLDER -o FILE` keeps fingerprints, `check FILE FOLDER` holds others against them."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from detsweep.arguments import Parser
from detsweep.diff import NotComparableError, opened
from detsweep.diff.content import pair_content
from detsweep.diff.report import pair_lines
from detsweep.golden.checking import Checked, check, scope
from detsweep.golden.file import golden_side, write_golden
from detsweep.golden.saving import golden_cells
from detsweep.output import tolerate_broken_output
from detsweep.paths import FileError

PROGRAM = "python -m detsweep.golden"
WRONG, NOT_WRITTEN = 2, 3
EPILOG = """\
A golden file holds for one configuration on one build of torch, one type of device and one number of ranks; it is
refused anywhere else.

exit codes of save: 0 written; 2 refused, with the reason; 3 the file could not be written
exit codes of check: 0 every run of every trial has the golden bits; 1 some differ; 2 refused, with the reason;
3 none differ, but a trial has an error or no verdict, or a golden cell is missing
"""


def main() -> int:
    """Save or check, print, and return the exit code (see EPILOG)."""
    tolerate_broken_output()
    asked = _parser().parse_args()
    try:
        if asked.command == "save":
            return _save(Path(asked.folder), Path(asked.output))
        return _check(Path(asked.file), Path(asked.folder), as_json=asked.json)
    except (FileError, NotComparableError) as error:
        for line in str(error).splitlines():
            print(f"detsweep: {line}", file=sys.stderr)
        return WRONG


def _parser() -> Parser:
    parser = Parser(prog=PROGRAM, description="Keep the fingerprints of cells that repeat, and check against them",
                    epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    commands = parser.add_subparsers(dest="command", required=True, metavar="{save,check}")
    save = commands.add_parser("save", help="keep what a trial, a cell or a sweep has computed")
    save.add_argument("folder", help="the folder of a trial, a cell or a sweep, all of which passed")
    save.add_argument("-o", "--output", required=True, metavar="FILE", help="gzipped where it ends in .gz")
    checking = commands.add_parser("check", help="hold a trial, a cell or a sweep against a golden file")
    checking.add_argument("file", help="the golden file")
    checking.add_argument("folder", help="the folder of a trial, a cell or a sweep")
    checking.add_argument("--json", action="store_true", help="everything as one JSON object")
    return parser


def _save(folder: Path, file: Path) -> int:
    cells, left_out = golden_cells(opened(folder))
    try:
        write_golden(file, cells)
    except OSError as error:
        print(f"detsweep: {file} could not be written: {error.strerror}", file=sys.stderr)
        return NOT_WRITTEN
    for line in left_out:
        print(line)
    records = sum(len(step["records"]) for cell in cells for rank in cell["ranks"] for step in rank)
    size = file.stat().st_size
    print(f"{file}: {records} records of {len(cells)} cell{'s' if len(cells) != 1 else ''}, {size} bytes")
    return 0


def _check(file: Path, folder: Path, *, as_json: bool) -> int:
    if not file.is_file():
        raise NotComparableError(f"{file}: no such golden file")
    golden = golden_side(file)
    checked = check(golden, opened(folder))
    print(json.dumps(_content(checked), indent=1) if as_json else "\n".join(_lines(checked)))
    return checked.exit_code


def _lines(checked: Checked) -> Iterator[str]:
    yield from (f"not checked: {line}" for line in checked.unchecked)
    if checked.more:
        yield f"not in the golden file: {checked.more} more cell{'s' if checked.more > 1 else ''}"
    yield from pair_lines(checked.pairs)
    if not checked.differs:
        yield f"golden: {scope(checked)}: all bits equal"
    else:
        yield "not golden: bits differ"


def _content(checked: Checked) -> dict[str, object]:
    return {
        "schema": 1,
        "equal": not checked.differs,
        "exit_code": checked.exit_code,
        "unchecked": list(checked.unchecked),
        "cells_not_in_golden": checked.more,
        "pairs": [pair_content(pair) for pair in checked.pairs],
    }


if __name__ == "__main__":
    sys.exit(main())
