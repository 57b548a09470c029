"""Drawings: what mitigations cost, and rates by axis with their intervals."""

from __future__ import annotations

from pathlib import Path

import pytest

from detsweep import load
from detsweep.analysis.page.plots import LABELS, WIDTH, WORDS, axis_rates, cost_plot, rate
from tests.support import BLOCK_0_POST, plan_of, trial_of, write_cells, write_trial


@pytest.mark.parametrize(
    ("seen", "chances", "share", "interval"),
    [
        (0, 51, "0%", "0% to 7%"),
        (3, 10, "30%", "6.7% to 65.2%"),
        (10, 10, "100%", "69.2% to 100%"),
        (0, 0, "", ""),
    ],
)
def test_a_rate_with_its_exact_interval(seen: int, chances: int, share: str, interval: str) -> None:
    made = rate(seen, chances)
    assert (made.counted, made.share, made.interval) == (f"{seen}/{chances}", share, interval)
    if made.bar is None:
        assert chances == 0
    else:
        assert 0 <= made.bar.low <= made.bar.value <= made.bar.high <= made.bar.width
        assert made.bar.value == round(100 * seen / chances, 2)


def _sweep(folder: Path) -> None:
    """Seeds by dtypes with three runs; one cell diverged in one of its replays, one has a fault."""
    plan = plan_of(
        *([f"seed={seed}", f"dtype={dtype}"] for seed in (1, 2) for dtype in ("bf16", "fp32")),
        ["seed=1", "dtype=bf16", "fault=bit_flip"],
        common=["runs=3"],
    )
    paths = write_cells(folder, plan)
    for number, cell in enumerate(plan.cells):
        write_trial(trial_of(paths, cell), cell, differs={0: {(0, 2): BLOCK_0_POST}} if number in (1, 4) else {})


def test_all_cells_with_a_value_count_together_and_faults_do_not(tmp_path: Path) -> None:
    _sweep(tmp_path)
    rates = {one.axis: one for one in axis_rates(load(tmp_path))}
    assert [(value, trials.counted, replays.counted) for value, trials, replays in rates["dtype"].rows] == [
        ("bf16", "0/2", "0/4"),
        ("fp32", "1/2", "1/4"),
    ]
    assert rates["dtype"].note == "1 trial with a fault that was put in on purpose left out."
    assert [(value, trials.counted) for value, trials, _ in rates["fault"].rows] == [
        ("none", "1/4"),
        ("bit_flip", "1/1"),
    ]


def test_where_all_have_faults_it_is_said(tmp_path: Path) -> None:
    plan = plan_of(["seed=1"], ["seed=2"], common=["fault=bit_flip"])
    paths = write_cells(tmp_path, plan)
    for cell in plan.cells:
        write_trial(trial_of(paths, cell), cell, differs={0: {(0, 2): BLOCK_0_POST}})
    (one,) = axis_rates(load(tmp_path))
    assert [trials.counted for _, trials, _ in one.rows] == ["1/1", "1/1"]
    assert one.note == "Faults were put into all of these trials on purpose: these rates are no findings."


def test_costs_are_drawn_to_scale(tmp_path: Path) -> None:
    plan = plan_of(["mitigation=none"], ["mitigation=recipe"], ["mitigation=cpu_1thread"], common=["trials=3"])
    paths = write_cells(tmp_path, plan)
    for cell, milliseconds in zip(plan.cells, (2.0, 2.0, 4.0), strict=True):
        for number in range(3):
            write_trial(trial_of(paths, cell, number), cell, number, plain_milliseconds=milliseconds)
    plot = cost_plot(load(tmp_path))
    assert plot is not None
    same, double = plot.bars
    (one, _), (slower, _) = plot.lines
    assert (same.label, same.ratio, same.slower) == ("mitigation=recipe", one, False)
    assert (double.label, double.slower) == ("mitigation=cpu_1thread", True)
    assert LABELS <= one < slower < double.ratio <= WIDTH - WORDS
    assert (double.ratio - one) / (slower - one) == pytest.approx(1 / 0.15, rel=0.01)
    assert double.text.startswith("2.00x (2.00-2.00) slower")
    assert double.text in plot.description


def test_without_mitigations_there_is_no_plot(tmp_path: Path) -> None:
    write_cells(tmp_path, plan_of(["seed=1"]))
    assert cost_plot(load(tmp_path)) is None
