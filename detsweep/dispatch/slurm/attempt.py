"""From an attempt's own folder to a trial's result: exactly one attempt gives it, and all of its files or none count.

Slurm can start a job anew while processes of its first start still live on a node that it lost sight of. So every start
works in a folder of its own, and only when it is through do its files become the trial's.
"""

from __future__ import annotations

import os
from contextlib import suppress

from detsweep.paths import CellPaths, TrialPaths

_DRIVER = "driver"


def publish(attempt: TrialPaths, trial: TrialPaths) -> bool:
    """Make an attempt that has a result the trial; False where another one has become it before, or was begun since."""
    # Of one that was set aside, what still lives may make the folder anew; the spec went with the rest.
    if not attempt.result.exists() or not attempt.spec.exists() or not _claimed(trial, attempt.folder.name):
        return False
    _move(attempt, trial)
    return True


def recover(trial: TrialPaths) -> None:
    """Finish what an attempt began that died while it published its files."""
    if trial.result.exists() or not trial.claim.exists():
        return
    attempt = TrialPaths(trial.folder.parent / trial.claim.read_text())
    if attempt.result.exists():
        _move(attempt, trial)
    elif not trial.result.exists():
        # It was not just published, between the two looks.
        trial.claim.unlink(missing_ok=True)


def claim_for_driver(trial: TrialPaths) -> bool:
    """Whether the driver may give a trial its result: no attempt is about to."""
    return _claimed(trial, _DRIVER)


def newest(trial: TrialPaths, number: int) -> TrialPaths | None:
    """The attempt of a trial that was begun last."""
    attempts = CellPaths(trial.folder.parent).attempts(number)
    return attempts[-1] if attempts else None


def _claimed(trial: TrialPaths, name: str) -> bool:
    own = trial.claim.with_name(f"{trial.claim.name}.{name}")
    own.write_text(name)
    try:
        # A link is made by one of all that try, with its content, on network file systems too.
        os.link(own, trial.claim)
    except FileExistsError:
        return trial.claim.read_text() == name
    finally:
        own.unlink()
    return True


def _move(attempt: TrialPaths, trial: TrialPaths) -> None:
    """Move an attempt's files into its trial's folder, the result last: with it the trial is done."""
    last = (attempt.spec.name, attempt.result.name)
    for path in sorted(attempt.folder.iterdir(), key=lambda path: path.name in last):
        if path.name == attempt.spec.name:
            path.unlink(missing_ok=True)
        elif path != attempt.result:
            with suppress(FileNotFoundError):
                path.rename(trial.folder / path.name)
    with suppress(FileNotFoundError):
        attempt.result.rename(trial.result)
    with suppress(OSError):
        attempt.folder.rmdir()
