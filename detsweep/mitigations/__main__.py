"""`python -m detsweep.mitigations`: what presets there are, what they set, and whether all of it is set here."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path

from detsweep.arguments import PlainParser
from detsweep.mitigations.listing import print_preset, print_presets, print_variables
from detsweep.mitigations.presets import GROUP, Preset, chosen, load_presets, settings_of_all
from detsweep.mitigations.required import missing
from detsweep.mitigations.stack import PLATFORMS, Settings
from detsweep.mitigations.variables import catalogue
from detsweep.output import tolerate_broken_output
from detsweep.paths import conf_dir

NOT_ALL_SET = 1
WRONG_COMMAND = 2
EPILOG = """\
examples:
  python -m detsweep.mitigations list --platform amd        what has a place on AMD GPUs
  python -m detsweep.mitigations list | less -S             a row for each, however narrow the terminal
  python -m detsweep.mitigations show primus megatron       all that is known of two presets
  python -m detsweep.mitigations variables nccl_            the catalogue of variables, from NCCL_ on
  python -m detsweep.mitigations check primus && torchrun train.py
  python -m detsweep.mitigations check megatron --env-only && torchrun train.py
                                                            ... and detsweep.mitigations.require("megatron") in it

exit codes:
  0  done; of check: all is set, and nothing was printed
  1  of check: something is not set, or a switch of torch can only be checked in the training process; a line for each
  2  a command, a preset or a file that makes no sense; one line says why
"""


def main() -> int:
    """Run one command and return its exit code (see EPILOG)."""
    tolerate_broken_output()
    words = sys.argv[1:]
    if not words or (words[0].startswith("-") and words[0] not in ("-h", "--help")):
        words = ["list", *words]
    if words[0] not in (*_COMMANDS, "-h", "--help"):
        close = get_close_matches(words[0], _COMMANDS, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        return _complain(f"{words[0]}: no such command{hint}; valid: {', '.join(_COMMANDS)}")
    options = _parser().parse_args(words)
    try:
        return _COMMANDS[options.command](options)
    except ValueError as error:
        return _complain(str(error))


def _parser() -> argparse.ArgumentParser:
    parser = PlainParser(
        prog="python -m detsweep.mitigations",
        description="What mitigations there are, what they set, and whether all of it is set here.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    folder = PlainParser(add_help=False)
    folder.add_argument("--config-dir", metavar="DIR", help=f"a folder with {GROUP}/*.yaml of your own")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    listed = commands.add_parser("list", parents=[folder], help="a table of all presets (the default)")
    listed.add_argument("--platform", choices=PLATFORMS, help="only those with a place there")
    shown = commands.add_parser("show", parents=[folder], help="all that is known of presets and what they set")
    shown.add_argument("names", nargs="+", metavar="NAME")
    table = commands.add_parser("variables", help="a table of the variables that can change which bits come out")
    table.add_argument("prefix", nargs="?", default="", metavar="PREFIX", help="how their names begin")
    checked = commands.add_parser("check", parents=[folder], help="whether this process has all that presets set")
    checked.add_argument("names", nargs="+", metavar="NAME")
    checked.add_argument("--env-only", action="store_true", help="look at variables alone, not at switches of torch")
    return parser


def _list(options: argparse.Namespace) -> int:
    presets = _presets(options).values()
    print_presets(one for one in presets if options.platform is None or one.supports(options.platform))
    return 0


def _show(options: argparse.Namespace) -> int:
    for index, preset in enumerate(chosen(_presets(options), options.names, GROUP)):
        if index:
            print()
        print_preset(preset)
    return 0


def _variables(options: argparse.Namespace) -> int:
    prefix = options.prefix.upper()
    found = [one for name, one in sorted(catalogue().items()) if name.startswith(prefix)]
    if not found:
        close = get_close_matches(prefix, list(catalogue()), n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise ValueError(f"{options.prefix}: no variable of the catalogue begins like this{hint}")
    print_variables(found)
    return 0


def _check(options: argparse.Namespace) -> int:
    presets = chosen(_presets(options), list(dict.fromkeys(options.names)), GROUP)
    settings_of_all(presets)
    for preset in presets if options.env_only else ():
        if not preset.env and preset.torch:
            call = _call([preset.name], options.config_dir)
            raise ValueError(f"{preset.name}: sets no variable; it is checked in the training process, by {call}")
    # Each line once, with all the presets that ask for it.
    lines: dict[str, list[str]] = {}
    for preset in presets:
        for line in missing(Settings(preset.env, {}), os.environ):
            lines.setdefault(line, []).append(preset.name)
    if not options.env_only:
        with_switches = [one for one in presets if one.torch]
        call = _call([one.name for one in with_switches], options.config_dir)
        for preset in with_switches:
            for name, value in preset.torch.items():
                line = f"{name} must be {value}: checked in the training process, by {call}"
                lines.setdefault(line, []).append(preset.name)
    for line, names in lines.items():
        print(f"detsweep: {'+'.join(names)}: {line}", file=sys.stderr)
    return NOT_ALL_SET if lines else 0


_COMMANDS: Mapping[str, Callable[[argparse.Namespace], int]] = {
    "list": _list,
    "show": _show,
    "variables": _variables,
    "check": _check,
}


def _presets(options: argparse.Namespace) -> dict[str, Preset]:
    folders = [conf_dir()]
    if options.config_dir is not None:
        own = Path(options.config_dir)
        if not (own / GROUP).is_dir():
            raise ValueError(f"--config-dir {own}: has no folder {GROUP}")
        folders.append(own)
    return load_presets(folders)


def _call(names: Sequence[str], config_dir: str | None) -> str:
    """What checks these presets in a training process, as it is written there."""
    folder = [] if config_dir is None else [f"config_dir={json.dumps(config_dir)}"]
    return f"detsweep.mitigations.require({', '.join([*map(json.dumps, names), *folder])})"


def _complain(line: str) -> int:
    print(f"detsweep: {line}", file=sys.stderr)
    return WRONG_COMMAND


if __name__ == "__main__":
    sys.exit(main())
