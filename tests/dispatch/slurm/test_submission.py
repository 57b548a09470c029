"""What sbatch is given: the script, the environment, and what is said where Slurm will not have it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from detsweep.dispatch.slurm import check, submission
from detsweep.dispatch.slurm.arrays import Array, Member
from detsweep.dispatch.slurm.asking import AwayError
from detsweep.dispatch.slurm.node import SlurmLaunch
from detsweep.dispatch.slurm.submission import RefusedError, clean_environment, name_of
from detsweep.nodes import ClusterError
from detsweep.paths import SweepPaths, read_json
from detsweep.resources import resources_of
from tests.dispatch.slurm.commands import AWAY, Cluster
from tests.support import compose, plan_of

ALLOCATION = {
    "SLURM_JOB_ID": "99", "SLURM_MEM_PER_NODE": "4096", "SLURM_CPU_BIND": "x", "SLURMD_NODENAME": "node9",
    "SBATCH_PARTITION": "wrong", "SBATCH_TIMELIMIT": "1", "SALLOC_QOS": "low", "PMIX_RANK": "3", "PMI_RANK": "3",
    "SRUN_CPUS_PER_TASK": "7", "RANK": "2", "WORLD_SIZE": "8", "MASTER_ADDR": "node9", "SUBMITIT_EXECUTOR": "slurm",
}  # fmt: skip
KEPT = {"SLURM_CONF": "/etc/other/slurm.conf", "SLURM_CLUSTERS": "big"}


def _submit(folder: Path, *overrides: str, trials: int = 3, after: tuple[str, ...] = (), lanes: int = 2) -> Array:
    sweep = SweepPaths(folder / "runs")
    sweep.jobs.mkdir(parents=True)
    members = tuple(Member("0123456789", number, 0) for number in range(trials))
    array = Array(4, "mine-4", None, tuple(range(lanes)), members)
    launches = [SlurmLaunch(f"/trial{number}", 30.0, 0) for number in range(trials)]
    resources = resources_of(compose("launch=slurm", *overrides))
    return submission.submit(sweep, array, resources, launches, after)


def _script(cluster: Cluster) -> tuple[dict[str, str], list[str]]:
    """What the script asks for, and its other lines."""
    (call,) = cluster.submitted()
    lines = call["text"].splitlines()
    flags = dict(re.findall(r"^#SBATCH --([\w-]+)=?(.*)$", call["text"], re.MULTILINE))
    return flags, [line for line in lines if line and not line.startswith("#")]


def test_an_array_is_throttled_to_its_lanes_and_its_id_is_noted(tmp_path: Path, cluster: Cluster) -> None:
    array = _submit(tmp_path, trials=5, lanes=2)
    assert _script(cluster)[0]["array"] == "0-4%2"
    assert array.job == "101"
    assert read_json(SweepPaths(tmp_path / "runs").array(4))["job"] == "101"
    assert sorted(path.name for path in (tmp_path / "runs" / ".jobs").glob("101*.pkl")) == [
        f"101_{index}_submitted.pkl" for index in range(5)
    ]


def test_one_trial_is_no_array(tmp_path: Path, cluster: Cluster) -> None:
    array = _submit(tmp_path, trials=1, lanes=1)
    assert "array" not in _script(cluster)[0]
    assert array.element(0) == "101"


def test_each_key_is_a_flag_of_sbatch(tmp_path: Path, cluster: Cluster) -> None:
    keys = {
        "partition": "high", "account": "me", "qos": "long", "reservation": "ours", "constraint": "a100&ib",
        "nodelist": "node[1-2]", "exclude": "node7", "time_min": "50", "cpus_per_node": "12", "gpus_per_node": "4",
        "memory_gb": "1.5", "requeue": "false",
    }  # fmt: skip
    words = [
        f"launch.{key}='{value}'" for key, value in keys.items() if value.replace("[", "") != value or "&" in value
    ]
    words += [f"launch.{key}={value}" for key, value in keys.items() if not ("[" in value or "&" in value)]
    _submit(tmp_path, *words, "+launch.sbatch.licenses=x:1", "+launch.sbatch.exclusive=true", "world.nodes=2")
    flags, _ = _script(cluster)
    expected = {
        "job-name": "mine-4", "partition": "high", "account": "me", "qos": "long", "reservation": "ours",
        "constraint": "'a100&ib'", "nodelist": "'node[1-2]'", "exclude": "node7", "time": "50", "cpus-per-task": "12",
        "gpus-per-node": "4", "mem": "1536M", "no-requeue": "", "licenses": "x:1", "exclusive": "", "nodes": "2",
        "ntasks-per-node": "1", "signal": "USR2@30", "open-mode": "append",
    }  # fmt: skip
    assert {key: flags.get(key) for key in expected} == expected
    assert not {"requeue", "error", "dependency"} & flags.keys()


def test_what_is_not_asked_for_is_slurms_to_choose(tmp_path: Path, cluster: Cluster) -> None:
    _submit(tmp_path)
    flags, _ = _script(cluster)
    unset = {"partition", "account", "qos", "reservation", "constraint", "nodelist", "exclude", "mem", "gpus-per-node"}
    assert not unset & flags.keys()
    assert (flags["time"], flags["cpus-per-task"], flags["requeue"]) == ("35", "2", "")


def test_an_array_begins_when_those_before_it_are_over(tmp_path: Path, cluster: Cluster) -> None:
    _submit(tmp_path, after=("7", "12"))
    assert _script(cluster)[0]["dependency"] == "afterany:7:12"


def test_a_task_on_each_node_runs_with_the_sweeps_python_after_the_lines_of_setup(
    tmp_path: Path, cluster: Cluster
) -> None:
    _submit(tmp_path, "launch.setup=['module load x','ulimit -l unlimited']", "launch.srun_args=['--mpi=none']",
            "launch.python=/opt/python", "world.nproc_per_node=3", "world.threads_per_rank=2")  # fmt: skip
    _, lines = _script(cluster)
    assert lines[:2] == ["module load x", "ulimit -l unlimited"]
    srun = lines[-1]
    assert srun.startswith("srun ")
    assert "--cpus-per-task=6 --cpu-bind=none --kill-on-bad-exit=0 --mpi=none /opt/python -u -m submitit" in srun


def test_what_an_allocation_says_of_itself_is_not_told_to_new_jobs(
    tmp_path: Path, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {**ALLOCATION, **KEPT, "MY_OWN": "1"}.items():
        monkeypatch.setenv(name, value)
    _submit(tmp_path)
    (call,) = cluster.submitted()
    seen = call["environment"]
    assert not ALLOCATION.keys() & seen.keys()
    assert {name: seen[name] for name in (*KEPT, "MY_OWN")} == {**KEPT, "MY_OWN": "1"}
    with clean_environment():
        assert "SLURM_JOB_ID" not in submission.os.environ
    assert {name: submission.os.environ[name] for name in ALLOCATION} == ALLOCATION


def test_the_environment_is_given_back_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "99")

    def fail() -> None:
        with clean_environment():
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert submission.os.environ["SLURM_JOB_ID"] == "99"


@pytest.mark.parametrize(
    ("state", "error", "said"),
    [
        ({"down": AWAY}, AwayError, "sbatch: Unable to contact"),
        ({"silent": True}, AwayError, "sbatch: Batch job submission failed: Socket timed out"),
        ({"refused": "Invalid qos specification"}, RefusedError, "sbatch: Batch job submission failed: Invalid qos"),
    ],
    ids=["away", "silent", "refused"],
)
def test_what_passes_is_told_from_what_never_will(
    tmp_path: Path, cluster: Cluster, state: dict[str, Any], error: type[Exception], said: str
) -> None:
    cluster.set(**state)
    with pytest.raises(error, match=said):
        _submit(tmp_path)


def test_a_sweep_has_one_name_that_no_other_has(tmp_path: Path) -> None:
    one, other = SweepPaths(tmp_path / "a"), SweepPaths(tmp_path / "b")
    assert name_of(one) == name_of(one) != name_of(other)
    assert re.fullmatch(r"detsweep-[0-9a-f]{8}", name_of(one))


# --- before anything starts ------------------------------------------------------------------------------------------


def test_each_group_of_resources_is_tried_once_before_anything_starts(cluster: Cluster) -> None:
    points = ["seed=1"], ["seed=2"], ["launch.memory_gb=4", "seed=3"], ["mitigation=[primus]", "launch.memory_gb=9"]
    check(plan_of(*points, common=["launch=slurm"]))
    tried = [call["words"] for call in cluster.calls if call["name"] == "sbatch"]
    # What this platform cannot run asks for nothing.
    assert [[word for word in words if "mem" in word] for words in tried] == [[], ["--mem=4096M"]]
    assert all(words[0] == "--test-only" for words in tried)
    assert cluster.jobs == {}


def test_a_refusal_is_told_in_slurms_words_with_the_keys_that_ask(cluster: Cluster) -> None:
    cluster.set(refused="Invalid account or account/partition combination specified", sinfo="main\nhigh\nmain")
    with pytest.raises(ClusterError) as caught:
        check(plan_of(["launch.account=me", "launch.partition=fast", "seed=1"], common=["launch=slurm"]))
    assert str(caught.value) == (
        "launch=slurm: Slurm refuses: Invalid account or account/partition combination specified; partitions: high, "
        "main (asked for: world.nodes=1 launch.cpus_per_node=2 launch.time_min=35 launch.partition=fast "
        "launch.account=me)"
    )


@pytest.mark.parametrize(("state", "refused"), [("idle", True), ("down", False)])
def test_what_is_not_available_while_nodes_are_down_waits_for_them(cluster: Cluster, state: str, refused: bool) -> None:
    cluster.set(refused="Requested node configuration is not available", sinfo=f"main*|node1|{state}|none")
    plan = plan_of(["seed=1"], common=["launch=slurm"])
    if refused:
        with pytest.raises(ClusterError, match="Requested node configuration"):
            check(plan)
    else:
        check(plan)


def test_a_controller_that_is_away_is_no_refusal(cluster: Cluster) -> None:
    cluster.set(down=AWAY)
    check(plan_of(["seed=1"], common=["launch=slurm"]))


def test_what_the_shell_has_for_sbatch_is_said_to_be_kept_out(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SBATCH_QOS", "low")
    monkeypatch.setenv("SBATCH_ACCOUNT", "other")
    check(plan_of(["seed=1"], common=["launch=slurm"]))
    assert "kept out of the submission: this shell's SBATCH_ACCOUNT, SBATCH_QOS " in capsys.readouterr().err
    assert not any("SBATCH_QOS" in call["environment"] for call in cluster.calls)


def test_a_machine_without_slurm_is_told_what_it_lacks(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    (cluster.folder / "srun").unlink()
    (cluster.folder / "squeue").unlink()
    monkeypatch.setenv("PATH", str(cluster.folder))
    with pytest.raises(ClusterError, match="launch=slurm: no srun, squeue on PATH"):
        check(plan_of(["seed=1"], common=["launch=slurm"]))
