"""Trial against trial from the disk: launches of one cell, and a cell against its baseline."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from detsweep.capture import Record
from detsweep.crosstrial import CrossComparison, against_baseline, settled
from detsweep.paths import CellPaths, FileError, TrialPaths
from detsweep.plan import Cell
from tests.support import one_cell, record, write_failure, write_recorded

STEP = (
    record("input", "input_ids", phase="before"),
    record("block_post", "blocks.0", block=0),
    record("loss", "loss"),
    record("grad", "w", phase="backward"),
)
Sites = Sequence[str]
Differ = Callable[[int, int, int], Sites]
"""Of a rank, step and run the sites that differ there."""
GROUP = "c10d._reduce_scatter_base_ #1 group default_pg in blocks.0"


def _at(*sites: str, rank: int | None = None, step: int | None = None, run: int | None = None) -> Differ:
    """These sites differ, on this rank and in this step and run; None: in all."""

    def differ(*place: int) -> Sites:
        return sites if all(asked in (None, one) for asked, one in zip((rank, step, run), place, strict=True)) else ()

    return differ


def _same(records: Sequence[Record]) -> Callable[[int, int, int], Sequence[Record]]:
    """These records in every run."""
    return lambda *_: records


NOWHERE = _at()


def _write(paths: CellPaths, cell: Cell, number: int, differ: Differ = NOWHERE, **more: Any) -> dict[str, Any]:
    """A trial whose records are the same in every trial and run, but for the sites that differ: these as in no other.

    `steps`: the records of each of its runs.
    """
    steps = more.pop("steps", STEP)

    def records(rank: int, step: int, run: int) -> list[Record]:
        sites = differ(rank, step, run)
        other = 1000 * (number + 1)
        return [replace(one, digest=other if one.site in sites else 100 * step + rank) for one in steps]

    return write_recorded(paths.trial(number), cell, number, records=records, **more)


def _settled(folder: Path, differ: Mapping[int, Differ], *overrides: str, **more: Any) -> dict[int, Mapping[str, Any]]:
    """The results of three launches, of which these differ."""
    cell = one_cell("mode=relaunch", "trials=3", *overrides)
    paths = CellPaths(folder / f"x-{cell.id}")
    found = {
        number: (paths.trial(number), _write(paths, cell, number, differ.get(number, NOWHERE), **more))
        for number in range(3)
    }
    return settled(found, cell.config)


def _places(result: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    """Rank, step, run, site, reference and cause of every divergence."""
    return [
        (rank["rank"], *(d[key] for key in ("step", "run", "site", "reference", "cause")))
        for rank in result["ranks"]
        for d in rank["divergences"]
    ]


# --- launches --------------------------------------------------------------------------------------------------------


def test_launches_that_are_equal_pass_and_count_what_was_compared(tmp_path: Path) -> None:
    results = _settled(tmp_path, {}, "steps=2")
    assert [result["verdict"] for result in results.values()] == ["pass"] * 3
    # Each trial replays two steps once; the later ones have four runs that the first one has too.
    assert [result["replays"] for result in results.values()] == [2, 6, 6]
    assert [result["diverged_replays"] for result in results.values()] == [0, 0, 0]
    assert all(result["first"] is None for result in results.values())


def test_a_launch_that_differs_from_the_first_diverged_and_says_from_which(tmp_path: Path) -> None:
    results = _settled(tmp_path, {2: _at("block_post", "loss", rank=1, step=1)}, "steps=2")
    assert [result["verdict"] for result in results.values()] == ["pass", "pass", "diverged"]
    result = results[2]
    assert _places(result) == [(1, 1, run, "block_post", "trial0", "compute") for run in ("r1", "r2")]
    assert (result["replays"], result["diverged_replays"], result["diverged_ranks"]) == (6, 2, [1])
    assert (result["first"]["step"], result["first"]["run"], result["first"]["reference"]) == (1, "r1", "trial0")
    assert result["loss"] == {"differs": 2, "of": 2}


def test_the_loss_is_counted_only_where_it_differs(tmp_path: Path) -> None:
    def differ(rank: int, step: int, run: int) -> Sites:
        return ("grad", "loss") if (rank, run) == (0, 2) else ("grad",)

    results = _settled(tmp_path, {1: differ})
    # Within the launch the second run's loss differs from the first's; of the launches only the second runs' do.
    assert (results[1]["loss"], results[1]["verdict"]) == ({"differs": 2, "of": 3}, "diverged")
    assert (results[0]["loss"], results[2]["loss"]) == ({"differs": 0, "of": 0}, {"differs": 0, "of": 0})


def test_a_launch_that_does_not_repeat_itself_keeps_what_it_found_and_has_more(tmp_path: Path) -> None:
    results = _settled(tmp_path, {1: _at("grad", rank=0, run=2)})
    result = results[1]
    assert _places(result) == [(0, 0, "r2", "grad", "r1", None), (0, 0, "r2", "grad", "trial0", None)]
    assert (result["first"]["reference"], result["replays"], result["diverged_replays"]) == ("r1", 3, 2)


@pytest.mark.parametrize(
    ("level", "cause", "closer"),
    [("block", None, "op"), ("module", None, "op"), ("collective", "compute", "op"), ("op", "memory", None)],
)
def test_why_a_gradient_of_a_launch_differs_is_told_by_the_levels_that_see_collectives(
    tmp_path: Path, level: str, cause: str | None, closer: str | None
) -> None:
    results = _settled(tmp_path, {1: _at("grad", rank=0, run=2)}, f"observe={level}")
    found = results[1]["ranks"][0]["divergences"]
    assert [(d["reference"], d["cause"], d["closer"]) for d in found] == [
        (reference, cause, closer) for reference in ("r1", "trial0")
    ]


def test_where_the_first_launch_is_the_odd_one_all_others_differ_from_it(tmp_path: Path) -> None:
    results = _settled(tmp_path, {0: _at("input")})
    assert [result["verdict"] for result in results.values()] == ["pass", "diverged", "diverged"]
    assert {place[3:] for number in (1, 2) for place in _places(results[number])} == {("input", "trial0", "input")}


def test_the_first_place_is_the_earliest_run_by_its_number(tmp_path: Path) -> None:
    def differ(rank: int, step: int, run: int) -> Sites:
        return ("grad",) if run in (2, 10) else ()

    cell = one_cell("mode=relaunch", "trials=2", "runs=10")
    paths = CellPaths(tmp_path / f"x-{cell.id}")
    found = {number: (paths.trial(number), _write(paths, cell, number, differ)) for number in range(2)}
    crossed = against_baseline(found[1][0], cell.config, found[0][0], cell.config)
    assert crossed.first is not None
    assert (crossed.first.run, len(crossed.divergences)) == ("r2", 4)


def test_an_upstream_divergence_of_a_launch_names_the_rank_it_came_from_by_its_groups(tmp_path: Path) -> None:
    steps = (
        record("block_post", "blocks.0", block=0),
        record("collective_in", GROUP, phase="backward"),
        record("collective_out", GROUP, phase="backward"),
    )

    def differ(rank: int, step: int, run: int) -> Sites:
        return ("block_post", "collective_in", "collective_out") if rank == 0 else ("collective_out",)

    more = {"steps": steps, "groups": {"default_pg": [0, 1]}}
    results = _settled(tmp_path / "one", {1: differ}, "observe=collective", **more)
    assert [(place[0], place[3], place[5]) for place in _places(results[1])] == [
        (rank, site, cause) for rank, site, cause in ((0, "block_post", "compute"), (1, "collective_out", "upstream"))
        for _ in range(2)
    ]  # fmt: skip
    assert {d["origin"] for d in results[1]["ranks"][1]["divergences"]} == {0}
    # In groups that do not hold the other rank nothing can have come from it.
    results = _settled(tmp_path / "two", {1: differ}, "observe=collective", steps=steps, groups={"default_pg": [1]})
    assert _places(results[1])[-1] == (1, 0, "r2", "collective_out", "trial0", "collective")


def test_the_first_launch_with_a_verdict_is_the_reference(tmp_path: Path) -> None:
    cell = one_cell("mode=relaunch", "trials=3")
    paths = CellPaths(tmp_path / f"x-{cell.id}")
    write_failure(paths.trial(0), cell)
    failed = {"verdict": "error", "error": "x"}
    found = {
        0: (paths.trial(0), failed),
        1: (paths.trial(1), _write(paths, cell, 1)),
        2: (paths.trial(2), _write(paths, cell, 2, _at("grad"))),
    }
    results = settled(found, cell.config)
    assert results[0] is failed
    assert [results[number]["verdict"] for number in (1, 2)] == ["pass", "diverged"]
    assert results[2]["first"]["reference"] == "trial1"


@pytest.mark.parametrize("verdict", ["error", "timeout", "invalid", "unsupported", "none"])
def test_a_launch_without_a_verdict_is_held_against_nothing(tmp_path: Path, verdict: str) -> None:
    cell = one_cell("mode=relaunch", "trials=2")
    paths = CellPaths(tmp_path / f"x-{cell.id}")
    other = _write(paths, cell, 1, _at("grad"))
    found = {0: (paths.trial(0), _write(paths, cell, 0)), 1: (paths.trial(1), {**other, "verdict": verdict})}
    assert settled(found, cell.config) == {number: result for number, (_, result) in found.items()}


def test_in_other_modes_trials_are_not_held_against_each_other(tmp_path: Path) -> None:
    cell = one_cell("trials=2")
    paths = CellPaths(tmp_path / f"x-{cell.id}")
    found = {number: (paths.trial(number), _write(paths, cell, number, _at("grad"))) for number in range(2)}
    assert settled(found, cell.config) == {number: result for number, (_, result) in found.items()}


def _tear(trial: TrialPaths, rank: int) -> Path:
    """Damage that leaves a file as long as it was."""
    path = trial.records(rank)
    path.write_text("x" + path.read_text()[1:])
    return path


@pytest.mark.parametrize("torn", [0, 1, 2])
def test_a_launch_whose_records_are_torn_is_an_error_that_names_them(tmp_path: Path, torn: int) -> None:
    cell = one_cell("mode=relaunch", "trials=3")
    paths = CellPaths(tmp_path / f"x-{cell.id}")
    found = {number: (paths.trial(number), _write(paths, cell, number)) for number in range(3)}
    path = _tear(paths.trial(torn), 1)
    results = settled(found, cell.config)
    assert [number for number, result in results.items() if result["verdict"] == "error"] == [torn]
    assert results[torn]["error"].startswith(f"{path} is not what was written: ")
    # The first launch that can be read is the reference of the others.
    assert [results[number]["replays"] for number in range(3) if number != torn] == [1, 3]


# --- baselines -------------------------------------------------------------------------------------------------------


def _crossed(
    folder: Path,
    own: Sequence[Record],
    baseline: Sequence[Record] = STEP,
    *,
    overrides: Sequence[str] = (),
    against: Sequence[str] = (),
) -> CrossComparison:
    """A trial with these records in every run against another one's."""
    cells = (one_cell("seed=1", *overrides), one_cell("seed=2", *against))
    trials = [TrialPaths(folder / f"x-{cell.id}" / "trial0") for cell in cells]
    for cell, trial, records in zip(cells, trials, (own, baseline), strict=True):
        write_recorded(trial, cell, records=_same(records))
    return against_baseline(trials[0], cells[0].config, trials[1], cells[1].config)


