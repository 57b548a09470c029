"""`python -m detsweep.diff A B`: what differs between two trials, cells, sweeps, golden files or bundles."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from detsweep.arguments import Parser
from detsweep.diff import NotComparableError, compare_sides, opened
from detsweep.diff.content import content
from detsweep.diff.report import lines
from detsweep.output import tolerate_broken_output
from detsweep.paths import FileError

PROGRAM = "python -m detsweep.diff"
WRONG = 2
EPILOG = """\
A and B are each the folder of a trial, a cell or a sweep, a golden file, or a bundle.

exit codes: 0 nothing differs and everything was compared; 1 something differs; 2 what was named cannot be compared;
3 nothing differs in what could be compared, but something could not be
"""


def main() -> int:
    """Compare, print, and return the exit code (see EPILOG)."""
    tolerate_broken_output()
    parser = Parser(prog=PROGRAM, description="What differs between two trials, cells, sweeps or golden files",
                    epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("a", metavar="A", help="the one")
    parser.add_argument("b", metavar="B", help="the other")
    parser.add_argument("--json", action="store_true", help="everything as one JSON object")
    asked = parser.parse_args()
    try:
        compared = compare_sides(opened(Path(asked.a)), opened(Path(asked.b)))
    except (FileError, NotComparableError) as error:
        print(f"detsweep: {error}", file=sys.stderr)
        return WRONG
    print(json.dumps(content(compared), indent=1) if asked.json else "\n".join(lines(compared)))
    return compared.exit_code


if __name__ == "__main__":
    sys.exit(main())
