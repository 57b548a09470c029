"""`python -m detsweep.analysis <folder>`: print the matrix of a sweep, finished or not, and write it there.

`python -m detsweep.analysis report <folder>` writes the report: one HTML page, or another form of it.
`python -m detsweep.analysis checklist <folder>` prints the reproducibility checklist of a sweep.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from detsweep.analysis import exit_code, load, print_report, write_report
from detsweep.analysis.checklist import checklist, lines
from detsweep.analysis.exports import FORMATS, UnavailableError, export
from detsweep.output import tolerate_broken_output

PROGRAM = "python -m detsweep.analysis"
CHECKLIST, REPORT = "checklist", "report"
NOT_WRITTEN = 3


class Parser(argparse.ArgumentParser):
    """Says in one line what is wrong with the arguments."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"detsweep: {message} ({' '.join(self.format_usage().split())})\n")


def main() -> int:
    """Leaves with the sweep's own exit code, or with 2 where the folder holds no sweep.

    Of the checklist it is 0 where no answer is a no, else 1; of the report 0 where it was written, else 3.
    """
    tolerate_broken_output()
    # By hand and not by a subparser, which would take the name of a folder for that of a command.
    asked = sys.argv[1:]
    commands = {CHECKLIST: _checklist, REPORT: _report}
    command, words = (commands[asked[0]], asked[1:]) if asked and asked[0] in commands else (_matrix, asked)
    try:
        return command(words)
    except (FileNotFoundError, UnavailableError) as error:
        print(f"detsweep: {error}", file=sys.stderr)
        return 2


def _matrix(words: Sequence[str]) -> int:
    parser = Parser(
        prog=PROGRAM,
        description="The divergence matrix of a sweep",
        epilog=f"{PROGRAM} {REPORT} FOLDER: its report as one HTML page; {PROGRAM} {CHECKLIST} FOLDER: its "
        f"reproducibility checklist (a folder of such a name: ./{REPORT}, ./{CHECKLIST})",
    )
    sweep = load(_folder(parser, words).folder)
    print_report(sweep)
    write_report(sweep)
    return exit_code(sweep)


def _report(words: Sequence[str]) -> int:
    parser = Parser(prog=f"{PROGRAM} {REPORT}", description="The report of a sweep")
    parser.add_argument("--format", choices=FORMATS, default="html", help="default: html")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE_OR_FOLDER", help="default: in the sweep's folder")
    asked = _folder(parser, words)
    sweep = load(asked.folder)
    try:
        print(export(sweep, asked.format, asked.output))
    except OSError as error:
        print(f"detsweep: the report could not be written: {error}", file=sys.stderr)
        return NOT_WRITTEN
    return 0


def _checklist(words: Sequence[str]) -> int:
    parser = Parser(prog=f"{PROGRAM} {CHECKLIST}", description="The reproducibility checklist of a sweep")
    items = checklist(Path(_folder(parser, words).folder))
    print("\n".join(lines(items)))
    return int(any(item.answer == "no" for item in items))


def _folder(parser: Parser, words: Sequence[str]) -> argparse.Namespace:
    parser.add_argument("folder", help="the sweep's folder, e.g. runs/2026-01-31/14-05-59")
    return parser.parse_args(words)


if __name__ == "__main__":
    sys.exit(main())
