"""The sweep without a launch: what is outstanding, what is kept, and a dry run that touches nothing."""

from __future__ import annotations

import os
import shlex
import signal
import threading
from pathlib import Path

import pytest

from detsweep import locks
from detsweep.dispatch import FolderBusyError, dry_run, loop, run_trials
from detsweep.dispatch.local import LocalPool
from detsweep.dispatch.loop import _outstanding, stop_on_signals
from detsweep.dispatch.pools import Trial
from detsweep.dispatch.progress import Progress
from detsweep.locks import DriverLock, hold, wait_until_free, watch_driver
from detsweep.paths import SweepPaths, read_json, write_json
from detsweep.plan import Plan
from tests.support import INPUT, plan_of, trial_of, write_cells, write_trial

UNSUPPORTED = "mitigation=[primus]"


def _pool(sweep: SweepPaths) -> LocalPool:
    return LocalPool(sweep, session="", slots=1, gpus=())


def _names(plan: Plan, sweep: SweepPaths) -> list[tuple[str, int]]:
    return [(trial.cell.label, trial.number) for trial in _outstanding(plan, sweep, _pool(sweep))]


def test_of_a_new_sweep_every_trial_is_outstanding_and_every_spec_written(tmp_path: Path) -> None:
    plan, sweep = plan_of(["seed=1"], ["seed=2"], common=["trials=2"]), SweepPaths(tmp_path)
    assert sorted(_names(plan, sweep)) == [("seed=1", 0), ("seed=1", 1), ("seed=2", 0), ("seed=2", 1)]
    for cell in plan.cells:
        assert read_json(sweep.cell(cell.slug, cell.id).cell) == cell.to_json()
        assert [read_json(trial_of(sweep, cell, number).spec) for number in range(2)] == [cell.spec(0), cell.spec(1)]


def test_trials_of_one_number_are_launched_next_to_each_other_in_the_order_of_cells(tmp_path: Path) -> None:
    plan, sweep = plan_of(["seed=2"], ["seed=1"], ["seed=3"], common=["trials=3"]), SweepPaths(tmp_path)
    write_trial(trial_of(sweep, plan.cells[1], 1), plan.cells[1], 1)
    assert _names(plan, sweep) == [
        *(("seed=2", 0), ("seed=1", 0), ("seed=3", 0)),
        *(("seed=2", 1), ("seed=3", 1)),
        *(("seed=2", 2), ("seed=1", 2), ("seed=3", 2)),
    ]


@pytest.mark.parametrize(
    ("rerun", "verdict", "again"),
    [
        ("errors", "pass", False),
        ("errors", "diverged", False),
        ("errors", "error", True),
        ("errors", "timeout", True),
        ("errors", "invalid", True),
        ("errors", "unsupported", True),
        ("none", "pass", False),
        ("none", "error", False),
        ("none", "timeout", False),
        ("all", "pass", True),
        ("all", "diverged", True),
        ("all", "error", True),
    ],
)
def test_a_trial_is_launched_again_as_asked(tmp_path: Path, rerun: str, verdict: str, again: bool) -> None:
    plan, sweep = plan_of(["seed=1"], common=[f"launch.rerun={rerun}"]), SweepPaths(tmp_path)
    trial = trial_of(sweep, plan.cells[0])
    write_trial(trial, plan.cells[0])
    result = {**read_json(trial.result), "verdict": verdict}
    write_json(trial.result, result)
    assert bool(_outstanding(plan, sweep, _pool(sweep))) is again
    kept = trial.folder.parent / "superseded" / "trial0-1" / "result.json" if again else trial.result
    assert read_json(kept) == result
    assert trial.result.exists() is not again


def test_a_trial_whose_records_are_gone_is_launched_again(tmp_path: Path) -> None:
    plan, sweep = plan_of(["seed=1"]), SweepPaths(tmp_path)
    trial = trial_of(sweep, plan.cells[0])
    write_trial(trial, plan.cells[0])
    assert _outstanding(plan, sweep, _pool(sweep)) == []
    trial.records(1).unlink()
    assert len(_outstanding(plan, sweep, _pool(sweep))) == 1


def test_an_unfinished_attempt_is_set_aside_and_its_records_with_it(tmp_path: Path) -> None:
    plan, sweep = plan_of(["seed=1"]), SweepPaths(tmp_path)
    trial = trial_of(sweep, plan.cells[0])
    write_trial(trial, plan.cells[0])
    trial.result.unlink()
    assert len(_outstanding(plan, sweep, _pool(sweep))) == 1
    assert [path.name for path in trial.folder.iterdir()] == ["spec.json"]
    assert (trial.folder.parent / "superseded" / "trial0-1" / "rank000.jsonl").exists()


