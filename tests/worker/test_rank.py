"""A whole rank in this process, the only one of its group: real FSDP2, real records, real faults."""

from __future__ import annotations

import gc
import json
import os
import socket
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from detsweep import results
from detsweep.capture import SCHEMA, Stream, read_streams
from detsweep.paths import TrialPaths, read_json, write_json
from detsweep.worker import sharding
from detsweep.worker.progress import Progress
from detsweep.worker.rank import run_rank
from detsweep.worker.settings import apply, read_back
from detsweep.worker.snapshot import RandomState
from tests.support import one_cell, one_rank, one_thread, prepared

Rank = Callable[..., dict[str, Any]]
CHANGED = ("deterministic_algorithms", "fill_uninitialized_memory", "cudnn_deterministic", "cudnn_benchmark")


@pytest.fixture
def trial(tmp_path: Path) -> TrialPaths:
    return TrialPaths(tmp_path)


@pytest.fixture
def rank(trial: TrialPaths, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rank]:
    """Run rank 0 of a cell of one rank and return what it says; leaves this process as it was.

    Its variables are set here, and not by who starts it, so those are what the kernel is taken to have given.
    """
    switches, random_state = read_back(), RandomState.now(torch.device("cpu"))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    variables = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    for name, value in {**variables, "OMP_NUM_THREADS": 1, "MKL_NUM_THREADS": 1}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr("detsweep.worker.variables.kernel_environment", lambda: dict(os.environ))

    def run(*overrides: str, spec: dict[str, Any] | None = None, launch: int = 0) -> dict[str, Any]:
        asked = spec or one_cell("world.nproc_per_node=1", "warmup=0", *overrides).spec(0)
        write_json(trial.spec, asked)
        result = run_rank(asked, trial, 0, Progress(trial.progress(0)), launch=launch)
        write_json(trial.rank_result(0), result)
        return result

    with one_thread():
        yield run
    gc.unfreeze()
    if dist.is_initialized():
        dist.destroy_process_group()
    apply({"OMP_NUM_THREADS": str(switches["num_threads"])}, {name: switches[name] for name in CHANGED})
    random_state.restore(torch.device("cpu"))


def _streams(trial: TrialPaths) -> list[Stream]:
    return read_streams(trial.records(0))


def _places(stream: Stream) -> list[tuple[str, str]]:
    return [(record.site, record.name) for record in stream.records]


def _merged(trial: TrialPaths) -> dict[str, Any]:
    """The trial's result: what its ranks left behind, judged."""
    return results.merge(trial, read_json(trial.spec), returncode=0, timeout_min=None, seconds=1.0)


def test_a_clean_rank_repeats_and_records_every_run(rank: Rank, trial: TrialPaths) -> None:
    result = rank("steps=2", "runs=3", "experts=4", "moe=topk", "warmup=1")
    assert (result["verdict"], result["divergences"], result["lost"], result["differs"]) == ("pass", [], [], {})
    assert (result["replays"], result["diverged_replays"]) == (4, 0)
    streams = _streams(trial)
    assert [(one.step, one.run) for one in streams] == [(step, f"r{run}") for step in (0, 1) for run in (1, 2, 3)]
    assert result["records_compared"] == 4 * len(streams[0].records)
    # No optimizer step between them: each step starts from the same parameters, with data of its own.
    assert streams[0].digests("param") == streams[3].digests("param")
    assert streams[0].digests("input") != streams[3].digests("input")
    assert streams[0].digests("grad") != streams[3].digests("grad")
    assert not dist.is_initialized()
    assert _merged(trial)["verdict"] == "pass"


