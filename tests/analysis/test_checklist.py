"""The checklist: each answer from what is on disk, with what is against it by name; and never a traceback."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from detsweep.analysis.checklist import MARKS, Item, checklist, lines
from detsweep.capture import Record
from detsweep.paths import SweepPaths, TrialPaths, read_json, write_json
from detsweep.plan import Cell, Plan
from detsweep.results import refused, unsupported
from tests.support import (
    one_cell,
    plan_of,
    record,
    struck,
    trial_of,
    write_cells,
    write_failure,
    write_recorded,
    write_trial,
)

QUESTIONS = (
    "environment pinned",
    "seeds fixed",
    "layout constant",
    "determinism enabled",
    "autotuning off",
    "data fixed",
    "everything recorded",
)
COMMIT = "0b29600e309d89b5f3e711fa4000e755d2d3eaac"
ENVIRONMENT: dict[str, Any] = {
    "schema": 2,
    "host": "node1",
    "python": "3.11.9",
    "platform": "Linux-6.8-x86_64-with-glibc2.39",
    "detsweep": "0.1.0",
    "torch": "2.13.0+cpu",
    "torch_cuda": None,
    "torch_hip": None,
    "torch_git": "cf30153c4c131c8164ee7798e5022d810682e2cb",
    "device": {"type": "cpu", "name": "x86_64", "cores": 2},
    "settings": {
        "deterministic_algorithms": "strict",
        "cudnn_benchmark": False,
        "num_threads": 1,
        "cpu_capability": "AVX512",
    },
    "variables": {"PYTHONHASHSEED": "0"},
    "started_with": {"PYTHONHASHSEED": "0"},
    "versions": {"mkl": "2024.2"},
    "effects": {},
    "appeared": {},
    "configuration_files": {},
}
GPU = {"device": {"type": "cuda", "name": "H200", "memory": 150 << 30, "uuid": "x", "index": 0}}
Changes = Mapping[str, Any]
TWO = ("seed=1", "seed=2")


def _changed(changes: Changes) -> dict[str, Any]:
    """ENVIRONMENT with these changes; those in a table change only what they name of it."""
    environment = copy.deepcopy(ENVIRONMENT)
    for key, value in changes.items():
        whole = key in ("device", "configuration_files") or not isinstance(value, dict)
        environment[key] = value if whole else {**environment[key], **value}
    return environment


def _record(trial: TrialPaths, cell: Cell, ranks: Mapping[int, Changes] | None = None) -> None:
    """Write of a trial what only a real one writes: the command, and the environment of each rank."""
    write_json(trial.job, {"command": ["python", "-m", "torchrun"]})
    for rank in range(cell.world_size):
        write_json(trial.environment(rank), {**_changed((ranks or {}).get(rank, {})), "rank": rank})


def _cells(folder: Path, plan: Plan, **session: Any) -> SweepPaths:
    """The cells of a plan, and a session of a checkout without changes; `session` changes what else it says."""
    sweep = write_cells(folder, plan)
    content = read_json(sweep.sweep)
    sessions = [{**one, "git": COMMIT, **session} for one in content["sessions"]]
    write_json(sweep.sweep, {**content, "sessions": sessions})
    return sweep


def _sweep(
    folder: Path,
    *points: str,
    common: Sequence[str] = (),
    ranks: Mapping[tuple[int, int, int], Changes] | None = None,
    everywhere: Changes | None = None,
) -> tuple[SweepPaths, Plan]:
    """A sweep in which every trial passed; `ranks` changes the environment of one by its cell, trial and rank."""
    plan = plan_of(*([point] for point in points or ("seed=1",)), common=common)
    sweep = _cells(folder, plan)
    for place, cell in enumerate(plan.cells):
        for number in range(cell.trials):
            trial = trial_of(sweep, cell, number)
            write_trial(trial, cell, number)
            own = {
                rank: {**(everywhere or {}), **(ranks or {}).get((place, number, rank), {})}
                for rank in range(cell.world_size)
            }
            _record(trial, cell, own)
    return sweep, plan


def _asked(folder: Path, question: str) -> Item:
    return next(item for item in checklist(folder) if item.question == question)


def _answers(folder: Path) -> dict[str, str]:
    return {item.question: item.answer for item in checklist(folder)}


# --- a whole sweep ---------------------------------------------------------------------------------------------------


def test_a_sweep_that_recorded_all_and_pinned_all_is_a_yes_throughout(tmp_path: Path) -> None:
    _sweep(tmp_path, common=["trials=2"])
    items = checklist(tmp_path)
    assert [item.question for item in items] == list(QUESTIONS)
    assert {item.answer for item in items} == {"yes"}
    expected = {
        "environment pinned": "torch 2.13.0+cpu (git cf30153), Python 3.11.9, mkl 2024.2, cpu x86_64 with 2 cores, "
        "platform Linux-6.8-x86_64-with-glibc2.39, detsweep 0.1.0 (git 0b29600), CPU kernels AVX512, "
        "configuration files none: the same in 4 ranks of 2 trials, 1 session, 1 host",
        "seeds fixed": "seed 1; PYTHONHASHSEED=0 in 4 ranks of 2 trials; 2 random states before the first step "
        "compared with those of the cell's first trial, all equal",
        "layout constant": "world.nodes=1 world.nproc_per_node=2 world.shard_ranks=null wrap=block threads=1 "
        "in 4 ranks of 2 trials",
        "determinism enabled": "deterministic algorithms strict in 1 cell",
        "autotuning off": "1 cell on a CPU with nothing compiled, where nothing tunes",
        "data fixed": "6 batches compared with the first of their rank and step (2 of other runs, 4 of other trials), "
        "all equal",
        "everything recorded": "configuration, command, environments and records of 4 ranks of 2 trials, "
        "1 command line",
    }
    assert lines(items) == [f"✓ {question}: {evidence}" for question, evidence in expected.items()]


def test_every_answer_has_a_sign_and_all_but_a_yes_are_in_words_too() -> None:
    items = [Item("data fixed", answer, "why") for answer in MARKS]
    assert lines(items) == [
        "✓ data fixed: why",
        "✗ data fixed: no; why",
        "~ data fixed: partly; why",
        "? data fixed: not known; why",
    ]


def test_a_folder_without_a_sweep_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no sweep here"):
        checklist(tmp_path)
    with pytest.raises(FileNotFoundError, match="no sweep here"):
        checklist(tmp_path / "not there")


def test_where_nothing_ran_nothing_is_known(tmp_path: Path) -> None:
    _cells(tmp_path, plan_of(["seed=1"], ["seed=2"]))
    assert set(_answers(tmp_path).values()) == {"not known"}
    assert "incomplete in 2 of 2 trials, first seed-1 trial 0: no result yet" in _asked(tmp_path, "data fixed").evidence


def test_trials_that_were_never_started_have_nothing_to_record(tmp_path: Path) -> None:
    plan = plan_of(["seed=1"], ["seed=2"])
    sweep = _cells(tmp_path, plan)
    one, other = plan.cells
    write_json(trial_of(sweep, one).result, unsupported(one.spec(0), "only for amd"))
    write_json(trial_of(sweep, other).result, refused(other.spec(0), ["A should be 1, is unset"]))
    assert set(_answers(tmp_path).values()) == {"not known"}
    assert _asked(tmp_path, "layout constant").evidence == "no trial was started"


def test_an_unfinished_sweep_is_answered_as_far_as_it_came(tmp_path: Path) -> None:
    _, plan = _sweep(tmp_path, *TWO, common=["trials=2"])
    sweep = SweepPaths(tmp_path)
    for path in trial_of(sweep, plan.cells[1], 1).folder.iterdir():
        path.unlink()
    assert set(_answers(tmp_path).values()) == {"partly"}
    for question in QUESTIONS[:-1]:
        assert "in 1 of 4 trials, first seed-2 trial 1: no result yet" in _asked(tmp_path, question).evidence
    last = _asked(tmp_path, "everything recorded").evidence
    assert "no result yet of 1 of 4 trials, first seed-2 trial 1" in last


def test_a_trial_that_is_running_counts_with_what_it_has_said(tmp_path: Path) -> None:
    _, plan = _sweep(tmp_path, *TWO)
    trial_of(SweepPaths(tmp_path), plan.cells[1]).result.unlink()
    answers = _answers(tmp_path)
    assert answers["environment pinned"] == answers["determinism enabled"] == "yes"
    assert answers["data fixed"] == answers["everything recorded"] == "partly"


# --- environment -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"torch": "2.12.0+cpu"}, "torch 2.13.0+cpu in 3 ranks (first seed-1 trial 0 rank 0), 2.12.0+cpu in 1 rank"),
        ({"torch_git": "a" * 40}, "torch's commit cf30153 in 3 ranks (first seed-1 trial 0 rank 0), aaaaaaa in 1 rank"),
        ({"python": "3.12.1"}, "3.12.1 in 1 rank (first seed-2 trial 0 rank 1)"),
        ({"detsweep": "0.2.0"}, "detsweep 0.1.0 in 3 ranks"),
        ({"versions": {"mkl": "2025.0"}}, "mkl 2024.2 in 3 ranks (first seed-1 trial 0 rank 0), 2025.0 in 1 rank"),
        ({"platform": "Linux-5.4"}, "platform Linux-6.8-x86_64-with-glibc2.39 in 3 ranks"),
        ({"device": {"type": "cpu", "name": "x86_64", "cores": 64}}, "x86_64 with 64 cores in 1 rank"),
        ({"settings": {"cpu_capability": "AVX2"}}, "CPU kernels AVX512 in 3 ranks"),
        ({"configuration_files": {"/etc/nccl.conf": ["NCCL_ALGO=Tree"]}}, "NCCL_ALGO=Tree"),
    ],
)
def test_what_is_not_the_same_in_all_ranks_is_named(tmp_path: Path, change: Changes, said: str) -> None:
    _sweep(tmp_path, *TWO, ranks={(1, 0, 1): change})
    item = _asked(tmp_path, "environment pinned")
    assert item.answer == "no"
    assert said in item.evidence


def test_what_differs_is_not_among_what_is_the_same(tmp_path: Path) -> None:
    _sweep(tmp_path, *TWO, ranks={(1, 0, 1): {"torch": "2.12.0+cpu"}})
    item = _asked(tmp_path, "environment pinned")
    assert item.evidence.partition("; ")[2].startswith("Python 3.11.9, mkl 2024.2, ")


def test_devices_are_compared_with_their_like(tmp_path: Path) -> None:
    other = {"device": {**GPU["device"], "uuid": "y", "index": 1}}
    _sweep(tmp_path, *TWO, ranks={(1, 0, 0): GPU, (1, 0, 1): other})
    item = _asked(tmp_path, "environment pinned")
    assert item.answer == "yes"
    assert "cuda H200 with 150.0 GiB" in item.evidence
    assert "cpu x86_64 with 2 cores" in item.evidence


@pytest.mark.parametrize(
    "change",
    [
        {"host": "node2"},
        {"versions": {"cublas": "13.0.0"}},
        {"settings": {"cpu_capability": "AVX2"}, "variables": {"ATEN_CPU_CAPABILITY": "avx2"}},
        {"effects": {}, "settings": {"num_threads": 4}},
    ],
)
def test_what_may_differ_is_no_other_environment(tmp_path: Path, change: Changes) -> None:
    _sweep(tmp_path, *TWO, ranks={(1, 0, 0): change})
    item = _asked(tmp_path, "environment pinned")
    assert item.answer == "yes"
    assert f"1 session, {2 if 'host' in change else 1} host" in item.evidence


def _second_session(sweep: SweepPaths, **changes: Any) -> None:
    content = read_json(sweep.sweep)
    first = content["sessions"][0]
    versions = {**first["versions"], **changes.pop("versions", {})}
    write_json(sweep.sweep, {**content, "sessions": [first, {**first, **changes, "versions": versions}]})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"versions": {"numpy": "1.26.4"}}, "is 1.26.4 in session 2"),
        ({"git": "f" * 40}, "detsweep's commit was 0b29600 in session 1, is fffffff in session 2"),
        ({"git": None}, "detsweep's commit was 0b29600 in session 1, is not known in session 2"),
        ({"git": COMMIT + "+changes"}, "detsweep's own code had changes that are in no commit (session 2 of 2)"),
        ({"python": "3.10.2"}, "Python was "),
        ({"platform": "other"}, "is other in session 2"),
    ],
)
def test_what_is_not_the_same_in_all_sessions_is_named(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    sweep, _ = _sweep(tmp_path)
    _second_session(sweep, **change)
    item = _asked(tmp_path, "environment pinned")
    assert item.answer == "no"
    assert said in item.evidence


def test_a_second_command_on_another_host_of_the_same_kind_changes_nothing(tmp_path: Path) -> None:
    sweep, _ = _sweep(tmp_path)
    _second_session(sweep, host="elsewhere", command="another", started=0.0)
    item = _asked(tmp_path, "environment pinned")
    assert item.answer == "yes"
    assert "2 sessions" in item.evidence


def test_changes_that_are_in_no_commit_are_not_pinned(tmp_path: Path) -> None:
    _cells(tmp_path, plan := plan_of(["seed=1"]), git=COMMIT + "+changes")
    trial = trial_of(SweepPaths(tmp_path), plan.cells[0])
    write_trial(trial, plan.cells[0])
    _record(trial, plan.cells[0])
    item = _asked(tmp_path, "environment pinned")
    assert item.answer == "no"
    assert item.evidence.startswith("detsweep's own code had changes that are in no commit (in every session)")


def test_an_installed_detsweep_has_a_version_and_no_commit(tmp_path: Path) -> None:
    _cells(tmp_path, plan := plan_of(["seed=1"]), git=None)
    trial = trial_of(SweepPaths(tmp_path), plan.cells[0])
    write_trial(trial, plan.cells[0])
    _record(trial, plan.cells[0])
    item = _asked(tmp_path, "environment pinned")
    assert item.answer == "yes"
    assert "detsweep 0.1.0, " in item.evidence


# --- seeds -----------------------------------------------------------------------------------------------------------


def test_seeds_that_differ_are_an_axis(tmp_path: Path) -> None:
    _sweep(tmp_path, *(f"seed={number}" for number in range(5)))
    item = _asked(tmp_path, "seeds fixed")
    assert item.answer == "yes"
    assert "seed 0, 1, 2 and 2 more, an axis" in item.evidence
    assert "no second trial of a cell to compare random states with" in item.evidence


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"started_with": {"PYTHONHASHSEED": "random"}}, "PYTHONHASHSEED random in 1 rank of 1 trial"),
        # Set after the start of Python it is only a word.
        ({"started_with": {"A": "1", "PYTHONHASHSEED": None}}, "PYTHONHASHSEED unset in 1 rank of 1 trial"),
        ({"started_with": None, "variables": {"PYTHONHASHSEED": None}}, "PYTHONHASHSEED unset in 1 rank of 1 trial"),
    ],
)
def test_a_rank_with_another_order_in_each_process_makes_it_partly(tmp_path: Path, change: Any, said: str) -> None:
    sweep, plan = _sweep(tmp_path, ranks={(0, 0, 1): change})
    path = trial_of(sweep, plan.cells[0]).environment(1)
    environment = read_json(path)
    for table in ("started_with", "variables"):
        kept = {name: value for name, value in (environment[table] or {}).items() if value is not None}
        environment[table] = kept if environment[table] is not None else None
    write_json(path, environment)
    item = _asked(tmp_path, "seeds fixed")
    assert item.answer == "partly"
    assert said in item.evidence
    assert "PYTHONHASHSEED=0 in 1 rank of 1 trial" in item.evidence


def test_where_the_kernel_does_not_tell_the_variables_do(tmp_path: Path) -> None:
    _sweep(tmp_path, everywhere={"started_with": None})
    assert _asked(tmp_path, "seeds fixed").answer == "yes"


def _digests(trial: int, *, data: int = 0, random: int = 0) -> Any:
    """Records in which trials after the first have other digests by so much."""

    def records(rank: int, step: int, run: int) -> list[Record]:
        own = 100 * rank + 10 * step
        return [
            record("rng", "numpy", 7 + own + trial * random, phase="before"),
            record("input", "input_ids", 1 + own, phase="before"),
            record("input", "labels", 2 + own + trial * data, phase="before"),
            record("rng", "numpy", 1000 + run + trial, phase="after"),
            record("loss", "loss", 3),
        ]

    return records


def _recorded(folder: Path, plan: Plan, digests: Mapping[tuple[int, int], Any]) -> None:
    """Write a sweep whose trials recorded these digests, by the place of their cell and their number."""
    sweep = _cells(folder, plan)
    for (place, number), records in digests.items():
        cell = plan.cells[place]
        trial = trial_of(sweep, cell, number)
        write_recorded(trial, cell, number, records=records)
        _record(trial, cell)


def test_trials_that_begin_with_other_random_states_have_no_fixed_seed(tmp_path: Path) -> None:
    plan = plan_of(["trials=3"])
    _recorded(tmp_path, plan, {(0, number): _digests(number, random=number // 2) for number in range(3)})
    item = _asked(tmp_path, "seeds fixed")
    assert item.answer == "no"
    assert item.evidence.startswith("tiny trial 2 rank 0 step 0 r1: numpy is not that of tiny trial 0 rank 0 step 0 r1")
    assert _asked(tmp_path, "data fixed").answer == "yes"


def test_random_states_of_other_cells_and_later_runs_are_their_own(tmp_path: Path) -> None:
    plan = plan_of(["seed=1"], ["seed=2"])
    _recorded(tmp_path, plan, {(place, 0): _digests(place, random=1) for place in (0, 1)})
    assert _asked(tmp_path, "seeds fixed").answer == "yes"


# --- layout ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("point", "said"),
    [
        ("world.nproc_per_node=4", "world.nproc_per_node=2, 4 over the cells"),
        ("world.shard_ranks=1", "world.shard_ranks=null, 1 over the cells"),
        ("wrap=root", "wrap=block, root over the cells"),
    ],
)
def test_a_layout_that_is_an_axis_is_named(tmp_path: Path, point: str, said: str) -> None:
    _sweep(tmp_path, "seed=1234", point)
    item = _asked(tmp_path, "layout constant")
    assert item.answer == "partly"
    assert f"{said}, which cannot be compared bit for bit with each other" in item.evidence
    assert "world.nodes=1" in item.evidence


def test_threads_are_those_that_ranks_had(tmp_path: Path) -> None:
    threads = {"settings": {"num_threads": 2}}
    _sweep(tmp_path, *TWO, ranks={(1, 0, 0): threads, (1, 0, 1): threads})
    item = _asked(tmp_path, "layout constant")
    assert item.answer == "partly"
    assert "threads=1, 2 over the cells" in item.evidence


@pytest.mark.parametrize(("places", "where"), [([(0, 1, 1)], "seed-1 trial 1"), ([(0, 1, 0), (0, 1, 1)], "seed-1")])
def test_threads_that_differ_within_a_cell_are_a_no(tmp_path: Path, places: Any, where: str) -> None:
    _sweep(tmp_path, common=["trials=2"], ranks={place: {"settings": {"num_threads": 2}} for place in places})
    item = _asked(tmp_path, "layout constant")
    assert item.answer == "no"
    assert item.evidence.startswith(f"threads=1, 2 within {where}; world.nodes=1")
    assert "over the cells" not in item.evidence


# --- determinism -----------------------------------------------------------------------------------------------------


def test_determinism_is_what_ranks_read_back(tmp_path: Path) -> None:
    warn, off = ({"settings": {"deterministic_algorithms": level}} for level in ("warn", "off"))
    points = ("mitigation=none", "mitigation=torch_det", "mitigation=recipe")
    # One rank of the cell that asks for it has it off, all of one that does not ask have it on.
    _sweep(tmp_path, *points, ranks={(1, 0, 1): off, (2, 0, 0): warn})
    item = _asked(tmp_path, "determinism enabled")
    assert item.answer == "partly"
    assert item.evidence == (
        "deterministic algorithms strict in 1 cell, with a mere warning where there is none in 1 cell, off in 1 cell "
        "(first mitigation-torch_det trial 0 rank 1)"
    )


def test_determinism_that_is_off_everywhere_is_a_no(tmp_path: Path) -> None:
    _sweep(tmp_path, "mitigation=torch_det", everywhere={"settings": {"deterministic_algorithms": "off"}})
    assert _asked(tmp_path, "determinism enabled").answer == "no"


def test_a_mitigation_that_was_lost_is_named(tmp_path: Path) -> None:
    line = "CUBLAS_WORKSPACE_CONFIG should be :4096:8, is unset for C libraries"
    kept = {"status": "effective", "evidence": "torch says so"}
    lost = {"effects": {"recipe": {"A": kept, "CUBLAS_WORKSPACE_CONFIG": {"status": "lost", "evidence": line}}}}
    _sweep(tmp_path, *TWO, ranks={(1, 0, 0): lost, (1, 0, 1): lost})
    item = _asked(tmp_path, "determinism enabled")
    assert item.answer == "partly"
    assert item.evidence.startswith(f"not in force: {line} in 2 ranks of 1 trial, first seed-2 trial 0 rank 0; ")


def test_what_was_lost_in_any_launch_is_named_once(tmp_path: Path) -> None:
    plan = plan_of(["seed=1"], ["seed=2"])
    sweep = _cells(tmp_path, plan)
    line = "A should be 1, is 2"
    in_result, in_environment = (
        {0: [line], 1: [line]},
        {"effects": {"env": {"A": {"status": "lost", "evidence": line}}}},
    )
    for cell, lost, ranks in zip(plan.cells, (in_result, {}), ({1: in_environment}, {}), strict=True):
        write_trial(trial_of(sweep, cell), cell, lost=lost)
        _record(trial_of(sweep, cell), cell, ranks)
    item = _asked(tmp_path, "determinism enabled")
    assert item.answer == "partly"
    assert item.evidence.startswith(
        "not in force: A should be 1, is 2 in 2 ranks of 1 trial, first seed-1 trial 0 rank 0; deterministic"
    )


# --- autotuning ------------------------------------------------------------------------------------------------------

_INERT = {"effects": {"env": {"PYTORCH_TUNABLEOP_ENABLED": {"status": "inert", "evidence": "nothing here reads it"}}}}
_TUNABLE = {"variables": {"PYTORCH_TUNABLEOP_ENABLED": "1"}}


@pytest.mark.parametrize(
    ("common", "change", "answer", "said"),
    [
        ([], {}, "yes", "on a CPU with nothing compiled, where nothing tunes"),
        ([], _TUNABLE, "yes", "on a CPU with nothing compiled, where nothing tunes"),
        ([], GPU, "yes", "cudnn_benchmark=false and no variable that turns tuning on"),
        ([], {**GPU, "settings": {"cudnn_benchmark": True}}, "no", "cudnn_benchmark=true in 2 ranks of 1 trial"),
        ([], {"settings": {"cudnn_benchmark": True}}, "yes", "where nothing tunes"),
        ([], {**GPU, **_TUNABLE}, "no", "PYTORCH_TUNABLEOP_ENABLED=1 in 2 ranks of 1 trial, first tiny trial 0 rank 0"),
        ([], {**GPU, **_TUNABLE, **_INERT}, "yes", "no variable that turns tuning on"),
        ([], {**GPU, "variables": {"PYTORCH_TUNABLEOP_ENABLED": "0"}}, "yes", "cudnn_benchmark=false"),
        ([], {**GPU, "started_with": {"PRIMUS_TURBO_AUTO_TUNE": "1"}}, "no", "PRIMUS_TURBO_AUTO_TUNE=1"),
        ([], {**GPU, "appeared": {"HIPBLASLT_TUNING_MODE": "tune"}}, "no", "HIPBLASLT_TUNING_MODE=tune"),
        ([], {**GPU, "variables": {"HIPBLASLT_TUNING_MODE": "off"}}, "yes", "cudnn_benchmark=false"),
        ([], {**GPU, "variables": {"HIPBLASLT_TUNING_OVERRIDE_FILE": "/x"}}, "no", "HIPBLASLT_TUNING_OVERRIDE_FILE=/x"),
        ([], {**GPU, "variables": {"TE_HIPBLASLT_TUNING_RUN_COUNT": "10"}}, "no", "TE_HIPBLASLT_TUNING_RUN_COUNT=10"),
        ([], {**GPU, "variables": {"TE_HIPBLASLT_TUNING_ALGO_COUNT": "0"}}, "yes", "cudnn_benchmark=false"),
        ([], {**GPU, "variables": {"MIOPEN_FIND_MODE": "1"}}, "no", "MIOPEN_FIND_MODE=1"),
        ([], {**GPU, "variables": {"MIOPEN_FIND_MODE": "FAST", "MIOPEN_FIND_ENFORCE": "1"}}, "yes", "cudnn_benchmark"),
        (["compile=true"], {}, "yes", "on a CPU, compiled with no variable that turns tuning on"),
        (["compile=true"], {"variables": {"TORCHINDUCTOR_MAX_AUTOTUNE_GEMM": "1"}}, "no", "MAX_AUTOTUNE_GEMM=1"),
        (["compile=true"], {"variables": {"TORCHINDUCTOR_MAX_AUTOTUNE_GEMM_BACKENDS": "ATEN"}}, "yes", "compiled"),
        (["compile=true"], {"variables": {"TORCH_COMPILE_DISABLE": "1"}}, "yes", "nothing compiled"),
        (["compile=true"], {"settings": {"cudnn_benchmark": True}}, "yes", "on a CPU, compiled"),
        (["compile=true"], GPU, "yes", "no variable that turns tuning on"),
        (["compile=true"], {**GPU, "settings": {"deterministic_algorithms": "off"}}, "no", "Inductor, which times"),
        (
            ["compile=true"],
            {
                **GPU,
                "settings": {"deterministic_algorithms": "off"},
                "variables": {"TORCHINDUCTOR_DETERMINISTIC": "1"},
            },
            "yes",
            "no variable that turns tuning on",
        ),
        (["kernel_cache=shared"], {}, "yes", "nothing tunes"),
        (["kernel_cache=shared"], GPU, "partly", "tiny has kernel_cache=shared: its kernels may be the choice"),
        (["kernel_cache=shared", "compile=true"], {}, "partly", "kernel_cache=shared"),
        (["kernel_cache=trial", "compile=true"], {}, "yes", "compiled"),
    ],
)
def test_what_chooses_kernels_by_timing_is_named(
    tmp_path: Path, common: list[str], change: Changes, answer: str, said: str
) -> None:
    cell = one_cell(*common)
    sweep = _cells(tmp_path, Plan((cell,), (), 0))
    write_trial(trial_of(sweep, cell), cell)
    _record(trial_of(sweep, cell), cell, {0: change, 1: change})
    item = _asked(tmp_path, "autotuning off")
    assert item.answer == answer
    assert said.replace("tiny", cell.slug) in item.evidence


def test_tuning_in_one_of_two_cells_is_partly_off(tmp_path: Path) -> None:
    _sweep(tmp_path, *TWO, everywhere=GPU, ranks={(1, 0, 1): _TUNABLE})
    item = _asked(tmp_path, "autotuning off")
    assert item.answer == "partly"
    assert "PYTORCH_TUNABLEOP_ENABLED=1 in 1 rank of 1 trial, first seed-2 trial 0 rank 1" in item.evidence
    assert "1 cell with cudnn_benchmark=false" in item.evidence


# --- data ------------------------------------------------------------------------------------------------------------


def test_data_that_changes_from_trial_to_trial_is_a_no(tmp_path: Path) -> None:
    plan = plan_of(["trials=2", "steps=2"])
    _recorded(tmp_path, plan, {(0, number): _digests(number, data=1) for number in range(2)})
    item = _asked(tmp_path, "data fixed")
    assert item.answer == "no"
    first = f"{plan.cells[0].slug} trial 1 rank 0 step 0 r1: labels is not that of {plan.cells[0].slug} trial 0"
    assert item.evidence.startswith(first)
    assert "5 more of this kind" in item.evidence
    # 2 ranks, 2 steps: the second run of the first trial, and both of the second trial.
    assert "12 batches compared with the first of their rank and step (4 of other runs, 8 of other trials);" in (
        item.evidence + ";"
    )


def test_cells_that_must_have_the_same_data_are_compared_with_each_other(tmp_path: Path) -> None:
    plan = plan_of(*([f"model.num_layers={layers}"] for layers in (2, 3, 4)))
    _recorded(tmp_path, plan, {(place, 0): _digests(place // 2, data=1) for place in range(3)})
    item = _asked(tmp_path, "data fixed")
    assert item.answer == "no"
    first = "model.num_layers-4 trial 0 rank 0 step 0 r1: labels is not that of model.num_layers-2 trial 0 rank 0"
    assert item.evidence.startswith(first)
    assert (
        "10 batches compared with the first of their rank and step (2 of other runs, 8 of other cells)" in item.evidence
    )


@pytest.mark.parametrize(
    "point",
    ["seed=7", "model.batch_size=4", "model.seq_len=64", "accum=2", "mode=lockstep", "world.nproc_per_node=4"],
)
def test_cells_that_cannot_have_the_same_data_are_not_compared(tmp_path: Path, point: str) -> None:
    common = ["mode=train"] if point.startswith("accum") else []
    plan = plan_of(["seed=1234"], [point], common=common)
    _recorded(tmp_path, plan, {(place, 0): _digests(place, data=1) for place in range(2)})
    item = _asked(tmp_path, "data fixed")
    assert item.answer == "yes"
    assert "2 kinds of data, by seed, sizes or ranks, not compared with each other" in item.evidence
    assert "of other cells" not in item.evidence


def test_of_a_single_trial_its_runs_are_compared(tmp_path: Path) -> None:
    plan = plan_of(["runs=3"])

    def records(rank: int, step: int, run: int) -> list[Record]:
        return [record("input", "input_ids", 1 + (run == 3 and rank == 1), phase="before")]

    _recorded(tmp_path, plan, {(0, 0): records})
    item = _asked(tmp_path, "data fixed")
    assert item.answer == "no"
    slug = plan.cells[0].slug
    assert item.evidence.split("; ") == [
        f"{slug} trial 0 rank 1 step 0 r3: input_ids is not that of {slug} trial 0 rank 1 step 0 r1",
        "4 batches compared with the first of their rank and step (4 of other runs)",
    ]


def test_a_batch_that_is_missing_is_another_order(tmp_path: Path) -> None:
    plan = plan_of(["trials=2"])

    def records(trial: int) -> Any:
        names = ("input_ids",) if trial else ("input_ids", "labels")
        return lambda *_: [record("input", name, 1, phase="before") for name in names]

    _recorded(tmp_path, plan, {(0, number): records(number) for number in range(2)})
    assert "trial 1 rank 0 step 0 r1: their number is not that of" in _asked(tmp_path, "data fixed").evidence


def test_an_input_that_a_fault_changed_on_purpose_is_left_out(tmp_path: Path) -> None:
    plan = plan_of(["fault=input_flip", "trials=2"])
    cell = plan.cells[0]
    sweep = _cells(tmp_path, plan)

    def records(rank: int, step: int, run: int) -> list[Record]:
        return [record("input", "input_ids", 1 if run == 1 else 2, phase="before")]

    for number in range(2):
        trial = trial_of(sweep, cell, number)
        injected = {rank: [struck("input_flip", block=None)] for rank in range(2)}
        write_recorded(trial, cell, number, records=records, injected=injected)
        _record(trial, cell)
    item = _asked(tmp_path, "data fixed")
    assert item.answer == "yes"
    assert "2 batches compared with the first of their rank and step (2 of other trials), all equal" in item.evidence
    assert "without 4 runs whose input a fault changed on purpose" in item.evidence


def test_a_fault_elsewhere_leaves_the_input_in(tmp_path: Path) -> None:
    plan = plan_of(["fault=bit_flip"])
    trial = trial_of(_cells(tmp_path, plan), plan.cells[0])
    write_trial(trial, plan.cells[0], injected={rank: [struck("bit_flip")] for rank in range(2)})
    _record(trial, plan.cells[0])
    item = _asked(tmp_path, "data fixed")
    assert item.evidence == "2 batches compared with the first of their rank and step (2 of other runs), all equal"


# --- everything recorded, and harm of every kind ---------------------------------------------------------------------


@pytest.mark.parametrize("harm", ["gone", "torn", "empty", "other"])
def test_no_harm_to_any_file_is_a_traceback_or_a_yes(tmp_path: Path, harm: str) -> None:
    folder = tmp_path / "sweep"
    sweep, plan = _sweep(folder, *TWO)
    result = trial_of(sweep, plan.cells[0]).result
    files = [sweep.sweep, *sorted(sweep.cell(plan.cells[0].slug, plan.cells[0].id).folder.rglob("*.json*"))]
    assert len(files) == 11
    for path in files:
        content = path.read_bytes()
        path.unlink()
        if harm != "gone":
            path.write_bytes({"torn": content[: len(content) // 2], "empty": b"", "other": b"[1]\n"}[harm])
        items = checklist(folder)
        assert [item.question for item in items] == list(QUESTIONS)
        last = items[-1]
        if harm == "gone" and path == result:
            assert last.answer == "partly"
            assert "no result yet of 1 of 2 trials" in last.evidence
        else:
            assert last.answer == "no", path
            assert str(path.relative_to(folder)) in last.evidence
            assert str(folder) not in last.evidence
        path.write_bytes(content)
    assert checklist(folder)[-1].answer == "yes"


def test_records_of_the_right_size_that_cannot_be_read_are_missing(tmp_path: Path) -> None:
    sweep, plan = _sweep(tmp_path, *TWO)
    path = trial_of(sweep, plan.cells[1]).records(1)
    path.write_bytes(path.read_bytes().replace(b'"records":', b'"recordz":', 1))
    items = checklist(tmp_path)
    name = f"{path.relative_to(tmp_path)} line 1 cannot be read"
    assert (items[5].answer, items[6].answer) == ("partly", "no")
    assert f"incomplete in 1 of 2 trials, first seed-2 trial 0: {name}" in items[5].evidence
    assert name in items[6].evidence


def test_a_rank_without_an_environment_leaves_its_trial_out(tmp_path: Path) -> None:
    sweep, plan = _sweep(tmp_path, *TWO)
    trial_of(sweep, plan.cells[1]).environment(1).unlink()
    items = checklist(tmp_path)
    path = trial_of(sweep, plan.cells[1]).environment(1).relative_to(tmp_path)
    for item in items[:5]:
        assert item.answer == "partly"
        assert f"incomplete in 1 of 2 trials, first seed-2 trial 0: {path} is missing" in item.evidence
    assert items[5].answer == "yes"
    assert items[6].answer == "no"


@pytest.mark.parametrize("key", ["python", "torch", "device", "settings", "variables"])
def test_an_environment_without_its_parts_is_none(tmp_path: Path, key: str) -> None:
    sweep, plan = _sweep(tmp_path)
    path = trial_of(sweep, plan.cells[0]).environment(0)
    write_json(path, {name: value for name, value in read_json(path).items() if name != key})
    item = _asked(tmp_path, "everything recorded")
    assert item.answer == "no"
    assert f"environment-rank000.json has no {key}" in item.evidence


def test_an_environment_of_an_earlier_version_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    sweep, plan = _sweep(tmp_path)
    path = trial_of(sweep, plan.cells[0]).spec
    spec = read_json(path)
    config = {key: value for key, value in spec["config"].items() if key != "kernel_cache"}
    write_json(path, {**spec, "config": config})
    for rank in range(2):
        path = trial_of(sweep, plan.cells[0]).environment(rank)
        new = ("versions", "effects", "appeared", "started_with", "configuration_files", "torch_git")
        write_json(path, {name: value for name, value in read_json(path).items() if name not in new})
    assert set(_answers(tmp_path).values()) == {"yes"}
    assert "torch 2.13.0+cpu, Python 3.11.9" in _asked(tmp_path, "environment pinned").evidence


def test_a_spec_without_what_is_asked_for_is_named(tmp_path: Path) -> None:
    sweep, plan = _sweep(tmp_path)
    path = trial_of(sweep, plan.cells[0]).spec
    spec = read_json(path)
    del spec["config"]["world"]["shard_ranks"]
    write_json(path, spec)
    items = checklist(tmp_path)
    assert "spec.json has no world.shard_ranks" in items[-1].evidence
    assert items[2].answer == "not known"


def test_a_cell_that_is_no_configuration_is_named(tmp_path: Path) -> None:
    sweep, plan = _sweep(tmp_path, *TWO)
    path = sweep.cell(plan.cells[0].slug, plan.cells[0].id).cell
    write_json(path, {**read_json(path), "config": {"world": "none"}})
    items = checklist(tmp_path)
    name = f"{path.relative_to(tmp_path)} is not a cell's configuration"
    assert items[-1].answer == "no"
    assert name in items[-1].evidence
    assert {item.answer for item in items[:-1]} == {"partly"}
    assert f"1 cell cannot be read, first {name}" in items[5].evidence


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"sessions": []}, "sweep.json does not list its sessions"),
        ({"sessions": [1]}, "sweep.json does not list its sessions"),
        ({"sessions": [{"command": "python -m detsweep"}, 1]}, "sweep.json does not list its sessions"),
        ({"sessions": [{"command": ""}]}, "sweep.json: session 1 has no command line"),
        ({"cells": None}, "sweep.json lists no cells"),
    ],
)
def test_a_sweep_without_its_command_lines_is_named(tmp_path: Path, content: dict[str, Any], said: str) -> None:
    sweep, _ = _sweep(tmp_path)
    write_json(sweep.sweep, {**read_json(sweep.sweep), **content})
    items = checklist(tmp_path)
    assert (items[0].answer, items[-1].answer) == ("partly", "no")
    assert said in items[0].evidence
    assert said in items[-1].evidence


def test_a_job_without_a_command_is_named(tmp_path: Path) -> None:
    sweep, plan = _sweep(tmp_path)
    write_json(trial_of(sweep, plan.cells[0]).job, {"command": []})
    item = _asked(tmp_path, "everything recorded")
    assert item.answer == "no"
    assert "job.json has no command" in item.evidence


def test_what_a_failed_trial_did_not_come_to_is_no_fault_of_the_record(tmp_path: Path) -> None:
    sweep, plan = _sweep(tmp_path, *TWO)
    other = plan.cells[1]
    failed = trial_of(sweep, other)
    write_failure(failed, other, verdict="timeout")
    failed.environment(1).unlink()
    failed.records(1).write_text('{"torn')
    items = {item.question: item for item in checklist(tmp_path)}
    assert items["everything recorded"].answer == "partly"
    assert "environment-rank001.json is missing, and its trial failed" in items["everything recorded"].evidence
    assert items["data fixed"].answer == "partly"
    assert items["environment pinned"].answer == "partly"
    failed.job.unlink()
    assert _asked(tmp_path, "everything recorded").answer == "no"


def test_many_missing_files_are_counted(tmp_path: Path) -> None:
    sweep, plan = _sweep(tmp_path, *(f"seed={number}" for number in range(5)))
    for cell in plan.cells:
        trial_of(sweep, cell).job.unlink()
    evidence = _asked(tmp_path, "everything recorded").evidence
    assert evidence.count("job.json is missing") == 3
    assert "2 more of this kind" in evidence


def test_cells_of_one_slug_are_told_apart(tmp_path: Path) -> None:
    plan = plan_of(["seed=1"], ["seed=2"])
    sweep = _cells(tmp_path, plan)
    for cell in plan.cells:
        folder = sweep.cell(cell.slug, cell.id).folder
        write_json(folder / "cell.json", {**cell.to_json(), "slug": "same"})
        write_trial(trial_of(sweep, cell), cell)
        _record(trial_of(sweep, cell), cell)
    assert "4 ranks of 2 trials" in _asked(tmp_path, "layout constant").evidence
    assert set(_answers(tmp_path).values()) == {"yes"}
