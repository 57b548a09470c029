"""Cells: what makes two points the same one, what a platform cannot run, and what a sweep may not vary."""

from __future__ import annotations

import copy
import json

import pytest

from detsweep.capture import SCHEMA
from detsweep.environment import gpu_platform, visible_gpus
from detsweep.plan import Plan, make_plan
from detsweep.validate import problems
from tests.support import compose, one_cell, plan_of

without_gpu = pytest.mark.skipif(gpu_platform() != "cpu", reason="this machine has a GPU")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("dtype=fp16", "experts=4"), ("experts=4", "dtype=fp16")),
        (("+env.A='1'", "+env.B='2'"), ("+env.B='2'", "+env.A='1'")),
        (("mitigation=[none,recipe]",), ("mitigation=[recipe,none]",)),
    ],
)
def test_the_order_of_overrides_does_not_change_a_cell(one: tuple[str, ...], other: tuple[str, ...]) -> None:
    assert one_cell(*one).id == one_cell(*other).id


def test_the_order_of_axes_does_not_change_a_slug() -> None:
    assert one_cell("dtype=fp16", "experts=4").slug == one_cell("experts=4", "dtype=fp16").slug


@pytest.mark.parametrize(
    "override",
    [
        "folder=/elsewhere",
        "dry_run=true",
        "trials=7",
        "launch.max_parallel=3",
        "launch.timeout_min=5",
        "launch.fail_fast=true",
        "launch.rerun=all",
        "mitigation_force=true",
        "positive_control=true",
        "require=[no_compile]",
        "search=minimal",
        "search.verify=5",
        "drill=true",
    ],
)
def test_how_a_cell_is_launched_and_judged_is_not_its_identity(override: str) -> None:
    changed = one_cell(override)
    assert compose(override) != compose()
    assert changed.id == one_cell().id
    assert changed.slug == one_cell().slug


@pytest.mark.parametrize(
    "overrides",
    [
        ("model=small",),
        ("model.num_layers=5",),
        ("model.batch_size=1",),
        ("dtype=fp16",),
        ("dtype.reduce=fp32",),
        ("moe=even",),
        ("experts=4",),
        ("moe=topk", "top_k=3"),
        ("mitigation=[recipe]",),
        ("mitigation=[none,recipe]",),
        ("mitigation=[recipe]", "mitigation.recipe.torch.cudnn_benchmark=true"),
        ("mitigation=[recipe]", "mitigation.recipe.env.CUBLAS_WORKSPACE_CONFIG=':16:8'"),
        ("kernel_cache=trial",),
        ("fault=input_flip",),
        ("fault=bit_flip",),
        ("observe=off",),
        ("world.nproc_per_node=4",),
        ("world.threads_per_rank=2",),
        ("seed=1",),
        ("steps=2",),
        ("runs=3",),
        ("warmup=0",),
        ("checksum=bitsum",),
        ("checksum_mode=global",),
        ("+env.A='1'",),
        ("+env.A=null",),
        ("keep_env=[NCCL_ALGO]",),
        ("fault=bit_flip", "fault.block=1"),
    ],
    ids=" ".join,
)
def test_everything_else_is_its_identity(monkeypatch: pytest.MonkeyPatch, overrides: tuple[str, ...]) -> None:
    monkeypatch.setenv("NCCL_ALGO", "Tree")
    assert one_cell(*overrides).id not in (one_cell().id, one_cell(*overrides[:-1]).id)


@pytest.mark.parametrize(
    "words", ["reads=x", "expect=x", "cost=x", "source=x", "members=[x]", "advice=[x]", "platforms=[cpu,nvidia]"]
)
def test_the_words_that_describe_a_preset_are_no_part_of_what_a_cell_is(words: str) -> None:
    described = one_cell("mitigation=[recipe]", f"mitigation.recipe.{words}")
    assert described.config != one_cell("mitigation=[recipe]").config
    assert described.id == one_cell("mitigation=[recipe]").id


