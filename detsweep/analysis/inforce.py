"""What was in force in a rank, by what it recorded: its hash seed, layout, deterministic algorithms, and autotuning."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from detsweep import modes
from detsweep.analysis.recorded import Rank, Trial
from detsweep.validate import lookup

LEVELS = ("off", "warn", "strict")
LAYOUT = ("world.nodes", "world.nproc_per_node", "world.shard_ranks", "wrap")
_OFF = ("", "0", "off", "false", "no")
TUNES: Mapping[str, tuple[str, ...]] = {
    "PYTORCH_TUNABLEOP_ENABLED": _OFF,
    "TORCHINDUCTOR_MAX_AUTOTUNE": _OFF,
    "TORCHINDUCTOR_MAX_AUTOTUNE_GEMM": _OFF,
    "TORCHINDUCTOR_MAX_AUTOTUNE_POINTWISE": _OFF,
    "TORCHINDUCTOR_COORDINATE_DESCENT_TUNING": _OFF,
    "TORCHINDUCTOR_BENCHMARK_FUSION": _OFF,
    "HIPBLASLT_TUNING_MODE": _OFF,
    "HIPBLASLT_TUNING_FILE": ("",),
    "HIPBLASLT_TUNING_OVERRIDE_FILE": ("",),
    "TE_HIPBLASLT_TUNING_RUN_COUNT": _OFF,
    "TE_HIPBLASLT_TUNING_ALGO_COUNT": _OFF,
    "PRIMUS_HIPBLASLT_TUNING": _OFF,
    "PRIMUS_HIPBLASLT_TUNING_STAGE": _OFF,
    "PRIMUS_TURBO_AUTO_TUNE": _OFF,
    "MIOPEN_FIND_MODE": ("", "2", "fast"),
    "MIOPEN_FIND_ENFORCE": ("", "1", "none"),
}
"""Variables that turn a search for kernels on, or bring the result of one; each with the values that do not."""


def hash_seed(rank: Rank) -> str:
    """PYTHONHASHSEED as Python read it before anything else ran, `unset` where it was not there."""
    tables = (rank.table("started_with"), rank.table("variables"))
    return str((tables[0] or tables[1]).get("PYTHONHASHSEED", "unset"))


def layout(trial: Trial) -> dict[str, list[str]]:
    """The layout of a trial, each part with its value; the threads are those of every rank as it read them back."""
    parts = {key: lookup(trial.config, key) for key in LAYOUT}
    named = {key: ["null" if value is None else str(value)] for key, value in parts.items()}
    threads = dict.fromkeys(str(rank.table("settings").get("num_threads")) for rank in trial.ranks)
    return {**named, "threads": list(threads)}


def level(rank: Rank) -> str:
    """The deterministic algorithms of torch as a rank read them back, one of LEVELS."""
    found = rank.table("settings").get("deterministic_algorithms")
    return found if found in LEVELS else "off"


def lost(rank: Rank) -> Iterator[str]:
    """What was asked for in a rank and is not in force there, by its result and by what became of each setting."""
    now = [str(one.get("evidence")) for _, one in _effects(rank) if one.get("status") == "lost"]
    yield from dict.fromkeys([*rank.lost, *now])


def tuned(rank: Rank, config: Mapping[str, Any]) -> list[str]:
    """What chooses kernels by timing in a rank of this configuration; nothing where nothing does."""
    gpu, compiled = _gpu(rank), _compiles(rank, config)
    if not gpu and not compiled:
        return []
    settings = rank.table("settings")
    found = [
        f"{name}={value}"
        for name, off in TUNES.items()
        for value in _values(rank, name)
        if value.lower() not in off and not _inert(rank, name)
    ]
    if gpu and settings.get("cudnn_benchmark"):
        found.append("cudnn_benchmark=true")
    deterministic = settings.get("deterministic_algorithms") != "off"
    if gpu and compiled and not deterministic and "1" not in _values(rank, "TORCHINDUCTOR_DETERMINISTIC"):
        # Of a reduction it has several kernels, and without max_autotune too takes the fastest.
        found.append("Inductor, which times reductions unless it is told to be deterministic")
    return found


def untuned(rank: Rank, config: Mapping[str, Any]) -> str:
    """Why nothing is chosen by timing, in a rank in which `tuned` finds nothing."""
    if _gpu(rank):
        off = f"cudnn_benchmark={str(rank.table('settings').get('cudnn_benchmark')).lower()}"
        return f"with {off} and no variable that turns tuning on"
    if _compiles(rank, config):
        return "on a CPU, compiled with no variable that turns tuning on"
    return "on a CPU with nothing compiled, where nothing tunes"


def remembers(trial: Trial) -> bool:
    """Whether a trial shares what libraries keep of kernels and of searches with other runs, also earlier ones."""
    keeps = any(_gpu(rank) or _compiles(rank, trial.config) for rank in trial.ranks)
    # Before there was this key, all was shared.
    return keeps and trial.config.get("kernel_cache", "shared") == "shared"


def _gpu(rank: Rank) -> bool:
    return rank.table("device").get("type") != "cpu"


def _compiles(rank: Rank, config: Mapping[str, Any]) -> bool:
    return modes.compiles(config) and "1" not in _values(rank, "TORCH_COMPILE_DISABLE")


def _values(rank: Rank, name: str) -> Iterator[str]:
    """The values that a variable had in a process: when it was started, for Python, and for C libraries at the end."""
    tables = (rank.table(key) for key in ("started_with", "variables", "appeared"))
    yield from dict.fromkeys(str(table[name]) for table in tables if name in table)


def _inert(rank: Rank, name: str) -> bool:
    """Whether the rank found that nothing in it reads a variable."""
    return any(setting == name and one.get("status") == "inert" for setting, one in _effects(rank))


def _effects(rank: Rank) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """What became of each setting of each mitigation."""
    for settings in rank.table("effects").values():
        if isinstance(settings, Mapping):
            yield from ((name, one) for name, one in settings.items() if isinstance(one, Mapping))