def test_records_come_in_the_order_of_the_step(rank: Rank, trial: TrialPaths) -> None:
    rank("model.num_layers=2")
    stream = _streams(trial)[0]
    places = _places(stream)
    random_states = [("rng", name) for name in ("python", "python_gauss", "numpy", "numpy_gauss", "torch")]
    assert places[:5] == places[-5:] == random_states
    assert places[5:7] == [("input", "input_ids"), ("input", "labels")]
    parameters = places[7:28]
    assert {site for site, _ in parameters} == {"param"}
    phases = [record.phase for record in stream.records]
    assert phases[:28] == ["before"] * 28
    assert phases[-26:] == ["after"] * 26
    assert places[-26:-5] == parameters
    places = places[28:-26]
    assert phases[28:-26] == ["forward"] * 6 + ["backward"] * (len(places) - 6)
    assert places[:10] == [
        ("block_pre", "blocks.0"),
        ("block_post", "blocks.0"),
        ("block_pre", "blocks.1"),
        ("block_post", "blocks.1"),
        ("logits", "logits"),
        ("loss", "loss"),
        ("block_grad_out", "blocks.1"),
        ("block_grad_in", "blocks.1"),
        ("block_grad_out", "blocks.0"),
        ("block_grad_in", "blocks.0"),
    ]
    assert {site for site, _ in places[10:]} == {"grad"}
    grads = [name for _, name in places[10:]]
    assert sorted(grads) == sorted(name for _, name in parameters)
    assert [name.split(".")[1] for name in grads[:18]] == ["1"] * 9 + ["0"] * 9
    assert not any(name.startswith("blocks.") for name in grads[18:])


@pytest.mark.parametrize("run", [1, 2])
def test_a_flipped_bit_is_found_in_its_block(rank: Rank, trial: TrialPaths, run: int) -> None:
    result = rank("fault=bit_flip", "fault.block=2", f"fault.run={run}")
    assert result["injected"] == [
        {"kind": "bit_flip", "step": 0, "run": run, "site": "block_post", "name": "blocks.2", "block": 2}
    ]
    (first,) = result["divergences"]
    assert result["verdict"] == "diverged"
    assert (first["site"], first["block"], first["name"]) == ("block_post", 2, "blocks.2")
    assert (first["run"], first["kind"]) == ("r2", "value")
    assert "block_pre" in result["differs"]
    assert _merged(trial)["first"]["cause"] == "compute"


def test_a_flipped_input_is_found_as_the_input(rank: Rank, trial: TrialPaths) -> None:
    result = rank("fault=input_flip", "steps=2", "fault.step=1", "runs=3", "fault.run=3")
    (first,) = result["divergences"]
    assert (first["step"], first["run"]) == (1, "r3")
    assert (first["site"], first["name"]) == ("input", "input_ids")
    assert _merged(trial)["first"]["cause"] == "input"


def test_a_fault_in_the_reference_shows_in_every_run_after_it(rank: Rank) -> None:
    result = rank("fault=input_flip", "fault.run=1", "runs=4")
    assert [one["run"] for one in result["divergences"]] == ["r2", "r3", "r4"]


def test_a_rank_told_to_fail_raises(rank: Rank) -> None:
    with pytest.raises(RuntimeError, match="told to fail"):
        rank("fault=rank_failure")


def test_observation_does_not_change_the_step(rank: Rank, trial: TrialPaths) -> None:
    rank("observe=block")
    observed = _streams(trial)
    trial.records(0).unlink()
    rank("observe=off")
    plain = _streams(trial)
    inside = {"block_pre", "block_post", "logits", "block_grad_out", "block_grad_in"}
    assert not inside & {record.site for record in plain[0].records}
    for one, other in zip(observed, plain, strict=True):
        kept = [(r.site, r.name, r.phase, r.digest) for r in one.records if r.site not in inside]
        # Where nothing is looked at inside, the loss is recorded after the step, before the gradients as ever.
        assert kept == [(r.site, r.name, r.phase, r.digest) for r in other.records]


def test_without_observation_a_flipped_bit_still_shows_in_the_loss(rank: Rank) -> None:
    (first,) = rank("fault=bit_flip", "observe=off", "fault.bit=14")["divergences"]
    assert first["site"] == "loss"


@pytest.mark.parametrize("checksum", ["xxh3", "mixed", "bitsum", "sha256"])
def test_every_checksum_repeats_and_is_named(rank: Rank, trial: TrialPaths, checksum: str) -> None:
    assert rank(f"checksum={checksum}")["verdict"] == "pass"
    assert {one.checksum for one in _streams(trial)} == {checksum}


