"""What the streams of a trial parted from: the first run, the vote of the ranks, another trial."""

from __future__ import annotations

from pathlib import Path

import pytest

from detsweep import load
from detsweep.analysis.page.divergence import parted, record_parts
from detsweep.analysis.page.known import known
from detsweep.analysis.page.pairs import pairs
from detsweep.paths import FileError
from tests.support import (
    BLOCK_0_POST,
    INPUT,
    LOSS,
    full_stream,
    plan_of,
    record,
    trial_of,
    write_cells,
    write_recorded,
    write_trial,
)


def test_a_replay_parts_from_the_first_run_of_its_step(tmp_path: Path) -> None:
    plan = plan_of(["seed=1"], common=["steps=2", "runs=3"])
    trial = trial_of(write_cells(tmp_path, plan), plan.cells[0])
    write_trial(trial, plan.cells[0], differs={1: {(1, 3): LOSS, (0, 2): BLOCK_0_POST}})
    one = parted(known(load(tmp_path)), plan.cells[0].id, 0, trial)
    assert one.references == ["r1"]
    found = pairs(one, "r1")
    assert sorted(found) == [(1, 0, "r2"), (1, 1, "r3")]
    reference, stream = found[1, 1, "r3"]
    assert (reference.step, reference.run, stream.step, stream.run) == (1, "r1", 1, "r3")
    assert one.firsts() == [one.against("r1")[0]]
    assert (one.firsts()[0]["step"], one.firsts()[0]["run"]) == (0, "r2")


def test_in_lockstep_it_is_what_most_ranks_have(tmp_path: Path) -> None:
    plan = plan_of(["seed=1"], common=["mode=lockstep", "world.nproc_per_node=3"])
    trial = trial_of(write_cells(tmp_path, plan), plan.cells[0])

    def records(rank: int, step: int, run: int) -> list[object]:
        return [record("input", "x"), record("block_post", "blocks.0", 7 if rank == 1 else 5, block=0),
                record("grad", "w", rank)]  # fmt: skip

    write_recorded(trial, plan.cells[0], records=records)  # type: ignore[arg-type]
    one = parted(known(load(tmp_path)), plan.cells[0].id, 0, trial)
    assert one.references == ["vote"]
    found = pairs(one, "vote")
    assert sorted(found) == [(1, 0, "r1"), (1, 0, "r2")]
    reference, stream = found[1, 0, "r1"]
    # Gradients are shards, and not to be compared between ranks.
    assert [r.site for r in stream.records] == ["input", "block_post"]
    assert (reference.records[1].digest, stream.records[1].digest) == (5, 7)
    heat_part, events_part = record_parts(one)
    assert heat_part.title == "Which records differ from what most ranks have"
    assert events_part.grids[0].columns[-2:] == ("most ranks", "rank 1")


def test_a_launch_parts_from_another_trial(tmp_path: Path) -> None:
    plan = plan_of(["seed=1"], common=["mode=relaunch", "trials=2"])
    sweep, cell = write_cells(tmp_path, plan), plan.cells[0]
    for number in range(2):
        records = full_stream(0, 0, 1).records
        changed = [record(r.site, r.name, r.digest + 5 * number * (n >= INPUT), block=r.block, phase=r.phase)
                   for n, r in enumerate(records)]  # fmt: skip
        write_recorded(trial_of(sweep, cell, number), cell, number, records=lambda *_, own=changed: own)
    loaded = load(tmp_path)
    assert list(loaded.trials["verdict"]) == ["pass", "diverged"]
    one = parted(known(loaded), cell.id, 1, trial_of(sweep, cell, 1))
    assert one.references == ["trial0"]
    reference, stream = pairs(one, "trial0")[0, 0, "r1"]
    assert stream.records[INPUT].digest - reference.records[INPUT].digest == 5
    assert [path.parent.name for path in one.record_files([0])] == ["trial1", "trial0"]
    assert next(record_parts(one)).title == "Which records differ from the same run of trial 0"


def test_records_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    plan = plan_of(["seed=1"])
    trial = trial_of(write_cells(tmp_path, plan), plan.cells[0])
    write_trial(trial, plan.cells[0], differs={1: {(0, 2): BLOCK_0_POST}})
    one = parted(known(load(tmp_path)), plan.cells[0].id, 0, trial)
    path = trial.records(1)
    path.write_text("x" * (path.stat().st_size - 1) + "\n")
    with pytest.raises(FileError):
        pairs(one, "r1")
    (part,) = record_parts(one)
    assert part.lines[0].startswith(f"Records cannot be read: {path} line 1 cannot be read")
