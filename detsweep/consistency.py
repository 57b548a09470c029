"""Settings that only make sense together, within one resolved cell. One line for each contradiction."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from detsweep import mitigations, modes, resources, stopping
from detsweep.environment import FOREIGN
from detsweep.injections import KINDS, can_strike, cannot_strike, site_of
from detsweep.schema import FaultConfig, RecordConfig

# detsweep sets these itself: a trial gets its own share of the GPUs that the shell shows.
RESERVED = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
DTYPE_BITS = {"bf16": 16, "fp16": 16, "fp32": 32}


def contradictions(config: Mapping[str, Any], *, gpus: int) -> Iterator[str]:
    """What does not go together in a cell whose keys and single values are valid; `gpus` is what this machine has."""
    yield from _model(config)
    yield from _moe(config)
    yield from _dispatch(config)
    yield from _variants(config)
    yield from _mode(config)
    yield from _fault(config)
    yield from _world(config, gpus)
    yield from resources.contradictions(config)
    yield from _checksum(config)
    yield from _settings(config)
    yield from _search(config)
    yield from stopping.contradictions(config)
    if modes.clean_verdict(config) == "recorded":
        for key, value in (("search", config["search"]["name"]), ("fleet", config["fleet"])):
            if value != "none":
                yield f"{key}={value}: mode=record with runs=1 compares nothing; use runs=2"


def _model(config: Mapping[str, Any]) -> Iterator[str]:
    hidden, heads = config["model"]["hidden_size"], config["model"]["num_heads"]
    if hidden % heads:
        valid = ", ".join(str(n) for n in range(1, hidden + 1) if hidden % n == 0)
        yield f"model.num_heads={heads}: must divide model.hidden_size={hidden} (valid: {valid})"


def _moe(config: Mapping[str, Any]) -> Iterator[str]:
    moe, experts, top_k = config["moe"], config["experts"], config["top_k"]
    if (moe["experts"], moe["top_k"]) != (experts, top_k):
        yield f"moe.experts={moe['experts']} moe.top_k={moe['top_k']}: set experts=N and top_k=K, without the prefix"
    if moe["name"] in ("top1", "top2") and top_k != moe["default_top_k"]:
        yield f"top_k={top_k}: moe={moe['name']} routes to {moe['default_top_k']}; use moe=topk top_k={top_k}"
    if 1 < experts < top_k:
        yield f"top_k={top_k}: must be at most experts={experts}"


def _dispatch(config: Mapping[str, Any]) -> Iterator[str]:
    if config["moe"]["dispatch"] != "all_to_all":
        return
    experts, ranks = config["experts"], config["world"]["nodes"] * config["world"]["nproc_per_node"]
    if experts == 1:
        yield "moe.dispatch=all_to_all: experts=1 is a dense FFN, with nothing to deal out to ranks; use experts=N"
    elif experts % ranks:
        valid = ", ".join(str(ranks * n) for n in range(1, 4))
        yield f"experts={experts}: moe.dispatch=all_to_all deals them out to {ranks} ranks (valid: {valid}, ...)"
    if config["mode"]["name"] == "lockstep":
        yield "mode=lockstep: ranks with experts of their own do not do the same; use moe.dispatch=local"
    if config["compile"]:
        yield "compile=true: the exchange of tokens is not compiled; use moe.dispatch=local, or compile=false"


def _variants(config: Mapping[str, Any]) -> Iterator[str]:
    level = config["observe"]["name"]
    if config["compile"] and level not in ("off", "block"):
        yield f"observe={level}: cannot look into compiled blocks; use observe=block, or compile=false"


def unsupported(config: Mapping[str, Any]) -> str | None:
    """Why a cell that makes sense elsewhere cannot be run on its device; None where it can."""
    if config["model"]["attention"] == "flex" and config["device"] == "cpu":
        return "model.attention=flex: torch has no backward of it on the CPU"
    return None


def _mode(config: Mapping[str, Any]) -> Iterator[str]:
    mode, runs, steps, trials = config["mode"]["name"], config["runs"], config["steps"], config["trials"]
    yield from _record(config)
    if runs < 2 and mode in ("replay", "train"):
        yield f"runs={runs}: mode={mode} compares runs, it needs at least 2"
    if mode == "relaunch" and trials < 2:
        yield f"trials={trials}: mode=relaunch compares launches, it needs at least 2"
    if mode == "resume" and runs != 2:
        yield f"runs={runs}: mode=resume has 2, one uninterrupted and one resumed"
    if mode == "resume" and steps < 2:
        yield f"steps={steps}: mode=resume stops in the middle, it needs at least 2"
    if mode == "lockstep" and config["world"]["nodes"] * config["world"]["nproc_per_node"] < 2:
        yield "world.nproc_per_node=1: mode=lockstep compares ranks, it needs at least 2 (3 to name the odd one)"
    if mode == "lockstep" and config["observe"]["name"] == "op" and config["world"]["shard_ranks"] != 1:
        yield "observe=op: operators on shards differ between ranks; in mode=lockstep use it with world.shard_ranks=1"
    if mode not in (*modes.TRAINING, *modes.RECORDING):
        if config["optimizer"] == "none":
            yield f"optimizer=none: mode={mode} never takes an optimizer step; it is for mode=record and mode=playback"
        for key, unset in (("accum", 1), ("clip", None)):
            if config[key] != unset:
                yield f"{key}={config[key]}: mode={mode} does not train; use it with mode=train or mode=resume"
    elif config["optimizer"] == "none" and config["clip"] is not None:
        yield f"clip={config['clip']}: with optimizer=none no step is taken, and no gradient clipped"
    if config["clip"] is not None and not config["clip"] > 0:
        yield f"clip={config['clip']}: must be above 0, or null for no clipping"


def _record(config: Mapping[str, Any]) -> Iterator[str]:
    mode, record, runs = config["mode"]["name"], config["record"], config["runs"]
    if mode != "record":
        for key, unset in asdict(RecordConfig()).items():
            if record[key] != unset and not (mode == "playback" and key == "compress"):
                yield f"record.{key}={record[key]}: only means something with mode=record"
    if mode in modes.TRAINING and config["optimizer"] == "none":
        yield f"optimizer=none: mode={mode} takes optimizer steps (valid: adamw, sgd)"
    if mode == "playback" and runs < 3:
        yield f"runs={runs}: mode=playback has r1, r2 fed what r1 received, and r3 live; at least 3"
    if mode not in modes.RECORDING:
        return
    for key, least in (("every", 1), ("keep", 1), ("spike", 1.0), ("max_gb", 0.0), ("last", record["first"])):
        value = record[key]
        if value is not None and not value >= least:
            yield f"record.{key}={value}: must be at least {least}, or null"
    if record["first"] >= config["steps"]:
        yield f"record.first={record['first']}: the last step is {config['steps'] - 1}"
    if record["last"] is not None and record["last"] >= config["steps"]:
        yield f"record.last={record['last']}: the last step is {config['steps'] - 1}"


def _fault(config: Mapping[str, Any]) -> Iterator[str]:
    fault, kind = config["fault"], config["fault"]["kind"]
    if unknown := [name for name in fault["kinds"] if name not in KINDS]:
        yield f"fault.kinds={','.join(unknown)}: valid: {', '.join(KINDS)}"
    elif kind == "campaign":
        if impossible := [name for name in fault["kinds"] if not can_strike(name, config)]:
            yield from (f"fault.kinds={name}: {cannot_strike(name, config)}" for name in impossible)
        if modes.trains(config):
            yield f"mode={config['mode']['name']}: a campaign needs steps that each start clean; use mode=replay"
        if config["steps"] < 2:
            yield f"steps={config['steps']}: a campaign has one fault in each step after the first; at least 2"
    elif kind in KINDS and fault["site"] != FaultConfig.site and fault["site"] not in KINDS[kind]:
        yield f"fault.site={fault['site']}: fault={kind} strikes at {', '.join(KINDS[kind])}"
    elif kind in KINDS and (reason := cannot_strike(kind, config)):
        yield f"fault={kind}: {reason}"
    if kind not in ("none", "campaign"):
        yield from _fault_ranges(config)
    if fault["node"] is not None and config["fleet"] != "nodes" and config["world"]["node"] is None:
        yield f"fault.node={fault['node']}: needs cells that are pinned to nodes (fleet=nodes); else use fault.rank"


def _fault_ranges(config: Mapping[str, Any]) -> Iterator[str]:
    fault, model, kind = config["fault"], config["model"], config["fault"]["kind"]
    world = config["world"]["nodes"] * config["world"]["nproc_per_node"]
    tokens = model["batch_size"] * model["seq_len"]
    site = site_of(kind, fault["site"]) if kind in KINDS else None
    limits: dict[str, int] = {}
    if fault["step"] is not None:
        least = 1 if kind == "stale_tensor" else 0
        if fault["step"] < least:
            yield f"fault.step={fault['step']}: must be at least {least}, or null for every step"
        limits["step"] = config["steps"] - 1
    if fault["persistence"] == "transient" or kind == "rank_failure":
        limits["run"] = config["runs"]
    if fault["rank"] is not None:
        if fault["rank"] < 0:
            yield f"fault.rank={fault['rank']}: must be at least 0, or null for every rank"
        limits["rank"] = world - 1
    if kind in KINDS:
        limits["block"] = model["num_layers"] - 1
    elements = {"input": tokens, "block_post": tokens * model["hidden_size"], "logits": tokens * model["vocab_size"]}
    if site in elements:
        limits["element"] = elements[site] - 1
    if kind == "bit_flip":
        limits["bit"] = DTYPE_BITS[config["dtype"]["param" if site == "grad" else "compute"]] - 1
    for key, most in limits.items():
        if fault[key] > most:
            yield f"fault.{key}={fault[key]}: must be at most {most} in this cell"


def _world(config: Mapping[str, Any], gpus: int) -> Iterator[str]:
    world, launch = config["world"], config["launch"]
    ranks, shard_ranks = world["nodes"] * world["nproc_per_node"], world["shard_ranks"]
    if shard_ranks is not None and (shard_ranks < 1 or ranks % shard_ranks):
        valid = ", ".join(str(n) for n in range(1, ranks + 1) if ranks % n == 0)
        yield f"world.shard_ranks={shard_ranks}: must divide the {ranks} ranks (valid: {valid}), or null for all"
    if config["device"] == "cuda" and launch["name"] == "slurm":
        offered = launch["gpus_per_node"]
        if offered is not None and world["nproc_per_node"] > offered:
            yield (
                f"world.nproc_per_node={world['nproc_per_node']}: a rank has a GPU of its own, "
                f"and launch.gpus_per_node={offered}"
            )
    elif config["device"] == "cuda":
        needed = launch["max_parallel"] * world["nproc_per_node"]
        if needed > gpus:
            yield (
                f"world.nproc_per_node={world['nproc_per_node']}: with launch.max_parallel="
                f"{launch['max_parallel']} needs {needed} GPUs, this machine offers {gpus} (or device=cpu)"
            )


def _settings(config: Mapping[str, Any]) -> Iterator[str]:
    try:
        env = mitigations.combine(config["mitigation"], config["env"]).env
    except ValueError as error:
        yield str(error)
        return
    yield from (f"env.{name}: set it in the shell, and each trial gets its share" for name in RESERVED if name in env)
    yield from (f"env.{name}: the launcher sets it for its ranks" for name in env if FOREIGN.fullmatch(name))
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        threads = env.get(name, "1")
        if threads is None or not threads.isdigit() or int(threads) < 1:
            yield f"{name}={'unset' if threads is None else threads}: must be at least 1; use world.threads_per_rank=N"


def _search(config: Mapping[str, Any]) -> Iterator[str]:
    for key, name in (("candidates", "minimal"), ("axes", "culprit")):
        if config["search"][key] and config["search"]["name"] != name:
            yield f"search.{key}: only means something with search={name}"


def _checksum(config: Mapping[str, Any]) -> Iterator[str]:
    own = config["checksum"]
    if own in ("xxh3", "sha256") and config["device"] != "cpu":
        yield f"checksum={own}: reads host memory and would stop the device at every site; use auto, mixed or bitsum"
    if config["checksum_mode"] == "global" and config["observe"]["name"] == "off":
        yield "checksum_mode=global: needs the logits' fingerprint, which observe=off does not take; use observe=block"
