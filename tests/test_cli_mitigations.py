"""Mitigations from the command line: what became of them, what they cost, and what is refused, with real launches."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import detsweep as package
from detsweep.analysis.marks import MARKS
from detsweep.paths import conf_dir
from tests.conftest import Ran, Run

SMALL = ("model.num_layers=1", "model.seq_len=8")


def _trial(ran: Ran, slug: str) -> Path:
    return ran.cells()[slug] / "trial0"


def _read(path: Path) -> Any:
    return json.loads(path.read_text())


def _notes(ran: Ran) -> list[str]:
    """What is said before anything runs."""
    return [line.removeprefix("detsweep: note: ") for line in ran.err.splitlines()]


def _statuses(ran: Ran, slug: str) -> dict[str, dict[str, str]]:
    """The status of each setting of each mitigation of a cell."""
    effects = ran.results()[slug]["effects"]
    return {name: {key: one["status"] for key, one in own["settings"].items()} for name, own in effects.items()}


# --- several, on a platform for which some of them are not ----------------------------------------------------------


@pytest.fixture(scope="module")
def forced(detsweep: Run) -> Ran:
    """Four cells from a shell that has two variables of NCCL's; one of them is what some cells set otherwise."""
    mitigations = "mitigation=none,torch_det,nccl_ring,primus"
    shell = {"NCCL_ALGO": "Tree", "NCCL_PROTO": "LL"}
    return detsweep("-m", mitigations, "mitigation_force=true", "steps=6", *SMALL, **shell)


def test_what_became_of_each_mitigation_is_a_column(forced: Ran) -> None:
    assert forced.code == 0, forced.out + forced.err
    wide = package.load(forced.folder).matrix(rows="mitigation", value="effect")["effect"]
    assert dict(wide) == {"none": "", "torch_det": "effective", "nccl_ring": "inert", "primus": "inert"}
    table = pd.read_csv(forced.folder / "matrix.csv", keep_default_na=False).set_index("mitigation")
    assert dict(table["effect"]) == dict(wide)
    for name, effect in wide.items():
        shown = MARKS["inert" if effect == "inert" else "pass"]
        (row,) = [line for line in forced.out.splitlines() if line.startswith(f"{name} ") and shown in line]
        assert effect in row


def test_mitigations_that_nothing_reads_are_said_to_tell_nothing(forced: Ran) -> None:
    why = "is inert here, its rows say nothing about it: "
    lines = forced.out.splitlines()
    assert f"nccl_ring {why}nothing here reads it (no nccl, no rccl)" in lines
    assert any(line.startswith(f"primus {why}nothing here reads it (no ") for line in lines)
    assert not any("torch_det is inert" in line for line in lines)


def test_every_setting_of_every_rank_has_its_evidence(forced: Ran) -> None:
    effects = package.load(forced.folder).effects
    det = effects[effects["mitigation"] == "torch_det"].set_index("setting")
    assert dict(det["status"]) == {"deterministic_algorithms": "effective", "fill_uninitialized_memory": "effective"}
    assert dict(det["evidence"]) == {
        "deterministic_algorithms": "an operation without a deterministic form is refused",
        "fill_uninitialized_memory": "fresh memory is filled",
    }
    primus = effects[effects["mitigation"] == "primus"]
    assert set(primus["setting"]) == set(
        _read(_trial(forced, "mitigation-primus_model.num_layers-1_model.seq_len-8_steps-6") / "spec.json")["settings"][
            "env"
        ]
    )
    assert set(primus["status"]) == {"inert"}


def test_what_each_mitigation_costs_is_a_column_and_a_frame(forced: Ran) -> None:
    loaded = package.load(forced.folder)
    assert list(loaded.costs["mitigation"]) == ["torch_det", "nccl_ring", "primus"]
    (baseline,) = set(loaded.costs["baseline"])
    assert loaded.configs[baseline]["mitigation"].keys() == {"none"}
    assert set(loaded.costs["launches"]) == {1}
    started = [forced.results()[slug]["started"] for slug in loaded.trials["slug"]]
    assert started == sorted(started)
    assert ((loaded.costs["low"] <= loaded.costs["ratio"]) & (loaded.costs["ratio"] <= loaded.costs["high"])).all()
    for ratio in loaded.costs["ratio"]:
        assert f" {ratio:.2f}x (" in forced.out


