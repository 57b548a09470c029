"""One array through submitit to sbatch: what is wrong is said before anything starts, and no shell's Slurm leaks in."""

from __future__ import annotations

import io
import os
import re
import secrets
import shutil
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import replace
from pathlib import Path

import submitit
from submitit.core.utils import DelayedSubmission, FailedJobError, FailedSubmissionError, JobPaths

from detsweep.capture import SCHEMA
from detsweep.dispatch.slurm import asking
from detsweep.dispatch.slurm.arrays import Array
from detsweep.dispatch.slurm.node import SlurmLaunch, run_on_node
from detsweep.environment import FOREIGN
from detsweep.nodes import ClusterError, nodes_of, partitions
from detsweep.paths import SweepPaths, read_json, write_json
from detsweep.plan import Plan
from detsweep.resources import WARNING_S, Resources, resources_of
from detsweep.results import read_result

PROGRAMS = ("sbatch", "srun", "squeue", "scancel", "scontrol")
# Where to find Slurm at all is the shell's to say.
_KEPT = ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_TIME_FORMAT", "SLURM_JWT")
_CHECKED = 20
_UNSENT = re.compile(r"[0-9a-f]{32}\.pkl|\.submission_file_[0-9a-f]{32}\.sh")


class RefusedError(Exception):
    """Slurm will not take what was submitted, now or later; the message is Slurm's."""


class FullError(Exception):
    """Slurm takes no more jobs of this user for now; the message is Slurm's."""


def check(plan: Plan) -> None:
    """Ask Slurm, before anything starts, whether it would take the jobs of a plan. Raises ClusterError with its words.

    Of many different groups of resources the first ones are tried.
    """
    if absent := [name for name in PROGRAMS if shutil.which(name) is None]:
        raise ClusterError(f"launch=slurm: no {', '.join(absent)} on PATH: this machine cannot reach a Slurm cluster")
    if kept_out := sorted(name for name in os.environ if name.startswith("SBATCH_")):
        print(
            f"detsweep: note: kept out of the submission: this shell's {', '.join(kept_out)} (launch.partition, "
            "launch.account, ... say such things)",
            file=sys.stderr,
        )
    asked = dict.fromkeys(resources_of(cell.config) for cell in plan.cells if cell.unsupported is None)
    with clean_environment():
        for resources in list(asked)[:_CHECKED]:
            refusal = asking.test(resources.words())
            if refusal is not None and _waits_for_nodes(refusal, resources):
                print(
                    f"detsweep: note: nodes are down, and Slurm says: {refusal}; submitted all the same",
                    file=sys.stderr,
                )
            elif refusal is not None:
                asked_for = " ".join(f"{key}={value}" for key, value in resources.keys().items())
                valid = f"; partitions: {', '.join(partitions())}" if "artition" in refusal else ""
                raise ClusterError(f"launch=slurm: Slurm refuses: {refusal}{valid} (asked for: {asked_for})")


def _waits_for_nodes(refusal: str, resources: Resources) -> bool:
    """Whether a refusal may only mean that nodes are down for now: sbatch itself takes such a job, and it waits."""
    return "not available" in refusal and any(node.away for node in nodes_of(resources.partition))


@contextmanager
def clean_environment() -> Iterator[None]:
    """Hide what an allocation that this shell is in, or another launcher, says of itself; new jobs would inherit it."""
    hidden = {name: os.environ[name] for name in os.environ if FOREIGN.fullmatch(name) and name not in _KEPT}
    for name in hidden:
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.update(hidden)


@contextmanager
def _signals_held() -> Iterator[None]:
    """Let no Ctrl-C end sbatch, which inherits this, between Slurm's taking a job and our knowing its id."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def name_of(sweep: SweepPaths) -> str:
    """The beginning of the names of this sweep's jobs, and of no other's; kept in the sweep's folder."""
    if sweep.cluster.exists():
        return str(read_json(sweep.cluster)["name"])
    name = f"detsweep-{secrets.token_hex(4)}"
    write_json(sweep.cluster, {"schema": SCHEMA, "name": name})
    return name