def test_what_this_platform_cannot_run_has_its_result_at_once(tmp_path: Path) -> None:
    plan, sweep = plan_of([UNSUPPORTED]), SweepPaths(tmp_path)
    assert _outstanding(plan, sweep, _pool(sweep)) == []
    result = read_json(trial_of(sweep, plan.cells[0]).result)
    assert (result["verdict"], result["error"]) == ("unsupported", "mitigation 'primus' is for amd, this is cpu")


def test_an_unsupported_cell_that_is_forced_is_launched(tmp_path: Path) -> None:
    sweep = SweepPaths(tmp_path)
    _outstanding(plan_of([UNSUPPORTED]), sweep, _pool(sweep))
    assert _names(plan_of([UNSUPPORTED], common=["mitigation_force=true"]), sweep) == [(UNSUPPORTED, 0)]


def test_a_sweep_with_nothing_outstanding_launches_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = plan_of(["seed=1"], ["seed=2"], [UNSUPPORTED])
    sweep = write_cells(tmp_path, plan)
    write_trial(trial_of(sweep, plan.cells[0]), plan.cells[0])
    write_trial(trial_of(sweep, plan.cells[1]), plan.cells[1], differs={0: {(0, 2): INPUT}})
    results = [read_json(trial_of(sweep, cell).result) for cell in plan.cells[:2]]
    assert run_trials(plan, sweep, ["-m"])
    assert [read_json(trial_of(sweep, cell).result) for cell in plan.cells[:2]] == results
    assert read_json(trial_of(sweep, plan.cells[2]).result)["verdict"] == "unsupported"
    assert not trial_of(sweep, plan.cells[2]).job.exists()
    lines = ["1 of 3 trials are unsupported here", "2 of 3 trials have a result already"]
    assert capsys.readouterr().out.splitlines() == lines
    assert len(read_json(sweep.sweep)["sessions"]) == 2


def test_a_folder_that_another_driver_works_on_is_refused(tmp_path: Path) -> None:
    plan, sweep = plan_of(["seed=1"]), SweepPaths(tmp_path)
    other = DriverLock(sweep.driver_lock)
    assert other.acquire()
    with pytest.raises(FolderBusyError, match="another detsweep works on"):
        run_trials(plan, sweep, [])
    other.release()
    assert not sweep.sweep.exists()


def test_the_lock_is_given_back_after_a_sweep(tmp_path: Path) -> None:
    plan, sweep = plan_of([UNSUPPORTED]), SweepPaths(tmp_path)
    assert run_trials(plan, sweep, [])
    lock = DriverLock(sweep.driver_lock)
    assert lock.acquire()
    lock.release()


def test_trials_of_an_earlier_driver_are_waited_for_and_can_see_that_it_died(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, sweep = plan_of([UNSUPPORTED]), SweepPaths(tmp_path)
    handles = hold([sweep.trials_lock])

    def waiting(path: Path, timeout_s: float) -> bool:
        # The trial ends as trials do: once nobody has its driver's lock, the new driver included.
        gone = watch_driver(sweep.driver_lock)
        threading.Thread(target=lambda: os.close(handles[0]) if gone.wait(5) else None, daemon=True).start()
        return wait_until_free(path, timeout_s)

    monkeypatch.setattr(locks, "wait_until_free", waiting)
    monkeypatch.setattr(loop, "STOP_LIMIT_S", 10.0)
    assert run_trials(plan, sweep, [])
    assert "waiting for trials of an earlier command to end" in capsys.readouterr().err


def test_a_folder_whose_trials_do_not_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "STOP_LIMIT_S", 0.1)
    plan, sweep = plan_of([UNSUPPORTED]), SweepPaths(tmp_path)
    handles = hold([sweep.trials_lock])
    with pytest.raises(FolderBusyError, match="trials of another detsweep still run"):
        run_trials(plan, sweep, [])
    os.close(handles[0])
    assert not sweep.sweep.exists()