def test_what_the_shell_has_otherwise_is_said_and_written_down(forced: Ran) -> None:
    said = "NCCL_ALGO=Tree in this shell, Ring by mitigation '{}': trials get the latter"
    assert {said.format("nccl_ring"), said.format("primus")} <= set(_notes(forced))
    slug = "mitigation-{}_model.num_layers-1_model.seq_len-8_steps-6"
    assert _read(_trial(forced, slug.format("nccl_ring")) / "job.json")["environment_overruled"]["NCCL_ALGO"] == "Tree"
    for rank in range(2):
        environment = _read(_trial(forced, slug.format("nccl_ring")) / f"environment-rank{rank:03d}.json")
        assert environment["variables"]["NCCL_ALGO"] == environment["started_with"]["NCCL_ALGO"] == "Ring"
        bare = _read(_trial(forced, slug.format("none")) / f"environment-rank{rank:03d}.json")
        assert not {"NCCL_ALGO", "NCCL_PROTO"} & (bare["variables"].keys() | bare["started_with"].keys())


def test_what_the_shell_has_and_no_cell_speaks_of_is_said_to_be_kept_out(forced: Ran) -> None:
    (note,) = [note for note in _notes(forced) if "NCCL_PROTO" in note]
    assert note.startswith("kept out of the trials: this shell's NCCL_PROTO")
    assert "keep_env=[NAME]" in note
    job = _read(_trial(forced, "mitigation-none_model.num_layers-1_model.seq_len-8_steps-6") / "job.json")
    assert job["environment_removed"] == {"NCCL_ALGO": "Tree", "NCCL_PROTO": "LL"}


def test_without_force_those_rows_are_unsupported_and_do_not_count(detsweep: Run) -> None:
    ran = detsweep("-m", "mitigation=none,nccl_ring,primus", *SMALL)
    assert ran.code == 0, ran.out + ran.err
    wide = package.load(ran.folder).matrix(rows="mitigation")["verdict"]
    assert dict(wide) == {"none": "pass", "nccl_ring": "unsupported", "primus": "unsupported"}
    assert "unsupported: mitigation 'nccl_ring' is for nvidia and amd, this is cpu" in ran.out
    assert "3 trials of 3 cells: 1 pass, 2 unsupported" in ran.out


# --- a variable that does not arrive --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wrapper(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python for torchrun to start its ranks with, that takes NCCL_ALGO away from rank 1."""
    script = tmp_path_factory.mktemp("wrapper") / "python.sh"
    script.write_text(f'#!/bin/sh\nif [ "$RANK" = 1 ]; then unset NCCL_ALGO; fi\nexec "{sys.executable}" "$@"\n')
    script.chmod(0o755)
    return str(script)


RING = ("mitigation=nccl_ring", "mitigation_force=true", *SMALL)
RING_SLUG = "mitigation-nccl_ring_model.num_layers-1_model.seq_len-8"


def test_a_variable_that_one_rank_did_not_get_makes_the_trial_invalid(detsweep: Run, wrapper: str) -> None:
    ran = detsweep(*RING, PYTHON_EXEC=wrapper)
    assert ran.code == 3
    result = ran.results()[RING_SLUG]
    lost = "NCCL_ALGO should be Ring, was unset when the process started"
    assert (result["verdict"], result["error"]) == ("invalid", f"not in force: rank 1: {lost}")
    assert [rank["lost"] for rank in result["ranks"]] == [[], [lost]]
    assert _statuses(ran, RING_SLUG) == {"nccl_ring": {"NCCL_ALGO": "lost"}}
    assert f"invalid: not in force: rank 1: {lost}" in ran.out


def _nothing_ran(trial: Path) -> bool:
    return not [*trial.glob("rank*.jsonl"), *trial.glob("environment-*")]


def test_where_it_is_required_no_rank_builds_anything(detsweep: Run, wrapper: str) -> None:
    ran = detsweep(*RING, "require=[nccl_ring]", PYTHON_EXEC=wrapper)
    assert ran.code == 3
    result = ran.results()[RING_SLUG]
    error = "refused, required and not in force: rank 1: NCCL_ALGO must be Ring, is unset"
    assert (result["verdict"], result["error"]) == ("invalid", error)
    assert error in ran.out
    assert _nothing_ran(_trial(ran, RING_SLUG))