@pytest.mark.parametrize(
    "overrides",
    [("fault.step=3",), ("fault.rank=1", "fault.block=2"), ("fault.how=kill",), ("fault.bit=7", "fault.run=9")],
    ids=" ".join,
)
def test_without_a_fault_its_settings_are_no_part_of_the_identity(overrides: tuple[str, ...]) -> None:
    cell = one_cell(*overrides)
    assert cell.id == one_cell().id
    assert cell.config["fault"] == one_cell().config["fault"]


def test_a_fault_that_is_swept_over_leaves_one_cell_without_it() -> None:
    points = [[f"fault={kind}", f"fault.block={block}"] for kind in ("none", "bit_flip") for block in range(3)]
    plan = plan_of(*points)
    assert [cell.config["fault"]["kind"] for cell in plan.cells] == ["none", *["bit_flip"] * 3]
    assert plan.repeated == 2


def test_a_typo_beside_a_fault_that_is_none_is_still_a_problem() -> None:
    (line,) = _problems(["+fault.knd=bit_flip"])
    assert line.startswith("fault.knd: no such key; did you mean kind?")


# --- keep_env --------------------------------------------------------------------------------------------------------


def test_the_value_of_a_kept_variable_is_part_of_the_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    cells = {}
    for value in ("Tree", "Ring"):
        monkeypatch.setenv("NCCL_ALGO", value)
        cells[value] = one_cell("keep_env=[NCCL_ALGO]")
    monkeypatch.setenv("NCCL_ALGO", "Tree")
    assert cells["Tree"].id != cells["Ring"].id
    assert one_cell("keep_env=[NCCL_ALGO]").id == cells["Tree"].id
    assert {name: cell.config["env"] for name, cell in cells.items()} == {
        name: {"NCCL_ALGO": name} for name in ("Tree", "Ring")
    }
    assert cells["Ring"].spec(0)["settings"]["env"] == {"NCCL_ALGO": "Ring"}


def test_what_is_not_kept_is_no_part_of_the_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    before = one_cell().id
    monkeypatch.setenv("NCCL_ALGO", "Tree")
    assert one_cell().id == before


def test_a_variable_of_the_cells_own_comes_before_the_shells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_ALGO", "Tree")
    for own, value in (("Ring", "Ring"), ("null", None)):
        assert one_cell("keep_env=[NCCL_ALGO]", f"+env.NCCL_ALGO={own}").config["env"] == {"NCCL_ALGO": value}


def test_a_variable_to_keep_that_the_shell_does_not_have_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NCCL_ALGO", raising=False)
    assert _problems(["keep_env=[NCCL_ALGO,PATH]"]) == ("keep_env=NCCL_ALGO: this shell does not have it",)


def test_a_kept_variable_that_contradicts_a_mitigation_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    (line,) = _problems(["keep_env=[CUBLAS_WORKSPACE_CONFIG]", "mitigation=[recipe]"])
    assert line.startswith("CUBLAS_WORKSPACE_CONFIG cannot be both :4096:8 (mitigation 'recipe') and :16:8 ")


def test_the_gpus_are_not_kept_but_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    (line,) = _problems(["keep_env=[CUDA_VISIBLE_DEVICES]"])
    assert line.startswith("env.CUDA_VISIBLE_DEVICES: set it in the shell")


# --- sweeps ----------------------------------------------------------------------------------------------------------


def test_identities_are_all_different() -> None:
    plan = plan_of(*([f"seed={seed}", f"dtype={dtype}"] for seed in range(5) for dtype in ("bf16", "fp16", "fp32")))
    assert len({cell.id for cell in plan.cells}) == 15


def test_a_default_written_out_is_the_same_cell() -> None:
    assert one_cell("dtype=bf16", "seed=1234").id == one_cell().id


def test_a_point_that_comes_twice_is_one_cell() -> None:
    plan = plan_of(["seed=1"], ["seed=2"], ["seed=1"], ["seed=1", "dtype=bf16"])
    assert [dict(cell.overrides) for cell in plan.cells] == [{"seed": "1"}, {"seed": "2"}]
    assert plan.repeated == 2


def test_cells_stand_in_the_order_of_the_sweep() -> None:
    plan = plan_of(["seed=9"], ["seed=1"], ["seed=5"])
    assert [cell.config["seed"] for cell in plan.cells] == [9, 1, 5]