def submit(
    sweep: SweepPaths, array: Array, resources: Resources, launches: Sequence[SlurmLaunch], after: Sequence[str]
) -> Array:
    """Submit an array whose file is written; returns it with its job id, which is in its file by then.

    It begins when the arrays `after` are over. Raises AwayError where Slurm cannot take it for now (it may have
    arrived all the same: its name tells), FullError where it takes no more for now, RefusedError where it never will.
    """
    executor = submitit.SlurmExecutor(sweep.jobs, max_num_timeout=0, python=resources.python)
    flags = {key: value for key, value in resources.flags().items() if key not in ("nodes", "time")}
    executor.update_parameters(
        job_name=array.name,
        nodes=resources.nodes,
        ntasks_per_node=1,
        time=resources.time_min,
        array_parallelism=array.width,
        signal_delay_s=WARNING_S,
        # submitit has one of its own, which a cluster that checks them refuses.
        wckey=None,
        stderr_to_stdout=True,
        setup=list(resources.setup) or None,
        srun_args=resources.srun_flags,
        dependency=f"afterany:{':'.join(after)}" if after else None,
        additional_parameters=flags,
    )
    # What sbatch says on its standard error submitit repeats there; here it is said once, in one line.
    with clean_environment(), _signals_held(), redirect_stderr(io.StringIO()):
        try:
            jobs = executor.map_array(run_on_node, list(launches))
        except (FailedJobError, FailedSubmissionError) as error:
            if "MaxSubmitJob" in str(error):
                raise FullError(f"sbatch: {asking.said(str(error))}") from None
            if "sbatch: error" in str(error) and not asking.transient(str(error)):
                raise RefusedError(f"sbatch: {asking.said(str(error))}") from None
            # What is no word of Slurm's refuses nothing: sbatch may have been killed after the job had arrived.
            raise asking.AwayError(f"sbatch: {asking.said(str(error))}") from None
    submitted = replace(array, job=str(jobs[0].job_id).partition("_")[0])
    submitted.write(sweep)
    return submitted


def restore_pickles(sweep: SweepPaths, array: Array, launches: Sequence[SlurmLaunch], time_min: int) -> None:
    """Write again what submitit reads when a job of an array begins, where a driver that died had not yet done so.

    submitit gives the files their names when sbatch has returned; a job waits a minute for its own.
    """
    for index, launch in enumerate(launches):
        path: Path = JobPaths(sweep.jobs, array.element(index)).submitted_pickle
        if not path.exists():
            delayed = DelayedSubmission(run_on_node, launch)
            delayed.set_timeout(time_min, max_num_timeout=0)
            temporary = path.with_suffix(".new")
            delayed.dump(temporary)
            temporary.replace(path)


def clear(sweep: SweepPaths, over: Sequence[Array]) -> None:
    """Remove the files of arrays that are over, and what submitit kept for them.

    The log of a job stays where it is all that is left of a trial.
    """
    jobs, folders = {array.job for array in over}, sweep.cell_folders()
    for path in [path for path in sweep.jobs.iterdir() if path.name.partition("_")[0] in jobs]:
        if path.suffix in (".pkl", ".sh"):
            path.unlink(missing_ok=True)
    # By these names submitit knows them until sbatch has given a job its id.
    for path in sweep.jobs.iterdir():
        if _UNSENT.fullmatch(path.name):
            path.unlink(missing_ok=True)
    for array in over:
        for index, member in enumerate(array.members):
            log = sweep.job_log(array.element(index))
            result = read_result(sweep.cell("", member.cell, folders).trial(member.trial))
            if result is not None and result.get("log") != str(log):
                log.unlink(missing_ok=True)
        sweep.array(array.number).unlink(missing_ok=True)
