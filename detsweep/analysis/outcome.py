"""What a sweep's exit code says, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from detsweep.analysis.report import exit_code

if TYPE_CHECKING:
    from detsweep.analysis.frames import Sweep

WORDS = {
    0: "every cell passed, unsupported ones aside",
    1: "something diverged",
    3: "nothing diverged, but a cell has an error or no verdict, or all are unsupported",
}
OF_A_SEARCH = {
    0: "the search has an answer that was verified",
    1: "no set of the candidates cures",
    3: "the search has no answer",
}
OF_A_CONTROL = {
    0: "positive control: every cell is as it should be",
    1: "positive control: a cell is not as it should be",
    3: "positive control: a cell has no verdict",
}
STYLES = {0: "pass", 1: "diverged", 3: "error"}


def outcome(sweep: Sweep) -> tuple[str, str]:
    """The meaning of the exit code, and the style in which it is shown."""
    code = exit_code(sweep)
    words = OF_A_SEARCH if sweep.search else OF_A_CONTROL if sweep.positive_control else WORDS
    return f"Exit code {code}: {words[code]}.", STYLES[code]