def test_a_program_that_does_the_same_is_equal_to_its_baseline(tmp_path: Path) -> None:
    assert _crossed(tmp_path, STEP) == CrossComparison(2, (), 0)


def test_what_differs_from_the_baseline_is_found_on_every_rank_and_run(tmp_path: Path) -> None:
    crossed = _crossed(tmp_path, [*STEP[:2], replace(STEP[2], digest=9), replace(STEP[3], digest=9)])
    assert [(d.rank, d.run, d.site, d.reference) for d in crossed.divergences] == [
        (rank, run, "loss", run) for run in ("r1", "r2") for rank in (0, 1)
    ]
    assert (crossed.compared, crossed.loss_differs) == (2, 2)
    assert crossed.first == crossed.divergences[0]


def test_another_order_and_further_records_are_no_difference(tmp_path: Path) -> None:
    crossed = _crossed(tmp_path, [STEP[1], record("module", "m", 5), STEP[0], *STEP[2:]])
    assert crossed == CrossComparison(2, (), 0)


@pytest.mark.parametrize(("digest", "sites"), [(1, set()), (9, {"block_post"})])
def test_what_is_recomputed_is_held_against_what_the_baseline_computed_once(
    tmp_path: Path, digest: int, sites: set[str]
) -> None:
    again = record("block_post", "blocks.0", digest, phase="recompute", block=0)
    crossed = _crossed(tmp_path, [*STEP[:3], again, STEP[3]], overrides=["checkpointing=block"])
    assert {d.site for d in crossed.divergences} == sites
    assert {d.phase for d in crossed.divergences} == ({"recompute"} if sites else set())
    assert (crossed.compared, crossed.loss_differs) == (2, 0)


