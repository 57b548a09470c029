"""What planning and submitting cost for thousands of cells: a simulation, with Slurm's commands replaced.

Programs named sbatch, squeue, ... stand first on PATH. They record how they were called, take every array, and run
nothing; the rest is what a user runs. Prints seconds, the driver's peak memory, and the calls of each program.

    python scripts/slurm_scale.py 1000 5000 10000
"""

from __future__ import annotations

import argparse
import os
import stat
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

PROGRAM = """#!/bin/sh
echo "$(basename "$0") $*" >>"{calls}"
{body}
"""
BODIES = {
    # Ids that grow, as Slurm's do; --test-only is told nothing.
    "sbatch": 'case "$*" in *--test-only*) exit 0;; esac\nn=$(($(cat "{state}") + 1)); echo $n >"{state}"\n'
    'echo "Submitted batch job $n"',
    "scontrol": 'echo "MaxArraySize            = 1001"',
    "squeue": ":",
    "sacct": ":",
    "scancel": ":",
    "sinfo": ":",
    "srun": ":",
}


def install(folder: Path) -> Path:
    """Write the programs into a folder; returns the file in which they record their calls."""
    calls, state = folder / "calls.txt", folder / "state.txt"
    calls.touch()
    state.write_text("100\n")
    for name, body in BODIES.items():
        path = folder / name
        path.write_text(PROGRAM.format(calls=calls, body=body.format(state=state)))
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return calls


def measure(cells: int, folder: Path) -> str:
    """Submit a sweep of so many cells, and leave it: a line with what that took."""
    programs = folder / "bin"
    programs.mkdir()
    calls = install(programs)
    command = [
        *(sys.executable, "-m", "detsweep", "-m", f"seed=range({cells})", "launch=slurm", "launch.detach=true"),
        f"folder={folder / 'sweep'}",
    ]
    environment = {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
    begun = time.monotonic()
    child = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert child.stderr is not None
    said = child.stderr.read()
    _, status, usage = os.wait4(child.pid, 0)
    seconds = time.monotonic() - begun
    if status != 0:
        raise SystemExit(f"the sweep of {cells} cells ended with status {status}: {said}")
    counted = Counter(line.split()[0] for line in calls.read_text().splitlines())
    processor = usage.ru_utime + usage.ru_stime
    told = ", ".join(f"{number} {name}" for name, number in sorted(counted.items()))
    return f"{cells:>6} {seconds:>8.1f} {processor / cells * 1000:>8.2f} {usage.ru_maxrss / 1024:>8.0f}  {told}"


def main() -> int:
    """Measure each number of cells in a folder of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cells", type=int, nargs="+", help="numbers of cells")
    print(f"{'cells':>6} {'seconds':>8} {'CPU ms':>8} {'peak':>8}  calls of Slurm's commands")
    print(f"{'':>6} {'':>8} {'a cell':>8} {'MiB':>8}")
    for cells in parser.parse_args().cells:
        with tempfile.TemporaryDirectory(prefix="detsweep-scale-") as folder:
            print(measure(cells, Path(folder)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