# --- require ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("required", "line"),
    [
        (
            "nccl_ring",
            "require=nccl_ring: mitigation 'nccl_ring' is for nvidia and amd, this is cpu; mitigation_force=true ",
        ),
        ("torch_dett", "require=torch_dett: no such mitigation; did you mean torch_det?; valid: aten_avx2, "),
        (
            "torch_det,torch_warn",
            "require=torch_det,torch_warn: deterministic_algorithms cannot be both strict (mitigation 'torch_det') ",
        ),
    ],
    ids=["platform", "unknown", "contradictory"],
)
def test_what_cannot_be_required_is_one_line_and_nothing_is_started(detsweep: Run, required: str, line: str) -> None:
    ran = detsweep(f"require=[{required}]", *SMALL)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"detsweep: {line}")
    assert ran.err.count("\n") == 1
    assert not ran.folder.exists()


def test_a_variable_that_no_mitigation_sets_is_refused_before_torchrun(detsweep: Run) -> None:
    ran = detsweep("require=[no_compile]", *SMALL, TORCH_COMPILE_DISABLE="1")
    assert ran.code == 3
    ((slug, result),) = ran.results().items()
    error = "refused, required and not in force: TORCH_COMPILE_DISABLE must be 1, is unset"
    assert (result["verdict"], result["error"]) == ("invalid", error)
    # The shell has it: said, with the way to let it in.
    assert any("TORCH_COMPILE_DISABLE" in note and "keep_env" in note for note in _notes(ran))
    assert not (_trial(ran, slug) / "log").exists()


def test_a_switch_of_torch_that_is_not_set_is_refused_by_every_rank(detsweep: Run) -> None:
    ran = detsweep("mitigation=torch_det_nofill", "require=[torch_det]", *SMALL)
    assert ran.code == 3
    ((slug, result),) = ran.results().items()
    lines = "; ".join(f"rank {rank}: fill_uninitialized_memory must be True, is False" for rank in range(2))
    assert (result["verdict"], result["error"]) == ("invalid", f"refused, required and not in force: {lines}")
    assert _nothing_ran(_trial(ran, slug))


# --- notes -----------------------------------------------------------------------------------------------------------


def test_what_changes_nothing_and_what_may_be_misspelt_is_said_before_anything_runs(detsweep: Run) -> None:
    stack = ("mitigation=[primus,nccl_ring]", "mitigation_force=true", "+env.NCCL_PROTOO=LL", "dry_run=true")
    ran = detsweep(*stack)
    assert ran.code == 0
    assert _notes(ran) == [
        "mitigation 'nccl_ring' changes nothing beside 'primus', which has all that it sets",
        "env.NCCL_PROTOO: not in the catalogue of variables; did you mean NCCL_PROTO?",
    ]


# --- ones own --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def own(detsweep: Run, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """A cell with a preset of the user's own beside one of ours, both of them required, and with a variable inline."""
    folder = tmp_path_factory.mktemp("mine")
    (folder / "mitigation").mkdir()
    (folder / "mitigation" / "ours.yaml").write_text("ours:\n  env: {PYTHONHASHSEED: '0', OMP_DYNAMIC: null}\n")
    stack = ("--config-dir", str(folder), "mitigation=[ours,torch_det]", "require=[ours,torch_det]")
    return detsweep(*stack, "+env.MY_FLAG=1", *SMALL, OMP_DYNAMIC="true")


OWN_SLUG = "env.MY_FLAG-1_mitigation-ours+torch_det_model.num_layers-1_model.seq_len-8"


def test_a_preset_of_ones_own_stacks_with_ours_and_can_be_required(own: Ran) -> None:
    assert own.code == 0, own.out + own.err
    assert not (conf_dir() / "mitigation" / "ours.yaml").exists()
    assert list(package.load(own.folder).trials["mitigation"]) == ["ours+torch_det"]
    (row,) = [line for line in own.out.splitlines() if "✓ pass" in line]
    assert "ours+torch_det" in row
    assert "1 set" in row
    assert "2 effective" in row


