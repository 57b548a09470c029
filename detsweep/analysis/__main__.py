"""`python -m detsweep.analysis <folder>`: print the matrix of a sweep, finished or not, and write it there.

Other commands stand before the folder: see COMMANDS.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from detsweep.analysis import exit_code, load, print_report, write_report
from detsweep.analysis.checklist import checklist, lines
from detsweep.analysis.exports import FORMATS, UnavailableError, export
from detsweep.analysis.needed import needed_lines, needed_of_cells
from detsweep.arguments import Parser
from detsweep.bounds import CONFIDENCE
from detsweep.output import tolerate_broken_output
from detsweep.paths import FileError, SweepPaths

PROGRAM = "python -m detsweep.analysis"
FOLDER = "a sweep's folder, a bundle, or captures, e.g. runs/2026-01-31/14-05-59"
FAILED = 3


def main() -> int:
    """Leaves with the sweep's own exit code, or with 2 where the folder holds no sweep.

    Of the checklist it is 0 where no answer is a no, else 1; of the report and of a tracker 0 where it was written,
    else 3.
    """
    tolerate_broken_output()
    # By hand and not by a subparser, which would take the name of a folder for that of a command.
    asked = sys.argv[1:]
    command, words = (COMMANDS[asked[0]][0], asked[1:]) if asked and asked[0] in COMMANDS else (_matrix, asked)
    try:
        return command(words)
    except (FileNotFoundError, FileError, UnavailableError) as error:
        print(f"detsweep: {error}", file=sys.stderr)
        return 2


def _matrix(words: Sequence[str]) -> int:
    others = "; ".join(f"{PROGRAM} {name} {what}" for name, (_, what) in COMMANDS.items())
    parser = Parser(
        prog=PROGRAM,
        description="The divergence matrix of a sweep, or of several",
        epilog=f"{others} (a folder of such a name: ./{next(iter(COMMANDS))})",
    )
    parser.add_argument("folder", nargs="+", help=FOLDER)
    parser.add_argument("--recount", action="store_true", help="judge anew from the records, whatever the results say")
    given = parser.parse_args(words)
    folders: list[str] = given.folder
    sweep = load(folders[0] if len(folders) == 1 else folders, recount=given.recount)
    print_report(sweep)
    # What is no sweep's own folder is not written into: several of them, a bundle, another tool's captures.
    if len(folders) == 1 and SweepPaths(Path(folders[0])).all_cells():
        write_report(sweep)
    return exit_code(sweep)


def _report(words: Sequence[str]) -> int:
    parser = Parser(prog=f"{PROGRAM} report", description="The report of a sweep")
    parser.add_argument("folder", help=FOLDER)
    parser.add_argument("--format", choices=FORMATS, default="html", help="default: html")
    parser.add_argument("-o", "--output", metavar="FILE_OR_FOLDER", help="default: in the sweep's folder")
    given = parser.parse_args(words)
    if given.output is None and Path(given.folder).is_file():
        parser.error(f"{given.folder} is a file: say where the report goes with -o")
    if given.output is not None and not Path(given.output).is_dir():
        parent = Path(given.output).parent
        if (given.output.endswith("/") and given.format != "parquet") or not parent.is_dir():
            parser.error(f"-o {given.output}: no such folder to write to")
    to = None if given.output is None else Path(given.output)
    sweep = load(given.folder)
    try:
        print(export(sweep, given.format, to))
    except OSError as error:
        print(f"detsweep: the report could not be written: {error}", file=sys.stderr)
        return FAILED
    return 0


def _checklist(words: Sequence[str]) -> int:
    parser = Parser(prog=f"{PROGRAM} checklist", description="The reproducibility checklist of a sweep")
    parser.add_argument("folder", help="a sweep's folder")
    items = checklist(Path(parser.parse_args(words).folder))
    print("\n".join(lines(items)))
    return int(any(item.answer == "no" for item in items))


def _needed(words: Sequence[str]) -> int:
    parser = Parser(prog=f"{PROGRAM} needed", description="How many clean replays it takes to say a bound of a rate")
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
    from detsweep.analysis.tracking import TrackerError, send
    from detsweep.trackers import NAMES

    parser = Parser(prog=f"{PROGRAM} log", description="Send a sweep's verdicts and metrics to a tracker")
    parser.add_argument("tracker", choices=NAMES)
    parser.add_argument("folder", help="a sweep's folder")
    given = parser.parse_args(words)
    sweep = load(given.folder)
    try:
        print(f"log={given.tracker}: {send(given.tracker, sweep)}")
    except TrackerError as error:
        print(f"detsweep: {error}", file=sys.stderr)
        return 2
    except Exception as error:
        # Whatever a tracker raises: it is not ours to know them all, and no result hangs on it.
        said = str(error).strip().splitlines() or [""]
        print(f"detsweep: log={given.tracker}: {type(error).__name__}: {said[0]}", file=sys.stderr)
        return FAILED
    return 0


COMMANDS: Mapping[str, tuple[Callable[[Sequence[str]], int], str]] = {
    "report": (_report, "FOLDER: one HTML page, or another form of it"),
    "checklist": (_checklist, "FOLDER: the reproducibility checklist"),
    "needed": (_needed, "--bound 0.01 [FOLDER]: how many clean replays a bound takes"),
    "log": (_log, "TRACKER FOLDER: verdicts and metrics to mlflow, wandb or tensorboard"),
}


if __name__ == "__main__":
    sys.exit(main())
