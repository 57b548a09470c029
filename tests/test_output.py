"""Output that nobody reads any more is lost, and nothing else."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
from detsweep.output import tolerate_broken_output
tolerate_broken_output()
for number in range(100_000):
    print(number)
sys.stdout.flush()
print(sys.stdout.isatty(), file=sys.stderr)
sys.exit(7)
"""


def test_a_reader_that_leaves_does_not_end_the_writer() -> None:
    writer = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None
    assert writer.stderr is not None
    assert writer.stdout.readline() == "0\n"
    writer.stdout.close()
    assert writer.stderr.read() == "False\n"
    assert writer.wait(30) == 7