def test_each_of_its_settings_has_come_to_something(own: Ran) -> None:
    assert _statuses(own, OWN_SLUG)["ours"] == {"PYTHONHASHSEED": "effective", "OMP_DYNAMIC": "set"}


def test_a_variable_given_inline_is_called_env(own: Ran) -> None:
    assert own.results()[OWN_SLUG]["effects"]["env"] == {
        "status": "set",
        "settings": {"MY_FLAG": {"status": "set", "evidence": "not in the catalogue: what reads it is not known"}},
    }


def test_a_variable_of_the_shell_that_a_preset_unsets_is_said_to_be(own: Ran) -> None:
    assert "OMP_DYNAMIC=true in this shell, unset by mitigation 'ours': trials get the latter" in _notes(own)


# --- three arms ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def arms(detsweep: Run) -> Ran:
    return detsweep("experiment=three_arms", "case=uninitialized_memory", "steps=3")


def test_only_filling_fresh_memory_changes_the_verdict(arms: Ran) -> None:
    assert arms.code == 1, arms.out + arms.err
    wide = package.load(arms.folder).matrix(rows="mitigation")["verdict"]
    assert dict(wide) == {"none": "diverged", "torch_det": "pass", "torch_det_nofill": "diverged"}


def test_the_three_arms_are_said_to_tell_of_memory_that_nobody_has_written(arms: Ran) -> None:
    line = "clean only while fresh memory is filled: something reads memory that nobody has written"
    assert [one for one in arms.out.splitlines() if one.endswith(line)] == [
        f"case=uninitialized_memory steps=3: {line}"
    ]


# --- compiled --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def compiled(detsweep: Run) -> Ran:
    mitigations = ("mitigation=primus,inductor_det", "mitigation_force=true")
    short = ("steps=1", "runs=2", "world.nproc_per_node=1", *SMALL)
    return detsweep("-m", "case=compiled_embedding", *mitigations, *short)


def _compiled_cell(ran: Ran, mitigation: str) -> tuple[Path, dict[str, Any]]:
    (slug,) = [slug for slug in ran.cells() if f"mitigation-{mitigation}" in slug]
    return ran.cells()[slug], ran.results()[slug]


def test_primus_acts_where_something_would_be_compiled(compiled: Ran) -> None:
    folder, result = _compiled_cell(compiled, "primus")
    effects = result["effects"]["primus"]
    assert effects["settings"]["TORCH_COMPILE_DISABLE"] == {
        "status": "effective",
        "evidence": "dynamo's disable is True",
    }
    assert effects["status"] == "effective"
    assert {one["status"] for name, one in effects["settings"].items() if name != "TORCH_COMPILE_DISABLE"} == {"inert"}
    assert not list((folder / "cache" / "inductor").glob("**/*.so"))


def test_what_inductor_undoes_itself_is_said(compiled: Ran) -> None:
    _, result = _compiled_cell(compiled, "inductor_det")
    settings = result["effects"]["inductor_det"]["settings"]
    deterministic = settings["TORCHINDUCTOR_DETERMINISTIC"]
    # torch may mend it: then the switch is seen to be on at the end, too.
    assert deterministic["status"] in ("set", "effective")
    assert (deterministic["status"] == "set") == deterministic["evidence"].startswith("undone: ")
    line = f"inductor_det: TORCHINDUCTOR_DETERMINISTIC {deterministic['evidence']}"
    assert (line in compiled.out.splitlines()) == (deterministic["status"] == "set")
    assert settings["TORCHINDUCTOR_MAX_AUTOTUNE"]["status"] == "set"


def test_a_cell_keeps_its_kernels_for_itself(compiled: Ran) -> None:
    folder, _ = _compiled_cell(compiled, "inductor_det")
    assert list((folder / "cache" / "inductor").glob("**/*.so"))
    started = _read(folder / "trial0" / "environment-rank000.json")["started_with"]
    assert started["TORCHINDUCTOR_CACHE_DIR"] == str(folder / "cache" / "inductor")
    # Where they are kept changes no bits: no word of it in the summary.
    assert "CACHE_DIR" not in compiled.out
