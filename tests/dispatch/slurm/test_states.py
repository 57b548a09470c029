"""What a job's end means for its trial: the verdict, and whether it was the cluster's fault."""

from __future__ import annotations

import pytest

from detsweep.dispatch.slurm.asking import Element
from detsweep.dispatch.slurm.states import ALIVE, RUNNING, alive, fate

# squeue(1), JOB STATE CODES.
ENDED = (
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "LAUNCH_FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
    "PREEMPTED", "RECONFIG_FAIL", "REVOKED", "TIMEOUT",
)  # fmt: skip
GOING_ON = (
    "COMPLETING", "CONFIGURING", "PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESIZING", "RESV_DEL_HOLD",
    "RUNNING", "SIGNALING", "SPECIAL_EXIT", "STAGE_OUT", "STOPPED", "SUSPENDED",
)  # fmt: skip


@pytest.mark.parametrize("state", GOING_ON)
def test_what_waits_or_runs_is_alive(state: str) -> None:
    assert alive(Element("n", state, "a", ""))


@pytest.mark.parametrize("state", ENDED)
def test_what_has_ended_is_not(state: str) -> None:
    assert not alive(Element("n", state, "a", ""))


def test_what_nobody_knows_is_not_alive_and_what_runs_is() -> None:
    assert not alive(None)
    assert RUNNING < ALIVE


@pytest.mark.parametrize(
    ("state", "verdict", "infrastructure", "text"),
    [
        ("NODE_FAIL", "error", True, "a node failed (job 7_1 on node3)"),
        ("BOOT_FAIL", "error", True, "a node did not boot (job 7_1 on node3)"),
        ("LAUNCH_FAILED", "error", True, "Slurm could not launch job 7_1 on node3"),
        ("RECONFIG_FAIL", "error", True, "a node could not be configured (job 7_1 on node3)"),
        ("PREEMPTED", "error", True, "preempted, and not requeued (job 7_1 on node3)"),
        ("CANCELLED", "error", False, "cancelled, not by this sweep (job 7_1 on node3)"),
        ("TIMEOUT", "timeout", False, "ended by Slurm's own time limit (job 7_1 on node3)"),
        ("DEADLINE", "timeout", False, "ended by its deadline (job 7_1 on node3)"),
        ("OUT_OF_MEMORY", "error", False, "out of memory (job 7_1 on node3; launch.memory_gb=N asks for more)"),
        ("COMPLETED", "error", False, "job 7_1 ended as COMPLETED on node3 (exit code 0:0), and left no result"),
        ("FAILED", "error", False, "job 7_1 ended as FAILED on node3 (exit code 0:0), and left no result"),
        ("REVOKED", "error", False, "job 7_1 ended as REVOKED on node3 (exit code 0:0), and left no result"),
        ("A_NEW_WORD", "error", False, "job 7_1 ended as A_NEW_WORD on node3 (exit code 0:0), and left no result"),
    ],
)
def test_each_end_has_its_verdict_and_its_blame(state: str, verdict: str, infrastructure: bool, text: str) -> None:
    end = fate("7_1", Element("n", state, "node3", "exit code 0:0"))
    assert (end.verdict, end.infrastructure, end.text) == (verdict, infrastructure, text)


def test_every_state_that_is_an_end_is_one_of_these() -> None:
    told = {fate("7", Element("n", state, "", "")).text for state in ENDED}
    assert len(told) == len(ENDED)


def test_a_job_that_nobody_knows_any_more_is_lost_and_may_be_given_again() -> None:
    end = fate("7", None)
    assert (end.verdict, end.infrastructure) == ("error", True)
    assert "knows nothing of job 7" in end.text


@pytest.mark.parametrize("nodes", ["", "None assigned"])
def test_a_job_that_never_had_a_node_names_none(nodes: str) -> None:
    assert fate("7", Element("n", "CANCELLED", nodes, "")).text == "cancelled, not by this sweep (job 7)"