def test_a_plan_changes_no_configuration_that_it_was_given() -> None:
    # Points share what they have alike.
    points = ("fault.block=3", "preserve_rng_state=false", "keep_env=[PATH]", "device=cpu")
    config = {**compose(*points), "device": "auto"}
    before = copy.deepcopy(config)
    cell = make_plan([(points, config)]).cells[0]
    cell.closer()
    cell.spec(0)
    cell.to_json()
    assert config == before
    assert cell.config["fault"]["block"] == 0


@without_gpu
def test_device_auto_is_resolved_before_the_identity_is_taken() -> None:
    automatic = make_plan([((), {**compose(), "device": "auto"})]).cells[0]
    assert automatic.config["device"] == "cpu"
    assert automatic.id == one_cell().id


@pytest.mark.parametrize(
    ("overrides", "slug"),
    [
        ((), "tiny"),
        (("experts=4", "dtype=fp16"), "dtype-fp16_experts-4"),
        (("mitigation=[none,recipe]",), "mitigation-none+recipe"),
        (("+env.A=a/b c",), "env.A-abc"),
        (("folder=/x", "launch.max_parallel=2", "trials=2"), "tiny"),
    ],
)
def test_a_slug_is_a_file_name_that_tells_the_cell(overrides: tuple[str, ...], slug: str) -> None:
    assert one_cell(*overrides).slug == slug


def test_a_slug_is_never_too_long_for_a_file_name() -> None:
    assert len(one_cell("+env.A=" + "x" * 300).slug) <= 80


def test_a_label_is_in_the_words_of_the_command_line() -> None:
    assert one_cell("dtype=fp16", "experts=4", "folder=/x").label == "dtype=fp16 experts=4"
    assert one_cell("trials=2").label == "tiny"


def test_within_a_sweep_a_label_leaves_out_what_all_cells_share() -> None:
    plan = plan_of(["dtype=fp16", "seed=1"], ["dtype=fp16", "seed=2"], ["dtype=fp16"])
    assert [plan.label(cell) for cell in plan.cells] == ["seed=1", "seed=2", "dtype=fp16"]


def test_a_spec_is_all_that_a_rank_needs_and_plain_json() -> None:
    cell = one_cell("mitigation=[recipe]", "+env.A='1'", "+env.B=null", "world.nproc_per_node=3", "folder=/x")
    spec = cell.spec(4)
    assert json.loads(json.dumps(spec)) == spec
    assert (spec["schema"], spec["cell"], spec["trial"], spec["world_size"]) == (SCHEMA, cell.id, 4, 3)
    assert spec["settings"] == {
        "env": {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "A": "1", "B": None},
        "torch": {"deterministic_algorithms": "warn", "cudnn_deterministic": True, "cudnn_benchmark": False},
    }
    assert spec["config"]["world"]["threads_per_rank"] == 1
    assert (spec["timeout_min"], one_cell("launch.timeout_min=1.5").spec(0)["timeout_min"]) == (30.0, 1.5)
    assert not {"folder", "launch", "dry_run"} & spec["config"].keys()


def test_cell_json_is_the_resolved_configuration_without_the_launch() -> None:
    cell = one_cell("seed=3", "trials=2", "launch.max_parallel=2")
    content = cell.to_json()
    assert json.loads(json.dumps(content)) == content
    assert content["overrides"] == {"seed": "3"}
    assert (content["id"], content["slug"], content["unsupported"]) == (cell.id, "seed-3", None)
    assert (content["config"]["seed"], content["config"]["trials"]) == (3, 2)
    assert not {"folder", "launch", "dry_run"} & content["config"].keys()
    assert (cell.trials, cell.world_size) == (2, 2)


def test_a_mitigation_of_another_platform_makes_the_cell_unsupported() -> None:
    assert one_cell("mitigation=[recipe]").unsupported is None
    assert one_cell("mitigation=[primus]").unsupported == "mitigation 'primus' is for amd, this is cpu"