@pytest.mark.parametrize(
    ("overrides", "against", "compared"),
    [
        ([], ["runs=5", "steps=3"], 2),
        (["runs=5", "steps=3"], [], 2),
        (["runs=3"], ["steps=4"], 2),
        (["world.nproc_per_node=4"], [], 2),
        ([], ["world.nproc_per_node=4"], 2),
        (["mode=train", "steps=2"], [], 2),
    ],
    ids=str,
)
def test_what_only_one_of_them_has_is_not_compared(
    tmp_path: Path, overrides: list[str], against: list[str], compared: int
) -> None:
    other = [replace(one, digest=9) for one in STEP]
    crossed = _crossed(tmp_path, other, overrides=overrides, against=against)
    assert crossed.compared == compared
    assert {d.rank for d in crossed.divergences} == {0, 1}
    assert {(d.step, d.run) for d in crossed.divergences} == {(0, "r1"), (0, "r2")}


def test_where_the_baseline_has_no_loss_the_loss_differs(tmp_path: Path) -> None:
    crossed = _crossed(tmp_path, STEP, [one for one in STEP if one.site != "loss"])
    assert (crossed.divergences, crossed.loss_differs) == ((), 2)


@pytest.mark.parametrize("whose", [0, 1])
def test_records_that_cannot_be_read_raise_an_error_that_names_them(tmp_path: Path, whose: int) -> None:
    cells = (one_cell("seed=1"), one_cell("seed=2"))
    trials = [TrialPaths(tmp_path / f"x-{cell.id}" / "trial0") for cell in cells]
    for cell, trial in zip(cells, trials, strict=True):
        write_recorded(trial, cell, records=_same(STEP))
    _tear(trials[whose], 0)
    with pytest.raises(FileError, match=rf"x-{cells[whose].id}/trial0/rank000\.jsonl line 1 cannot be read"):
        against_baseline(trials[0], cells[0].config, trials[1], cells[1].config)
    trials[whose].records(0).unlink()
    with pytest.raises(FileError, match=rf"x-{cells[whose].id}/trial0/rank000\.jsonl is missing"):
        against_baseline(trials[0], cells[0].config, trials[1], cells[1].config)