def test_auto_is_named_as_what_it_was(rank: Rank, trial: TrialPaths) -> None:
    rank("checksum=auto")
    assert {one.checksum for one in _streams(trial)} == {"xxh3"}


def test_the_global_fingerprint_takes_the_last_64_bits_of_a_sha256(rank: Rank, trial: TrialPaths) -> None:
    rank("checksum_mode=global", "checksum=sha256")
    for line in map(json.loads, trial.records(0).read_text().splitlines()):
        assert len(line["output_bits"]) == 64
        assert line["global_bits"] % 2**64 == line["loss_bits"] ^ int(line["output_bits"][-16:], 16)


def test_the_global_fingerprint_of_one_rank_is_loss_xor_output(rank: Rank, trial: TrialPaths) -> None:
    rank("checksum_mode=global", "checksum=bitsum")
    for line in map(json.loads, trial.records(0).read_text().splitlines()):
        assert line["global_bits"] == line["loss_bits"] ^ line["output_bits"]
    # A sum over all ranks in 64 bits, whatever the loss is kept in.
    kinds = {(one.dtype, one.shape) for stream in _streams(trial) for one in stream.records if one.site == "global"}
    assert kinds == {("int64", ())}


def test_the_loss_is_that_of_random_logits(rank: Rank, trial: TrialPaths) -> None:
    # With small random weights about log(vocabulary); labels equal to the ids would bring it near 0.
    loss = rank("dtype=fp32")["loss"]
    assert 5.9 < loss < 6.6
    bits = torch.tensor(_streams(trial)[0].digests("loss"), dtype=torch.int32)
    assert bits.view(torch.float32).item() == loss


@pytest.mark.parametrize("dtype", ["fp16", "fp32", "bf16_mixed"])
def test_every_dtype_repeats_in_its_own_dtypes(rank: Rank, trial: TrialPaths, dtype: str) -> None:
    assert rank(f"dtype={dtype}")["verdict"] == "pass"
    kept = {"fp16": "float16", "fp32": "float32", "bf16_mixed": "float32"}[dtype]
    computed = {"fp16": "float16", "fp32": "float32", "bf16_mixed": "bfloat16"}[dtype]
    records = _streams(trial)[0].records
    assert {record.dtype for record in records if record.site == "param"} == {kept}
    assert {record.dtype for record in records if record.site in ("block_pre", "block_post")} == {computed}


