"""Operators and collectives as torch's dispatcher sees them, with digests of what they read and what they wrote."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import FakeWork
from torch.distributed.tensor import DTensor

# The module's name is private, the class is what torch's own documentation on extending it says to use.
from torch.utils._python_dispatch import TorchDispatchMode

from detsweep.causes import collective_name
from detsweep.worker.tracing import block_of

if TYPE_CHECKING:
    from detsweep.worker.observe import Observer

COLLECTIVES = ("c10d", "_c10d_functional")
# Of the same namespaces, and yet nothing that goes from rank to rank.
_NO_COLLECTIVE = ("wait_tensor", "_wrap_tensor_autograd")
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
# Which arguments of a collective it writes and which it reads, by position; the same one where it works in place.
_SIDES: Mapping[str, tuple[int | None, int | None]] = {
    "allreduce_": (0, 0), "allreduce_coalesced_": (0, 0), "broadcast_": (0, 0), "reduce_": (0, 0),
    "send": (None, 0), "recv_": (0, None), "recv_any_source_": (0, None), "barrier": (None, None),
}  # fmt: skip


@dataclass(frozen=True)
class _Signature:
    """What is known of an operator before it is called: positions and names of what it reads and writes."""

    name: str
    computes: bool
    reads: tuple[int, ...]
    reads_named: tuple[str, ...]
    writes: tuple[int, ...]
    writes_named: tuple[str, ...]


class OperatorMode(TorchDispatchMode):
    """Records every collective, with `operators` every ATen operator that computes too, forward and backward.

    `position` says in which module's course, and in which phase, an operator is called.
    """

    def __init__(self, observer: Observer, position: Callable[[], tuple[str, str]], *, operators: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._observer = observer
        self._position = position
        self._operators = operators
        self._issued: Counter[str] = Counter()
        self._signatures: dict[Any, _Signature] = {}

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if DTensor in types:
            # It unwraps itself and calls again with the local tensors, and issues collectives on the way.
            return NotImplemented
        kwargs = kwargs or {}
        if not self._observer.looking:
            return func(*args, **kwargs)
        if func.namespace in COLLECTIVES:
            return self._collective(func, args, kwargs)
        return self._operator(func, args, kwargs) if self._operators else func(*args, **kwargs)

    def _operator(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        signature = self._signatures.get(func)
        if signature is None:
            signature = self._signatures[func] = signature_of(func)
        if not signature.computes:
            return func(*args, **kwargs)
        read = list(tensors_in(args[place] for place in signature.reads if place < len(args)))
        read += tensors_in(kwargs[name] for name in signature.reads_named if name in kwargs)
        inputs = self._observer.digest(read) if read else None
        result = func(*args, **kwargs)
        written = list(tensors_in([result[0] if signature.name == "fsdp.all_gather_copy_in" else result]))
        if not written:
            written = list(tensors_in(args[place] for place in signature.writes if place < len(args)))
            written += tensors_in(kwargs[name] for name in signature.writes_named if name in kwargs)
        if written:
            module, phase = self._position()
            self._observer.record(
                "op",
                f"{signature.name} in {module}",
                written[0],
                block=block_of(module),
                digest=self._observer.digest(written),
                phase=phase,
                inputs=inputs,
            )
        return result

    def _collective(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        operator = _operator_of(func)
        if operator in _NO_COLLECTIVE:
            return func(*args, **kwargs)
        module, phase = self._position()
        group = self._group(args)
        name = collective_name(f"{func.namespace}.{operator}", self._issued[group], group, module)
        self._issued[group] += 1
        writes, reads = _sides(func)
        sent = list(tensors_in([args[reads]])) if reads is not None else []
        if sent:
            self._record_side("collective_in", name, sent, module, phase)
        result = func(*args, **kwargs)
        if delivered := _delivered(func, args, writes, result):
            self._record_side("collective_out", name, delivered, module, phase)
        return result

    def _record_side(self, site: str, name: str, tensors: list[Tensor], module: str, phase: str) -> None:
        digest = self._observer.digest(tensors)
        self._observer.record(site, name, tensors[0], block=block_of(module), digest=digest, phase=phase)

    def _group(self, args: tuple[Any, ...]) -> str:
        for argument in reversed(args):
            if isinstance(argument, str):
                return argument
            if isinstance(argument, torch.ScriptObject) and (group := _process_group(argument)) is not None:
                # Its description is the same on every rank, where a sub-group's name is not.
                label = group.group_desc if group.group_desc not in ("", "undefined") else group.group_name
                self._observer.groups[label] = tuple(dist.get_process_group_ranks(group))
                return label
        return "unknown"


class FaultMode(TorchDispatchMode):
    """Counts collectives, and operators in a block's forward, and shows each one's result before anyone else sees it.

    `strike(site, number, count, tensor)` says whether it changed the tensor; `number` counts from 0 in this run,
    `count` is how many the run before had (None in the first). `inside` gives the block whose forward runs. Entered
    below an OperatorMode.
    """

    def __init__(
        self,
        strike: Callable[[str, int, int | None, Tensor], bool],
        inside: Callable[[], int | None],
        looking: Callable[[], bool],
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._strike = strike
        self._inside = inside
        self._looking = looking
        self._counts: Counter[int | None] = Counter()
        self._previous: Counter[int | None] = Counter()

    def begin(self) -> None:
        """A run begins."""
        self._previous, self._counts = self._counts or self._previous, Counter()

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if DTensor in types:
            return NotImplemented
        result = func(*args, **(kwargs or {}))
        if not self._looking():
            return result
        if func.namespace in COLLECTIVES:
            delivered = _delivered(func, args, _sides(func)[0], result)[:1]
            if delivered and self._show("collective_out", None, delivered[0]) and func.namespace == "c10d":
                # gloo copies a reduce-scatter's result with each wait, and the caller waits again: it gets a work
                # that is done. Of such only torch's own fake collectives have one to give.
                done = FakeWork().boxed()
                return (*result[:-1], done) if isinstance(result, (list, tuple)) else done
        elif (block := self._inside()) is not None and _is_computed(func, result):
            self._show("op", block, result)
        return result

    def _show(self, site: str, block: int | None, tensor: Tensor) -> bool:
        number = self._counts[block]
        self._counts[block] += 1
        return self._strike(site, number, self._previous[block] or None, tensor)


def signature_of(func: Any) -> _Signature:
    """What an operator reads and writes, from its schema: `(a!)` marks what is written, `out=` what is only written."""
    name = f"{func.namespace}.{str(func).split('.')[1]}"
    # An overload's schema has no public name; it is what torch's own modes go by.
    arguments = func._schema.arguments
    written = [a.alias_info is not None and a.alias_info.is_write for a in arguments]
    overwrites = name in _OVERWRITES
    places = [(number, a) for number, a in enumerate(arguments) if not a.kwarg_only]
    if name == "fsdp.all_gather_copy_in":
        # Its second argument is the buffer that the collective is going to fill, its second result the same.
        places = places[:1]
    return _Signature(
        name,
        computes=not (func.is_view or name in _NOTHING_COMPUTED),
        reads=tuple(n for n, _ in places if not (overwrites and written[n])),
        reads_named=tuple(a.name for n, a in enumerate(arguments) if not (written[n] and (a.kwarg_only or overwrites))),
        writes=tuple(n for n, _ in places if written[n]),
        writes_named=tuple(a.name for n, a in enumerate(arguments) if written[n]),
    )


def tensors_in(values: Any) -> Iterator[Tensor]:
    """All tensors in nested lists and tuples that have bits to read."""
    for value in values:
        if isinstance(value, Tensor):
            if value.layout == torch.strided and value.device.type != "meta":
                yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors_in(value)


def _is_computed(func: Any, result: Any) -> bool:
    return isinstance(result, Tensor) and result.is_floating_point() and signature_of(func).computes


def _operator_of(func: Any) -> str:
    return str(func).split(".")[1]


def _sides(func: Any) -> tuple[int | None, int | None]:
    return _SIDES.get(_operator_of(func), (0, 1) if func.namespace == "c10d" else (None, 0))


def _delivered(func: Any, args: tuple[Any, ...], writes: int | None, result: Any) -> list[Tensor]:
    """What a collective brought to this rank, once the current stream has waited for it; on the CPU this waits."""
    if func.namespace != "c10d":
        if _operator_of(func) in _NO_COLLECTIVE:
            return []
        return [torch.ops._c10d_functional.wait_tensor(tensor) for tensor in tensors_in([result])]
    boxed = result[-1] if isinstance(result, (list, tuple)) else result
    if isinstance(boxed, torch.ScriptObject):
        dist.Work.unbox(boxed).wait()
    return list(tensors_in([args[writes]])) if writes is not None else []


def _process_group(argument: Any) -> dist.ProcessGroup | None:
    try:
        return dist.ProcessGroup.unbox(argument)
    except RuntimeError:
        return None  # a reduction's kind is boxed too
