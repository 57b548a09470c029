"""`python -m detsweep.environment`: what this machine and this Python are, and how two environments differ."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from detsweep.arguments import PlainParser
from detsweep.environment.capture import environment
from detsweep.environment.comparing import among_ranks, compare
from detsweep.environment.listing import lines
from detsweep.environment.sources import source
from detsweep.output import tolerate_broken_output
from detsweep.paths import FileError, write_json

PROGRAM = "python -m detsweep.environment"
DIFFERENT, WRONG = 1, 2
EPILOG = f"""\
examples:
  {PROGRAM}                            print it, section by section
  {PROGRAM} -o here.json               and write it
  {PROGRAM} diff here.json there.json  what two machines do not have alike
  {PROGRAM} diff TRIAL                 ... the ranks of a trial, by its folder
  {PROGRAM} diff TRIAL OTHER           ... two trials, rank by rank; or a rank's own environment-rank003.json

exit codes: 0 printed, or no difference; 1 of diff: differences, a line each; 2 what was asked makes no sense
"""


def main() -> int:
    """Run one command and return its exit code (see EPILOG)."""
    tolerate_broken_output()
    words = sys.argv[1:]
    try:
        return _diff(words[1:]) if words[:1] == ["diff"] else _print(words)
    except FileError as error:
        print(f"detsweep: {error}", file=sys.stderr)
        return WRONG


def _print(words: Sequence[str]) -> int:
    parser = PlainParser(
        prog=PROGRAM,
        description="What this machine, this Python and its libraries are: all that a vendor asks for.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="write it as JSON, too")
    parser.add_argument("--json", action="store_true", help="print it as JSON")
    parser.add_argument("--digests", action="store_true", help="SHA-256 of large libraries as well (takes seconds)")
    asked = parser.parse_args(words)
    found = environment(whole_digests=asked.digests)
    if asked.output is not None:
        try:
            write_json(Path(asked.output), found)
        except OSError as error:
            raise FileError(f"-o {asked.output}: cannot be written: {error.strerror}") from None
    print(json.dumps(found, indent=1, ensure_ascii=False) if asked.json else "\n".join(lines(found)))
    return 0


def _diff(words: Sequence[str]) -> int:
    parser = PlainParser(
        prog=f"{PROGRAM} diff", description="How environments differ: of two, or of the ranks of a trial"
    )
    parser.add_argument("a", help="an environment file, a rank's environment-rank<NNN>.json, or a trial's folder")
    parser.add_argument("b", nargs="?", help="another one; without it the ranks of the trial are compared")
    asked = parser.parse_args(words)
    ours = source(asked.a)
    if asked.b is None and ours.single:
        raise FileError(f"{asked.a}: is one environment; name a second one, or a trial's folder to compare its ranks")
    found = among_ranks(ours) if asked.b is None else compare(ours, source(asked.b))
    print("\n".join(found) if found else "no difference")
    return DIFFERENT if found else 0


if __name__ == "__main__":
    sys.exit(main())
