"""The command that runs a cell again is one whose cell is the same, bit for bit of its configuration."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from detsweep import load
from detsweep.analysis.commands import command_of, sessions_of
from detsweep.paths import SweepPaths, read_json, write_json
from tests.support import one_cell, plan_of, write_cells


def _commands(folder: Path, *points: list[str], arguments: tuple[str, ...] = ("-m",)) -> dict[str, list[str]]:
    """For each cell of a sweep the words of its command."""
    sweep = write_cells(folder, plan_of(*points))
    content = read_json(sweep.sweep)
    content["sessions"][0]["arguments"] = list(arguments)
    write_json(sweep.sweep, content)
    loaded = load(folder)
    sessions = sessions_of(loaded)
    return {cell: shlex.split(command_of(loaded, cell, sessions)) for cell in loaded.configs}


@pytest.mark.parametrize(
    "points",
    [
        [["dtype=bf16", "experts=4"], ["dtype=fp16", "experts=1"]],
        [["mitigation=recipe", "seed=3"], ["mitigation=[cpu_1thread,torch_det]", "seed=4"]],
        [["+env.NCCL_ALGO=Tree", "mode=lockstep"], ["+env.NCCL_ALGO='a b'", "mode=train"]],
        [["fault=bit_flip", "fault.rank=1", "fault.block=2"]],
        [["mode=relaunch", "trials=3"]],
        [["mitigation=primus", "mitigation_force=true"]],
        [["case=indexed_embedding", "mitigation=none"], ["case=moe_top4", "mitigation=none"]],
    ],
)
def test_it_makes_the_same_cell(points: list[list[str]], tmp_path: Path) -> None:
    for cell, words in _commands(tmp_path, *points).items():
        assert words[:3] == ["python", "-m", "detsweep"]
        # Beside a preset that has a value already, `++` sets it and `+` would be refused.
        again = one_cell(*(word.replace("++", "+", 1) for word in words[3:]))
        assert again.id == cell


def test_launches_of_relaunch_are_asked_for_again(tmp_path: Path) -> None:
    (words,) = _commands(tmp_path, ["mode=relaunch", "trials=3"]).values()
    assert "trials=3" in words


def test_what_all_of_the_sweep_was_given_comes_along(tmp_path: Path) -> None:
    given = ("-m", "--config-dir", "/my dir", "launch=slurm", "launch.partition=gpu", "+launch.sbatch.licenses=a:1")
    session = ("launch.detach=true", "launch.max_parallel=4", "folder=x", "seed=1,2", "dry_run=false")
    for words in _commands(tmp_path, ["seed=1"], ["seed=2"], arguments=(*given, *session)).values():
        assert words[3:8] == list(given[1:])
        assert words[8].startswith("seed=")
        assert len(words) == 9


def test_without_sweep_json_the_cell_itself_is_known(tmp_path: Path) -> None:
    write_cells(tmp_path, plan_of(["seed=7"]))
    SweepPaths(tmp_path).sweep.unlink()
    loaded = load(tmp_path)
    (cell,) = loaded.configs
    assert sessions_of(loaded) == []
    assert command_of(loaded, cell, []) == "python -m detsweep seed=7"
