"""What a typed schema cannot say: choices and ranges of single keys. One line for each mistake."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from functools import cache
from typing import Any, get_type_hints

from omegaconf import MISSING

from detsweep import consistency, trackers
from detsweep.capture import LEVELS
from detsweep.injections import KINDS, SITES
from detsweep.recording.calls import COMPRESSIONS, PAYLOADS
from detsweep.schema import Config, MitigationConfig

CHOICES = {
    "dtype.param": ("bf16", "fp16", "fp32"),
    "dtype.compute": ("bf16", "fp16", "fp32"),
    "dtype.reduce": ("bf16", "fp16", "fp32"),
    "moe.routing": ("learned", "even"),
    "model.embedding": ("module", "index"),
    "model.attention": ("math", "sdpa", "flash", "flex"),
    "moe.combine": ("index_put", "index_add", "scatter_add", "ordered", "unwritten"),
    "moe.dispatch": ("local", "all_to_all"),
    "checkpointing": ("none", "block"),
    "wrap": ("block", "module", "root"),
    "optimizer": ("adamw", "sgd", "none"),
    "record.payload": PAYLOADS,
    "record.compress": COMPRESSIONS,
    "mode.name": ("replay", "relaunch", "lockstep", "train", "resume", "record", "playback"),
    "observe.name": LEVELS,
    "stress.name": ("none", "jitter", "contention", "churn"),
    "fault.kind": ("none", *KINDS, "rank_failure", "campaign"),
    "fault.site": SITES,
    "fault.persistence": ("transient", "persistent"),
    "fault.how": ("raise", "exit", "kill", "hang", "oom"),
    "checksum": ("auto", "xxh3", "mixed", "bitsum", "sha256"),
    "checksum_mode": ("per_rank", "global"),
    "device": ("cpu", "cuda"),
    "kernel_cache": ("cell", "trial", "shared"),
    "search.name": ("none", "minimal", "culprit"),
    "fleet": ("none", "nodes", "gpus"),
    "log": ("none", *trackers.NAMES),
    "launch.name": ("local", "slurm"),
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
    "runs": (1, 1_000_000),
    "trials": (1, 1_000_000),
    "stop_after.divergences": (1, 1_000_000),
    "stop_after.bound": (0.000001, 0.999999),
    "warmup": (0, 1_000_000),
    "lr": (0.0, 1e6),
    "accum": (1, 1_000_000),
    "model.dropout": (0.0, 0.99),
    "stress.max_ms": (0.0, 60_000.0),
    "record.first": (0, 1_000_000_000),
    "fault.number": (0, 2**62),
    "fault.rate": (0.0, 1.0),
    "world.nodes": (1, 100_000),
    "world.nproc_per_node": (1, 1_024),
    "world.threads_per_rank": (1, 4_096),
    "launch.max_parallel": (1, 100_000),
    "launch.timeout_min": (0.001, 1_000_000),
    "launch.retries": (0, 100),
    "launch.ask_s": (1.0, 3_600.0),
    "fault.run": (1, 1_000_000),
    "fault.block": (0, 10_000),
    "fault.element": (0, 2**62),
    "fault.bit": (0, 63),
    "search.confidence": (0.5, 0.999999),
    "search.verify": (1, 1_000),
    "search.max_trials": (1, 100_000),
}
"""Where a value beyond is a slip of the hand: it would fail in every rank, or never end."""


def problems(config: Mapping[str, Any], *, gpus: int) -> list[str]:
    """Everything that is wrong with one resolved cell, a line each; empty when it can be run.

    `gpus` is how many this machine offers.
    """
    found = list(_keys(config, Config))
    if not found:
        found = [*_out_of_range(config)]
    return found or list(consistency.contradictions(config, gpus=gpus))


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


@cache
def _hints(schema: Any) -> Mapping[str, Any]:
    """The types of a schema's keys; Python compiles each annotation anew whenever it is asked, in every cell."""
    return get_type_hints(schema)


def _keys(config: Mapping[str, Any], schema: Any, prefix: str = "") -> Iterator[str]:
    # `+moe.typo=1` appends past the schema, `~seed` deletes from it, and OmegaConf lets both through.
    hints = _hints(schema)
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
        if value is None:
            continue
        # Written so that what is not a number at all is out of range too.
        if not value >= least:
            yield f"{key}={value}: must be at least {least}"
        elif not value <= most:
            yield f"{key}={value}: must be at most {most}"
    folder = str(config["folder"])
    if not folder.strip() or "%" in folder or "\0" in folder:
        yield f"folder={folder}: must name a folder, without % in it"
