"""How several mitigations are put together: a union, in which no two may contradict each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from detsweep.mitigations.switches import check_switch

PLATFORMS = ("cpu", "nvidia", "amd")

# Names that one library reads as one setting: two presets may not set them apart.
ALIASES = (
    frozenset({"ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"}),
    frozenset({"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"}),
    frozenset({"CUBLAS_WORKSPACE_CONFIG", "HIPBLAS_WORKSPACE_CONFIG", "ROCBLAS_WORKSPACE_CONFIG"}),
    frozenset({"CUBLASLT_WORKSPACE_SIZE", "HIPBLASLT_WORKSPACE_SIZE"}),
    frozenset({"NCCL_MIN_CTAS", "NCCL_MIN_NCHANNELS"}),
    frozenset({"NCCL_MAX_CTAS", "NCCL_MAX_NCHANNELS"}),
    frozenset({"TORCHDYNAMO_DISABLE", "TORCH_COMPILE_DISABLE"}),
)


@dataclass(frozen=True)
class Settings:
    """What all mitigations of a cell ask for together.

    `env` maps a variable to its value, or to None where it must be unset; `torch` maps a switch to its value.
    """

    env: Mapping[str, str | None]
    torch: Mapping[str, Any]

    def to_json(self) -> dict[str, dict[str, Any]]:
        """As a trial's spec.json has it."""
        return {"env": dict(self.env), "torch": dict(self.torch)}


def combine(presets: Mapping[str, Mapping[str, Any]], own_env: Mapping[str, str | None]) -> Settings:
    """The union of all presets and of the user's own variables, whatever their order.

    Raises ValueError, naming both sides, where two of them ask for different values of one variable (or of an alias
    of it) or of one torch switch, or contradict each other otherwise, and for a switch or platform that does not
    exist.
    """
    env: dict[str, tuple[str | None, str]] = {}
    torch: dict[str, tuple[Any, str]] = {}
    for source, preset in _sources(presets, own_env).items():
        for name, value in preset.get("env", {}).items():
            _put(env, name, None if value is None else str(value), source)
        for name, value in preset.get("torch", {}).items():
            check_switch(name, value, source)
            _put(torch, name, value, source)
        for platform in preset.get("platforms", []):
            if platform not in PLATFORMS:
                raise ValueError(f"{source}: platform {platform!r} is none of {', '.join(PLATFORMS)}")
    _check_aliases(env)
    for contradiction in CONTRADICTIONS:
        if (line := contradiction(env, torch)) is not None:
            raise ValueError(line)
    return Settings({k: v for k, (v, _) in env.items()}, {k: v for k, (v, _) in torch.items()})


def settings_of(preset: Mapping[str, Any]) -> dict[str, Any]:
    """All settings of one preset by name, variables and switches alike."""
    return {**preset.get("env", {}), **preset.get("torch", {})}


def redundant(presets: Mapping[str, Mapping[str, Any]], own_env: Mapping[str, str | None]) -> Iterator[str]:
    """What changes nothing in a stack that can be combined, a line each."""
    items = {name: settings_of(preset).items() for name, preset in presets.items()}
    for name, own in items.items():
        for other, theirs in items.items():
            if name != other and own and own <= theirs and (own != theirs or name > other):
                yield f"mitigation {name!r} changes nothing beside {other!r}, which has all that it sets"
                break
    settings = combine(presets, own_env)
    env, torch = settings.env, settings.torch
    algorithm = env.get("NCCL_ALGO") or ""
    if algorithm and _leaves_no_nvls(algorithm) and env.get("NCCL_NVLS_ENABLE") in ("1", "2"):
        yield f"NCCL_NVLS_ENABLE={env['NCCL_NVLS_ENABLE']} changes nothing beside NCCL_ALGO={algorithm}"
    if env.get("TORCH_COMPILE_DISABLE") == "1":
        idle = sorted(name for name in env if name.startswith("TORCHINDUCTOR_"))
        yield from (f"{name} changes nothing beside TORCH_COMPILE_DISABLE=1" for name in idle)
    if torch.get("sdpa_backend") == "math" and env.get("FLASH_ATTENTION_DETERMINISTIC"):
        yield "FLASH_ATTENTION_DETERMINISTIC changes nothing beside sdpa_backend=math, which never comes to it"
    if torch.get("fill_uninitialized_memory") and torch.get("deterministic_algorithms", "off") == "off":
        yield "fill_uninitialized_memory=True changes nothing without deterministic_algorithms"
    if env.get("PRIMUS_DETERMINISTIC") == "1" and env.get("PRIMUS_HIPBLASLT_TUNING") == "1":
        yield "PRIMUS_HIPBLASLT_TUNING=1 changes nothing beside PRIMUS_DETERMINISTIC=1, which keeps it from running"


def unsupported_reason(presets: Mapping[str, Mapping[str, Any]], platform: str) -> str | None:
    """Why these presets have no place on a platform (cpu, nvidia or amd), or None where they do."""
    for name, preset in presets.items():
        wanted = list(preset.get("platforms", []))
        if wanted and platform not in wanted:
            return f"mitigation {name!r} is for {' and '.join(wanted)}, this is {platform}"
    return None


