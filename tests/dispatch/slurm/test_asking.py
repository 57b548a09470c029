"""What Slurm's commands print, as values; and which of their errors pass."""

from __future__ import annotations

import random

import pytest

from detsweep.dispatch.slurm import asking
from detsweep.dispatch.slurm.asking import AwayError, Element, compressed, expand, said, transient
from detsweep.nodes import ClusterError
from tests.dispatch.slurm.commands import AWAY, Cluster


@pytest.mark.parametrize(
    ("job", "ids"),
    [
        ("12", ["12"]),
        ("12_3", ["12_3"]),
        ("12_[3]", ["12_3"]),
        ("12_[3-6]", ["12_3", "12_4", "12_5", "12_6"]),
        ("12_[3-4%2]", ["12_3", "12_4"]),
        ("12_[0-1,7,9-10%16]", ["12_0", "12_1", "12_7", "12_9", "12_10"]),
        ("12.batch", ["12.batch"]),
        ("12+0", ["12+0"]),
    ],
)
def test_elements_of_an_array_that_share_a_line_are_told_apart(job: str, ids: list[str]) -> None:
    assert expand(job) == ids


@pytest.mark.parametrize(
    ("jobs", "words"),
    [
        ([], []),
        (["7"], ["7"]),
        (["12_0"], ["12_[0]"]),
        (["12_2", "12_0", "12_1", "13_5", "7", "12_9"], ["7", "12_[0-2,9]", "13_[5]"]),
        ([f"9_{index}" for index in range(1000)], ["9_[0-999]"]),
    ],
    ids=str,
)
def test_ids_are_said_in_few_words(jobs: list[str], words: list[str]) -> None:
    assert compressed(jobs) == words


def test_to_compress_and_to_expand_undo_each_other() -> None:
    chance = random.Random(1)
    for _ in range(200):
        arrays = {str(number): chance.sample(range(60), chance.randint(1, 40)) for number in range(1, 4)}
        jobs = [f"{array}_{index}" for array, found in arrays.items() for index in found] + ["77", "78"]
        words = compressed(jobs)
        assert sorted(one for word in words for one in expand(word)) == sorted(jobs)
        assert len(words) == 2 + len(arrays)


