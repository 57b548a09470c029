"""What a typed schema cannot say: ranges, and settings that only make sense together. One line for each mistake."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from typing import Any, get_type_hints

from omegaconf import MISSING

from detsweep import mitigations
from detsweep.environment import FOREIGN
from detsweep.schema import Config, MitigationConfig

CHOICES = {
    "dtype.param": ("bf16", "fp16", "fp32"),
    "dtype.compute": ("bf16", "fp16", "fp32"),
    "dtype.reduce": ("bf16", "fp16", "fp32"),
    "moe.routing": ("learned", "even"),
    "mode.name": ("replay",),
    "observe.name": ("off", "block"),
    "fault.kind": ("none", "input_flip", "bit_flip", "rank_failure"),
    "fault.how": ("raise", "exit", "kill", "hang", "oom"),
    "checksum": ("auto", "xxh3", "mixed", "bitsum"),
    "checksum_mode": ("per_rank", "global"),
    "device": ("cpu", "cuda"),
    "launch.name": ("local",),
    "launch.rerun": ("errors", "none", "all"),
}
RANGES = {
    "model.num_layers": (1, 10_000),
    "model.hidden_size": (1, 1_000_000),
    "model.ffn_size": (1, 10_000_000),
    "model.num_heads": (1, 100_000),
    "model.vocab_size": (2, 100_000_000),
    "model.seq_len": (1, 100_000_000),
    "model.batch_size": (1, 1_000_000),
    "experts": (1, 100_000),
    "top_k": (1, 100_000),
    "seed": (0, 2**62),
    "steps": (1, 1_000_000_000),
    "runs": (2, 1_000_000),
    "trials": (1, 1_000_000),
    "warmup": (0, 1_000_000),
    "world.nodes": (1, 100_000),
    "world.nproc_per_node": (1, 1_024),
    "world.threads_per_rank": (1, 4_096),
    "launch.max_parallel": (1, 1_024),
    "launch.timeout_min": (0.001, 1_000_000),
    "fault.step": (0, 1_000_000_000),
    "fault.run": (1, 1_000_000),
    "fault.block": (0, 10_000),
    "fault.element": (0, 2**62),
    "fault.bit": (0, 63),
}
"""Where a value beyond is a slip of the hand: it would fail in every rank, or never end."""
# detsweep sets these itself: a trial gets its own share of the GPUs that the shell shows.
RESERVED = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
DTYPE_BITS = {"bf16": 16, "fp16": 16, "fp32": 32}


def problems(config: Mapping[str, Any], *, gpus: int) -> list[str]:
    """Everything that is wrong with one resolved cell, a line each; empty when it can be run.

    `gpus` is how many this machine offers.
    """
    found = list(_keys(config, Config))
    if not found:
        found = [*_out_of_range(config)]
    if not found:
        found = [*_model(config), *_moe(config), *_fault(config), *_world(config, gpus), *_checksum(config)]
        found += _settings(config)
    return found


def lookup(config: Mapping[str, Any], key: str) -> Any:
    """The value under a dotted key; KeyError where there is none."""
    value: Any = config
    for part in key.split("."):
        if not isinstance(value, Mapping):
            raise KeyError(key)
        value = value[part]
    return value


def like(word: str, options: Iterable[str]) -> str:
    """`; did you mean ...` where one of the options is close to a word, else nothing."""
    close = get_close_matches(word, list(options), n=1)
    return f"; did you mean {close[0]}?" if close else ""


def valid_keys(key: str) -> list[str]:
    """The keys that the schema has beside `key` (a dotted name), in its order."""
    node: Any = Config
    for part in key.split(".")[:-1]:
        hints = get_type_hints(node) if is_dataclass(node) else {}
        node = hints.get(part, node)
    return [item.name for item in fields(node)] if is_dataclass(node) else []


def _keys(config: Mapping[str, Any], schema: Any, prefix: str = "") -> Iterator[str]:
    # `+moe.typo=1` appends past the schema, `~seed` deletes from it, and OmegaConf lets both through.
    hints = get_type_hints(schema)
    yield from (f"{prefix}{key}: must have a value" for key in hints if config.get(key, MISSING) == MISSING)
    for key, value in config.items():
        if key not in hints:
            yield f"{prefix}{key}: no such key{like(key, hints)}; valid: {', '.join(hints)}"
        elif is_dataclass(hints[key]) and isinstance(value, Mapping):
            yield from _keys(value, hints[key], f"{prefix}{key}.")
        elif hints[key] == dict[str, MitigationConfig]:
            for name, preset in value.items():
                yield from _keys(preset, MitigationConfig, f"{prefix}{key}.{name}.")


def _out_of_range(config: Mapping[str, Any]) -> Iterator[str]:
    for key, options in CHOICES.items():
        value = lookup(config, key)
        if value not in options:
            yield f"{key}={value}: valid: {', '.join(options)}"
    for key, (least, most) in RANGES.items():
        value = lookup(config, key)
        # Written so that what is not a number at all is out of range too.
        if not value >= least:
            yield f"{key}={value}: must be at least {least}"
        elif not value <= most:
            yield f"{key}={value}: must be at most {most}"
    folder = str(config["folder"])
    if not folder.strip() or "%" in folder or "\0" in folder:
        yield f"folder={folder}: must name a folder, without % in it"


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


def _fault(config: Mapping[str, Any]) -> Iterator[str]:
    fault, model = config["fault"], config["model"]
    if fault["kind"] == "none":
        return
    world = config["world"]["nodes"] * config["world"]["nproc_per_node"]
    tokens = model["batch_size"] * model["seq_len"]
    limits = {"step": config["steps"] - 1, "run": config["runs"]}
    if fault["rank"] is not None:
        if fault["rank"] < 0:
            yield f"fault.rank={fault['rank']}: must be at least 0, or null for every rank"
        limits["rank"] = world - 1
    if fault["kind"] == "input_flip":
        limits["element"] = tokens - 1
    if fault["kind"] == "bit_flip":
        limits["block"] = model["num_layers"] - 1
        limits["element"] = tokens * model["hidden_size"] - 1
        limits["bit"] = DTYPE_BITS[config["dtype"]["compute"]] - 1
    for key, most in limits.items():
        if fault[key] > most:
            yield f"fault.{key}={fault[key]}: must be at most {most} in this cell"


def _world(config: Mapping[str, Any], gpus: int) -> Iterator[str]:
    world, launch = config["world"], config["launch"]
    if launch["name"] == "local" and world["nodes"] != 1:
        yield f"world.nodes={world['nodes']}: launch=local has one node"
    if config["device"] == "cuda":
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
    yield from (f"env.{name}: torchrun sets it for its ranks" for name in env if FOREIGN.fullmatch(name))
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        threads = env.get(name, "1")
        if threads is None or not threads.isdigit() or int(threads) < 1:
            yield f"{name}={'unset' if threads is None else threads}: must be at least 1; use world.threads_per_rank=N"


def _checksum(config: Mapping[str, Any]) -> Iterator[str]:
    if config["checksum"] == "xxh3" and config["device"] != "cpu":
        yield "checksum=xxh3: reads host memory and would stop the device at every site; use auto, mixed or bitsum"
    if config["checksum_mode"] == "global" and config["observe"]["name"] == "off":
        yield "checksum_mode=global: needs the logits' fingerprint, which observe=off does not take; use observe=block"
