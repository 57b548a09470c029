"""A collective in words that outlive its process: group, reduce operation, and what else it was called with."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from detsweep.causes import collective_name
from detsweep.worker.dispatched import group_of, operator_of, sides, tensors_in

REPLAYABLE = frozenset({
    "c10d._allgather_base_", "c10d._reduce_scatter_base_", "c10d.allgather_", "c10d.allgather_coalesced_",
    "c10d.allgather_into_tensor_coalesced_", "c10d.allreduce_", "c10d.allreduce_coalesced_", "c10d.alltoall_",
    "c10d.alltoall_base_", "c10d.barrier", "c10d.broadcast_", "c10d.gather_", "c10d.monitored_barrier_", "c10d.recv_",
    "c10d.reduce_", "c10d.reduce_scatter_", "c10d.reduce_scatter_tensor_coalesced_", "c10d.scatter_", "c10d.send",
    "_c10d_functional.all_gather_into_tensor", "_c10d_functional.all_gather_into_tensor_coalesced",
    "_c10d_functional.all_reduce", "_c10d_functional.all_reduce_", "_c10d_functional.all_reduce_coalesced",
    "_c10d_functional.all_reduce_coalesced_", "_c10d_functional.all_to_all_single", "_c10d_functional.broadcast",
    "_c10d_functional.broadcast_", "_c10d_functional.reduce_scatter_tensor",
    "_c10d_functional.reduce_scatter_tensor_coalesced",
})  # fmt: skip
"""Operators whose whole effect on a rank is what they write to the tensors that they are given, or return. Not among
them: a receive from any rank, which also tells the program whose it was."""
_ROOTED = ("broadcast_", "broadcast", "scatter_")


class NotReplayableError(RuntimeError):
    """A collective that a recording could not be replayed with; the message names it."""


@dataclass(frozen=True)
class Described:
    """What of a call is the same whenever it is repeated. `name` has the number of the call in its group."""

    operator: str
    name: str
    phase: str
    group: str
    ranks: tuple[int, ...]
    reduce: str | None
    asynchronous: bool | None
    arguments: Mapping[str, Any]


class Describer:
    """Describes the collectives of a step in order; `position` says in which module's course and phase each comes."""

    def __init__(self, position: Callable[[], tuple[str, str]]) -> None:
        self._position = position
        self._issued: Counter[str] = Counter()

    def begin(self) -> None:
        """A step begins."""
        self._issued.clear()

    def describe(self, func: Any, args: tuple[Any, ...]) -> Described:
        """Raises NotReplayableError for an operator that is none of REPLAYABLE."""
        operator = f"{func.namespace}.{operator_of(func)}"
        module, phase = self._position()
        if operator not in REPLAYABLE:
            raise NotReplayableError(f"{operator}, issued in {module}, cannot be replayed, so it cannot be recorded")
        group, members = group_of(args)
        name = f"{collective_name(operator, self._issued[group], group)} in {module}"
        self._issued[group] += 1
        values = _arguments(func, args)
        asynchronous = values.pop("async_op", None)
        reduce = values.pop("reduce_op", None)
        kept = {key: value for key, value in values.items() if key not in ("timeout", "group_name") and _plain(value)}
        return Described(
            operator,
            name,
            phase,
            group,
            members or (),
            reduce if isinstance(reduce, str) else _reduce_of_caller() if reduce is not None else None,
            asynchronous,
            kept,
        )


def reads_of(func: Any, args: tuple[Any, ...]) -> list[Tensor]:
    """The tensors whose bits a collective sends: of a broadcast or a scatter those of the root alone."""
    _, reads = sides(func)
    if reads is None:
        return []
    if operator_of(func) in _ROOTED and not _is_root(func, args):
        return []
    return list(tensors_in([args[reads]]))


def _arguments(func: Any, args: tuple[Any, ...]) -> dict[str, Any]:
    """The arguments of a call by name. The dispatcher leaves out those at the end that have their default values."""
    names = [argument.name for argument in func._schema.arguments]
    defaults = {one.name: one.default_value for one in func._schema.arguments if one.has_default_value()}
    return {**defaults, **dict(zip(names, args, strict=False))}


def _is_root(func: Any, args: tuple[Any, ...]) -> bool:
    values = _arguments(func, args)
    root = values.get("root_rank", values.get("src"))
    members = group_of(args)[1]
    if members is None:
        return True
    return bool(members.index(dist.get_rank()) == root)


def _plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return bool(value) and all(_plain(item) for item in value)
    return isinstance(value, (bool, int, str)) and not isinstance(value, (Tensor, torch.ScriptObject))


def _reduce_of_caller() -> str | None:
    """The reduce operation of a c10d call.

    Among the operator's arguments it is an object that Python cannot look into; the function of torch.distributed that
    issued it still has it. None where it was C++ that did.
    """
    frame, hops = sys._getframe(2), 0
    while frame is not None and hops < 24:
        if frame.f_code.co_filename.endswith("distributed_c10d.py") and (word := _reduce_among(frame.f_locals)):
            return word
        frame, hops = frame.f_back, hops + 1  # type: ignore[assignment]
    return None


def _reduce_among(names: Mapping[str, Any]) -> str | None:
    """The reduce operation among a function's variables; of calls that were gathered, that of the first, as of all."""
    gathered = names.get("op_list")
    operation = gathered[0].redop if gathered else names.get("op")
    # Objects of the one class look like those of the other to isinstance, and print their address.
    if type(operation) is dist.ReduceOp:
        operation = operation.op  # type: ignore[attr-defined]
    return operation.name.lower() if isinstance(operation, dist.ReduceOp.RedOpType) else None
