"""Nodes of a cluster, as sinfo has them: which there are, and which take no jobs, and why."""

from __future__ import annotations

from pathlib import Path

import pytest

from detsweep.nodes import ClusterError, Node, nodes_of, partitions
from tests.dispatch.slurm.commands import Cluster, on_path

LINES = "main*|n1|idle|none\nmain*|n2|mixed|none\nhigh|n1|idle|none\nhigh|n3|allocated|none\nmain*|n1|idle|none"


@pytest.fixture(autouse=True)
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster(tmp_path / "slurm")
    made.set(sinfo=LINES)
    monkeypatch.setenv("PATH", on_path(made.folder))
    return made


def test_without_a_partition_the_default_ones_nodes_are_meant_each_once() -> None:
    assert nodes_of(None) == [Node("n1", None), Node("n2", None)]


def test_a_partition_is_asked_for_by_name(cluster: Cluster) -> None:
    cluster.set(sinfo="high|n1|idle|none\nhigh|n3|allocated|none")
    assert [node.name for node in nodes_of("high")] == ["n1", "n3"]
    assert "--partition=high" in cluster.calls[-1]["words"]


@pytest.mark.parametrize(
    ("state", "reason", "away"),
    [
        ("idle", "none", None),
        ("mixed", "none", None),
        ("allocated", "none", None),
        ("completing", "none", None),
        ("reserved", "none", None),
        ("idle~", "none", None),
        ("allocated#", "none", None),
        ("down", "bad fan", "down (bad fan)"),
        ("down*", "Not responding", "down (Not responding)"),
        ("idle*", "none", "idle, not responding"),
        ("drained", "ECC | twice", "drained (ECC | twice)"),
        ("draining", "none", "draining"),
        ("drng", "", "drng"),
        ("fail", "none", "fail"),
        ("maint", "none", "maint"),
        ("unknown", "none", "unknown"),
        ("inval", "Low RealMemory", "inval (Low RealMemory)"),
        ("powered_down", "none", "powered_down"),
    ],
)
def test_which_nodes_take_no_jobs_and_why(cluster: Cluster, state: str, reason: str, away: str | None) -> None:
    cluster.set(sinfo=f"main*|n1|{state}|{reason}")
    assert nodes_of(None) == [Node("n1", away)]


def test_a_partition_that_is_not_there_names_those_that_are(cluster: Cluster) -> None:
    (cluster.folder / "sinfo").write_text(
        '#!/bin/sh\ncase "$*" in *--partition*) ;; *) printf "main\\nhigh\\nmain\\n";; esac\n'
    )
    with pytest.raises(ClusterError, match=r"^launch\.partition=low: no such partition; valid: high, main$"):
        nodes_of("low")
    assert partitions() == ["high", "main"]


def test_a_cluster_without_a_default_partition_is_told(cluster: Cluster) -> None:
    cluster.set(sinfo="high|n1|idle|none")
    with pytest.raises(ClusterError, match=r"^no default partition; valid: "):
        nodes_of(None)


def test_what_sinfo_says_of_an_error_is_told(cluster: Cluster) -> None:
    (cluster.folder / "sinfo").write_text("#!/bin/sh\necho 'slurm_load_partitions: no answer' >&2\nexit 1\n")
    with pytest.raises(ClusterError, match=r"^launch=slurm: slurm_load_partitions: no answer$"):
        nodes_of(None)


def test_a_machine_without_slurm_is_told(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(cluster.folder / "nothing"))
    with pytest.raises(ClusterError, match="no sinfo on PATH"):
        nodes_of(None)