def _sources(
    presets: Mapping[str, Mapping[str, Any]], own_env: Mapping[str, str | None]
) -> dict[str, Mapping[str, Any]]:
    sources: dict[str, Mapping[str, Any]] = {f"mitigation {name!r}": preset for name, preset in presets.items()}
    return {**sources, "your env": {"env": own_env}} if own_env else sources


def _put(table: dict[str, tuple[Any, str]], name: str, value: Any, source: str) -> None:
    known = table.setdefault(name, (value, source))
    if known[0] != value:
        raise ValueError(f"{name} cannot be both {_text(known[0])} ({known[1]}) and {_text(value)} ({source})")


def _text(value: Any) -> str:
    return "unset" if value is None else str(value)


def _check_aliases(env: Mapping[str, tuple[str | None, str]]) -> None:
    for group in ALIASES:
        named = [(name, *env[name]) for name in sorted(group & env.keys())]
        for (one, value, source), (other, other_value, other_source) in pairwise(named):
            if value != other_value:
                raise ValueError(
                    f"{one}={_text(value)} ({source}) and {other}={_text(other_value)} ({other_source}) "
                    "are one setting under two names"
                )


_Asked = Mapping[str, tuple[Any, str]]
"""What is asked for by name: the value, and who asks."""


def _threads(env: _Asked, torch: _Asked) -> str | None:
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        if name in env and "num_threads" in torch and env[name][0] != str(torch["num_threads"][0]):
            return _both(name, env, "num_threads", torch, "cannot both be had")
    return None


def _serialized(env: _Asked, _: _Asked) -> str | None:
    blocking, kernel = env.get("HIP_LAUNCH_BLOCKING"), env.get("AMD_SERIALIZE_KERNEL")
    if blocking and kernel and (blocking[0] == "1") != (kernel[0] == "3"):
        return _both("HIP_LAUNCH_BLOCKING", env, "AMD_SERIALIZE_KERNEL", env, "are one setting under two names")
    return None


def _nvls(env: _Asked, _: _Asked) -> str | None:
    algorithm, enabled = env.get("NCCL_ALGO"), env.get("NCCL_NVLS_ENABLE")
    if algorithm and enabled and enabled[0] == "0" and _leaves_only_nvls(algorithm[0] or ""):
        return _both("NCCL_ALGO", env, "NCCL_NVLS_ENABLE", env, "leave no algorithm")
    return None


def _channels(env: _Asked, _: _Asked) -> str | None:
    for least, most in (("NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS"), ("NCCL_MIN_CTAS", "NCCL_MAX_CTAS")):
        numbers = [env[name][0] for name in (least, most) if name in env]
        if len(numbers) == 2 and all(str(number).isdigit() for number in numbers) and int(numbers[0]) > int(numbers[1]):
            return _both(least, env, most, env, "leave no number between them")
    return None


def _tf32(_: _Asked, torch: _Asked) -> str | None:
    allowed, precision = torch.get("cuda_matmul_allow_tf32"), torch.get("float32_matmul_precision")
    if allowed and precision and allowed[0] != (precision[0] != "highest"):
        return _both("cuda_matmul_allow_tf32", torch, "float32_matmul_precision", torch, "cannot both be had")
    return None


def _primus_tuning(env: _Asked, _: _Asked) -> str | None:
    flag, tuning = env.get("PRIMUS_DETERMINISTIC"), env.get("PRIMUS_TURBO_AUTO_TUNE")
    if flag and tuning and flag[0] == "1" and tuning[0] == "1":
        return _both("PRIMUS_DETERMINISTIC", env, "PRIMUS_TURBO_AUTO_TUNE", env, "are refused by Primus itself")
    return None


CONTRADICTIONS: tuple[Callable[[_Asked, _Asked], str | None], ...] = (
    _threads, _serialized, _nvls, _channels, _tf32, _primus_tuning,
)  # fmt: skip


def _both(one: str, ones: _Asked, other: str, others: _Asked, why: str) -> str:
    (value, source), (other_value, other_source) = ones[one], others[other]
    return f"{one}={_text(value)} ({source}) and {other}={_text(other_value)} ({other_source}) {why}"


# Both reduce inside the NVLink switch, which NCCL_NVLS_ENABLE turns off.
_NVLS = frozenset({"nvls", "nvlstree"})


def _leaves_only_nvls(algorithm: str) -> bool:
    """Whether a value of NCCL_ALGO leaves no algorithm but those; one with a list for each collective is not read."""
    return bool(algorithm) and not algorithm.startswith("^") and _algorithms(algorithm) <= _NVLS


def _leaves_no_nvls(algorithm: str) -> bool:
    """Whether a value of NCCL_ALGO leaves none of those; one with a list for each collective is not read."""
    if ":" in algorithm:
        return False
    named = _algorithms(algorithm)
    return named >= _NVLS if algorithm.startswith("^") else not named & _NVLS


def _algorithms(algorithm: str) -> set[str]:
    return {name.strip().lower() for name in algorithm.lstrip("^").split(",")}
