"""`python -m detsweep.analysis <folder>`: print the matrix of a sweep, finished or not, and write it there.

`python -m detsweep.analysis checklist <folder>` prints the reproducibility checklist of a sweep, `... needed --bound
0.01` how many replays without a divergence it takes to say that, and `... log <tracker> <folder>` sends its verdicts
and metrics to mlflow, wandb or tensorboard.
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
CHECKLIST, NEEDED, LOG = "checklist", "needed", "log"
NOT_LOGGED = 3


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
    commands = {CHECKLIST: _checklist, NEEDED: _needed, LOG: _log}
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
        f"{PROGRAM} {NEEDED} --bound 0.01 [FOLDER]: how many clean replays a bound takes; "
        f"{PROGRAM} {LOG} TRACKER FOLDER: its verdicts and metrics to mlflow, wandb or tensorboard",
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


def _log(words: Sequence[str]) -> int:
    """0 logged, 2 where there is no such tracker or no sweep, 3 where the tracker failed."""
    from detsweep.analysis.tracking import TrackerError, send
    from detsweep.trackers import NAMES

    parser = Parser(prog=f"{PROGRAM} {LOG}", description="Send a sweep's verdicts and metrics to a tracker")
    parser.add_argument("tracker", choices=NAMES)
    parser.add_argument("folder", help="the sweep's folder")
    asked = parser.parse_args(words)
    sweep = load(asked.folder)
    try:
        print(f"log={asked.tracker}: {send(asked.tracker, sweep)}")
    except TrackerError as error:
        print(f"detsweep: {error}", file=sys.stderr)
        return 2
    except Exception as error:
        # Whatever a tracker raises: it is not ours to know them all, and no result hangs on it.
        words_of_it = str(error).strip().splitlines() or [""]
        print(f"detsweep: log={asked.tracker}: {type(error).__name__}: {words_of_it[0]}", file=sys.stderr)
        return NOT_LOGGED
    return 0


def _folder(parser: Parser, words: Sequence[str]) -> str:
    parser.add_argument("folder", help="the sweep's folder, e.g. runs/2026-01-31/14-05-59")
    folder: str = parser.parse_args(words).folder
    return folder


if __name__ == "__main__":
    sys.exit(main())