@pytest.mark.parametrize(
    ("then", "now", "again"),
    [
        ((), (), False),
        ((), ("require=[no_compile]",), True),
        (("require=[no_compile]",), ("require=[no_compile]",), False),
        (("require=[no_compile]",), (), False),
        (("require=[no_compile]",), ("require=[seeded]",), True),
    ],
    ids=str,
)
def test_a_result_that_was_not_held_to_what_is_required_now_is_made_anew(
    tmp_path: Path, then: tuple[str, ...], now: tuple[str, ...], again: bool
) -> None:
    sweep, (earlier,) = SweepPaths(tmp_path), plan_of(then).cells
    write_trial(trial_of(sweep, earlier), earlier)
    assert bool(_names(plan_of(now), sweep)) is again


def test_a_signal_becomes_a_request_and_handlers_come_back() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    with stop_on_signals() as stop:
        assert (stop.requested, stop.impatient) == (False, False)
        os.kill(os.getpid(), signal.SIGTERM)
        assert (stop.requested, stop.impatient) == (True, False)
        os.kill(os.getpid(), signal.SIGINT)
        assert (stop.requested, stop.impatient) == (True, True)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before


def test_a_dry_run_shows_commands_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_ALGO", "Tree")
    monkeypatch.setenv("OLD", "1")
    common = ["trials=2", "world.threads_per_rank=3", "+env.OLD=null", "+env.FLAG='a b'"]
    plan = plan_of(["seed=1"], [UNSUPPORTED], common=common)
    dry_run(plan, SweepPaths(tmp_path / "runs"))
    out = capsys.readouterr().out
    assert out.startswith(f"2 cells, 4 trials, into {tmp_path / 'runs'}\n")
    shown = next(shlex.split(line) for line in out.splitlines() if line.startswith("  env "))
    settings = shown[: shown.index("torchrun")]
    assert {"FLAG=a b", "OMP_NUM_THREADS=3", "MKL_NUM_THREADS=3", "CUDA_VISIBLE_DEVICES="} <= set(settings)
    unset = {settings[place + 1] for place, word in enumerate(settings) if word == "-u"}
    assert {"NCCL_ALGO", "OLD"} <= unset
    assert "PATH" not in unset
    assert f"-m detsweep.worker {tmp_path / 'runs' / 'cells' / f'seed-1-{plan.cells[0].id}' / 'trial0'}" in out
    assert "unsupported: mitigation 'primus' is for amd, this is cpu" in out
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_says_when_cells_stop(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = ["trials=20", "stop_after.divergences=2", "stop_after.bound=0.05"]
    dry_run(plan_of(["seed=1"], ["seed=2"], common=common), SweepPaths(tmp_path / "runs"))
    first = capsys.readouterr().out.splitlines()[0]
    told = "at most 40 trials, stop_after.divergences=2, stop_after.bound=0.05"
    assert first == f"2 cells, {told}, into {tmp_path / 'runs'}"


def test_progress_says_which_trial_ended_how_and_what_is_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = plan_of(["+env.A='[b]'"], ["+env.A=c"], common=["trials=2"])
    sweep = SweepPaths(tmp_path)
    trials = [Trial(cell, 1, trial_of(sweep, cell, 1)) for cell in plan.cells]
    with Progress(plan, left=2, width=2) as progress:
        for trial in trials:
            progress.started(trial)
        progress.finished(trials[0], {"verdict": "pass"})
        progress.finished(trials[1], {"verdict": "error", "error": "rank 1: [broken]"})
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "2 of 4 trials have a result already"
    assert lines[1].startswith("[3/4] env.A='[b]' trial 1: pass in 0.0 s, about ")
    assert lines[2].startswith("[4/4] env.A=c trial 1: error in 0.0 s")
    assert "left" not in lines[2]
    assert lines[3] == "    rank 1: [broken]"


def test_of_trials_that_wait_for_a_cluster_what_they_took_is_what_they_say(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan, sweep = plan_of(["seed=1"], ["seed=2"], ["seed=3"]), SweepPaths(tmp_path)
    trials = [Trial(cell, 0, trial_of(sweep, cell)) for cell in plan.cells]
    with Progress(plan, left=3, width=1, queued=True) as progress:
        for trial in trials:
            progress.started(trial)
        progress.finished(trials[0], {"verdict": "pass", "seconds": 7.5})
        progress.finished(trials[1], {"verdict": "error", "error": "a node failed"})
        progress.finished(trials[2], {"verdict": "pass", "seconds": 9.0})
    assert capsys.readouterr().out.splitlines() == [
        "[1/3] seed=1: pass in 7.5 s, about 15 s left",
        "[2/3] seed=2: error, about 8 s left",
        "    a node failed",
        "[3/3] seed=3: pass in 9.0 s",
    ]