def test_an_unsupported_mitigation_can_be_forced_and_stays_the_same_cell() -> None:
    forced = one_cell("mitigation=[primus]", "mitigation_force=true")
    assert forced.unsupported is None
    assert forced.id == one_cell("mitigation=[primus]").id


def _problems(*points: list[str]) -> tuple[str, ...]:
    return make_plan([(point, compose(*point)) for point in points]).problems


def test_a_problem_of_several_points_is_said_once() -> None:
    lines = _problems(["model.num_heads=3", "seed=1"], ["model.num_heads=3", "seed=2"], ["world.nodes=2"])
    assert [line.partition(":")[0] for line in lines] == ["model.num_heads=3", "world.nodes=2"]


@pytest.mark.parametrize(
    ("one", "other", "line"),
    [
        ("folder=a", "folder=b", "folder=a,b"),
        ("dry_run=true", "dry_run=false", "dry_run=False,True"),
        ("launch.max_parallel=1", "launch.max_parallel=2", "launch.max_parallel=1,2"),
        ("launch.fail_fast=true", "launch.fail_fast=false", "launch.fail_fast=False,True"),
        ("launch.rerun=all", "launch.rerun=none", "launch.rerun=all,none"),
        ("trials=1", "trials=2", "trials=1,2"),
        ("mitigation_force=true", "mitigation_force=false", "mitigation_force=False,True"),
        ("positive_control=true", "positive_control=false", "positive_control=False,True"),
        ("require=[seeded]", "require=[]", "require=['seeded'],[]"),
        ("search.verify=1", "search.verify=2", "search.verify=1,2"),
    ],
)
def test_a_setting_of_the_whole_sweep_is_no_axis(one: str, other: str, line: str) -> None:
    assert _problems(["folder=a", one, "seed=1"], ["folder=a", other, "seed=2"]) == (
        f"{line}: cannot be an axis of a sweep",
    )


def test_a_search_is_no_axis() -> None:
    first, *others = _problems(["folder=a", "search=none"], ["folder=a", "search=minimal"])
    assert first == "search.name=minimal,none: cannot be an axis of a sweep"
    assert [line.partition("=")[0] for line in others] == ["search.candidates"]


def test_options_are_those_of_the_whole_sweep() -> None:
    assert plan_of(["seed=1"], ["seed=2"], common=["launch.max_parallel=4"]).options["launch"]["max_parallel"] == 4


@pytest.mark.skipif(bool(visible_gpus()), reason="this machine has a GPU")
def test_a_gpu_that_is_not_there_is_a_problem() -> None:
    assert "this machine offers 0" in _problems(["device=cuda"])[0]


# --- what a cell does not have ---------------------------------------------------------------------------------------


def test_without_checkpointing_what_it_would_preserve_is_no_part_of_a_cell() -> None:
    points = [
        [f"checkpointing={kind}", f"preserve_rng_state={kept}"]
        for kind in ("none", "block")
        for kept in ("true", "false")
    ]
    plan = plan_of(*points)
    found = [(cell.config["checkpointing"], cell.config["preserve_rng_state"]) for cell in plan.cells]
    assert found == [("none", True), ("block", True), ("block", False)]
    assert plan.repeated == 1


@pytest.mark.parametrize(
    "overrides",
    [
        ("compile=true",),
        ("wrap=root",),
        ("mode=lockstep",),
        ("mode=train", "accum=2"),
        ("mode=train", "clip=1.0"),
        ("model.embedding=index",),
        ("model.attention=sdpa",),
        ("moe.combine=ordered",),
        ("world.shard_ranks=1",),
        ("stress=jitter",),
        ("fault=bit_flip", "fault.persistence=persistent"),
    ],
    ids=" ".join,
)
def test_every_way_to_run_a_step_is_a_cell_of_its_own(overrides: tuple[str, ...]) -> None:
    assert one_cell(*overrides).id not in (one_cell().id, one_cell(*overrides[:-1]).id)


@pytest.mark.parametrize("override", ["against=seed:1234", "drill=true"])
def test_how_cells_are_compared_and_looked_at_is_not_their_identity(override: str) -> None:
    assert compose(override) != compose()
    assert one_cell(override).id == one_cell().id
    assert one_cell(override).overrides == {}


