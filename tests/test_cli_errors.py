"""Wrong input: one clear line that names the value and says what is valid, exit code 2, nothing started."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

import detsweep
from tests.conftest import clean_environment

WRONG = [
    (["dtype=bf17"], "dtype=bf17: no such option; did you mean bf16?; valid: bf16, bf16_mixed, fp16, fp32"),
    (["experts=abc"], "experts=abc: must be a whole number"),
    (["+moe.typo=1"], "moe.typo: no such key; valid: name, routing, combine, dispatch, default_top_k, "),
    (["moe.typo=1"], "moe.typo: no such key; valid: name, routing, combine, dispatch, default_top_k, "),
    (["model.num_heads=5"], "model.num_heads=5: must divide model.hidden_size=64 (valid: 1, 2, 4, 8, 16, 32, 64)"),
    (["experts=0"], "experts=0: must be at least 1"),
    (["experts=4", "moe.dispatch=all2all"], "moe.dispatch=all2all: valid: local, all_to_all"),
    (["hydra/launcher=joblib"], "hydra/launcher=joblib: detsweep starts its cells itself; use launch=local"),
    (["hydra/sweeper=optuna"], "hydra/sweeper=optuna: only basic"),
    (["mitigation=[none,primuss]"], "mitigation=primuss: no such option; did you mean primus?; valid: aten_avx2, "),
    (["dtype=bf16,fp16"], "dtype=bf16,fp16: a sweep over several values needs -m"),
    (["-m", "experts=1,0"], "experts=0: must be at least 1"),
    (["-m", "launch.max_parallel=1,2"], "launch.max_parallel=1,2: cannot be an axis of a sweep"),
    (["fault=bit_flip", "fault.block=9"], "fault.block=9: must be at most 3 in this cell"),
    (["moe=topk", "experts=2", "top_k=3"], "top_k=3: must be at most experts=2"),
    (["world.nodes=2"], "world.nodes=2: launch=local has one node; several need launch=slurm"),
    (["checksum=crc"], "checksum=crc: valid: auto, xxh3, mixed, bitsum, sha256"),
    (["+mitigation.none.evn=1"], "mitigation.none.evn: no such key; did you mean env?; valid: env, torch"),
    (["env.NCCL_ALGO=Ring"], "env.NCCL_ALGO: a variable is added to the cell's environment with +env.NCCL_ALGO=value"),
    (["+env.CUDA_VISIBLE_DEVICES=0"], "env.CUDA_VISIBLE_DEVICES: set it in the shell"),
    (["keep_env=[NOT_THERE]"], "keep_env=NOT_THERE: this shell does not have it"),
    (["trails=3"], "trails: no such key; did you mean trials?"),
    (["launch.timeout_min=nan"], "launch.timeout_min=nan: must be at least 0.001"),
    (["seed=99999999999999999999"], "seed=99999999999999999999: must be at most 4611686018427387904"),
    (["~seed"], "seed: must have a value"),
    (["folder=a", "hydra.run.dir=b"], "folder=a hydra.run.dir=b: one folder only; use folder=PATH"),
    (["+env.CUBLAS_WORKSPACE_CONFIG=x", "mitigation=recipe"], "CUBLAS_WORKSPACE_CONFIG cannot be both :4096:8"),
    (["fault=campaign", "steps=3", "fault.kinds=[bit_flop]"], "fault.kinds=bit_flop: valid: input_flip, bit_flip"),
    (
        ["fault=campaign", "steps=3", "fault.kinds=[misrouted_expert]"],
        "fault.kinds=misrouted_expert: needs experts of at least 2",
    ),
    (["fault=campaign"], "steps=1: a campaign has one fault in each step after the first; at least 2"),
    (["fault=campaign", "steps=3", "mode=train"], "mode=train: a campaign needs steps that each start clean"),
    (["fault=bit_flip", "fault.site=op"], "fault=bit_flip: fault.site=op needs observe=op"),
    (["fault=bit_flip", "fault.site=ops", "observe=op"], "fault.site=ops: valid: input, block_post"),
    (["fault=collective_flip"], "fault=collective_flip: needs observe=collective or observe=op"),
    (["runs=1"], "runs=1: mode=replay compares runs, it needs at least 2"),
    (["mode=relaunch"], "trials=1: mode=relaunch compares launches, it needs at least 2"),
    (["mode=resume", "steps=2", "runs=3"], "runs=3: mode=resume has 2, one uninterrupted and one resumed"),
    (["mode=resume"], "steps=1: mode=resume stops in the middle, it needs at least 2"),
    (["mode=lockstep", "world.nproc_per_node=1"], "world.nproc_per_node=1: mode=lockstep compares ranks"),
    (["mode=lockstep", "observe=op"], "observe=op: operators on shards differ between ranks"),
    (["accum=2"], "accum=2: mode=replay does not train; use it with mode=train or mode=resume"),
    (["world.shard_ranks=3"], "world.shard_ranks=3: must divide the 2 ranks (valid: 1, 2), or null for all"),
    (["mode=train", "clip=-1"], "clip=-1.0: must be above 0, or null for no clipping"),
    (["mode=train", "lr=-1"], "lr=-1.0: must be at least 0"),
    (["model.dropout=2"], "model.dropout=2.0: must be at most 0.99"),
    (
        ["observe=op", "compile=true"],
        "observe=op: cannot look into compiled blocks; use observe=block, or compile=false",
    ),
    (["-m", "drill=true,false"], "drill=False,True: cannot be an axis of a sweep"),
    (["against=checkpointing"], "against=checkpointing: must be key:value"),
]


def command(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "detsweep", *arguments],
        cwd=cwd,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(("arguments", "line"), WRONG, ids=lambda value: " ".join(value) if type(value) is list else "")
def test_one_line_exit_code_2_and_nothing_left(arguments: list[str], line: str, tmp_path: Path) -> None:
    done = command(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith(f"detsweep: {line}")
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_one_or_holds_something_else(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("")
    for folder, line in (("file", "File exists"), ("file/x", "Not a directory"), ("other", "holds files and is no")):
        done = command(f"folder={folder}", cwd=tmp_path)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith(f"detsweep: folder={tmp_path / folder}: {line}")
        assert done.stderr.count("\n") == 1
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["thesis.tex"]


def test_version_is_our_own(tmp_path: Path) -> None:
    assert command("--version", cwd=tmp_path).stdout == f"detsweep {detsweep.__version__}\n"


def test_dry_run_prints_cells_and_commands_and_writes_nothing(tmp_path: Path) -> None:
    done = command("-m", "dtype=bf16,fp16", "mitigation=none,recipe", "dry_run=true", cwd=tmp_path)
    assert done.returncode == 0
    assert done.stdout.startswith("4 cells, 4 trials, into ")
    assert done.stdout.count("torchrun --standalone") == 4
    assert done.stdout.count("CUBLAS_WORKSPACE_CONFIG=:4096:8") == 2
    assert list(tmp_path.iterdir()) == []


def test_help_is_fast_and_says_what_there_is(tmp_path: Path) -> None:
    # Processor time, which does not depend on what else the machine does.
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = command("--help", cwd=tmp_path)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 2
    assert done.returncode == 0
    for word in (
        "dtype: bf16, bf16_mixed, fp16, fp32",
        "mode: lockstep, playback, record, relaunch, replay, resume, train",
        "observe: block, collective, module, off, op",
        "experiment: cpu_costs, cpu_races, fleet, llm_determinism, self_test, three_arms",
        "world:",
        "Exit code",
    ):
        assert word in done.stdout


def test_the_driver_imports_no_torch(tmp_path: Path) -> None:
    program = (
        "import sys; sys.argv = ['detsweep', '-m', 'dtype=bf16,fp16', 'dry_run=true'];"
        "from detsweep.app import main; code = main();"
        "heavy = {'torch', 'pandas', 'numpy'} & set(sys.modules); assert not heavy, heavy; sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_analysis_of_a_folder_without_a_sweep(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "detsweep.analysis", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith(f"detsweep: {tmp_path}: no sweep here (no cells/*/cell.json)")
    assert done.stderr.count("\n") == 1
