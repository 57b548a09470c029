"""The typed configuration of a cell, registered with Hydra so that wrong keys and types are refused while composing."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING, OmegaConf


@dataclass
class ModelConfig:
    """The repeated block and how often it is repeated."""

    name: str = MISSING
    num_layers: int = MISSING
    hidden_size: int = MISSING
    ffn_size: int = MISSING
    num_heads: int = MISSING
    vocab_size: int = MISSING
    seq_len: int = MISSING
    batch_size: int = MISSING
    embedding: str = "module"
    attention: str = "math"
    dropout: float = 0.0


@dataclass
class DtypeConfig:
    """Dtypes of parameters, of compute and all-gather, and of the gradients' reduce-scatter."""

    name: str = MISSING
    param: str = MISSING
    compute: str = MISSING
    reduce: str = MISSING


@dataclass
class MoeConfig:
    """Mixture of experts in place of the dense FFN; one expert is the dense FFN.

    `dispatch`: every rank has all experts (`local`), or they are dealt out and tokens cross ranks (`all_to_all`).
    """

    name: str = MISSING
    routing: str = MISSING
    combine: str = "index_put"
    dispatch: str = "local"
    default_top_k: int = MISSING
    experts: int = MISSING
    top_k: int = MISSING


@dataclass
class ModeConfig:
    """What is compared with what, and how many runs that takes."""

    name: str = MISSING
    default_runs: int = 2


@dataclass
class RecordConfig:
    """What mode=record keeps.

    `payload`: of the collectives `digest`, `outputs`, or `all`; `first` and `last`: the steps that are recorded (null:
    to the end); `every`: steps between two snapshots (null: one at the start, with `keep` one for each step); `keep`:
    only the last so many steps, and only when something went wrong; `spike`: how many times the usual a loss or the
    norm of the gradients is to be wrong; `compress`; `max_gb`: the most that a rank may have on disk.
    """

    payload: str = "outputs"
    first: int = 0
    last: int | None = None
    every: int | None = None
    keep: int | None = None
    spike: float | None = None
    compress: str = "none"
    max_gb: float | None = None


@dataclass
class MitigationConfig:
    """One preset: environment variables (null: must be unset) and torch switches; the rest describes it.

    `reads`: what reads them, and when; `expect`, `cost`, `source`: what it should do, its price, where that is from;
    `members`: the presets of which it is the union; `advice`: what no variable or switch can set.
    """

    env: dict[str, str | None] = field(default_factory=dict)
    torch: dict[str, Any] = field(default_factory=dict)
    platforms: list[str] = field(default_factory=list)
    reads: str = ""
    expect: str = ""
    cost: str = ""
    source: str = ""
    members: list[str] = field(default_factory=list)
    advice: list[str] = field(default_factory=list)


@dataclass
class FaultConfig:
    """A corruption put in on purpose. rank null: every rank; step null: every step.

    `transient` strikes in the run that is named, `persistent` in every run. `rate` is the chance, drawn from the seed,
    that it strikes where it may. `number` counts the collectives of a run, or the operators of a block's forward. A
    campaign draws one of `kinds` for each step. It does not strike where all variables of `unless` have the values
    given there: a fault that has a cure. `node`: of cells that are pinned to nodes, it strikes in that node's alone.
    """

    kind: str = "none"
    rank: int | None = None
    step: int | None = 0
    run: int = 2
    site: str = "block_post"
    block: int = 0
    element: int = 0
    bit: int = 0
    number: int = 0
    persistence: str = "transient"
    rate: float = 1.0
    kinds: list[str] = field(default_factory=list)
    how: str = "raise"
    node: str | None = None
    unless: dict[str, str] = field(default_factory=dict)


@dataclass
class ObserveConfig:
    """What is fingerprinted inside a step."""

    name: str = MISSING


@dataclass
class StressConfig:
    """What keeps the step company, so that a race that needs it gets it."""

    name: str = MISSING
    max_ms: float = 0.0


