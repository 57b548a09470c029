"""Fleets: which places are not like the others of their kind, where they differ, and when that cannot be told."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from rich.console import Console

from detsweep import Sweep, load, nodes
from detsweep.analysis import exit_code, fleetreport, print_report, screening, write_report
from detsweep.analysis.fleet import FLEET_COLUMNS
from detsweep.analysis.fleetreport import fleet_lines, fleet_table
from detsweep.analysis.places import files_digest
from detsweep.analysis.screening import screen
from detsweep.capture import SCHEMA, Record
from detsweep.paths import TrialPaths, write_json
from detsweep.plan import Cell, Plan
from detsweep.results import unsupported
from tests.support import (
    BLOCK_0_POST,
    LOSS,
    as_written,
    full_stream,
    plan_of,
    trial_of,
    write_cells,
    write_failure,
    write_recorded,
    write_trial,
)

CPU: Mapping[str, Any] = {
    "schema": SCHEMA,
    "python": "3.12.3",
    "torch": "2.8.0",
    "device": {"type": "cpu", "name": "AMD EPYC 7763", "cores": 64},
    "settings": {"cpu_capability": "AVX2"},
    "versions": {"MKL": "2024.2"},
    "variables": {},
}
"""What every rank records where a test says nothing else."""
RECORDS = 2 * 2 * 10
"""Of a trial of two ranks with two runs of one step."""
Bits = Mapping[tuple[int, int], int]
"""Of ranks and steps the record from which on their bits are others than usual, in every run."""
ODD: Bits = {(0, 0): BLOCK_0_POST, (1, 0): BLOCK_0_POST + 2}


def _bits(odd: Bits, by: int = 1) -> Callable[[int, int, int], Sequence[Record]]:
    """Records that repeat, with other bits than usual from a record on."""

    def records(rank: int, step: int, run: int) -> Sequence[Record]:
        usual = full_stream(rank, step, run).records
        start = odd.get((rank, step), len(usual))
        return [Record(**{**vars(r), "digest": r.digest + by * (r.seq >= start)}) for r in usual]

    return records


def _ran(trial: TrialPaths, cell: Cell, number: int = 0, *, odd: Bits | None = None, by: int = 1, **facts: Any) -> None:
    """A trial that passed, with the bits that any node has, or others; `facts` are what its ranks recorded else."""
    write_recorded(trial, cell, number, records=_bits(odd or {}, by))
    for rank in range(cell.world_size):
        write_json(trial.environment(rank), {**CPU, "rank": rank, **facts})


def _diverged(trial: TrialPaths, cell: Cell, number: int = 0) -> None:
    """A trial in which rank 1 does not repeat itself."""
    write_trial(trial, cell, number, differs={1: {(0, 2): LOSS}})
    for rank in range(cell.world_size):
        write_json(trial.environment(rank), {**CPU, "rank": rank})


def _down(trial: TrialPaths, cell: Cell) -> None:
    assert cell.unsupported is not None
    write_json(trial.result, unsupported(cell.spec(0), cell.unsupported))


Write = Callable[[TrialPaths, Cell], object]


def _odd(trial: TrialPaths, cell: Cell) -> None:
    _ran(trial, cell, odd=ODD)


def _other(trial: TrialPaths, cell: Cell) -> None:
    _ran(trial, cell, odd=ODD, by=5)


def _plan(
    monkeypatch: pytest.MonkeyPatch,
    count: int,
    *words: str,
    away: Sequence[str] = (),
    points: Sequence[Sequence[str]] = (["seed=1"],),
) -> Plan:
    """The plan of a sweep of a partition with so many nodes, node1 and so on; some of them are `away`."""
    names = [f"node{number}" for number in range(1, count + 1)]
    listed = [nodes.Node(name, "drained (bad fan)" if name in away else None) for name in names]
    monkeypatch.setattr(nodes, "nodes_of", lambda _: listed)
    common = ["experiment=fleet", "steps=1", "runs=2", *words]
    return plan_of(*points, common=common)


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Sweep]:
    """Writes a sweep over as many nodes as it is given things to write, None for none, and reads it."""

    def written(*writes: Write | None, words: Sequence[str] = (), away: Sequence[str] = ()) -> Sweep:
        plan = _plan(monkeypatch, len(writes), *words, away=away)
        sweep = write_cells(tmp_path, plan)
        for cell, write in zip(plan.cells, writes, strict=True):
            if write is not None:
                write(trial_of(sweep, cell), cell)
        return load(tmp_path)

    return written


def _column(sweep: Sweep, name: str) -> list[Any]:
    values = sweep.fleet[name].astype(object)
    return list(values.where(values.notna(), None))


def _first(sweep: Sweep, node: str) -> tuple[Any, ...]:
    row = sweep.fleet[sweep.fleet["node"] == node].iloc[0]
    return tuple(None if pd.isna(row[key]) else row[key] for key in ("rank", "step", "run", "site", "block", "name"))


def _said(sweep: Sweep) -> list[str]:
    return list(fleet_lines(sweep))


AT_BLOCK_0 = "block_post of block 0, rank 0, step 0 r1"


# --- who is odd ------------------------------------------------------------------------------------------------------


def test_nodes_with_the_same_bits_are_equal(fleet: Callable[..., Sweep]) -> None:
    sweep = fleet(_ran, _ran, _ran, _ran)
    assert _column(sweep, "verdict") == ["equal"] * 4
    assert _column(sweep, "node") == ["node1", "node2", "node3", "node4"]
    assert _column(sweep, "records") == [RECORDS] * 4
    assert (_column(sweep, "differing_from"), _column(sweep, "compared")) == ([0] * 4, [3] * 4)
    assert _column(sweep, "site") == [None] * 4
    assert _said(sweep) == [f"4 of 4 nodes equal, bit for bit, in {RECORDS} records"]
    assert exit_code(sweep) == 0


def test_a_node_with_other_bits_is_odd_though_it_repeats_itself(fleet: Callable[..., Sweep]) -> None:
    sweep = fleet(_ran, _ran, _odd, _ran)
    assert set(sweep.trials["verdict"]) == {"pass"}
    assert _column(sweep, "verdict") == ["equal", "equal", "odd", "equal"]
    assert _column(sweep, "reference") == [None, "node1", "node1", "node1"]
    assert _column(sweep, "by") == ["majority"] * 4
    assert _column(sweep, "differing_from") == [1, 1, 3, 1]
    assert _first(sweep, "node3") == (0, 0, "r1", "block_post", 0, "blocks.0")
    assert _said(sweep) == [
        f"node3 differs from 3 of 3 other nodes of its kind, first at {AT_BLOCK_0}",
        f"3 of 4 nodes equal, bit for bit, in {RECORDS} records",
    ]
    assert exit_code(sweep) == 1


def test_the_majority_need_not_come_first(fleet: Callable[..., Sweep]) -> None:
    sweep = fleet(_odd, _ran, _ran)
    assert _column(sweep, "verdict") == ["odd", "equal", "equal"]
    assert _column(sweep, "reference") == ["node2", None, "node2"]
    assert _first(sweep, "node1") == (0, 0, "r1", "block_post", 0, "blocks.0")


def test_the_largest_group_is_the_majority_also_below_half(fleet: Callable[..., Sweep]) -> None:
    sweep = fleet(_ran, _odd, _other, _ran)
    assert _column(sweep, "verdict") == ["equal", "odd", "odd", "equal"]
    assert _column(sweep, "differing_from") == [2, 3, 3, 2]


def test_the_place_is_the_earliest_over_ranks_and_steps(fleet: Callable[..., Sweep]) -> None:
    def late(trial: TrialPaths, cell: Cell) -> None:
        _ran(trial, cell, odd={(0, 1): BLOCK_0_POST, (1, 1): 1})

    sweep = fleet(_ran, _ran, late, words=["steps=2"])
    assert _first(sweep, "node3") == (1, 1, "r1", "input", None, "input_ids")


@pytest.mark.parametrize("third", [None, _odd], ids=["two", "two against two"])
def test_without_a_majority_it_cannot_be_told_which_is_wrong(fleet: Callable[..., Sweep], third: Write | None) -> None:
    sweep = fleet(_ran, _odd) if third is None else fleet(_ran, _odd, third, _ran)
    assert set(_column(sweep, "verdict")) == {"undecided"}
    assert set(_column(sweep, "by")) == {None}
    # Each is held against one that has other bits.
    assert _column(sweep, "reference") == (
        ["node2", "node1"] if third is None else ["node2", "node1", "node1", "node2"]
    )
    assert _first(sweep, "node1") == _first(sweep, "node2") == (0, 0, "r1", "block_post", 0, "blocks.0")
    names, more = ("node1, node2", "a third") if third is None else ("node1, node2, node3, node4", "one more")
    (line,) = _said(sweep)
    assert line == (
        f"{len(sweep.fleet)} nodes differ, first at {AT_BLOCK_0}, and it cannot be told which is wrong: {names}; "
        f"{more}, or against=world.node:NAME, tells which"
    )
    assert exit_code(sweep) == 1


# --- a golden node ---------------------------------------------------------------------------------------------------


def test_a_golden_node_decides_against_a_majority(fleet: Callable[..., Sweep]) -> None:
    sweep = fleet(_ran, _odd, _odd, _ran, _odd, words=["against=world.node:node4"])
    assert _column(sweep, "verdict") == ["equal", "odd", "odd", "equal", "odd"]
    assert _column(sweep, "reference") == ["node4", "node4", "node4", None, "node4"]
    assert set(_column(sweep, "by")) == {"golden"}
    assert _said(sweep)[0] == (
        f"node2 differs from 2 of 4 other nodes of its kind, the golden node4 among them, first at {AT_BLOCK_0}"
    )
    # The same comparison, without the regard to hardware, is not made twice.
    assert sweep.baselines.empty


@pytest.mark.parametrize("golden", [0, 1])
def test_of_two_nodes_the_golden_one_is_right(fleet: Callable[..., Sweep], golden: int) -> None:
    sweep = fleet(_ran, _odd, words=[f"against=world.node:node{golden + 1}"])
    assert _column(sweep, "verdict") == (["equal", "odd"] if golden == 0 else ["odd", "equal"])


def test_a_golden_node_without_records_leaves_it_to_the_majority(fleet: Callable[..., Sweep]) -> None:
    sweep = fleet(_ran, _odd, _ran, _diverged, words=["against=world.node:node4"])
    assert _column(sweep, "verdict") == ["equal", "odd", "equal", "diverged"]
    assert _said(sweep)[0] == "against=world.node:node4: it has no records among these, and the majority decides"


def test_a_baseline_on_another_axis_is_no_golden_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = _plan(monkeypatch, 2, "against=seed:1", points=[["seed=1"], ["seed=2"]])
    sweep = write_cells(tmp_path, plan)
    for cell in plan.cells:
        _ran(trial_of(sweep, cell), cell)
    loaded = load(tmp_path)
    assert list(loaded.baselines["cell"]) == [cell.id for cell in plan.cells[2:]]
    assert _column(loaded, "fleet") == ["seed=1", "seed=1", "seed=2", "seed=2"]
    assert _column(loaded, "by") == ["majority"] * 4


# --- places without a verdict ----------------------------------------------------------------------------------------


def test_a_node_that_is_down_has_a_row_and_does_not_count(fleet: Callable[..., Sweep]) -> None:
    sweep = fleet(_ran, _down, _ran, away=["node2"])
    assert _column(sweep, "verdict") == ["equal", "unsupported", "equal"]
    assert _column(sweep, "error") == [None, "node node2 is drained (bad fan)", None]
    assert _said(sweep) == [
        f"2 of 2 nodes equal, bit for bit, in {RECORDS} records",
        "not screened, takes no jobs: node2",
    ]
    assert exit_code(sweep) == 0


@pytest.mark.parametrize("verdict", ["error", "timeout"])
def test_a_node_whose_trial_failed_has_a_row_with_its_error(fleet: Callable[..., Sweep], verdict: str) -> None:
    def failed(trial: TrialPaths, cell: Cell) -> None:
        write_failure(trial, cell, verdict=verdict, error="rank 1 was killed by SIGKILL")

    sweep = fleet(_ran, _ran, failed, None)
    assert _column(sweep, "verdict") == ["equal", "equal", verdict, "none"]
    assert _column(sweep, "error") == [None, None, "rank 1 was killed by SIGKILL", "no result yet"]
    assert _said(sweep)[-1] == f"without a verdict: node3 ({verdict}), node4 (none yet)"
    assert exit_code(sweep) == 3


def test_a_node_that_has_nobody_to_be_compared_with_has_no_verdict(fleet: Callable[..., Sweep]) -> None:
    sweep = fleet(_ran, _down, away=["node2"])
    assert _column(sweep, "verdict") == ["alone", "unsupported"]
    assert _said(sweep)[0] == "node1: there is no other node of its kind with records to compare with"
    assert exit_code(sweep) == 3


def test_a_node_that_does_not_repeat_itself_has_no_vote(fleet: Callable[..., Sweep]) -> None:
    sweep = fleet(_ran, _diverged, _ran)
    assert _column(sweep, "verdict") == ["equal", "diverged", "equal"]
    assert _first(sweep, "node2") == (1, 0, "r2", "loss", None, "loss")
    assert _column(sweep, "compared") == [1, None, 1]
    assert _said(sweep) == [
        "node2 does not repeat itself, first at loss, rank 1, step 0 r2",
        f"2 of 3 nodes equal, bit for bit, in {RECORDS} records",
    ]


@pytest.mark.parametrize("torn", [[1], [0, 1, 2]], ids=["one", "all"])
def test_a_node_whose_records_are_torn_is_an_error_that_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torn: list[int]
) -> None:
    plan = _plan(monkeypatch, 3)
    sweep = write_cells(tmp_path, plan)
    for cell in plan.cells:
        _ran(trial_of(sweep, cell), cell)
    for number in torn:
        path = trial_of(sweep, plan.cells[number]).records(1)
        path.write_bytes(path.read_bytes().replace(b'"schema"', b'"scheme"'))
    loaded = load(tmp_path)
    assert _column(loaded, "verdict") == ["error" if number in torn else "equal" for number in range(3)]
    assert f"{trial_of(sweep, plan.cells[1]).records(1)} is not what was written" in _column(loaded, "error")[1]
    assert exit_code(loaded) == 3


# --- several trials --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["replay", "relaunch"])
def test_a_node_that_differs_from_itself_between_trials_does_not_repeat_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    plan = _plan(monkeypatch, 3, "trials=2", f"mode={mode}")
    sweep = write_cells(tmp_path, plan)
    for number, cell in enumerate(plan.cells):
        _ran(trial_of(sweep, cell), cell)
        _ran(trial_of(sweep, cell, 1), cell, 1, odd=ODD if number == 1 else None)
    loaded = load(tmp_path)
    assert _column(loaded, "verdict") == ["equal", "diverged", "equal"]
    assert _first(loaded, "node2") == (0, 0, "r1", "block_post", 0, "blocks.0")
    assert exit_code(loaded) == 1


def test_other_bits_do_not_hide_behind_a_trial_that_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = _plan(monkeypatch, 4, "trials=2")
    sweep = write_cells(tmp_path, plan)
    for number, cell in enumerate(plan.cells):
        _ran(trial_of(sweep, cell), cell, odd=ODD if number == 1 else None)
        if number > 1:
            _ran(trial_of(sweep, cell, 1), cell, 1)
        else:
            write_failure(trial_of(sweep, cell, 1), cell, 1)
    loaded = load(tmp_path)
    assert _column(loaded, "verdict") == ["error", "odd", "equal", "equal"]
    assert exit_code(loaded) == 1


# --- hardware --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("facts", "named"),
    [
        ({"device": {"type": "cpu", "name": "Intel Xeon"}}, ("AMD EPYC 7763", "Intel Xeon")),
        ({"torch": "2.9.0"}, ("AMD EPYC 7763, torch 2.8.0", "AMD EPYC 7763, torch 2.9.0")),
        (
            {"settings": {"cpu_capability": "AVX512"}},
            ("AMD EPYC 7763, CPU kernels AVX2", "AMD EPYC 7763, CPU kernels AVX512"),
        ),
        ({"versions": {"MKL": "2025.0"}}, ("AMD EPYC 7763, MKL 2024.2", "AMD EPYC 7763, MKL 2025.0")),
    ],
)
def test_nodes_of_other_hardware_are_never_compared(
    fleet: Callable[..., Sweep], facts: dict[str, Any], named: tuple[str, str]
) -> None:
    def elsewhere(trial: TrialPaths, cell: Cell) -> None:
        _ran(trial, cell, odd=ODD, **facts)

    sweep = fleet(_ran, elsewhere, _ran, elsewhere, _ran)
    assert _column(sweep, "verdict") == ["equal"] * 5
    assert _column(sweep, "hardware") == [named[0], named[1], named[0], named[1], named[0]]
    assert _column(sweep, "compared") == [2, 1, 2, 1, 2]
    assert _said(sweep) == [
        f"2 kinds of hardware, not compared with each other: {named[0]} (3 nodes), {named[1]} (2 nodes)",
        f"{named[0]}: 3 of 3 nodes equal, bit for bit, in {RECORDS} records",
        f"{named[1]}: 2 of 2 nodes equal, bit for bit, in {RECORDS} records",
    ]
    assert exit_code(sweep) == 0


def test_another_number_of_cores_and_another_python_are_no_other_hardware(fleet: Callable[..., Sweep]) -> None:
    def elsewhere(trial: TrialPaths, cell: Cell) -> None:
        _ran(trial, cell, odd=ODD, python="3.11.1", device={**CPU["device"], "cores": 8}, host="b", node="b")

    assert _column(fleet(_ran, _ran, elsewhere), "verdict") == ["equal", "equal", "odd"]


def test_what_recorded_no_hardware_is_compared_with_its_like_alone(fleet: Callable[..., Sweep]) -> None:
    def silent(trial: TrialPaths, cell: Cell) -> None:
        _odd(trial, cell)
        trial.environment(1).unlink()

    sweep = fleet(_ran, _ran, silent)
    assert _column(sweep, "verdict") == ["equal", "equal", "alone"]
    assert _column(sweep, "hardware") == ["AMD EPYC 7763", "AMD EPYC 7763", "hardware not known"]


# --- what is a fleet -------------------------------------------------------------------------------------------------


def test_gpus_are_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["fleet=gpus", "device=cuda", "launch.gpus_per_node=2", "world.nproc_per_node=1"]
    plan = _plan(monkeypatch, 2, *words)
    sweep = write_cells(tmp_path, plan)
    for number, cell in enumerate(plan.cells):
        device = {"type": "cuda", "name": "NVIDIA H200", "index": 0, "uuid": f"GPU-{number}"}
        _ran(trial_of(sweep, cell), cell, odd=ODD if number == 3 else None, device=device)
    loaded = load(tmp_path)
    assert _column(loaded, "node") == ["node1", "node1", "node2", "node2"]
    assert _column(loaded, "gpu") == [0, 1, 0, 1]
    assert _column(loaded, "verdict") == ["equal", "equal", "equal", "odd"]
    assert _column(loaded, "reference")[3] == "node1 GPU 0"
    assert _said(loaded)[0] == f"node2 GPU 1 differs from 3 of 3 other GPUs of its kind, first at {AT_BLOCK_0}"


def test_cells_of_a_fleet_differ_in_their_place_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = _plan(monkeypatch, 3, points=[["seed=1"], ["seed=2"]])
    sweep = write_cells(tmp_path, plan)
    for number, cell in enumerate(plan.cells):
        # Another seed, other bits.
        _ran(trial_of(sweep, cell), cell, odd=ODD if number >= 3 else None)
    loaded = load(tmp_path)
    assert _column(loaded, "verdict") == ["equal"] * 6
    assert _said(loaded) == [f"seed={seed}: 3 of 3 nodes equal, bit for bit, in {RECORDS} records" for seed in (1, 2)]


def test_nodes_that_were_named_as_an_axis_are_a_fleet(tmp_path: Path) -> None:
    plan = plan_of(["world.node=a"], ["world.node=b"], ["world.node=c"], common=["launch=slurm"])
    sweep = write_cells(tmp_path, plan)
    for cell, write in zip(plan.cells, (_ran, _odd, _ran), strict=True):
        write(trial_of(sweep, cell), cell)
    assert _column(load(tmp_path), "verdict") == ["equal", "odd", "equal"]


def test_a_fault_that_was_put_in_at_a_place_is_said_beside_it(fleet: Callable[..., Sweep]) -> None:
    fault = ["fault=bit_flip", "fault.persistence=persistent", "fault.node=node2"]
    sweep = fleet(_ran, _odd, _ran, words=fault)
    assert _column(sweep, "fault") == ["none", "bit_flip", "none"]
    assert _column(sweep, "verdict") == ["equal", "odd", "equal"]
    assert list(fleet_table(sweep)["fault"]) == ["", "bit_flip", ""]
    assert _said(sweep)[0].endswith(f"first at {AT_BLOCK_0} (fault=bit_flip was put in there on purpose)")


def test_each_fault_at_a_place_makes_a_fleet_with_the_other_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    struck = [["fault=bit_flip", "fault.node=node2"], ["fault=input_flip", "fault.node=node2"]]
    plan = _plan(monkeypatch, 3, points=[*struck, ["fault=none"]])
    sweep = write_cells(tmp_path, plan)
    for cell in plan.cells:
        _ran(trial_of(sweep, cell), cell, odd=ODD if cell.config["fault"]["kind"] == "input_flip" else None)
    loaded = load(tmp_path)
    assert list(zip(_column(loaded, "fleet"), _column(loaded, "node"), _column(loaded, "verdict"), strict=True)) == [
        ("fault=none", "node1", "equal"),
        ("fault=none", "node2", "equal"),
        ("fault=none", "node3", "equal"),
        ("fault=bit_flip", "node1", "equal"),
        ("fault=bit_flip", "node2", "equal"),
        ("fault=bit_flip", "node3", "equal"),
        ("fault=input_flip", "node1", "equal"),
        ("fault=input_flip", "node2", "odd"),
        ("fault=input_flip", "node3", "equal"),
    ]


def test_without_a_fleet_the_frame_is_empty_and_nothing_is_said(tmp_path: Path) -> None:
    plan = plan_of(["seed=1"], ["seed=2"])
    sweep = write_cells(tmp_path, plan)
    for cell in plan.cells:
        write_trial(trial_of(sweep, cell), cell)
    loaded = load(tmp_path)
    assert loaded.fleet.empty
    assert tuple(loaded.fleet.columns) == FLEET_COLUMNS
    assert _said(loaded) == []
    assert "node" not in _printed(loaded)
    assert exit_code(loaded) == 0


# --- what is read ----------------------------------------------------------------------------------------------------


def test_records_are_read_of_one_place_for_each_digest(
    fleet: Callable[..., Sweep], monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    streams_of = screening.streams_of

    def counting(trial: TrialPaths, config: Mapping[str, Any]) -> Any:
        read.append(config["world"]["node"])
        return streams_of(trial, config)

    monkeypatch.setattr(screening, "streams_of", counting)
    fleet(*[_ran] * 6, _odd)
    assert read == ["node1", "node7", "node1", "node7"]


def test_records_that_are_written_in_other_bytes_are_the_same_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = _plan(monkeypatch, 2)
    sweep = write_cells(tmp_path, plan)
    for cell in plan.cells:
        _ran(trial_of(sweep, cell), cell)
    trial, config = trial_of(sweep, plan.cells[1]), plan.cells[1].config
    before = files_digest(trial, config)
    trial.records(0).write_text(trial.records(0).read_text().replace('"step":0', '"step": 0'))
    as_written(trial)
    assert files_digest(trial, config) != before
    assert _column(load(tmp_path), "verdict") == ["equal", "equal"]


def test_nothing_to_screen_is_nothing() -> None:
    assert list(screen([])) == []


# --- the report ------------------------------------------------------------------------------------------------------


def _printed(sweep: Sweep) -> str:
    out = io.StringIO()
    print_report(sweep, Console(file=out, highlight=False))
    return out.getvalue()


def test_of_many_odd_nodes_the_first_are_named(fleet: Callable[..., Sweep], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleetreport, "SHOWN", 2)
    said = _said(fleet(_ran, _ran, _ran, _ran, _ran, *[_odd] * 4))
    assert [line.split()[0] for line in said] == ["node6", "node7", "2", "5"]
    assert said[2] == "2 more such nodes: the frame .fleet"


def test_the_report_has_a_row_for_each_place_and_names_the_odd_one(fleet: Callable[..., Sweep], tmp_path: Path) -> None:
    sweep = fleet(_ran, _odd, _ran, _down, away=["node4"])
    write_report(sweep)
    table = fleet_table(sweep)
    assert list(table.columns) == ["node", "place", "differs from", "first difference", "error"]
    assert list(table["place"]) == ["✓ equal", "✗ odd", "✓ equal", "- unsupported"]
    assert list(table["differs from"]) == ["", "2 of 2", "", ""]
    line = f"node2 differs from 2 of 2 other nodes of its kind, first at {AT_BLOCK_0}"
    printed, markdown = _printed(sweep), (tmp_path / "matrix.md").read_text()
    assert line in printed.splitlines()
    assert f"- {line}" in markdown.splitlines()
    assert f"| node2 | ✗ odd | 2 of 2 | {AT_BLOCK_0} |  |" in markdown
    assert "| node4 | - unsupported |  |  | node node4 is drained (bad fan) |" in markdown
    assert [line.split()[:3] for line in printed.splitlines() if line.startswith("node2")][1] == ["node2", "✗", "odd"]