def test_switches_of_a_mitigation_are_in_force(rank: Rank, trial: TrialPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    assert rank("mitigation=[recipe]")["verdict"] == "pass"
    report = read_json(trial.environment(0))
    assert report["settings"]["deterministic_algorithms"] == "warn"
    assert report["variables"]["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"


def test_a_variable_that_did_not_arrive_makes_the_rank_invalid(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    result = rank("mitigation=[recipe]", "fault=input_flip")
    assert result["verdict"] == "invalid"
    assert result["lost"] == ["CUBLAS_WORKSPACE_CONFIG should be :4096:8, was unset when the process started"]


def test_what_became_of_every_setting_is_in_the_result_and_in_the_report(
    rank: Rank, trial: TrialPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    monkeypatch.setenv("MY_FLAG", "1")
    result = rank("mitigation=[recipe]", "+env.MY_FLAG=1")
    effects = {
        mitigation: {name: one["status"] for name, one in settings.items()}
        for mitigation, settings in result["effects"].items()
    }
    assert effects == {
        "recipe": {
            "CUBLAS_WORKSPACE_CONFIG": "inert",
            "deterministic_algorithms": "effective",
            "cudnn_deterministic": "inert",
            "cudnn_benchmark": "inert",
        },
        "env": {"MY_FLAG": "set"},
    }
    assert read_json(trial.environment(0))["effects"] == result["effects"]


def test_threads_that_a_rank_did_not_get_make_it_invalid(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MKL_NUM_THREADS", "3")
    result = rank()
    assert (result["verdict"], result["effects"]) == ("invalid", {})
    assert result["lost"] == ["MKL_NUM_THREADS should be 1, was 3 when the process started"]


def test_what_a_library_sets_is_reported_where_it_changes_bits(
    rank: Rank, trial: TrialPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = dict(os.environ)
    monkeypatch.setattr("detsweep.worker.variables.kernel_environment", lambda: started)
    for name in ("NCCL_PROTO", "TORCHINDUCTOR_CACHE_DIR", "SOME_PATH"):
        monkeypatch.setenv(name, "LL")
    result = rank()
    assert (result["verdict"], result["appeared"]) == ("pass", {"NCCL_PROTO": "LL"})
    assert read_json(trial.environment(0))["appeared"] == {"NCCL_PROTO": "LL"}


@pytest.mark.parametrize(
    ("overrides", "refused"),
    [
        (("require=[torch_det]",), ["deterministic_algorithms must be strict, is off"]),
        (
            ("require=[torch_det]", "mitigation=[torch_det_nofill]"),
            ["fill_uninitialized_memory must be True, is False"],
        ),
        (("require=[no_compile]",), ["TORCH_COMPILE_DISABLE must be 1, is unset"]),
    ],
    ids=str,
)
def test_a_rank_that_lacks_what_is_required_refuses_before_it_builds_anything(
    rank: Rank, trial: TrialPaths, overrides: tuple[str, ...], refused: list[str]
) -> None:
    assert rank(*overrides) == {"schema": SCHEMA, "rank": 0, "verdict": "invalid", "refused": refused}
    assert not trial.records(0).exists()
    assert not trial.environment(0).exists()
    merged = _merged(trial)
    error = f"refused, required and not in force: rank 0: {refused[0]}"
    assert (merged["verdict"], merged["error"]) == ("invalid", error)


def test_a_rank_that_has_what_is_required_runs(rank: Rank) -> None:
    assert rank("require=[torch_det]", "mitigation=[torch_det]")["verdict"] == "pass"


def test_a_group_of_another_size_is_refused(rank: Rank) -> None:
    spec = one_cell("world.nproc_per_node=2").spec(0)
    with pytest.raises(RuntimeError, match="world size is 1, the trial asks for 2"):
        rank(spec=spec)


def test_without_warming_up_the_first_run_is_compared_too(rank: Rank) -> None:
    result = rank("warmup=0", "runs=3")
    assert (result["verdict"], result["replays"]) == ("pass", 2)
    assert result["plain_step_ms"] > 0


def test_the_report_says_what_the_rank_really_had(
    rank: Rank, trial: TrialPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    rank()
    report = read_json(trial.environment(0))
    assert report["rank"] == 0
    assert report["torch"] == str(torch.__version__)
    assert report["settings"]["num_threads"] == 1
    assert report["device"]["type"] == "cpu"
    assert report["variables"]["OMP_NUM_THREADS"] == "1"
    assert report["variables"]["NCCL_DEBUG"] == "WARN"
    assert "PATH" not in report["variables"]
    assert any("libtorch" in Path(library).name for library in report["libraries"])


@pytest.mark.parametrize(("times", "least"), [("plain_step_ms", 0.0), ("step_ms", 0.0)])
def test_a_step_takes_time(rank: Rank, times: str, least: float) -> None:
    assert rank()[times] > least


# --- modes -----------------------------------------------------------------------------------------------------------

RESUME = ("mode=resume", "steps=4", "model.dropout=0.1")


def test_trajectories_train_and_repeat(rank: Rank, trial: TrialPaths) -> None:
    result = rank("mode=train", "steps=3", "runs=2", "warmup=1", "clip=1.0", "accum=2", "model.dropout=0.1")
    assert (result["verdict"], result["replays"]) == ("pass", 3)
    streams = _streams(trial)
    assert [(one.step, one.run) for one in streams] == [(step, run) for run in ("r1", "r2") for step in range(3)]
    assert streams[0].digests("param") != streams[1].digests("param")
    assert _merged(trial)["verdict"] == "pass"


def test_the_first_of_two_launches_leaves_a_checkpoint_and_no_result(rank: Rank, trial: TrialPaths) -> None:
    result = rank(*RESUME)
    assert result == {"schema": SCHEMA, "rank": 0, "verdict": "none", "injected": [], "groups": {}, "lost": []}
    assert trial.checkpoint.is_dir()
    assert [(one.step, one.run) for one in _streams(trial)] == [
        *((step, "r1") for step in range(4)),
        (0, "r2"),
        (1, "r2"),
    ]
    assert not dist.is_initialized()


def test_what_the_first_launch_lost_is_not_forgotten_by_the_second(
    rank: Rank, trial: TrialPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MKL_NUM_THREADS", "3")
    rank(*RESUME)
    monkeypatch.setenv("MKL_NUM_THREADS", "1")
    result = rank(*RESUME, launch=1)
    assert result["verdict"] == "invalid"
    assert result["lost"] == ["MKL_NUM_THREADS should be 1, was 3 when the process started"]
    assert _merged(trial)["verdict"] == "invalid"


def test_the_second_launch_goes_on_and_removes_the_checkpoint(rank: Rank, trial: TrialPaths) -> None:
    rank(*RESUME)
    result = rank(*RESUME, launch=1)
    assert (result["verdict"], result["replays"], result["divergences"]) == ("pass", 4, [])
    assert not trial.checkpoint.exists()
    assert [(one.step, one.run) for one in _streams(trial)][4:] == [(step, "r2") for step in range(4)]
    merged = _merged(trial)
    assert (merged["verdict"], merged["replays"]) == ("pass", 4)


def test_a_checkpoint_that_is_evidence_stays(rank: Rank, trial: TrialPaths) -> None:
    fault = (*RESUME, "fault=rng_not_restored")
    rank(*fault)
    result = rank(*fault, launch=1)
    assert [one["step"] for one in result["divergences"]] == [2, 3]
    assert trial.checkpoint.is_dir()
    first = _merged(trial)["first"]
    assert (first["step"], first["site"], first["name"], first["cause"]) == (2, "rng", "torch", "checkpoint")


def test_a_trial_is_never_run_over(rank: Rank, trial: TrialPaths) -> None:
    rank()
    with pytest.raises(FileExistsError, match="this trial has been run, and is not run over"):
        rank()


@pytest.mark.parametrize("level", ["off", "block", "module", "collective", "op"])
def test_every_level_repeats(rank: Rank, level: str) -> None:
    assert rank(f"observe={level}", "model.dropout=0.1", "checkpointing=block")["verdict"] == "pass"


# --- device and group ------------------------------------------------------------------------------------------------


def test_a_gpu_that_is_not_there_is_an_error_and_no_fall_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "999")
    with pytest.raises(RuntimeError, match=r"device=cuda, but torch .* for local rank 999"):
        sharding.open_device("cuda")
    assert sharding.open_device("cpu") == torch.device("cpu")


@pytest.mark.parametrize("minutes", [0.5, 30.0])
def test_a_collective_waits_longer_than_the_trial_may_take(monkeypatch: pytest.MonkeyPatch, minutes: float) -> None:
    asked: dict[str, Any] = {}
    monkeypatch.setattr(dist, "init_process_group", lambda backend, **options: asked.update(options, backend=backend))
    sharding.open_group(torch.device("cpu"), minutes)
    assert asked["timeout"] > timedelta(minutes=minutes)
    assert (asked["backend"], asked["device_id"]) == ("gloo", None)


# --- what is a rank's own --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mode", "alike"), [("replay", False), ("relaunch", False), ("lockstep", True)])
def test_only_in_lockstep_ranks_have_the_same_data_and_random_numbers(tmp_path: Path, mode: str, alike: bool) -> None:
    found = []
    with one_rank():
        for rank in (0, 1):
            step = prepared(tmp_path, f"mode={mode}", "observe=block", rank=rank)
            stream = step.observed(1, 1).stream
            found.append([stream.digests(site) for site in ("param", "input", "rng")])
    # The weights are the same on every rank, in every mode.
    assert [one == other for one, other in zip(*found, strict=True)] == [True, alike, alike]
