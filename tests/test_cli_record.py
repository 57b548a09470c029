"""Recording real ranks and playing one of them back alone, from the command line."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import detsweep as package
from detsweep.paths import RecordingPaths
from tests.conftest import Ran, Run, clean_environment

EXAMPLE = Path(__file__).resolve().parents[1] / "scripts" / "replay_example.py"
FAULT = ("fault=bit_flip", "fault.site=op", "fault.rank=2", "fault.step=3", "fault.run=1", "fault.block=1")
NAN = ("fault=collective_flip", "fault.step=17", "fault.run=1", "fault.rank=1", "fault.number=2", "fault.bit=30")


def replay(*words: str | Path) -> subprocess.CompletedProcess[str]:
    """`python -m detsweep.replay`, run to its end."""
    return subprocess.run(
        [sys.executable, "-m", "detsweep.replay", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=clean_environment(),
    )


def trial(ran: Ran) -> Path:
    """The trial of the only cell."""
    (cell,) = ran.cells().values()
    return cell / "trial0"


@pytest.fixture(scope="module")
def recorded(detsweep: Run) -> Ran:
    # Experts on other ranks, sub-groups, accumulation, an optimizer, clipping: all that goes over a group.
    ran = detsweep(
        "mode=record",
        "steps=5",
        "accum=2",
        "clip=1.0",
        "moe=top2",
        "experts=4",
        "moe.dispatch=all_to_all",
        "dtype=bf16_mixed",
        "world.nproc_per_node=4",
        "world.shard_ranks=2",
    )
    assert ran.code == 0, ran.out + ran.err
    return ran


@pytest.fixture(scope="module")
def struck(detsweep: Run) -> Ran:
    """A bit of one rank's compute flipped at step 3, of an operator."""
    ran = detsweep("mode=record", "steps=5", "world.nproc_per_node=3", "observe=op", "record.every=2", *FAULT)
    assert ran.code == 0, ran.out + ran.err
    return ran


