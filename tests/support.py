"""What several test modules need: composed configurations, streams, trial folders, and a process group of one rank."""

from __future__ import annotations

import copy
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf
from torch._C._distributed_c10d import HashStore

from detsweep import modes, results, schema
from detsweep.capture import SCHEMA, Record, Stream, write_streams
from detsweep.dispatch.provenance import open_session
from detsweep.injections import ledger
from detsweep.paths import SweepPaths, TrialPaths, conf_dir, file_hash, read_json, write_json
from detsweep.plan import Cell, Plan, make_plan
from detsweep.worker.faults import Struck
from detsweep.worker.progress import Progress
from detsweep.worker.rank import Comparing, prepare
from detsweep.worker.rank import _result as result_of_comparisons
from detsweep.worker.snapshot import RandomState
from detsweep.worker.step import TrainingStep

SEQUENCE: tuple[tuple[str, str, int | None], ...] = (
    ("rng", "torch", None),
    ("input", "input_ids", None),
    ("block_pre", "blocks.0", 0),
    ("block_post", "blocks.0", 0),
    ("block_pre", "blocks.1", 1),
    ("block_post", "blocks.1", 1),
    ("logits", "logits", None),
    ("loss", "loss", None),
    ("grad", "blocks.1.ffn.up.weight", 1),
    ("param", "blocks.0.ffn.up.weight", 0),
)
"""Site, name and block of the records that a written trial has in each of its runs."""
INPUT, BLOCK_0_POST, BLOCK_1_POST, LOSS = 1, 3, 5, 7
_PHASES = {"rng": "before", "input": "before", "grad": "backward", "param": "after"}


def compose(*overrides: str) -> dict[str, Any]:
    """The resolved configuration that the command line makes of these overrides, for the CPU of any machine."""
    choices = tuple(one for one in overrides if (conf_dir() / one.partition("=")[0]).is_dir())
    # Hydra applies plain values last, after the groups. Composing takes a tenth of a second: once for each choice.
    config = copy.deepcopy(_composed(choices))
    values = ["device=cpu", "folder=runs/test", *(one for one in overrides if one not in choices)]
    ConfigLoaderImpl._apply_overrides_to_config(OverridesParser.create().parse_overrides(values), config)
    resolved = OmegaConf.to_container(config, resolve=True)
    assert isinstance(resolved, dict)
    return {str(key): value for key, value in resolved.items()}


@cache
def _composed(choices: tuple[str, ...]) -> DictConfig:
    schema.register()
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        return hydra_compose("config", list(choices))


def plan_of(*points: Sequence[str], common: Sequence[str] = ()) -> Plan:
    """The plan of a sweep over these points, each a list of overrides; `common` ones are the same for all."""
    plan = make_plan([(list(point), compose(*common, *point)) for point in points])
    assert plan.problems == ()
    return plan


def one_cell(*overrides: str) -> Cell:
    """The only cell of a plan with a single point."""
    (cell,) = plan_of(overrides).cells
    return cell


def stream(
    *rows: tuple[str, str, int],
    rank: int = 0,
    step: int = 0,
    run: str = "r1",
    checksum: str = "xxh3",
    block: int | None = None,
) -> Stream:
    """A stream of records given as (site, name, digest)."""
    records = [Record(seq, site, name, block, "float32", (2, 3), bits) for seq, (site, name, bits) in enumerate(rows)]
    return Stream(rank, step, run, checksum, tuple(records))


def record(
    site: str,
    name: str,
    digest: int = 1,
    *,
    phase: str = "forward",
    block: int | None = None,
    inputs: int | None = None,
    dtype: str = "float32",
    shape: tuple[int, ...] = (2, 3),
) -> Record:
    """A record that has no place in a stream yet."""
    return Record(-1, site, name, block, dtype, shape, digest, phase, inputs)


def stream_of(records: Sequence[Record], *, rank: int = 0, step: int = 0, run: str = "r1") -> Stream:
    """A stream of these records in this order."""
    return Stream(rank, step, run, "xxh3", tuple(replace(one, seq=seq) for seq, one in enumerate(records)))


def full_stream(rank: int, step: int, run: int, *, differs_from: int | None = None) -> Stream:
    """A stream of SEQUENCE whose digests are the same in every run, but for those from `differs_from` on."""
    records = []
    for seq, (site, name, block) in enumerate(SEQUENCE):
        digest = (1 << 63) + 1000 * rank + 100 * step + seq
        if differs_from is not None and seq >= differs_from:
            digest += 10 * run + 7
        phase = _PHASES.get(site, "forward")
        records.append(Record(seq, site, name, block, "bfloat16", (2, 32, 64), digest, phase))
    return Stream(rank, step, f"r{run}", "xxh3", tuple(records))