def test_flex_has_no_backward_on_the_cpu_and_no_force_gives_it_one() -> None:
    reason = "model.attention=flex: torch has no backward of it on the CPU"
    assert one_cell("model.attention=flex").unsupported == reason
    assert one_cell("model.attention=flex", "mitigation_force=true").unsupported == reason
    assert one_cell("model.attention=flash").unsupported is None


# --- closer looks ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "level"),
    [
        ((), "op"),
        (("observe=off",), "op"),
        (("observe=module",), "op"),
        (("observe=collective",), "op"),
        (("observe=op",), None),
        (("mode=train",), "op"),
        (("mode=relaunch", "trials=3"), "op"),
        (("mode=lockstep",), "collective"),
        (("mode=lockstep", "observe=module"), "collective"),
        (("mode=lockstep", "observe=collective"), None),
        (("mode=lockstep", "world.shard_ranks=1"), "op"),
        (("mode=lockstep", "world.shard_ranks=1", "observe=collective"), "op"),
        (("mode=lockstep", "world.shard_ranks=1", "observe=op"), None),
        (("compile=true",), None),
        (("compile=true", "observe=off"), None),
    ],
    ids=str,
)
def test_the_closest_look_is_at_operators_where_a_cell_can_have_it(
    overrides: tuple[str, ...], level: str | None
) -> None:
    closer = one_cell(*overrides).closer()
    assert (None if closer is None else closer.config["observe"]["name"]) == level
    if closer is not None:
        # It is a cell that a command could ask for, and nothing is wrong with it.
        assert problems(closer.config, gpus=0) == []
        own = [one for one in overrides if not one.startswith("observe=")]
        assert closer.id == one_cell(*own, f"observe={level}").id


def test_a_closer_look_is_the_same_cell_but_for_its_level_and_says_whose_it_is() -> None:
    cell = one_cell("seed=3", "dtype=fp16", "trials=5")
    closer = cell.closer()
    assert closer is not None
    assert closer.overrides == {"seed": "3", "dtype": "fp16", "observe": "op"}
    assert (closer.slug, closer.drill_of) == ("dtype-fp16_observe-op_seed-3", (cell.id,))
    changed = {key for key, value in closer.config.items() if value != cell.config[key]}
    assert changed == {"observe", "trials"}
    assert (cell.to_json()["drill_of"], closer.to_json()["drill_of"]) == ([], [cell.id])
    assert closer.closer() is None


@pytest.mark.parametrize(("mode", "trials"), [("replay", 1), ("train", 1), ("relaunch", 5)])
def test_a_closer_look_is_one_launch_unless_launches_are_what_is_compared(mode: str, trials: int) -> None:
    closer = one_cell(f"mode={mode}", "trials=5").closer()
    assert closer is not None
    assert closer.trials == trials


# --- against ---------------------------------------------------------------------------------------------------------


def test_a_sweep_may_be_compared_with_one_of_its_cells() -> None:
    assert plan_of(["seed=1"], ["seed=2"], common=["against=seed:1"]).options["against"] == "seed:1"


@pytest.mark.parametrize(
    ("against", "line"),
    [
        ("seed", "against=seed: must be key:value, several as key:value+key:value"),
        ("seed:9", "against=seed:9: no cell of this sweep has seed=9; seed is: 1, 2"),
        ("warmup:1", "against=warmup:1: 2 cells are as like this one; name one more key"),
    ],
)
def test_a_baseline_that_is_not_there_is_one_problem_for_all_cells(against: str, line: str) -> None:
    points = [["seed=1", "warmup=1"], ["seed=2", "warmup=1"], ["seed=3", "warmup=0"], ["seed=4", "warmup=0"]]
    if against != "warmup:1":
        points = points[:2]
    assert _problems(*([*point, f"against={against}"] for point in points)) == (line,)


def test_a_baseline_is_looked_for_only_among_cells_with_which_nothing_is_wrong() -> None:
    (line,) = _problems(["seed=1", "against=seed:9", "model.num_heads=3"])
    assert line.startswith("model.num_heads=3: ")


