"""Mitigations: named sets of environment variables and torch switches, and how several are put together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

DETERMINISTIC_ALGORITHMS = ("off", "warn", "strict")
BOOLEAN_SWITCHES = ("fill_uninitialized_memory", "cudnn_deterministic", "cudnn_benchmark")
TORCH_SWITCHES = ("deterministic_algorithms", *BOOLEAN_SWITCHES)
PLATFORMS = ("cpu", "nvidia", "amd")

# Names that one library reads as one setting: two presets may not set them apart.
ALIASES = (
    frozenset({"ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"}),
    frozenset({"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"}),
)


@dataclass(frozen=True)
class Settings:
    """What all mitigations of a cell ask for together.

    `env` maps a variable to its value, or to None where it must be unset; `torch` maps a switch to its value.
    """

    env: Mapping[str, str | None]
    torch: Mapping[str, Any]


def combine(presets: Mapping[str, Mapping[str, Any]], own_env: Mapping[str, str | None]) -> Settings:
    """The union of all presets and of the user's own variables, whatever their order.

    Raises ValueError, naming both sides, where two of them ask for different values of one variable (or of an alias
    of it) or of one torch switch, and for a switch or platform that does not exist.
    """
    env: dict[str, tuple[str | None, str]] = {}
    torch: dict[str, tuple[Any, str]] = {}
    sources = {f"mitigation {name!r}": preset for name, preset in presets.items()}
    if own_env:
        sources["your env"] = {"env": own_env}
    for source, preset in sources.items():
        for name, value in preset.get("env", {}).items():
            _put(env, name, None if value is None else str(value), source)
        for name, value in preset.get("torch", {}).items():
            _check_switch(name, value, source)
            _put(torch, name, value, source)
        for platform in preset.get("platforms", []):
            if platform not in PLATFORMS:
                raise ValueError(f"{source}: platform {platform!r} is none of {', '.join(PLATFORMS)}")
    _check_aliases(env)
    return Settings({k: v for k, (v, _) in env.items()}, {k: v for k, (v, _) in torch.items()})


def unsupported_reason(presets: Mapping[str, Mapping[str, Any]], platform: str) -> str | None:
    """Why these presets have no place on a platform (cpu, nvidia or amd), or None where they do."""
    for name, preset in presets.items():
        wanted = list(preset.get("platforms", []))
        if wanted and platform not in wanted:
            return f"mitigation {name!r} is for {' and '.join(wanted)}, this is {platform}"
    return None


def _put(table: dict[str, tuple[Any, str]], name: str, value: Any, source: str) -> None:
    known = table.setdefault(name, (value, source))
    if known[0] != value:
        raise ValueError(f"{name} cannot be both {_text(known[0])} ({known[1]}) and {_text(value)} ({source})")


def _text(value: Any) -> str:
    return "unset" if value is None else str(value)


def _check_switch(name: str, value: Any, source: str) -> None:
    if name not in TORCH_SWITCHES:
        raise ValueError(f"{source}: unknown torch switch {name!r}; switches: {', '.join(TORCH_SWITCHES)}")
    if name == "deterministic_algorithms" and value not in DETERMINISTIC_ALGORITHMS:
        raise ValueError(f"{source}: {name}={value!r} is none of {', '.join(DETERMINISTIC_ALGORITHMS)}")
    if name in BOOLEAN_SWITCHES and not isinstance(value, bool):
        raise ValueError(f"{source}: {name}={value!r} is neither true nor false")


def _check_aliases(env: Mapping[str, tuple[str | None, str]]) -> None:
    for group in ALIASES:
        named = [(name, *env[name]) for name in sorted(group & env.keys())]
        for (one, value, source), (other, other_value, other_source) in pairwise(named):
            if value != other_value:
                raise ValueError(
                    f"{one}={_text(value)} ({source}) and {other}={_text(other_value)} ({other_source}) "
                    "are one setting under two names"
                )
