"""torchrun in a process of our own: tied to the life of its parent, and the exit code of every rank kept as data.

`python -m detsweep.dispatch.agent <exits.json> <torchrun's arguments>` does what `torchrun <arguments>` does.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import tempfile
from pathlib import Path

from detsweep.orphans import PARENT_VARIABLE, die_with_parent
from detsweep.paths import write_json


def main(exits: Path, arguments: list[str]) -> int:
    """Run torchrun; returns 0, or 1 when a rank failed, with `exits` holding each failed rank's exit code."""
    # TERM, not KILL: torchrun then ends its ranks itself, in order. Should it not live to do so, they die with it.
    die_with_parent(signal.SIGTERM)
    os.environ[PARENT_VARIABLE] = str(os.getpid())
    # As in the ranks: what these imports make stays, and need not be searched for garbage.
    gc.disable()
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main as torchrun

    gc.freeze()
    gc.enable()
    # torchrun makes a folder of its own for each launch and leaves it; the ranks' logs are not in it.
    try:
        with tempfile.TemporaryDirectory(prefix="detsweep-") as scratch:
            torchrun([f"--log-dir={scratch}", *arguments])
    except ChildFailedError as error:
        write_json(exits, {"ranks": {str(rank): failure.exitcode for rank, failure in error.failures.items()}})
        for rank, failure in sorted(error.failures.items()):
            name = f" ({signal.Signals(-failure.exitcode).name})" if failure.exitcode < 0 else ""
            print(f"rank {rank}: exit code {failure.exitcode}{name}, pid {failure.pid}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    code = main(Path(sys.argv[1]), sys.argv[2:])
    sys.stdout.flush()
    sys.stderr.flush()
    # Taking an interpreter with torch in it down costs a quarter of a second, and there is nothing left to do.
    os._exit(code)
