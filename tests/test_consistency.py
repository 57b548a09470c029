"""Settings that do not go together: one line for each contradiction, and none for a cell that can be run."""

from __future__ import annotations

import pytest

from detsweep.consistency import RESERVED, contradictions, unsupported
from detsweep.paths import conf_dir
from detsweep.validate import problems
from tests.support import compose

COMPANIONS = {
    "fault=campaign": ("steps=2",),
    "fault=collective_flip": ("observe=collective",),
    "fault=misrouted_expert": ("experts=2",),
    "fault=reordered_collectives": ("observe=collective",),
    "fault=rng_not_restored": ("model.dropout=0.1",),
    "fault=stale_tensor": ("steps=2",),
    "mode=relaunch": ("trials=2",),
    "mode=resume": ("steps=2",),
    # Alone it is the dense layer, as every routing is with one expert.
    "moe=top2": ("experts=2",),
}
"""What an option needs beside it, as its own file says."""
OPTIONS = sorted(
    f"{path.parent.name}={path.stem}"
    for path in conf_dir().glob("*/*.yaml")
    # The mitigations have tests of their own.
    if path.parent.name not in ("experiment", "case", "mitigation")
)
CASES = sorted(f"{path.parent.name}={path.stem}" for path in conf_dir().glob("case/*.yaml"))


def _lines(*overrides: str, gpus: int = 0) -> list[str]:
    return list(contradictions(compose(*overrides), gpus=gpus))


@pytest.mark.parametrize("option", [*OPTIONS, *CASES])
def test_every_option_of_every_group_can_be_run(option: str) -> None:
    assert problems(compose(option, *COMPANIONS.get(option, ())), gpus=0) == []


@pytest.mark.parametrize("option", sorted(COMPANIONS.keys() - {"moe=top2"}))
def test_what_needs_company_says_so_alone(option: str) -> None:
    assert problems(compose(option), gpus=0) != []


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("model=block24",),
        ("experts=4", "moe=topk"),
        ("experts=4", "moe=even", "top_k=4"),
        ("experts=4", "moe=top2"),
        ("experts=4", "moe.dispatch=all_to_all", "checkpointing=block"),
        ("experts=3", "moe.dispatch=all_to_all", "world.nproc_per_node=1"),
        ("experts=4", "moe.dispatch=all_to_all", "world.nproc_per_node=4", "world.shard_ranks=2"),
        ("experts=4", "moe.dispatch=all_to_all", "mode=resume", "steps=2", "clip=1"),
        ("dtype=fp32", "fault=bit_flip", "fault.bit=31"),
        ("fault=rank_failure", "fault.how=hang"),
        ("mitigation=[recipe,primus]",),
        ("checksum_mode=global",),
        ("experiment=self_test",),
        ("experiment=llm_determinism", "model=tiny"),
        ("compile=true", "observe=off"),
        ("checkpointing=block", "preserve_rng_state=false", "model.dropout=0.1"),
        ("mode=lockstep", "observe=op", "world.shard_ranks=1"),
        ("mode=lockstep", "runs=1"),
        ("mode=relaunch", "trials=2", "runs=1"),
        ("mode=train", "accum=4", "clip=0.5", "optimizer=sgd"),
        ("mode=resume", "steps=5", "clip=1"),
        ("world.nproc_per_node=4", "world.shard_ranks=2"),
        ("fault=campaign", "steps=9", "fault.kinds=[swap,stale_tensor]", "fault.persistence=persistent"),
        ("fault=bit_flip", "fault.site=op", "observe=op"),
        ("mode=record",),
        ("mode=record", "runs=3", "steps=4", "accum=2", "clip=1", "optimizer=sgd"),
        ("mode=record", "optimizer=none", "accum=2"),
        ("mode=record", "steps=9", "record.first=8", "record.last=8", "record.every=1", "record.compress=zlib"),
        ("mode=record", "record.keep=1", "record.spike=1", "record.max_gb=0", "record.payload=digest"),
        ("mode=playback",),
        ("mode=playback", "runs=7", "record.compress=repeats", "optimizer=none"),
    ],
    ids=" ".join,
)
def test_what_can_be_run_has_no_contradiction(overrides: tuple[str, ...]) -> None:
    assert problems(compose(*overrides), gpus=0) == []