def rank_result(rank: int, streams: Sequence[Stream], lost: Sequence[str], *, clean: str = "pass") -> dict[str, Any]:
    """What a rank says of its own streams; `clean`: its verdict where none differs."""
    comparing = Comparing(keep=True)
    comparing.add(streams)
    return {**result_of_comparisons(rank, comparing.done, lost=bool(lost), clean=clean), "lost": list(lost)}


def write_rank(
    trial: TrialPaths,
    spec: Mapping[str, Any],
    rank: int,
    *,
    differs: Mapping[tuple[int, int], int] | None = None,
    lost: Sequence[str] = (),
    milliseconds: float = 3.0,
    plain_milliseconds: float | Sequence[float] = 2.0,
    injected: Sequence[Mapping[str, Any]] = (),
    effects: Mapping[str, Mapping[str, str]] | None = None,
    appeared: Mapping[str, str] | None = None,
) -> None:
    """Write what a rank leaves behind; `differs` maps (step, run) to the record from which on that run differs.

    `plain_milliseconds`: of each unobserved step; `effects` maps mitigations to the status of each of their settings.
    """
    trial.folder.mkdir(parents=True, exist_ok=True)
    places = [(step, int(run.removeprefix("r"))) for step, run in modes.expected_runs(spec["config"])]
    streams = [full_stream(rank, *place, differs_from=(differs or {}).get(place)) for place in places]
    write_streams(trial.records(rank), streams, world_size=spec["world_size"])
    own = {
        **rank_result(rank, streams, lost, clean=modes.clean_verdict(spec["config"])),
        **_measured(milliseconds, plain_milliseconds),
        "injected": list(injected),
        "groups": {},
        "effects": with_evidence(effects or {}),
        "appeared": dict(appeared or {}),
    }
    write_json(trial.rank_result(rank), own)
    write_json(trial.environment(rank), {"schema": SCHEMA, "rank": rank, "torch": "2.13.0"})


def with_evidence(statuses: Mapping[str, Mapping[str, str]]) -> dict[str, dict[str, dict[str, str]]]:
    """The effects that a rank reports, from the status of each setting of each mitigation."""
    return {
        mitigation: {name: {"status": status, "evidence": f"{name} is {status}"} for name, status in settings.items()}
        for mitigation, settings in statuses.items()
    }


def _measured(observed: float, plain: float | Sequence[float]) -> dict[str, Any]:
    steps = [plain] if isinstance(plain, float) else list(plain)
    return {"loss": 6.25, "step_ms": observed, "plain_step_ms": statistics.median(steps), "plain_ms": steps}


def write_trial(
    trial: TrialPaths,
    cell: Cell,
    number: int = 0,
    *,
    differs: Mapping[int, Mapping[tuple[int, int], int]] | None = None,
    lost: Mapping[int, Sequence[str]] | None = None,
    milliseconds: float = 3.0,
    plain_milliseconds: float | Sequence[float] = 2.0,
    injected: Mapping[int, Sequence[Mapping[str, Any]]] | None = None,
    effects: Mapping[str, Mapping[str, str]] | None = None,
    appeared: Mapping[int, Mapping[str, str]] | None = None,
) -> dict[str, Any]:
    """Write a trial that ran to its end and its merged result; `differs` and `lost` say of each rank what is not well.

    `injected`: the faults that each rank put in; `effects`: what became of every setting, on all ranks; `appeared`: the
    variables that were set inside of each rank. Returns the result.
    """
    spec = cell.spec(number)
    write_json(trial.spec, spec)
    for rank in range(cell.world_size):
        write_rank(
            trial,
            spec,
            rank,
            differs=(differs or {}).get(rank),
            lost=(lost or {}).get(rank, ()),
            milliseconds=milliseconds,
            plain_milliseconds=plain_milliseconds,
            injected=(injected or {}).get(rank, ()),
            effects=effects,
            appeared=(appeared or {}).get(rank),
        )
    return _merged(trial, spec)


