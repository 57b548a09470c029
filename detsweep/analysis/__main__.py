"""`python -m detsweep.analysis <folder>`: print the matrix of a sweep, finished or not, and write it there."""

from __future__ import annotations

import argparse
import sys

from detsweep.analysis import exit_code, load, print_report, write_report
from detsweep.output import tolerate_broken_output


def main() -> int:
    """Leaves with the sweep's own exit code, or with 2 where the folder holds no sweep."""
    tolerate_broken_output()
    parser = argparse.ArgumentParser(prog="python -m detsweep.analysis", description="The divergence matrix of a sweep")
    parser.add_argument("folder", help="the sweep's folder, e.g. runs/2026-01-31/14-05-59")
    folder = parser.parse_args().folder
    try:
        sweep = load(folder)
    except FileNotFoundError as error:
        print(f"detsweep: {error}", file=sys.stderr)
        return 2
    write_report(sweep)
    print_report(sweep)
    return exit_code(sweep)


if __name__ == "__main__":
    sys.exit(main())
