"""Command lines whose errors are one line and leave with 2."""

from __future__ import annotations

import argparse
from typing import NoReturn

WRONG = 2


class Parser(argparse.ArgumentParser):
    """Says in one line what is wrong with the arguments, and how they are written."""

    def error(self, message: str) -> NoReturn:
        self.exit(WRONG, f"detsweep: {message} ({' '.join(self.format_usage().split())})\n")


class PlainParser(Parser):
    """Says what is wrong alone: of a command with many arguments its usage would be many lines."""

    def error(self, message: str) -> NoReturn:
        self.exit(WRONG, f"detsweep: {message}\n")