@pytest.fixture(scope="module")
def kept(detsweep: Run) -> Ran:
    """What a not finite value leaves of a recording of which only the last steps are kept."""
    ran = detsweep("mode=record", "steps=20", "record.keep=5", "dtype=fp32", "observe=collective", *NAN)
    assert ran.code == 0, ran.out + ran.err
    return ran


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example of the README, run twice."""
    folder = tmp_path_factory.mktemp("example")
    for name in ("a", "b"):
        command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(EXAMPLE)]
        done = subprocess.run(
            [sys.executable, *command, str(folder / name)],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            env=clean_environment(),
        )
        assert done.returncode == 0, done.stderr
    return folder


# --- every rank, bit for bit -----------------------------------------------------------------------------------------


def test_a_recording_that_compared_nothing_says_so(recorded: Ran) -> None:
    assert {result["verdict"] for result in recorded.results().values()} == {"recorded"}
    assert "1 recorded" in recorded.out
    assert "pass" not in recorded.out
    assert set(package.load(recorded.folder).trials["verdict"]) == {"recorded"}


def test_every_rank_is_played_back_alone_bit_for_bit(recorded: Ran) -> None:
    folder = trial(recorded)
    done = replay(folder, "--all")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("bit for bit as recorded") == 5
    for rank in range(4):
        (one,) = json.loads(RecordingPaths(folder / "recording").replay(rank).read_text())["passes"]
        assert one["records"] > 500
        assert one["inputs"] > 100
        assert (one["differs"], one["mismatches"]) == ({}, 0)


def test_the_recording_has_what_crossed_the_group(recorded: Ran) -> None:
    folder = trial(recorded) / "recording" / "rank003"
    lines = [json.loads(line) for line in (folder / "step000002.jsonl").read_text().splitlines()]
    calls = [line for line in lines if line.get("kind") == "collective"]
    operators = {call["op"] for call in calls}
    assert {
        "c10d._allgather_base_",
        "c10d._reduce_scatter_base_",
        "c10d.allreduce_",
        "c10d.alltoall_base_",
    } <= operators
    assert {tuple(call["ranks"]) for call in calls} >= {(0, 1, 2, 3), (2, 3), (1, 3)}
    assert {call.get("reduce") for call in calls if "reduce" in call["op"]} <= {"sum", "avg"}
    payload = (folder / "step000002.bin").stat().st_size
    assert payload == sum(side[4] for line in lines for side in line.get("out", ()))
    assert (folder / "step000002.jsonl").stat().st_size < payload / 20


# --- a fault ---------------------------------------------------------------------------------------------------------


def test_the_rank_that_computed_wrong_is_named_with_step_operator_and_block(struck: Ran) -> None:
    done = replay(trial(struck), "--rank", "2", "--step", "2..4")
    assert done.returncode == 1
    assert "rank 2, steps 2 to 4: not as recorded" in done.stdout
    assert "first difference: step 3, op of block 1: aten." in done.stdout
    assert "in blocks.1" in done.stdout


def test_ranks_that_only_received_are_clean(struck: Ran) -> None:
    done = replay(trial(struck), "--rank", "0")
    assert done.returncode == 0, done.stdout
    assert "bit for bit as recorded" in done.stdout


def test_with_the_fault_put_in_again_the_rank_is_as_recorded(struck: Ran) -> None:
    done = replay(trial(struck), "--rank", "2", "--step", "3", "--with-fault", "--repeat", "2")
    assert done.returncode == 0, done.stdout
    assert "rank 2, step 3 (from the snapshot at step 2): bit for bit as recorded" in done.stdout
    assert "2 replays are all alike" in done.stdout


# --- what is kept ----------------------------------------------------------------------------------------------------


def test_only_the_last_steps_before_a_value_that_is_not_finite_are_kept(kept: Ran) -> None:
    for rank in range(2):
        paths = RecordingPaths(trial(kept) / "recording").rank(rank)
        assert paths.logs() == paths.snapshots() == [13, 14, 15, 16, 17]
        assert sorted(path.name for path in paths.folder.glob("*.bin")) == [f"step{n:06d}.bin" for n in range(13, 18)]
    assert "are not finite: the last steps up to 17 are kept" in kept.out


def test_they_are_played_back_to_the_same_values_that_are_not_finite(kept: Ran) -> None:
    done = replay(trial(kept), "--rank", "0", "--step", "16..17")
    assert done.returncode == 0, done.stdout
    assert "rank 0, steps 16 to 17: bit for bit as recorded" in done.stdout
    assert "are not finite in step 17" in done.stdout


# --- fed by what r1 received -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "run", "cause", "said"),
    [
        ("bit_flip", 2, "compute", "fed what r1 received 1 of 5 runs differ, live 0 of 5: a rank's own compute"),
        ("collective_flip", 3, "collective", "fed what r1 received 0 of 5 runs differ, live 1 of 5: too few to tell"),
    ],
)
def test_playback_tells_compute_from_communication(detsweep: Run, fault: str, run: int, cause: str, said: str) -> None:
    own = (f"fault={fault}", f"fault.run={run}", "fault.rank=1", "fault.number=3")
    ran = detsweep("mode=playback", "observe=collective", *own)
    assert ran.code == 1
    (result,) = ran.results().values()
    assert (result["first"]["cause"], result["first"]["run"]) == (cause, f"r{run}")
    assert any(said in note for note in result["notes"])


# --- a program of one's own ------------------------------------------------------------------------------------------


def test_the_example_repeats_and_one_of_its_ranks_is_played_back(example: Path) -> None:
    assert replay("diff", example / "a", example / "b").stdout.splitlines() == [
        "rank 0: 35 calls of 5 steps are equal",
        "rank 1: 35 calls of 5 steps are equal",
    ]
    done = replay(example / "a", "--rank", "1", "--step", "2..4")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "rank 1, steps 2 to 4 (from the snapshot at step 0): bit for bit as recorded" in done.stdout


def test_its_gradients_are_sha256(example: Path) -> None:
    lines = [json.loads(line) for line in (example / "a" / "rank001.jsonl").read_text().splitlines()]
    assert len(lines) == 5
    for line in lines:
        assert {len(digest) for digest in line["grads"].values()} == {64}


MODULE = """
import sys
import torch, torch.distributed as dist, torch.nn.functional as F
from torch.distributed.fsdp import fully_shard
import detsweep
from .data import batch

