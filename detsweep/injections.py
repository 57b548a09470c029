"""Faults that can be put in on purpose: their kinds, where each may strike, and which of a cell strike when.

A worker puts them in and writes down what it did; validation and analysis read the same tables.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from detsweep.mitigations import combine
from detsweep.modes import exchanges, resumed_at, trajectories

ACTIVATIONS = ("block_post", "block_grad_in", "logits", "grad", "op")
KINDS: Mapping[str, tuple[str, ...]] = {
    "input_flip": ("input",),
    "bit_flip": ACTIVATIONS,
    "stride_flip": ACTIVATIONS,
    "swap": ACTIVATIONS,
    "ulp_pair": ACTIVATIONS,
    "zero_sign": ACTIVATIONS,
    "nan_payload": ACTIVATIONS,
    "stale_tensor": ("block_post", "block_grad_in", "logits"),
    "zeroed_shard": ("param",),
    "param_drift": ("param",),
    "rng_not_restored": ("rng",),
    "collective_flip": ("collective_out",),
    "reordered_collectives": ("collective_out",),
    "misrouted_expert": ("router",),
}
"""Each kind, and the sites at which it can strike; the first is where it does unless `fault.site` says otherwise."""
SITES = tuple(dict.fromkeys(site for sites in KINDS.values() for site in sites))
_CAUSES = {
    "input_flip": "input",
    "zeroed_shard": "memory",
    "param_drift": "memory",
    "rng_not_restored": "rng",
    "collective_flip": "collective",
    "reordered_collectives": "sequence",
}
# Every rank must issue the same collectives in the same order, or the group hangs.
EVERY_RANK = ("reordered_collectives",)


@dataclass(frozen=True)
class Injection:
    """One fault, fully said: `rank` None is every rank, `step` None every step, `run` None every run.

    `element` and `number` are taken modulo what there is where the fault strikes.
    """

    kind: str
    rank: int | None
    step: int | None
    run: int | None
    site: str
    block: int
    element: int
    bit: int
    number: int

    def strikes(self, rank: int, step: int, run: int) -> bool:
        return self.rank in (None, rank) and self.step in (None, step) and self.run in (None, run)


def site_of(kind: str, asked: str) -> str:
    """Where a kind strikes: at the site asked for where it can, else at its own."""
    return asked if asked in KINDS[kind] else KINDS[kind][0]


def ledger(config: Mapping[str, Any]) -> tuple[Injection, ...]:
    """All injections of a cell, from its configuration alone: the same on every rank, and for whoever judges."""
    fault = config["fault"]
    if fault["kind"] in ("none", "rank_failure") or _cured(config):
        return ()
    chance = random.Random(f"{config['seed']}:faults")
    if fault["kind"] == "campaign":
        return tuple(_campaign(config, chance))
    return tuple(_single(config, chance))


def _cured(config: Mapping[str, Any]) -> bool:
    """Whether a cell has all the variables without which its fault strikes."""
    unless = config["fault"]["unless"]
    if not unless:
        return False
    env = combine(config["mitigation"], config["env"]).env
    return all(env.get(name) == value for name, value in unless.items())


def _single(config: Mapping[str, Any], chance: random.Random) -> Iterator[Injection]:
    fault = config["fault"]
    run = None if fault["persistence"] == "persistent" else fault["run"]
    kind = fault["kind"]
    steps = list(range(config["steps"])) if fault["step"] is None else [fault["step"]]
    if kind == "rng_not_restored" and trajectories(config):
        # Random states are restored once: before a trajectory, or before the first step of its second half.
        steps = [resumed_at(config) if config["mode"]["name"] == "resume" else 0]
    for step in steps:
        if chance.random() < fault["rate"]:
            rank = None if kind in EVERY_RANK else fault["rank"]
            site = site_of(kind, fault["site"])
            yield Injection(
                kind, rank, step, run, site, fault["block"], fault["element"], fault["bit"], fault["number"]
            )


def _campaign(config: Mapping[str, Any], chance: random.Random) -> Iterator[Injection]:
    """One injection for each step from the second on (the first leaves what a stale tensor is stale from).

    Kinds take turns, so that each comes as often; rank, site, block, element, bit and collective are drawn.
    """
    fault, world = config["fault"], config["world"]
    kinds = [kind for kind in fault["kinds"] or KINDS if can_strike(kind, config)]
    run = None if fault["persistence"] == "persistent" else fault["run"]
    bits = {"fp32": 32}.get(config["dtype"]["compute"], 16)
    for step in range(1, config["steps"]):
        kind = kinds[(step - 1) % len(kinds)]
        rank = chance.randrange(world["nodes"] * world["nproc_per_node"])
        drawn = Injection(
            kind,
            None if kind in EVERY_RANK else rank,
            step,
            run,
            chance.choice([site for site in KINDS[kind] if site != "op" or config["observe"]["name"] == "op"]),
            chance.randrange(config["model"]["num_layers"]),
            chance.randrange(1 << 30),
            chance.randrange(bits),
            chance.randrange(1 << 30),
        )
        if chance.random() < fault["rate"]:
            yield drawn


def can_strike(kind: str, config: Mapping[str, Any]) -> bool:
    """Whether a cell has what a kind of fault corrupts."""
    return cannot_strike(kind, config) is None


def cannot_strike(kind: str, config: Mapping[str, Any]) -> str | None:
    """Why a kind of fault would do nothing in a cell, in the words of the command line; None where it would."""
    fault, level = config["fault"], config["observe"]["name"]
    if kind == "misrouted_expert" and config["experts"] == 1:
        return "needs experts of at least 2"
    if kind == "rng_not_restored" and config["model"]["dropout"] == 0:
        return "needs a step that draws random numbers: model.dropout=0.1"
    if kind in ("collective_flip", "reordered_collectives"):
        if level not in ("collective", "op"):
            return "needs observe=collective or observe=op"
        if config["world"]["nodes"] * config["world"]["nproc_per_node"] == 1:
            return "needs at least 2 ranks: one has no collectives"
    if kind == "reordered_collectives":
        if config["model"]["num_layers"] < 3:
            return "needs model.num_layers of at least 3"
        if fault["persistence"] == "persistent":
            return "needs fault.persistence=transient: ranks that all do the same differ from nothing"
        if config["wrap"] == "root" or config["world"]["shard_ranks"] == 1:
            return "needs all-gathers of several blocks: wrap=block, and world.shard_ranks other than 1"
    if fault["site"] == "op" and "op" in KINDS[kind] and level != "op":
        return "fault.site=op needs observe=op"
    if kind == "stale_tensor" and config["steps"] < 2:
        return "needs steps of at least 2: the tensor is stale from the step before"
    return None


def expected_cause(kind: str, site: str, config: Mapping[str, Any], step: int = 0) -> str | None:
    """The cause that is to be named for a fault of a kind at the site at which it is found first; None: not known."""
    level = config["observe"]["name"]
    if kind in _CAUSES:
        loaded = config["mode"]["name"] == "resume" and (kind == "rng_not_restored" or step == resumed_at(config))
        # State that is wrong at the first step after the break is not told from state that was loaded wrong.
        return "checkpoint" if loaded and kind in ("rng_not_restored", "zeroed_shard", "param_drift") else _CAUSES[kind]
    if site == "op":
        return "compute"
    if level == "op":
        # No operator was seen to write these bits.
        return "memory"
    if level == "block" and exchanges(config) and site in ("block_post", "block_grad_in"):
        # Another rank's experts have had a part in it.
        return None
    return None if level == "off" or (site == "grad" and level != "collective") else "compute"


def misrouted_at(config: Mapping[str, Any], block: int) -> tuple[str, str | None]:
    """Site and name of the first record in which a block's misrouted token can show."""
    level = config["observe"]["name"]
    if level in ("module", "op"):
        return "module", f"blocks.{block}.ffn.router"
    if level == "collective" and exchanges(config):
        # How many tokens go to which expert is what ranks tell each other first.
        return "collective_in", None
    return "block_post", f"blocks.{block}"
