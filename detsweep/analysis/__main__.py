"""`python -m detsweep.analysis <folder>`: print the matrix of a sweep, finished or not, and write it there.

`python -m detsweep.analysis checklist <folder>` prints the reproducibility checklist of a sweep, and
`python -m detsweep.analysis needed --bound 0.01` how many replays without a divergence it takes to say that.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from detsweep.analysis import exit_code, load, print_report, write_report
from detsweep.analysis.checklist import checklist, lines
from detsweep.analysis.needed import needed_lines, needed_of_cells
from detsweep.bounds import CONFIDENCE
from detsweep.output import tolerate_broken_output

PROGRAM = "python -m detsweep.analysis"
CHECKLIST, NEEDED = "checklist", "needed"


class Parser(argparse.ArgumentParser):
    """Says in one line what is wrong with the arguments."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"detsweep: {message} ({' '.join(self.format_usage().split())})\n")


def main() -> int:
    """Leaves with the sweep's own exit code, or with 2 where the folder holds no sweep.

    Of the checklist it is 0 where no answer is a no, else 1.
    """
    tolerate_broken_output()
    # By hand and not by a subparser, which would take the name of a folder for that of a command.
    asked = sys.argv[1:]
    commands = {CHECKLIST: _checklist, NEEDED: _needed}
    command, words = (commands[asked[0]], asked[1:]) if asked and asked[0] in commands else (_matrix, asked)
    try:
        return command(words)
    except FileNotFoundError as error:
        print(f"detsweep: {error}", file=sys.stderr)
        return 2


def _matrix(words: Sequence[str]) -> int:
    parser = Parser(
        prog=PROGRAM,
        description="The divergence matrix of a sweep",
        epilog=f"{PROGRAM} {CHECKLIST} FOLDER: its reproducibility checklist (a folder of that name: ./{CHECKLIST}); "
        f"{PROGRAM} {NEEDED} --bound 0.01 [FOLDER]: how many clean replays a bound takes",
    )
    sweep = load(_folder(parser, words))
    write_report(sweep)
    print_report(sweep)
    return exit_code(sweep)


def _checklist(words: Sequence[str]) -> int:
    parser = Parser(prog=f"{PROGRAM} {CHECKLIST}", description="The reproducibility checklist of a sweep")
    items = checklist(Path(_folder(parser, words)))
    print("\n".join(lines(items)))
    return int(any(item.answer == "no" for item in items))


def _needed(words: Sequence[str]) -> int:
    parser = Parser(prog=f"{PROGRAM} {NEEDED}", description="How many clean replays it takes to say a bound of a rate")
    parser.add_argument("folder", nargs="?", help="a sweep's folder: how many more each of its cells needs")
    parser.add_argument("--bound", type=_share, required=True, help="the rate that is to be ruled out, e.g. 0.01")
    parser.add_argument("--confidence", type=_share, default=CONFIDENCE, help="how sure, 0.95 by default")
    given = parser.parse_args(words)
    print("\n".join(needed_lines(given.bound, given.confidence)))
    if given.folder is not None:
        print("\n".join(needed_of_cells(load(given.folder), given.bound, given.confidence)))
    return 0


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"{text}: must be a number above 0 and below 1")
    return value


def _folder(parser: Parser, words: Sequence[str]) -> str:
    parser.add_argument("folder", help="the sweep's folder, e.g. runs/2026-01-31/14-05-59")
    folder: str = parser.parse_args(words).folder
    return folder


if __name__ == "__main__":
    sys.exit(main())