@pytest.mark.parametrize(
    ("one", "other", "line"),
    [
        ("against=seed:1", "against=seed:2", "against=seed:1,seed:2"),
        ("against=null", "against=seed:2", "against=None,seed:2"),
        ("drill=true", "drill=false", "drill=False,True"),
    ],
)
def test_baselines_and_drills_are_of_the_whole_sweep(one: str, other: str, line: str) -> None:
    assert _problems([one, "seed=1"], [other, "seed=2"]) == (f"{line}: cannot be an axis of a sweep",)


# --- a cluster -------------------------------------------------------------------------------------------------------


def _auto(*overrides: str) -> Plan:
    return make_plan([(overrides, {**compose("launch=slurm", *overrides), "device": "auto"})])


def test_on_a_cluster_the_device_follows_from_what_the_nodes_are_asked_for() -> None:
    plan = _auto("launch.gpus_per_node=4")
    assert (plan.cells[0].config["device"], plan.problems, plan.notes) == ("cuda", (), ())
    plan = _auto()
    assert plan.cells[0].config["device"] == "cpu"
    assert plan.notes == ("launch=slurm without launch.gpus_per_node=N: trials run on the nodes' CPUs",)


@without_gpu
@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (("launch.platform=amd",), None),
        (("launch.platform=nvidia",), "mitigation 'primus' is for amd, this is nvidia"),
        ((), "mitigation 'primus' is for amd, this is nvidia"),
    ],
)
def test_what_reads_the_variables_is_the_platform_of_the_nodes(overrides: tuple[str, ...], reason: str | None) -> None:
    cell = _auto("launch.gpus_per_node=2", "mitigation=[primus]", *overrides).cells[0]
    assert cell.unsupported == reason


def test_trials_on_the_nodes_cpus_have_no_platform_but_that() -> None:
    cell = one_cell("launch=slurm", "launch.platform=amd", "mitigation=[primus]")
    assert cell.unsupported == "mitigation 'primus' is for amd, this is cpu"


@pytest.mark.parametrize(
    "override",
    ["launch=slurm", "launch.partition=high", "launch.memory_gb=4", "launch.retries=3", "launch.detach=true"],
)
def test_where_a_cell_is_launched_is_not_its_identity(override: str) -> None:
    assert one_cell(*dict.fromkeys(("launch=slurm", override))).id == one_cell().id


@pytest.mark.parametrize("overrides", [("world.nodes=2",), ("world.node=n1",)], ids=" ".join)
def test_on_which_nodes_it_runs_is(overrides: tuple[str, ...]) -> None:
    assert one_cell("launch=slurm", *overrides).id != one_cell("launch=slurm").id


def test_a_launch_is_no_axis() -> None:
    (line,) = _problems(["launch=slurm", "launch.partition=a"], ["launch=slurm", "launch.partition=b"])
    assert line.startswith("launch.partition=a,b: cannot be an axis of a sweep")
    # Cells that differ in more may ask for more.
    assert _problems(["launch=slurm", "seed=1"], ["launch=slurm", "seed=2", "launch.memory_gb=9"]) == ()


@pytest.mark.parametrize("key", ["max_parallel=1,2", "ask_s=5.0,6.0", "retries=1,2", "detach=False,True"])
def test_how_a_sweep_is_launched_as_a_whole_is_no_axis(key: str) -> None:
    name, _, values = key.partition("=")
    points = [["launch=slurm", f"launch.{name}={value}", f"seed={n}"] for n, value in enumerate(values.split(","))]
    assert _problems(*points) == (f"launch.{key}: cannot be an axis of a sweep",)


def test_a_sweep_is_on_this_machine_or_on_a_cluster() -> None:
    first, *_ = _problems(["launch=local", "seed=1"], ["launch=slurm", "seed=2"])
    assert first == "launch.name=local,slurm: cannot be an axis of a sweep"


def test_ranks_of_all_nodes_are_in_the_spec() -> None:
    cell = one_cell("launch=slurm", "world.nodes=3", "world.nproc_per_node=2")
    assert (cell.world_size, cell.spec(0)["world_size"]) == (6, 6)