ONE = "fault=reordered_collectives", "observe=collective"
ALL_THE_SAME = "needs fault.persistence=transient: ranks that all do the same differ from nothing"
GATHERED = "needs all-gathers of several blocks: wrap=block, and world.shard_ranks other than 1"
KINDS = (
    "input_flip, bit_flip, stride_flip, swap, ulp_pair, zero_sign, nan_payload, stale_tensor, zeroed_shard, "
    "param_drift, rng_not_restored, collective_flip, reordered_collectives, misrouted_expert"
)


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (
            ("model.num_heads=3", "model.hidden_size=8"),
            "model.num_heads=3: must divide model.hidden_size=8 (valid: 1, 2, 4, 8)",
        ),
        (("moe.experts=4",), "moe.experts=4 moe.top_k=1: set experts=N and top_k=K, without the prefix"),
        (("experts=4", "top_k=2"), "top_k=2: moe=top1 routes to 1; use moe=topk top_k=2"),
        (("experts=4", "moe=top2", "top_k=3"), "top_k=3: moe=top2 routes to 2; use moe=topk top_k=3"),
        (("experts=2", "moe=topk", "top_k=3"), "top_k=3: must be at most experts=2"),
        (
            ("moe.dispatch=all_to_all",),
            "moe.dispatch=all_to_all: experts=1 is a dense FFN, with nothing to deal out to ranks; use experts=N",
        ),
        (
            ("moe.dispatch=all_to_all", "experts=4", "world.nproc_per_node=3"),
            "experts=4: moe.dispatch=all_to_all deals them out to 3 ranks (valid: 3, 6, 9, ...)",
        ),
        (
            ("moe.dispatch=all_to_all", "experts=4", "mode=lockstep"),
            "mode=lockstep: ranks with experts of their own do not do the same; use moe.dispatch=local",
        ),
        (
            ("moe.dispatch=all_to_all", "experts=4", "compile=true"),
            "compile=true: the exchange of tokens is not compiled; use moe.dispatch=local, or compile=false",
        ),
        (
            ("compile=true", "observe=module"),
            "observe=module: cannot look into compiled blocks; use observe=block, or compile=false",
        ),
        (
            ("fault=campaign", "steps=3", "mode=train"),
            "mode=train: a campaign needs steps that each start clean; use mode=replay",
        ),
        (("runs=1",), "runs=1: mode=replay compares runs, it needs at least 2"),
        (("runs=1", "mode=train"), "runs=1: mode=train compares runs, it needs at least 2"),
        (("mode=relaunch",), "trials=1: mode=relaunch compares launches, it needs at least 2"),
        (
            ("mode=resume", "steps=2", "runs=3"),
            "runs=3: mode=resume has 2, one uninterrupted and one resumed",
        ),
        (("mode=resume",), "steps=1: mode=resume stops in the middle, it needs at least 2"),
        (
            ("mode=lockstep", "world.nproc_per_node=1"),
            "world.nproc_per_node=1: mode=lockstep compares ranks, it needs at least 2 (3 to name the odd one)",
        ),
        (
            ("mode=lockstep", "observe=op"),
            "observe=op: operators on shards differ between ranks; in mode=lockstep use it with world.shard_ranks=1",
        ),
        (("accum=2",), "accum=2: mode=replay does not train; use it with mode=train or mode=resume"),
        (
            ("clip=1.0", "mode=lockstep"),
            "clip=1.0: mode=lockstep does not train; use it with mode=train or mode=resume",
        ),
        (("clip=0", "mode=train"), "clip=0.0: must be above 0, or null for no clipping"),
        (("clip=-1", "mode=train"), "clip=-1.0: must be above 0, or null for no clipping"),
        (("fault=campaign", "steps=2", "fault.kinds=[swapp,x]"), f"fault.kinds=swapp,x: valid: {KINDS}"),
        (
            ("fault=campaign", "steps=2", "fault.kinds=[swap,misrouted_expert]"),
            "fault.kinds=misrouted_expert: needs experts of at least 2",
        ),
        (("fault=campaign",), "steps=1: a campaign has one fault in each step after the first; at least 2"),
        (("fault=misrouted_expert",), "fault=misrouted_expert: needs experts of at least 2"),
        (
            ("fault=rng_not_restored",),
            "fault=rng_not_restored: needs a step that draws random numbers: model.dropout=0.1",
        ),
        (("fault=collective_flip",), "fault=collective_flip: needs observe=collective or observe=op"),
        (ONE[:1], "fault=reordered_collectives: needs observe=collective or observe=op"),
        ((*ONE, "model.num_layers=2"), "fault=reordered_collectives: needs model.num_layers of at least 3"),
        (
            (*ONE, "fault.persistence=persistent"),
            f"fault=reordered_collectives: {ALL_THE_SAME}",
        ),
        (
            (*ONE, "wrap=root"),
            f"fault=reordered_collectives: {GATHERED}",
        ),
        (
            (*ONE, "world.shard_ranks=1"),
            f"fault=reordered_collectives: {GATHERED}",
        ),
        (
            ("fault=swap", "fault.site=param"),
            "fault.site=param: fault=swap strikes at block_post, block_grad_in, logits, grad, op",
        ),
        (("fault=param_drift", "fault.site=grad"), "fault.site=grad: fault=param_drift strikes at param"),
        (("fault=swap", "fault.site=op"), "fault=swap: fault.site=op needs observe=op"),
        (
            ("fault=stale_tensor", "fault.step=null"),
            "fault=stale_tensor: needs steps of at least 2: the tensor is stale from the step before",
        ),
        (
            ("fault=stale_tensor", "steps=2", "fault.step=0"),
            "fault.step=0: must be at least 1, or null for every step",
        ),
        (("world.nodes=2",), "world.nodes=2: launch=local has one node; several need launch=slurm"),
        (("world.shard_ranks=3",), "world.shard_ranks=3: must divide the 2 ranks (valid: 1, 2), or null for all"),
        (("world.shard_ranks=0",), "world.shard_ranks=0: must divide the 2 ranks (valid: 1, 2), or null for all"),
        (
            ("checksum_mode=global", "observe=off"),
            "checksum_mode=global: needs the logits' fingerprint, which observe=off does not take; use observe=block",
        ),
        (
            ("mitigation=[recipe]", "+env.CUBLAS_WORKSPACE_CONFIG=':16:8'"),
            "CUBLAS_WORKSPACE_CONFIG cannot be both :4096:8 (mitigation 'recipe') and :16:8 (your env)",
        ),
        (("+env.MASTER_PORT='1'",), "env.MASTER_PORT: the launcher sets it for its ranks"),
        (("fault=input_flip", "fault.step=-1"), "fault.step=-1: must be at least 0, or null for every step"),
        (("fault=input_flip", "fault.step=1"), "fault.step=1: must be at most 0 in this cell"),
        (("fault=input_flip", "fault.run=3"), "fault.run=3: must be at most 2 in this cell"),
        (("fault=bit_flip", "fault.rank=2"), "fault.rank=2: must be at most 1 in this cell"),
        (("fault=bit_flip", "fault.rank=-1"), "fault.rank=-1: must be at least 0, or null for every rank"),
        (("fault=input_flip", "fault.element=64"), "fault.element=64: must be at most 63 in this cell"),
        (("fault=bit_flip", "fault.element=4096"), "fault.element=4096: must be at most 4095 in this cell"),
        (
            ("fault=bit_flip", "fault.site=logits", "fault.element=32768"),
            "fault.element=32768: must be at most 32767 in this cell",
        ),
        (("fault=bit_flip", "fault.block=4"), "fault.block=4: must be at most 3 in this cell"),
        (("fault=param_drift", "fault.block=4"), "fault.block=4: must be at most 3 in this cell"),
        (("fault=misrouted_expert", "experts=2", "fault.block=4"), "fault.block=4: must be at most 3 in this cell"),
        (("fault=bit_flip", "fault.bit=16"), "fault.bit=16: must be at most 15 in this cell"),
        (("fault=bit_flip", "dtype=fp32", "fault.bit=32"), "fault.bit=32: must be at most 31 in this cell"),
        (("fault=bit_flip", "dtype=bf16_mixed", "fault.bit=16"), "fault.bit=16: must be at most 15 in this cell"),
        (("fault=rank_failure", "fault.rank=2"), "fault.rank=2: must be at most 1 in this cell"),
        (
            ("fault=rank_failure", "fault.run=3", "fault.persistence=persistent"),
            "fault.run=3: must be at most 2 in this cell",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_each_contradiction_is_one_line(overrides: tuple[str, ...], line: str) -> None:
    assert _lines(*overrides) == [line]
    assert problems(compose(*overrides), gpus=0) == [line]


@pytest.mark.parametrize(
    "overrides",
    [
        ("fault=input_flip", "fault.element=63", "fault.rank=1"),
        ("fault=bit_flip", "fault.element=4095", "fault.block=3", "fault.bit=15", "fault.run=1"),
        ("fault=bit_flip", "steps=3", "runs=5", "fault.step=2", "fault.run=5", "fault.rank=null"),
        ("fault=bit_flip", "fault.site=logits", "fault.element=32767", "fault.block=3"),
        ("fault=bit_flip", "fault.site=grad", "dtype=bf16_mixed", "fault.bit=31"),
        ("fault=bit_flip", "fault.persistence=persistent", "fault.run=99"),
        ("fault=stale_tensor", "steps=2", "fault.step=1"),
        ("fault=rank_failure", "fault.block=99", "fault.element=99999"),
    ],
    ids=" ".join,
)
def test_the_last_place_of_a_cell_is_in_it(overrides: tuple[str, ...]) -> None:
    assert _lines(*overrides) == []


@pytest.mark.parametrize("kind", KINDS.split(", "))
def test_every_kind_of_corruption_is_in_a_block_of_the_model(kind: str) -> None:
    overrides = (f"fault={kind}", *COMPANIONS.get(f"fault={kind}", ()))
    assert _lines(*overrides, "fault.block=3") == []
    assert _lines(*overrides, "fault.block=4") == ["fault.block=4: must be at most 3 in this cell"]
    deeper = (*overrides, "model.num_layers=5")
    assert (_lines(*deeper, "fault.block=4"), len(_lines(*deeper, "fault.block=5"))) == ([], 1)


@pytest.mark.parametrize("fault", ["none", "rank_failure", "campaign"])
def test_what_corrupts_no_block_of_its_own_has_no_limit(fault: str) -> None:
    assert _lines(f"fault={fault}", "fault.block=99", *COMPANIONS.get(f"fault={fault}", ())) == []


def test_a_gpu_for_each_rank_of_each_trial_at_a_time() -> None:
    overrides = ("device=cuda", "launch.max_parallel=2", "world.nproc_per_node=3")
    assert _lines(*overrides, gpus=6) == []
    assert _lines(*overrides, gpus=5) == [
        "world.nproc_per_node=3: with launch.max_parallel=2 needs 6 GPUs, this machine offers 5 (or device=cpu)"
    ]


@pytest.mark.parametrize("checksum", ["xxh3", "sha256"])
def test_what_hashes_bytes_is_for_host_memory(checksum: str) -> None:
    assert _lines(f"checksum={checksum}") == []
    assert _lines(f"checksum={checksum}", "device=cuda", gpus=2) == [
        f"checksum={checksum}: reads host memory and would stop the device at every site; use auto, mixed or bitsum"
    ]


def test_flex_attention_is_for_accelerators() -> None:
    assert _lines("model.attention=flex", "device=cuda", gpus=2) == []
    assert _lines("model.attention=flex", "device=cpu") == []
    reason = unsupported(compose("model.attention=flex", "device=cpu"))
    assert reason == "model.attention=flex: torch has no backward of it on the CPU"


def test_impossible_kinds_of_a_campaign_are_a_line_each() -> None:
    lines = _lines("fault=campaign", "steps=2", "fault.kinds=[misrouted_expert,swap,collective_flip]")
    assert lines == [
        "fault.kinds=misrouted_expert: needs experts of at least 2",
        "fault.kinds=collective_flip: needs observe=collective or observe=op",
    ]


@pytest.mark.parametrize("name", RESERVED)
@pytest.mark.parametrize("value", ["'0'", "null"])
def test_a_trials_share_of_the_gpus_is_not_set_by_hand(name: str, value: str) -> None:
    expected = [f"env.{name}: set it in the shell, and each trial gets its share"]
    assert _lines(f"+env.{name}={value}") == expected
    assert _lines("mitigation=[recipe]", f"+mitigation.recipe.env.{name}={value}") == expected


@pytest.mark.parametrize("name", ["OMP_NUM_THREADS", "MKL_NUM_THREADS"])
@pytest.mark.parametrize(("value", "shown"), [("'0'", "0"), ("many", "many"), ("''", ""), ("null", "unset")])
def test_threads_are_a_number(name: str, value: str, shown: str) -> None:
    expected = f"{name}={shown}: must be at least 1; use world.threads_per_rank=N"
    assert _lines(f"+env.{name}={value}") == [expected]
    assert _lines(f"+env.{name}='2'") == []


# --- a cluster's nodes -----------------------------------------------------------------------------------------------


def test_on_a_cluster_this_machines_gpus_limit_nothing() -> None:
    slurm = ("launch=slurm", "device=cuda", "world.nproc_per_node=8")
    assert _lines(*slurm, "launch.max_parallel=100") == []
    assert _lines(*slurm, "launch.gpus_per_node=8") == []
    assert _lines(*slurm, "launch.gpus_per_node=4") == [
        "world.nproc_per_node=8: a rank has a GPU of its own, and launch.gpus_per_node=4"
    ]


def test_ranks_of_all_nodes_count() -> None:
    two = ("launch=slurm", "world.nodes=2", "world.nproc_per_node=3")
    assert _lines(*two, "world.shard_ranks=3") == []
    assert _lines(*two, "world.shard_ranks=4") == [
        "world.shard_ranks=4: must divide the 6 ranks (valid: 1, 2, 3, 6), or null for all"
    ]
    assert _lines(*two, "fault=bit_flip", "fault.rank=5") == []
    assert _lines(*two, "fault=bit_flip", "fault.rank=6") == ["fault.rank=6: must be at most 5 in this cell"]
    assert _lines("launch=slurm", "world.nodes=2", "world.nproc_per_node=1", "mode=lockstep") == []


@pytest.mark.parametrize("name", ["SLURM_JOB_ID", "SBATCH_QOS", "PMIX_RANK", "SRUN_DEBUG"])
def test_what_slurm_says_to_its_tasks_is_not_set_by_a_cell(name: str) -> None:
    assert _lines(f"+env.{name}='1'") == [f"env.{name}: the launcher sets it for its ranks"]


@pytest.mark.parametrize(
    ("key", "value", "shown"),
    [
        ("payload", "all", "all"),
        ("first", "1", "1"),
        ("last", "1", "1"),
        ("every", "2", "2"),
        ("keep", "2", "2"),
        ("spike", "3", "3.0"),
        ("compress", "zlib", "zlib"),
        ("max_gb", "1", "1.0"),
    ],
)
def test_what_is_recorded_is_of_mode_record(key: str, value: str, shown: str) -> None:
    asked, line = f"record.{key}={value}", f"record.{key}={shown}: only means something with mode=record"
    for mode in ("mode=replay", "mode=train"):
        assert _lines(mode, "steps=3", asked) == [line]
    assert _lines("mode=record", "steps=3", asked) == []
    # How it is stored is the one thing that a playback leaves to choose.
    assert _lines("mode=playback", "steps=3", asked) == ([] if key == "compress" else [line])


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (("record.every=0",), "record.every=0: must be at least 1, or null"),
        (("record.keep=0",), "record.keep=0: must be at least 1, or null"),
        (("record.spike=0.5",), "record.spike=0.5: must be at least 1.0, or null"),
        (("record.spike=nan",), "record.spike=nan: must be at least 1.0, or null"),
        (("record.max_gb=-1",), "record.max_gb=-1.0: must be at least 0.0, or null"),
        (("record.first=2", "record.last=1"), "record.last=1: must be at least 2, or null"),
        (("record.first=3",), "record.first=3: the last step is 2"),
        (("record.last=3",), "record.last=3: the last step is 2"),
        (("optimizer=none", "clip=1"), "clip=1.0: with optimizer=none no step is taken, and no gradient clipped"),
        (("mode=playback", "runs=2"), "runs=2: mode=playback has r1, r2 fed what r1 received, and r3 live; at least 3"),
        (("mode=train", "optimizer=none"), "optimizer=none: mode=train takes optimizer steps (valid: adamw, sgd)"),
        (("mode=resume", "optimizer=none"), "optimizer=none: mode=resume takes optimizer steps (valid: adamw, sgd)"),
        *(
            (
                (f"mode={mode}", "optimizer=none", *more),
                f"optimizer=none: mode={mode} never takes an optimizer step; it is for mode=record and mode=playback",
            )
            for mode, *more in (("replay",), ("lockstep",), ("relaunch", "trials=2"))
        ),
    ],
)
def test_what_cannot_be_recorded_is_one_line(overrides: tuple[str, ...], line: str) -> None:
    assert _lines("mode=record", "steps=3", *overrides) == [line]
