"""What torch's dispatcher says of an operator: what it reads and writes, and which sides a collective has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

_PLAIN = (Tensor, nn.Parameter)
COLLECTIVES = ("c10d", "_c10d_functional")
# Of the same namespaces, and yet nothing that goes from rank to rank.
NO_COLLECTIVE = ("wait_tensor", "_wrap_tensor_autograd")
POINT_TO_POINT = ("send", "recv_", "recv_any_source_")
# Memory that holds whatever was there before, and changes of a tensor's description only.
_NOTHING_COMPUTED = frozenset({
    "aten.empty", "aten.empty_like", "aten.empty_strided", "aten.empty_permuted", "aten.new_empty",
    "aten.new_empty_strided", "aten.resize_", "aten.set_", "aten.detach", "aten.alias", "aten._unsafe_view",
    "aten.lift_fresh", "aten._local_scalar_dense", "aten.is_same_size", "aten.record_stream",
})  # fmt: skip
# These write all of the tensor that they are given: what was there before is not read.
_OVERWRITES = frozenset({
    "aten.copy_", "aten.fill_", "aten.zero_", "aten.normal_", "aten.uniform_", "aten.bernoulli_", "aten.random_",
    "aten.exponential_", "aten._foreach_copy_", "aten._foreach_zero_",
})  # fmt: skip
# Attention kernels hand out memory that they did not write: seeds where there is no dropout, and log-sum-exp that is
# padded. How many of their results hold bits, and which arguments of their backward do not.
_RESULTS = {
    "aten._scaled_dot_product_flash_attention": 2, "aten._flash_attention_forward": 2,
    "aten._scaled_dot_product_cudnn_attention": 2, "aten._cudnn_attention_forward": 2,
    "aten._scaled_dot_product_efficient_attention": 1, "aten._efficient_attention_forward": 1,
    # The second result is the buffer that the collective is going to fill.
    "fsdp.all_gather_copy_in": 1,
}  # fmt: skip
_UNWRITTEN = frozenset({"philox_seed", "philox_offset", "rng_state", "unused", "seed", "offset"})
# Which arguments of a collective it writes and which it reads, by position; the same one where it works in place.
_SIDES: Mapping[str, tuple[int | None, int | None]] = {
    "allreduce_": (0, 0), "allreduce_coalesced_": (0, 0), "broadcast_": (0, 0), "reduce_": (0, 0),
    "send": (None, 0), "recv_": (0, None), "recv_any_source_": (0, None), "barrier": (None, None),
    "monitored_barrier_": (None, None),
}  # fmt: skip


@dataclass(frozen=True)
class Signature:
    """What is known of an operator before it is called: positions and names of what it reads and writes."""

    name: str
    computes: bool
    reads: tuple[int, ...]
    reads_named: tuple[str, ...]
    writes: tuple[int, ...]
    writes_named: tuple[str, ...]
    results: int | None

    def inputs(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Tensor]:
        """The tensors that a call reads."""
        return _picked(args, kwargs, self.reads, self.reads_named)

    def outputs(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> list[Tensor]:
        """The tensors that a call wrote: its results, or where it has none the arguments that it wrote to."""
        if self.results is not None and isinstance(result, (tuple, list)):
            result = result[: self.results]
        return list(tensors_in([result])) or _picked(args, kwargs, self.writes, self.writes_named)


def signature_of(func: Any) -> Signature:
    """What an operator reads and writes, from its schema: `(a!)` marks what is written, `out=` what is only written."""
    name = f"{func.namespace}.{str(func).split('.')[1]}"
    # An overload's schema has no public name; it is what torch's own modes go by.
    arguments = func._schema.arguments
    written = [a.alias_info is not None and a.alias_info.is_write for a in arguments]
    overwrites = name in _OVERWRITES
    unwritten = _UNWRITTEN if "attention" in name else frozenset()
    if "efficient_attention" in name:
        unwritten |= {"logsumexp"}
    places = [(number, a) for number, a in enumerate(arguments) if not a.kwarg_only]
    if name == "fsdp.all_gather_copy_in":
        # Its second argument is the buffer that the collective is going to fill.
        places = places[:1]
    return Signature(
        name,
        computes=not (func.is_view or name in _NOTHING_COMPUTED),
        reads=tuple(n for n, a in places if not (overwrites and written[n]) and a.name not in unwritten),
        reads_named=tuple(
            a.name
            for n, a in enumerate(arguments)
            if not (written[n] and (a.kwarg_only or overwrites)) and a.name not in unwritten
        ),
        writes=tuple(n for n, _ in places if written[n]),
        writes_named=tuple(a.name for n, a in enumerate(arguments) if written[n]),
        results=_RESULTS.get(name),
    )


def tensors_in(values: Any) -> Iterator[Tensor]:
    """All tensors in nested lists and tuples that have bits to read."""
    for value in values:
        if isinstance(value, Tensor):
            if _has_bits(value) and value.layout == torch.strided:
                yield value if type(value) in _PLAIN else value.as_subclass(Tensor)
        elif isinstance(value, (list, tuple)):
            yield from tensors_in(value)


def _has_bits(tensor: Tensor) -> bool:
    """Whether a tensor is more than a description or a wrapper: subclasses that change no dispatch have bits too."""
    if tensor.device.type == "meta":
        return False
    return type(tensor) in _PLAIN or type(tensor).__torch_dispatch__ is Tensor.__torch_dispatch__


def is_dense(values: Any) -> bool:
    """Whether all tensors in nested lists and tuples are strided."""
    return all(
        value.layout == torch.strided if isinstance(value, Tensor) else is_dense(value)
        for value in values
        if isinstance(value, (Tensor, list, tuple))
    )


def is_real(values: Any) -> bool:
    """Whether all tensors in nested lists and tuples have bits, or there are none at all: those of a barrier."""
    for value in values:
        if isinstance(value, Tensor):
            if not _has_bits(value):
                return False
        elif isinstance(value, (list, tuple)) and not is_real(value):
            return False
    return True


def operator_of(func: Any) -> str:
    return str(func).split(".")[1]


def sides(func: Any) -> tuple[int | None, int | None]:
    return _SIDES.get(operator_of(func), (0, 1) if func.namespace == "c10d" else (None, 0))


def delivered_by(func: Any, args: tuple[Any, ...], writes: int | None, result: Any) -> list[Tensor]:
    """What a collective brought to this rank, once the current stream has waited for it; on the CPU this waits."""
    if func.namespace != "c10d":
        if operator_of(func) in NO_COLLECTIVE:
            return []
        return [torch.ops._c10d_functional.wait_tensor(tensor) for tensor in tensors_in([result])]
    boxed = result[-1] if isinstance(result, (list, tuple)) else result
    if writes is not None and isinstance(boxed, torch.ScriptObject):
        dist.Work.unbox(boxed).wait()
    return list(tensors_in([args[writes]])) if writes is not None else []


def _picked(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], places: tuple[int, ...], names: tuple[str, ...]
) -> list[Tensor]:
    found = list(tensors_in(args[place] for place in places if place < len(args)))
    return found + list(tensors_in(kwargs[name] for name in names if name in kwargs))


def group_of(args: tuple[Any, ...]) -> tuple[str, tuple[int, ...] | None]:
    """The process group among a collective's arguments: a name that all ranks have for it, and its ranks if known."""
    for argument in reversed(args):
        if isinstance(argument, str):
            return argument, _ranks_of(argument)
        if isinstance(argument, torch.ScriptObject) and (group := _process_group(argument)) is not None:
            # Its description is the same on every rank, where a sub-group's name is not.
            label = group.group_desc if group.group_desc not in ("", "undefined") else group.group_name
            return label, tuple(dist.get_process_group_ranks(group))
    return "unknown", None


def _ranks_of(name: str) -> tuple[int, ...] | None:
    """The ranks of a group that a functional collective has by its name. torch's own way to find it is private."""
    try:
        group = torch._C._distributed_c10d._resolve_process_group(name)  # type: ignore[arg-type]
        return tuple(dist.get_process_group_ranks(group))
    except (RuntimeError, ValueError, LookupError):
        return None


def _process_group(argument: Any) -> dist.ProcessGroup | None:
    try:
        return dist.ProcessGroup.unbox(argument)
    except RuntimeError:
        return None  # a reduction's kind is boxed too
