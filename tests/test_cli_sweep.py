"""The main job: four cells on two gloo ranks, from the command line to captures, frames and the matrix."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import detsweep as package
from tests.conftest import Ran, Run, run_detsweep

# The three programs of the LLM determinism recipe, as they stand there.
JQ_EQUAL = '$f + ": " + (.[0].block_post == .[1].block_post | tostring)'
JQ_LOSS = "{rank, run, loss_bits}"
JQ_FIRST = "[.[0].block_post, .[1].block_post] | transpose | map(.[0]==.[1]) | index(false)"


@pytest.fixture(scope="module")
def main_job(detsweep: Run) -> Ran:
    return detsweep("-m", "dtype=bf16,fp16", "experts=1,4")


def captures(ran: Ran) -> list[Path]:
    return sorted(ran.folder.glob("cells/*/trial0/rank*.jsonl"))


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_four_cells_pass_with_exit_code_0(main_job: Ran) -> None:
    assert main_job.code == 0, main_job.out + main_job.err
    assert sorted(main_job.cells()) == [
        "dtype-bf16_experts-1",
        "dtype-bf16_experts-4",
        "dtype-fp16_experts-1",
        "dtype-fp16_experts-4",
    ]
    assert {result["verdict"] for result in main_job.results().values()} == {"pass"}


def test_progress_is_one_plain_line_for_each_trial(main_job: Ran) -> None:
    for number, label in enumerate(("bf16 experts=1", "bf16 experts=4", "fp16 experts=1", "fp16 experts=4"), start=1):
        assert f"[{number}/4] dtype={label}: pass in " in main_job.out
    assert "s left" in main_job.out
    assert "\x1b" not in main_job.out


def test_each_rank_keeps_a_line_for_each_run_with_the_recipes_keys(main_job: Ran) -> None:
    paths = captures(main_job)
    assert [path.name for path in paths] == ["rank000.jsonl", "rank001.jsonl"] * 4
    for path in paths:
        first, second = lines(path)
        layers = json.loads((path.parent / "spec.json").read_text())["config"]["model"]["num_layers"]
        assert (first["run"], second["run"]) == ("r1", "r2")
        assert len(first["block_pre"]) == len(first["block_post"]) == layers
        assert first["loss_bits"] == second["loss_bits"] != 0
        assert first["grads"] == second["grads"]
        assert len(first["grads"]) == len(first["params"]) > layers


def test_ranks_have_batches_of_their_own(main_job: Ran) -> None:
    bits = [lines(path)[0]["loss_bits"] for path in captures(main_job)]
    assert len(set(bits)) == len(bits)


@pytest.mark.skipif(shutil.which("jq") is None, reason="needs jq")
def test_the_recipes_jq_programs_work_unchanged(main_job: Ran) -> None:
    def jq(*arguments: str) -> str:
        return subprocess.run(["jq", *arguments], capture_output=True, text=True, check=True).stdout

    for path in map(str, captures(main_job)):
        assert jq("-s", "--arg", "f", path, JQ_EQUAL, path) == f'"{path}: true"\n'
        assert [json.loads(line)["run"] for line in jq("-c", JQ_LOSS, path).splitlines()] == ["r1", "r2"]
        assert jq("-s", JQ_FIRST, path) == "null\n"


def test_load_gives_a_row_for_each_trial_with_the_axes_that_vary(main_job: Ran) -> None:
    sweep = package.load(main_job.folder)
    assert sweep.axes == ("dtype", "experts")
    assert list(sweep.trials["dtype"]) == ["bf16", "bf16", "fp16", "fp16"]
    assert list(sweep.trials["experts"]) == [1, 4, 1, 4]
    assert (sweep.trials["step_ms"] > 0).all()
    assert (sweep.trials["plain_step_ms"] > 0).all()
    assert sweep.divergences.empty
    wide = sweep.matrix(rows="dtype", columns="experts", value="verdict")
    assert wide.to_numpy().tolist() == [["pass", "pass"], ["pass", "pass"]]


def test_records_name_every_site_in_order_of_execution(main_job: Ran) -> None:
    sweep = package.load(main_job.folder)
    records = sweep.records(cell=sweep.trials["cell"].iloc[0], rank=1)
    run = records[records["run"] == "r1"]
    assert list(run["seq"]) == list(range(len(run)))
    sites = list(dict.fromkeys(site for site in run["site"] if site != "rng"))
    assert sites == [
        "input", "param", "block_pre", "block_post", "logits", "loss", "block_grad_out", "block_grad_in", "grad"
    ]  # fmt: skip
    assert list(dict.fromkeys(run["phase"])) == ["before", "forward", "backward", "after"]
    for phase in ("before", "after"):
        assert {"rng", "param"} <= set(run.loc[run["phase"] == phase, "site"])
    blocks = run[run["site"].isin(["block_pre", "block_post"])]
    assert list(blocks["block"]) == [0, 0, 1, 1, 2, 2, 3, 3]
    gradients = run[run["site"].isin(["block_grad_in", "block_grad_out"])]
    assert list(gradients["block"]) == [3, 3, 2, 2, 1, 1, 0, 0]


def test_matrix_files_are_those_of_the_analysis_command(main_job: Ran) -> None:
    written = (main_job.folder / "matrix.csv").read_text(), (main_job.folder / "matrix.md").read_text()
    command = [sys.executable, "-m", "detsweep.analysis", str(main_job.folder)]
    again = subprocess.run(command, capture_output=True, text=True, check=False)
    assert again.returncode == 0
    assert ((main_job.folder / "matrix.csv").read_text(), (main_job.folder / "matrix.md").read_text()) == written
    table = pd.read_csv(main_job.folder / "matrix.csv")
    assert list(table["verdict"]) == ["pass"] * 4
    assert {"dtype", "experts", "diverged", "errors", "first", "ranks", "step_ms", "plain_step_ms"} <= set(table)


def test_what_every_rank_had_is_on_disk(main_job: Ran) -> None:
    for path in main_job.folder.glob("cells/*/trial0"):
        reports = [json.loads((path / f"environment-rank00{rank}.json").read_text()) for rank in (0, 1)]
        assert [report["rank"] for report in reports] == [0, 1]
        assert all(report["variables"]["OMP_NUM_THREADS"] == "1" for report in reports)
        assert all(report["settings"]["num_threads"] == 1 for report in reports)
        assert all(any("libtorch_cpu" in library for library in report["libraries"]) for report in reports)
    session = json.loads((main_job.folder / "sweep.json").read_text())["sessions"][0]
    assert session["arguments"][:3] == ["-m", "dtype=bf16,fp16", "experts=1,4"]
    assert session["versions"]["torch"]


def test_nothing_of_a_finished_sweep_is_a_pickle(main_job: Ran) -> None:
    assert not list(main_job.folder.rglob("*.pkl"))
    assert not list(main_job.folder.rglob(".*.json.*"))


def test_the_same_command_again_launches_nothing_and_keeps_every_byte(main_job: Ran) -> None:
    before = {path: path.read_bytes() for path in main_job.folder.glob("cells/*/trial0/*") if path.is_file()}
    again = run_detsweep(main_job.folder, "-m", "experts=4,1", "dtype=fp16,bf16")
    assert again.code == 0
    assert "4 of 4 trials have a result already" in again.out
    assert {path: path.read_bytes() for path in before} == before


def test_a_deleted_capture_is_an_error_that_names_the_file(main_job: Ran, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(main_job.folder, copy)
    victim = captures(Ran(copy, 0, "", ""))[0]
    victim.unlink()
    trials = package.load(copy).trials
    assert list(trials["verdict"]).count("error") == 1
    assert str(victim) in trials.loc[trials["verdict"] == "error", "error"].item()