def write_recorded(
    trial: TrialPaths,
    cell: Cell,
    number: int = 0,
    *,
    records: Callable[[int, int, int], Sequence[Record]],
    injected: Mapping[int, Sequence[Mapping[str, Any]]] | None = None,
    groups: Mapping[str, Sequence[int]] | None = None,
    nonfinite: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """Write a trial whose ranks recorded `records(rank, step, run)`, and its merged result, which is returned.

    `groups`: the members of the process groups that every rank saw; `nonfinite`: what every run had of these values.
    """
    spec = cell.spec(number)
    write_json(trial.spec, spec)
    for rank in range(cell.world_size):
        places = [(step, int(run.removeprefix("r"))) for step, run in modes.expected_runs(cell.config)]
        own = [stream_of(records(rank, step, run), rank=rank, step=step, run=f"r{run}") for step, run in places]
        streams = [replace(one, nonfinite=nonfinite or {}) for one in own]
        write_streams(trial.records(rank), streams, world_size=cell.world_size)
        also = {"injected": list((injected or {}).get(rank, ())), "groups": groups or {}, "effects": {}, "appeared": {}}
        clean = modes.clean_verdict(cell.config)
        said = {**rank_result(rank, streams, [], clean=clean), **_measured(3.0, 2.0), **also}
        write_json(trial.rank_result(rank), said)
        write_json(trial.environment(rank), {"schema": SCHEMA, "rank": rank, "torch": "2.13.0"})
    return _merged(trial, spec)


def as_planned(cell: Cell) -> dict[int, list[dict[str, Any]]]:
    """What each rank writes down where every fault of a cell strikes an input or the output of a block."""
    return {
        rank: [
            struck(one.kind, step, int(run.removeprefix("r")), block=None if one.site == "input" else one.block)
            for one in ledger(cell.config)
            for step, run in modes.expected_runs(cell.config)
            if one.strikes(rank, step, int(run.removeprefix("r")))
        ]
        for rank in range(cell.world_size)
    }


def struck(kind: str, step: int = 0, run: int = 2, *, block: int | None = 1) -> dict[str, Any]:
    """A fault as a rank writes it down: in the output of a block, or with `block` None in the input."""
    site, name = ("input", "input_ids") if block is None else ("block_post", f"blocks.{block}")
    return Struck(kind, step, run, site, name, block).to_json()


def _merged(trial: TrialPaths, spec: Mapping[str, Any]) -> dict[str, Any]:
    result = results.merge(trial, spec, returncode=0, timeout_min=None, seconds=1.5)
    write_json(trial.result, result)
    return result


def as_written(trial: TrialPaths) -> None:
    """Let a trial's result take the records that a test has changed for those that it was made from."""
    paths = sorted(trial.folder.glob("rank*.jsonl"))
    result = read_json(trial.result)
    files = result["files"] | {path.name: path.stat().st_size for path in paths}
    write_json(trial.result, {**result, "files": files, "hashes": {path.name: file_hash(path) for path in paths}})


def write_failure(
    trial: TrialPaths, cell: Cell, number: int = 0, *, verdict: str = "error", error: str = "x", **more: Any
) -> None:
    """Write the result of a trial without a verdict about repeating; `more` are further fields of it."""
    result = {"schema": SCHEMA, "cell": cell.id, "trial": number, "verdict": verdict, "error": error}
    write_json(trial.result, {**result, **more})


def write_cells(folder: Path, plan: Plan) -> SweepPaths:
    """Write sweep.json and every cell.json of a plan, no trial."""
    sweep = SweepPaths(folder)
    open_session(sweep, plan, ["-m"])
    for cell in plan.cells:
        write_json(sweep.cell(cell.slug, cell.id).cell, cell.to_json())
    return sweep


def trial_of(sweep: SweepPaths, cell: Cell, number: int = 0) -> TrialPaths:
    """The files of a trial of a cell of a sweep."""
    return sweep.cell(cell.slug, cell.id).trial(number)


@contextmanager
def one_thread() -> Iterator[None]:
    """torch with one thread: several only wait for each other where models are small and cores busy."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def group_of_one() -> Iterator[None]:
    """A gloo process group with this process as its only rank."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


def prepared(folder: Path, *overrides: str, rank: int = 0) -> TrainingStep:
    """The step of a cell as a rank prepares it: model, observer and faults; in a group of one, for the CPU."""
    config = compose("world.nproc_per_node=1", "model.num_layers=2", *overrides)
    return prepare(config, rank, torch.device("cpu"), Progress(folder / "rank000.progress"))[2]


@contextmanager
def one_rank() -> Iterator[None]:
    """A group of one with one thread; what draws random numbers meanwhile draws none of other tests'."""
    state = RandomState.now(torch.device("cpu"))
    with group_of_one(), one_thread():
        yield
    state.restore(torch.device("cpu"))


def random_bytes() -> dict[str, bytes]:
    """The bytes of every random state now: one may hold a NaN, which equals nothing."""
    states = RandomState.now(torch.device("cpu")).tensors()
    return {name: state.numpy().tobytes() for name, state in states.items()}