dist.init_process_group("gloo")
own = dist.new_group([dist.get_rank()], backend="gloo")
torch.manual_seed(7)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 1))
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=9)
with detsweep.record(sys.argv[1], model, optimizer, every=2, state={"scheduler": scheduler}) as tape:
    for step in tape.steps(6):
        (x,) = tape.data("x", batch(step))
        for _ in range(2):
            loss = F.mse_loss(model(x), x[:, :1])
            loss.backward()
        count = torch.ones(1)
        dist.all_reduce(count, group=own)
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
print("the last loss is", loss.item())
"""


def test_a_module_with_a_scheduler_and_groups_of_its_own_is_played_back_from_its_middle(tmp_path: Path) -> None:
    (tmp_path / "training").mkdir()
    (tmp_path / "training" / "__init__.py").touch()
    (tmp_path / "training" / "data.py").write_text("import torch\ndef batch(step): return torch.randn(4, 8)\n")
    (tmp_path / "training" / "main.py").write_text(MODULE)
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "training.main", "tape"]
    done = subprocess.run(
        [sys.executable, *command],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=clean_environment(),
    )
    assert done.returncode == 0, done.stderr
    played = replay(tmp_path / "tape", "--rank", "1", "--step", "5")
    assert played.returncode == 0, played.stdout + played.stderr
    assert "rank 1, step 5 (from the snapshot at step 4): bit for bit as recorded" in played.stdout
    # What comes after the steps is the program's own, and cannot lose the answer.
    stopped = replay(tmp_path / "tape", "--rank", "0", "--step", "4", "--until", "0")
    assert stopped.returncode == 0, stopped.stdout + stopped.stderr
    assert "note: after its steps the program ended with exit code 1" in stopped.stdout
    assert "stopped at step 4, call 0: x" in stopped.stdout


# --- wrong input -----------------------------------------------------------------------------------------------------


@pytest.fixture
def damaged(kept: Ran, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trial(kept), tmp_path / "trial0"))


def _edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_what_cannot_be_replayed_gets_one_line_and_exit_code_2(kept: Ran, damaged: Path, tmp_path: Path) -> None:
    (empty := tmp_path / "empty").mkdir()
    whole, own = trial(kept), damaged / "recording" / "rank001"
    said = {
        "does not exist: the recording is of ranks 0 to 1": (whole, "--rank", "2"),
        "step 3 is not in the recording of rank 1: it has 13 to 17": (whole, "--rank", "1", "--step", "3"),
        "--step 3..x: valid: a number (17) or a range (10..12)": (whole, "--rank", "1", "--step", "3..x"),
        "--until 999: step 17 has calls 0 to": (whole, "--rank", "1", "--until", "999"),
        "no such folder": (tmp_path / "nothing", "--rank", "0"),
        "no recording here": (empty, "--rank", "0"),
    }
    payload = bytearray((own / "step000015.bin").read_bytes())
    payload[1000] ^= 1
    (own / "step000015.bin").write_bytes(payload)
    said["step000015.bin: bytes"] = (damaged, "--rank", "1")
    for words, command in said.items():
        _refused(words, *command)
    (own / "step000015.bin").write_bytes(payload[:-1])
    _refused(f"has {len(payload) - 1} bytes, {len(payload)} were written", damaged, "--rank", "1")
    log = (own / "step000015.jsonl").read_bytes()
    (own / "step000015.jsonl").write_bytes(log[:-40])
    _refused("step000015.jsonl is cut off in line", damaged, "--rank", "1")
    (own / "step000015.jsonl").write_bytes(log.replace(b'"version":1', b'"version":7', 1))
    _refused("is version 7 of detsweep-recording", damaged, "--rank", "1")
    shutil.rmtree(own)
    _refused("rank001 is missing: rank 1 of 2 has no recording", damaged, "--all")
    spec = json.loads((damaged / "spec.json").read_text())
    _edit(damaged / "spec.json", config={**spec["config"], "lr": 0.5})
    _refused("is of another configuration than", damaged, "--rank", "0")


def _refused(words: str, *command: str | Path) -> None:
    done = replay(*command)
    assert done.returncode == 2, done.stdout + done.stderr
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("mode=record", "record.payload=half"), "record.payload=half: valid: digest, outputs, all"),
        (("mode=replay", "record.keep=3"), "record.keep=3: only means something with mode=record"),
        (("mode=record", "steps=3", "record.first=3"), "record.first=3: the last step is 2"),
        (("mode=playback", "runs=2"), "runs=2: mode=playback has r1, r2 fed what r1 received, and r3 live"),
        (("mode=train", "optimizer=none"), "optimizer=none: mode=train takes optimizer steps"),
    ],
)
def test_settings_that_make_no_sense_are_refused(detsweep: Run, words: tuple[str, ...], said: str) -> None:
    ran = detsweep(*words)
    assert ran.code == 2
    assert said in ran.err
    assert not ran.folder.exists()