@dataclass
class LaunchConfig:
    """How trials are started. Not part of a cell's identity.

    From `partition` on these are for launch=slurm alone; null leaves a choice to Slurm. `time_min` is Slurm's own limit
    (null: `timeout_min` and a margin), `cpus_per_node` and `gpus_per_node` what a node gives (null: what its ranks
    take), `sbatch` further parameters of sbatch, `setup` shell lines before the task, `python` the interpreter on the
    nodes. `requeue`: Slurm may start a trial anew whose node failed or that was preempted; `retries`: how often a trial
    is submitted again that infrastructure has cost; `ask_s`: seconds between two questions to Slurm.
    """

    name: str = MISSING
    max_parallel: int = 1
    timeout_min: float = 30.0
    fail_fast: bool = False
    rerun: str = "errors"
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    reservation: str | None = None
    constraint: str | None = None
    nodelist: str | None = None
    exclude: str | None = None
    time_min: int | None = None
    gpus_per_node: int | None = None
    cpus_per_node: int | None = None
    memory_gb: float | None = None
    platform: str | None = None
    sbatch: dict[str, Any] = field(default_factory=dict)
    srun_args: list[str] = field(default_factory=list)
    setup: list[str] = field(default_factory=list)
    python: str | None = None
    requeue: bool = True
    retries: int = 1
    ask_s: float = 15.0
    detach: bool = False


@dataclass
class SearchConfig:
    """What is looked for: `minimal`, a smallest set of `candidates` that cures; `culprit`, the `axes` that it takes.

    `axes`: keys, each with the value that is taken to be harmless. `confidence`: with which a set is said to be clean.
    `verify`: fresh launches that the answer must stand; `max_trials`: launches that one set may take.
    """

    name: str = MISSING
    candidates: list[str] = field(default_factory=list)
    axes: dict[str, Any] = field(default_factory=dict)
    confidence: float = 0.95
    verify: int = 3
    max_trials: int = 20


@dataclass
class StopAfterConfig:
    """When a cell needs no further trial: see detsweep.stopping. Of null nothing stops before its last trial.

    `divergences`: so many of its trials diverged; `bound`: none did, and the rate of a replay lies below that, with 95%
    confidence.
    """

    divergences: int | None = None
    bound: float | None = None


@dataclass
class WorldConfig:
    """Ranks, CPU threads in each of them, and how many ranks share one copy of the model (null: all).

    `node` and `gpu` pin a cell of one node: to a node of the cluster by its name, to a GPU of a node by its number.
    """

    nodes: int = 1
    nproc_per_node: int = 2
    threads_per_rank: int = 1
    shard_ranks: int | None = None
    node: str | None = None
    gpu: int | None = None


@dataclass
class Config:
    """The whole configuration of one cell, and of the sweep that it belongs to."""

    model: ModelConfig = field(default_factory=ModelConfig)
    dtype: DtypeConfig = field(default_factory=DtypeConfig)
    moe: MoeConfig = field(default_factory=MoeConfig)
    mode: ModeConfig = field(default_factory=ModeConfig)
    mitigation: dict[str, MitigationConfig] = field(default_factory=dict)
    fault: FaultConfig = field(default_factory=FaultConfig)
    observe: ObserveConfig = field(default_factory=ObserveConfig)
    stress: StressConfig = field(default_factory=StressConfig)
    search: SearchConfig = field(default_factory=SearchConfig)
    record: RecordConfig = field(default_factory=RecordConfig)
    launch: LaunchConfig = field(default_factory=LaunchConfig)
    world: WorldConfig = field(default_factory=WorldConfig)
    experts: int = MISSING
    top_k: int = MISSING
    seed: int = MISSING
    steps: int = MISSING
    runs: int = MISSING
    trials: int = MISSING
    stop_after: StopAfterConfig = field(default_factory=StopAfterConfig)
    warmup: int = MISSING
    checkpointing: str = MISSING
    preserve_rng_state: bool = MISSING
    compile: bool = MISSING
    wrap: str = MISSING
    optimizer: str = MISSING
    lr: float = MISSING
    accum: int = MISSING
    clip: float | None = None
    checksum: str = MISSING
    checksum_mode: str = MISSING
    device: str = MISSING
    env: dict[str, str | None] = field(default_factory=dict)
    keep_env: list[str] = field(default_factory=list)
    kernel_cache: str = MISSING
    require: list[str] = field(default_factory=list)
    mitigation_force: bool = False
    positive_control: bool = False
    against: str | None = None
    drill: bool = False
    fleet: str = "none"
    log: str = "none"
    folder: str = MISSING
    dry_run: bool = False


def register() -> None:
    """Make known to Hydra what conf/config.yaml refers to: the schema, and the resolver of the default folder's name.

    The name is that of now for every cell of a sweep, however long it takes to compose them.
    """
    # Here, and not above: trials and the analysis read this module for its key names, and need no Hydra.
    from hydra.core.config_store import ConfigStore

    ConfigStore.instance().store(name="schema", node=Config)
    started = time.strftime("%Y-%m-%d/%H-%M-%S")
    OmegaConf.register_new_resolver("detsweep.started", lambda: started, replace=True)