def test_the_queue_has_every_element_by_its_id(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [
        "12_0|n-1|RUNNING|node[1-2]|None",
        "12_1|n-1|PENDING||(Nodes required | are down)",
        "14|other|COMPLETED|a|",
    ]
    monkeypatch.setattr(asking, "_ask", lambda _: lines)
    assert asking.queue() == {
        "12_0": Element("n-1", "RUNNING", "node[1-2]", "None"),
        "12_1": Element("n-1", "PENDING", "", "(Nodes required | are down)"),
        "14": Element("other", "COMPLETED", "a", ""),
    }


def test_accounting_is_asked_for_arrays_and_says_who_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []
    lines = ["12_1|n|CANCELLED by 0|node1|0:15", "12_[3-4%2]|n|PENDING|None assigned|0:0", "13|m|NODE_FAIL|node2|1:0"]

    def ask(words: list[str]) -> list[str]:
        asked.append(words)
        return lines

    monkeypatch.setattr(asking, "_ask", ask)
    found = asking.accounting(["12_4", "12_1", "13"])
    assert found == {
        "12_1": Element("n", "CANCELLED", "node1", "exit code 0:15"),
        "12_3": Element("n", "PENDING", "None assigned", "exit code 0:0"),
        "12_4": Element("n", "PENDING", "None assigned", "exit code 0:0"),
        "13": Element("m", "NODE_FAIL", "node2", "exit code 1:0"),
    }
    assert asked[0][-1] == "--jobs=12,13"


def test_accounting_is_asked_by_name_where_no_id_is_known(cluster: Cluster) -> None:
    cluster.set(jobs={"31_0": {"name": "mine-2", "state": "CANCELLED", "nodes": "", "code": "0:9", "known": False}})
    assert asking.accounting((), names=("mine-2",)) == {
        "31_0": Element("mine-2", "CANCELLED", "None assigned", "exit code 0:9")
    }
    assert asking.accounting((), names=("mine",)) == {}
    assert any(word.startswith("--starttime=") for word in cluster.calls[-1]["words"])


@pytest.mark.parametrize(
    ("config", "largest"),
    [
        ("MaxArraySize            = 1001", 1001),
        ("MaxArraySize            = 1001\nSchedulerParameters     = defer,max_array_tasks=200,bf_interval=2", 200),
        ("MaxArraySize            = 0", 1),
        ("no word of it", 1001),
    ],
)
def test_an_array_is_as_large_as_the_cluster_lets_it(
    monkeypatch: pytest.MonkeyPatch, config: str, largest: int
) -> None:
    monkeypatch.setattr(asking, "_ask", lambda _: config.splitlines())
    assert asking.largest_array() == largest


def test_what_gives_no_answer_is_away_and_its_words_are_kept(cluster: Cluster) -> None:
    cluster.set(down=AWAY, no_accounting=True)
    with pytest.raises(AwayError, match=r"^squeue: Unable to contact slurm controller \(connect failure\)$"):
        asking.queue()
    with pytest.raises(AwayError, match=r"^sacct: Slurm accounting storage is disabled$"):
        asking.accounting(["1"])
    with pytest.raises(AwayError, match=r"^scancel: Unable to contact"):
        asking.cancel(["1"])


def test_a_command_that_hangs_is_away(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "TIMEOUT_S", 0.2)
    (cluster.folder / "squeue").write_text("#!/bin/sh\nexec sleep 5\n")
    with pytest.raises(AwayError, match=r"squeue: not responding for 0\.2 s"):
        asking.queue()


def test_a_machine_without_slurm_is_told(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(cluster.folder / "nothing"))
    with pytest.raises(ClusterError, match="no squeue on PATH"):
        asking.queue()


def test_many_jobs_are_cancelled_in_several_calls(cluster: Cluster) -> None:
    jobs = {str(number): {"state": "RUNNING"} for number in range(450)}
    cluster.set(jobs=jobs)
    asking.cancel(jobs)
    assert {job["state"] for job in cluster.jobs.values()} == {"CANCELLED"}
    assert cluster.count() == {"scancel": 3}
    asking.cancel([])
    assert cluster.count() == {"scancel": 3}


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("sbatch: error: invalid partition: x\nsbatch: error: Batch job submission failed: Invalid partition name\n",
         "Batch job submission failed: Invalid partition name"),
        ("sbatch: error: Batch job submission failed: Requested node configuration is not available",
         "Batch job submission failed: Requested node configuration is not available"),
        ("slurm_load_jobs error: Unable to contact slurm controller (connect failure)",
         "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"),
        ("squeue: fatal: could not read the configuration\n\n", "could not read the configuration"),
        ("one\ntwo\n", "two"),
        ("allocation failure: Invalid qos\nsome footer\n", "allocation failure: Invalid qos"),
        ("", "no word of why"),
    ],
)  # fmt: skip
def test_the_line_that_matters_is_said_without_its_prefix(text: str, line: str) -> None:
    assert said(text) == line


@pytest.mark.parametrize(
    ("text", "passes"),
    [
        (AWAY, True),
        ("Batch job submission failed: Socket timed out on send/recv operation", True),
        ("slurm_receive_msg: Zero Bytes were transmitted or received", True),
        ("Batch job submission failed: Resource temporarily unavailable", True),
        ("Slurm backup controller in standby mode", True),
        ("Job violates accounting/QOS policy (job submit limit, ...): QOSMaxSubmitJobPerUserLimit", True),
        ("Transport endpoint is not connected", True),
        ("Invalid partition name specified", False),
        ("Invalid account or account/partition combination specified", False),
        ("Requested time limit is invalid (missing or exceeds some limit)", False),
        ("Memory specification can not be satisfied", False),
        ("invalid constraint", False),
    ],
)
def test_which_errors_pass(text: str, passes: bool) -> None:
    assert transient(text) is passes


@pytest.mark.parametrize(
    ("refused", "why"),
    [
        ("", None),
        ("Invalid qos specification", "Invalid qos specification"),
        (AWAY, None),
        ("allocation failure: Requested nodes are busy", None),
    ],
)
def test_only_what_will_never_be_taken_is_a_refusal(cluster: Cluster, refused: str, why: str | None) -> None:
    cluster.set(refused=refused)
    assert asking.test(["--qos=x", "--requeue"]) == why
    assert cluster.calls[-1]["words"] == ["--test-only", "--qos=x", "--requeue", "--wrap=true"]
