"""`python -m detsweep.bundle <folder>`: everything that a vendor needs to see a sweep and repeat it, in one file."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from detsweep.arguments import PlainParser
from detsweep.bundling import LeakError, Made, make, sweep_folder
from detsweep.environment.capture import environment
from detsweep.output import tolerate_broken_output
from detsweep.paths import ENDINGS, FileError

PROGRAM = "python -m detsweep.bundle"
WRONG, LEAKED = 2, 3
EPILOG = f"""\
examples:
  {PROGRAM} runs/2026-01-31/14-05-59                       14-05-59.tar.zst, in this folder
  {PROGRAM} runs/2026-01-31/14-05-59 --redact -o out.tar.gz

--redact replaces, everywhere and by the same word each time: user, host and node names, e-mail, IP and MAC addresses,
serial numbers and UUIDs, accounts and partitions, absolute paths, and secrets: values of variables such as *_TOKEN,
*_PASSWORD and *_API_KEY, and what has the shape of a token anywhere. What the analysis made (matrix.*, frames/) is
left out. The archive is searched for all of them before it gets its name.

exit codes: 0 written; 2 what was asked makes no sense; 3 the archive still held something, and is gone
"""


def main() -> int:
    """Make a bundle and return the exit code (see EPILOG)."""
    tolerate_broken_output()
    asked = _parser().parse_args()
    try:
        sweep = sweep_folder(Path(asked.folder))
        output = Path(asked.output or f"{sweep.name}{ENDINGS[0]}")
        made = make(
            sweep,
            output,
            environment=environment(),
            redacted=asked.redact,
            recordings=asked.recordings,
            force=asked.force,
        )
    except LeakError as error:
        for line in str(error).splitlines():
            print(f"detsweep: {line}", file=sys.stderr)
        print("detsweep: no bundle was left: it would have held what --redact is to remove", file=sys.stderr)
        return LEAKED
    except FileError as error:
        print(f"detsweep: {error}", file=sys.stderr)
        return WRONG
    except OSError as error:
        print(f"detsweep: no bundle was written: {error}", file=sys.stderr)
        return WRONG
    _print(made)
    return 0


def _print(made: Made) -> None:
    told = made.manifest
    print(f"{made.path}: {len(told['files'])} files, {made.size / 1e6:.2f} MB")
    for one in told["left_out"]:
        print(f"left out: {one['name']}: {one['why']}")
    for name in told["changed_while_read"]:
        print(f"changed while it was read: {name}")
    if told["redacted"]:
        counts = ", ".join(f"{one['count']} {one['kind']}" for one in told["redaction"]["replaced"])
        print(f"replaced: {counts or 'nothing'}; every byte of the archive was searched for them")
        if ordinary := told["redaction"]["only_where_their_names_stand"]:
            print(f"of these {ordinary} are ordinary words or very short, and were replaced only beside their names")


def _parser() -> argparse.ArgumentParser:
    parser = PlainParser(
        prog=PROGRAM,
        description="A sweep in one file: records, logs, configuration, environment, and how to repeat it.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", help="the sweep's folder, e.g. runs/2026-01-31/14-05-59")
    parser.add_argument("-o", "--output", metavar="FILE", help=f"*{' or *'.join(ENDINGS)}; default <folder>.tar.zst")
    parser.add_argument("--redact", action="store_true", help="remove names and secrets")
    parser.add_argument("--recordings", action="store_true", help="take payloads of recordings and checkpoints, too")
    parser.add_argument("--force", action="store_true", help="overwrite a file of that name")
    return parser


if __name__ == "__main__":
    sys.exit(main())
